from __future__ import annotations

from pathlib import Path

import pytest

from pipelines import settings
from simcse.errors import UsageError
from simcse_platform.config import TrainRun, override
from simcse_platform.sweep.space import Choice, Range, parse


@pytest.fixture(autouse=True)
def somewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An empty working directory and no data named in the environment."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SIMCSE_DATA", raising=False)


@pytest.fixture
def config(tmp_path: Path) -> Path:
    file = tmp_path / "mine.yaml"
    file.write_text(
        "encoder: {model: some/folder}\nseed: 7\ndata: {corpus: [from_file.txt]}\n"
        "dev: {data: of_the_file}\ntracking: {uri: 'http://file'}\n"
    )
    return file


def resolve(config: Path | None = None, recipe: str | None = None, **flags: object) -> TrainRun:
    given: dict[str, object] = {"corpus": None, "data": None, "tracking": None, "assignments": []}
    return settings.resolve(recipe, config, **(given | flags)).run  # type: ignore[arg-type]


def test_flags_lie_over_the_file_and_assignments_over_flags(config: Path, tmp_path: Path) -> None:
    plain = resolve(config)
    assert plain.data.corpus == (str(tmp_path / "from_file.txt"),)
    assert (plain.seed, plain.tracking.uri) == (7, "http://file")

    flags = {"corpus": ["a.txt", "b"], "data": Path("flag"), "tracking": "http://flag"}
    flagged = resolve(config, **flags)
    assert flagged.data.corpus == (str(tmp_path / "a.txt"), str(tmp_path / "b"))
    assert flagged.dev.data == str(tmp_path / "flag")
    assert (flagged.seed, flagged.tracking.uri) == (7, "http://flag")

    assigned = resolve(
        config,
        **flags,
        assignments=["data.corpus=[set]", "dev.data=set", "tracking.uri='http://set'", "seed=1"],
    )
    assert assigned.data.corpus == (str(tmp_path / "set"),)
    assert assigned.dev.data == str(tmp_path / "set")
    assert (assigned.seed, assigned.tracking.uri) == (1, "http://set")


def test_a_recipe_is_overridden_like_a_file() -> None:
    run = resolve(recipe="unsup_bert_base", corpus=["s3://bucket/x"], assignments=["epochs=2"])
    assert (run.epochs, run.data.corpus) == (2, ("s3://bucket/x",))
    assert run.encoder.model == "bert-base-uncased"


def test_the_environment_names_the_data_where_nothing_else_does(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SIMCSE_DATA", "~/of_the_environment")
    monkeypatch.setenv("HOME", "/home/me")
    recipe = "unsup_bert_base"
    assert resolve(recipe=recipe).dev.data == "/home/me/of_the_environment"
    assert resolve(config).dev.data == str(tmp_path / "of_the_file")
    assert resolve(recipe=recipe, data=Path("flag")).dev.data == str(tmp_path / "flag")
    assert resolve(recipe=recipe, assignments=["dev.data=null"]).dev.data is None
    monkeypatch.setenv("SIMCSE_DATA", "")
    assert resolve(recipe=recipe).dev.data is None


def test_a_model_folder_becomes_absolute_and_a_hub_id_stays(config: Path, tmp_path: Path) -> None:
    assert resolve(config).encoder.model == "some/folder"
    (tmp_path / "some" / "folder").mkdir(parents=True)
    assert resolve(config).encoder.model == str(tmp_path / "some" / "folder")


def test_a_dev_set_of_ones_own_becomes_absolute_and_a_name_stays(tmp_path: Path) -> None:
    run = resolve(recipe="unsup_bert_base", assignments=["dev.tasks=[STSBenchmark, sets/my.tsv]"])
    assert run.dev.tasks == ("STSBenchmark", str(tmp_path / "sets" / "my.tsv"))


def test_a_run_has_one_origin_which_names_it(config: Path) -> None:
    refused = pytest.raises(
        UsageError,
        match=r"^name a run by --recipe NAME or by --config FILE; the recipes are unsup_bert_b",
    )
    with refused:
        resolve()
    with pytest.raises(UsageError, match="not from both: leave one out"):
        resolve(config, recipe="demo")
    assert settings.resolve(None, config, None, None, None, None).origin == "mine"


def test_a_list_of_names_may_have_spaces_after_its_commas() -> None:
    assert settings.names("STS12, STS13,sts") == ["STS12", "STS13", "sts"]


def test_searched_paths_mean_the_same_in_every_directory(config: Path, tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    searches = [
        "encoder.model=here,some/hub-id",
        "data.corpus=[a.txt],[b.txt, s3://bucket/c]",
        "optim.learning_rate=1e-5,1e-4",
        "seed=integer(1,9)",
    ]
    base = resolve(config)
    found = settings.absolute_space(parse(searches, base), base)
    assert found == {
        "encoder.model": Choice((str(tmp_path / "here"), "some/hub-id")),
        "data.corpus": Choice((f'["{tmp_path}/a.txt"]', f'["{tmp_path}/b.txt", "s3://bucket/c"]')),
        "optim.learning_rate": Choice(("1e-5", "1e-4")),
        "seed": Range("integer", 1, 9),
    }
    run = override(base, [f"data.corpus={found['data.corpus'].values[1]}"])  # type: ignore[union-attr]
    assert run.data.corpus == (str(tmp_path / "b.txt"), "s3://bucket/c")
