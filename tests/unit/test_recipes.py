from __future__ import annotations

from pathlib import Path

import pytest

from pipelines import demo_data, recipes
from simcse.errors import UsageError
from simcse_platform.config import TrainRun, load
from support.command_line import CommandLine


@pytest.fixture(autouse=True)
def demo_input(monkeypatch: pytest.MonkeyPatch, tiny_encoder: Path, tmp_path: Path) -> None:
    """The demo's encoder and sentences, without the packages that hold them."""
    monkeypatch.setattr(demo_data, "minilm_folder", lambda: tiny_encoder)
    monkeypatch.setattr(demo_data, "sentences_file", lambda: tmp_path / "sentences.txt")


@pytest.mark.parametrize("name", recipes.RECIPES)
def test_the_dry_run_of_a_recipe_is_a_file_that_gives_the_same_run(
    simcse: CommandLine, tmp_path: Path, name: str
) -> None:
    arguments = ["train", "--recipe", name, "--corpus", "wörds: [x]/:smile:.txt", "--dry-run"]
    shown = simcse(*arguments)
    assert (shown.code, shown.err) == (0, "")
    file = tmp_path / "run.yaml"
    file.write_text(shown.out, encoding="utf-8")
    assert load(file).encoder == recipes.find(name).encoder
    again = simcse("train", "--config", file, "--dry-run")
    assert (again.code, again.out) == (0, shown.out)


@pytest.mark.parametrize("name", recipes.RECIPES)
def test_a_recipe_says_where_it_comes_from_and_what_to_expect(name: str) -> None:
    recipe = recipes.RECIPES[name]
    assert isinstance(recipe(), TrainRun)
    text = " ".join((recipe.__doc__ or "").split())
    assert "xpect" in text or "rises from" in text


def test_the_published_settings_are_those_of_the_paper() -> None:
    bert, roberta, supervised = (
        recipes.find(name) for name in ("unsup_bert_base", "unsup_roberta_large", "sup_bert_base")
    )
    assert [run.optim.learning_rate for run in (bert, roberta, supervised)] == [3e-5, 3e-5, 5e-5]
    assert [run.global_batch_size for run in (bert, roberta, supervised)] == [64, 512, 512]
    assert [run.epochs for run in (bert, roberta, supervised)] == [1, 1, 3]
    assert [run.encoder.head for run in (bert, roberta, supervised)] == [
        "training",
        "training",
        "always",
    ]
    assert {run.objective.temperature for run in (bert, roberta, supervised)} == {0.05}
    assert {run.encoder.max_length for run in (bert, roberta, supervised)} == {32}


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "unsup_bert",
            "there is no recipe 'unsup_bert': did you mean unsup_bert_base? There are "
            "unsup_bert_base, unsup_roberta_large, sup_bert_base, demo",
        ),
        ("zzz", "there is no recipe 'zzz': There are unsup_bert_base, "),
    ],
)
def test_an_unknown_recipe_is_refused_with_those_there_are(
    simcse: CommandLine, name: str, message: str
) -> None:
    refused = simcse("train", "--recipe", name)
    assert refused.code == 2
    assert refused.error.startswith(message)
    with pytest.raises(UsageError, match="there is no recipe"):
        recipes.find(name)
