"""The registry on SQLite: versions, aliases, decisions, and promotions at the same time."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mlflow import MlflowClient

from simcse.encoder import SentenceEncoder
from simcse.errors import UsageError
from simcse.evaluation.significance import ItemMean
from simcse_platform.errors import RegistryError, TrackingError
from simcse_platform.tracking import lease
from simcse_platform.tracking.champions import history, outcome, promote, rollback
from simcse_platform.tracking.location import tracking_uri
from simcse_platform.tracking.mlflow_model import log_model
from simcse_platform.tracking.mlflow_tracker import start_run
from simcse_platform.tracking.promotion import Comparison, Measured
from simcse_platform.tracking.registry import (
    Version,
    copy_version,
    fetch_model,
    register,
    register_folder,
)
from support.tiny import save_tiny_encoder


@pytest.fixture(scope="module")
def uri(tmp_path_factory: pytest.TempPathFactory) -> str:
    return tracking_uri(None, tmp_path_factory.mktemp("output"))


def _model(folder: Path, *, score: float, seed: int = 0) -> Path:
    """A model folder of ours that says what it will be scored."""
    plain = save_tiny_encoder(folder / "plain", seed=seed)
    model = folder / "model"
    SentenceEncoder.load(plain, pooling="avg").save(model)
    (model / "score.txt").write_text(str(score))
    return model


def _compare(champion: Path | None, challenger: Path) -> Comparison:
    def measure(folder: Path) -> Measured:
        scores = {"STS12": float((folder / "score.txt").read_text()), "STS13": 50.0}
        samples = {name: ItemMean(np.full(10, score)) for name, score in scores.items()}
        return Measured(headlines=scores, samples=samples)

    return Comparison(
        champion=measure(champion) if champion else None,
        challenger=measure(challenger),
        data_sha256={"STS12.csv": "00ff"},
    )


def _aliases(uri: str, name: str) -> dict[str, str]:
    aliases = MlflowClient(uri, uri).get_registered_model(name).aliases
    return {alias: str(version) for alias, version in aliases.items()}


def _decisions(uri: str, version: Version) -> list[dict[str, Any]]:
    tags = MlflowClient(uri, uri).get_model_version(version.name, version.version).tags
    return [json.loads(tags[key]) for key in sorted(tags) if key.startswith("decision.")]


def test_the_chain_from_register_to_rollback_moves_the_aliases(uri: str, tmp_path: Path) -> None:
    name, cache = "chain", tmp_path / "cache"
    one = register_folder(uri, name, _model(tmp_path / "1", score=60))
    assert (one.version, one.alias, one.uri) == ("1", "challenger", "models:/chain/1")
    first = promote(uri, name, compare=_compare, cache=cache)
    assert (first.promoted, first.champion_before) == (True, None)
    assert first.reason == "the first champion, average 55.00 on STS12, STS13"
    assert _aliases(uri, name) == {"champion": "1"}

    two = register_folder(uri, name, _model(tmp_path / "2", score=70, seed=2))
    assert _aliases(uri, name) == {"champion": "1", "challenger": "2"}
    better = promote(uri, name, compare=_compare, cache=cache)
    assert (better.promoted, better.champion_before, better.version) == (True, "1", "2")
    assert _aliases(uri, name) == {"champion": "2", "previous": "1"}
    (kept,) = _decisions(uri, two)
    assert kept == json.loads(json.dumps(better.to_dict()))
    assert kept["champion"]["scores"] == {"STS12": 60.0, "STS13": 50.0}
    assert kept["challenger"]["average"] == 60
    assert kept["difference"]["average"] == {"difference": 5, "low": 5, "high": 5}
    assert (first.earlier_comparisons, better.earlier_comparisons) == (0, 1)

    three = register_folder(uri, name, _model(tmp_path / "3", score=65))
    worse = promote(uri, name, compare=_compare, cache=cache)
    assert not worse.promoted
    assert worse.reason == (
        "average 57.50 on STS12, STS13 against the champion's 60.00: -2.50, 95% between "
        "-2.50 and -2.50 is not surely above 0; STS12 loses 5.00, and may lose 1 (-5.00, 95% "
        "between -5.00 and -5.00)"
    )
    assert _aliases(uri, name) == {"champion": "2", "previous": "1", "challenger": "3"}
    assert [decision["promoted"] for decision in _decisions(uri, three)] == [False]

    back = rollback(uri, name)
    assert (back.action, back.version, back.champion_before) == ("rollback", "1", "2")
    assert _aliases(uri, name) == {"champion": "1", "previous": "2", "challenger": "3"}
    assert [decision["action"] for decision in _decisions(uri, one)] == ["promote", "rollback"]
    # 3 is better than 1, and may be promoted by number.
    assert promote(uri, name, version="3", compare=_compare, cache=cache).promoted
    assert _aliases(uri, name) == {"champion": "3", "previous": "1"}
    assert "promotion_lock" not in MlflowClient(uri, uri).get_registered_model(name).tags
    past = history(uri, name)
    assert [(entry["action"], entry["version"], entry["promoted"]) for entry in past] == [
        ("promote", "1", True),
        ("promote", "2", True),
        ("promote", "3", False),
        ("rollback", "1", True),
        ("promote", "3", True),
    ]
    assert [entry.get("earlier_comparisons") for entry in past] == [0, 1, 2, None, 3]


def test_a_rollback_that_is_killed_half_way_has_gone_back(
    uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, cache = "half", tmp_path / "cache"
    for score in (60, 70):
        register_folder(uri, name, _model(tmp_path / str(score), score=score, seed=score))
        promote(uri, name, compare=_compare, cache=cache)
    assert _aliases(uri, name) == {"champion": "2", "previous": "1"}
    set_alias = MlflowClient.set_registered_model_alias

    def set_one(client: MlflowClient, name: str, alias: str, version: str) -> None:
        set_alias(client, name, alias, version)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(MlflowClient, "set_registered_model_alias", set_one)
        with pytest.raises(KeyboardInterrupt):
            rollback(uri, name)
    assert _aliases(uri, name)["champion"] == "1"


def test_a_promotion_that_is_cut_short_says_so_in_the_history(
    uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, cache = "short", tmp_path / "cache"
    register_folder(uri, name, _model(tmp_path / "1", score=60))

    def refuse(client: MlflowClient, name: str, alias: str, version: str) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(MlflowClient, "set_registered_model_alias", refuse)
        with pytest.raises(KeyboardInterrupt):
            promote(uri, name, compare=_compare, cache=cache)
    assert _aliases(uri, name) == {"challenger": "1"}
    assert [outcome(past) for past in history(uri, name)] == ["cut short"]
    assert promote(uri, name, compare=_compare, cache=cache).carried_out
    assert [outcome(past) for past in history(uri, name)] == ["cut short", "champion"]


def test_a_dry_run_decides_and_changes_nothing(uri: str, tmp_path: Path) -> None:
    only = register_folder(uri, "dry", _model(tmp_path, score=60))
    decision = promote(uri, "dry", compare=_compare, cache=tmp_path / "cache", dry_run=True)
    assert decision.promoted
    assert decision.dry_run
    assert _aliases(uri, "dry") == {"challenger": "1"}
    assert _decisions(uri, only) == []


def test_the_model_of_a_run_is_registered_once(uri: str, tmp_path: Path) -> None:
    spool = tmp_path / "spool.jsonl"
    run_id = start_run(uri, "simcse", "demo", storage=tmp_path, spool=spool)
    with pytest.raises(RegistryError, match=f"run {run_id} has no model: register its model"):
        register(uri, "of-run", run_id=run_id)
    log_model(uri, run_id, _model(tmp_path / "a", score=1))
    newest = log_model(uri, run_id, _model(tmp_path / "b", score=2))
    version = register(uri, "of-run", run_id=run_id)
    assert version.run_id == run_id
    assert MlflowClient(uri, uri).get_model_version("of-run", version.version).source == newest
    assert register(uri, "of-run", run_id=run_id) == version
    # It takes the place of the newest version from nobody.
    newer = register_folder(uri, "of-run", _model(tmp_path / "c", score=3))
    again = register(uri, "of-run", run_id=run_id)
    assert (again.version, again.alias) == (version.version, None)
    assert again.shown == "models:/of-run/1 is registered; a newer version is the challenger"
    assert _aliases(uri, "of-run") == {"challenger": newer.version}
    promote(uri, "of-run", version="1", compare=_compare, cache=tmp_path / "cache")
    in_use = register(uri, "of-run", run_id=run_id)
    assert in_use.alias == "champion"
    assert in_use.shown == "models:/of-run/1 is registered already, with the alias champion"
    with pytest.raises(RegistryError, match=r"there is no run 0{32}"):
        register(uri, "of-run", run_id="0" * 32)


def test_a_fetched_model_gives_the_same_vectors(uri: str, tmp_path: Path) -> None:
    model = _model(tmp_path / "m", score=1, seed=7)
    version = register_folder(uri, "fetched", model)
    folder = fetch_model(uri, "models:/fetched@challenger", tmp_path / "cache")
    assert fetch_model(uri, version.uri, tmp_path / "cache") == folder
    np.testing.assert_array_equal(
        SentenceEncoder.load(folder).encode(["the dog runs", "rain"]),
        SentenceEncoder.load(model).encode(["the dog runs", "rain"]),
    )
    assert [path.name for path in (tmp_path / "cache").iterdir()] == ["fetched"]


def test_a_version_whose_files_are_gone_is_named(tmp_path: Path) -> None:
    uri = tracking_uri(None, tmp_path / "output")
    version = register_folder(uri, "gone", _model(tmp_path / "m", score=1))
    for files in (tmp_path / "output" / "mlartifacts").iterdir():
        shutil.rmtree(files)
    with pytest.raises(
        RegistryError, match=rf"^the files of {version.uri} are gone from .*: bring them back, or"
    ):
        fetch_model(uri, version.uri, tmp_path / "cache")
    assert [*(tmp_path / "cache").rglob("*.safetensors")] == []


def test_a_version_is_copied_into_another_registry_once(uri: str, tmp_path: Path) -> None:
    model = _model(tmp_path / "m", score=1, seed=5)
    original = register_folder(uri, "staged", model)
    production = tracking_uri(None, tmp_path / "production")
    cache = tmp_path / "cache"
    copied = copy_version(uri, "models:/staged@challenger", production, "live", cache=cache)
    assert (copied.name, copied.version, copied.alias) == ("live", "1", "challenger")
    tags = MlflowClient(production, production).get_model_version("live", "1").tags
    assert tags["copied_from"] == f"models:/staged/{original.version} of {uri}"
    run = MlflowClient(production, production).get_run(copied.run_id)
    assert run.data.tags["mlflow.note.content"] == (
        f"Registers models:/staged/{original.version} of {uri} as `live`; nothing is trained here."
    )
    np.testing.assert_array_equal(
        SentenceEncoder.load(fetch_model(production, "models:/live/1", cache)).encode(["rain"]),
        SentenceEncoder.load(model).encode(["rain"]),
    )
    assert copy_version(uri, original.uri, production, "live", cache=cache) == copied
    register_folder(uri, "staged", _model(tmp_path / "n", score=1, seed=6))
    newer = copy_version(uri, "models:/staged@challenger", production, "live", cache=cache)
    assert newer.version == "2"
    assert _aliases(production, "live") == {"challenger": "2"}
    # Another model under the same name and number is another one.
    MlflowClient(uri, uri).delete_registered_model("staged")
    register_folder(uri, "staged", _model(tmp_path / "o", score=1, seed=8))
    other = copy_version(uri, "models:/staged/1", production, "live", cache=cache)
    assert other.version == "3"
    with pytest.raises(RegistryError, match="there is no version 9 of staged"):
        copy_version(uri, "models:/staged/9", production, "live", cache=cache)


def test_what_is_not_there_is_named(uri: str, tmp_path: Path) -> None:
    register_folder(uri, "known", _model(tmp_path, score=1))
    with pytest.raises(RegistryError, match=r"there is no model 'unknown' in the registry sqlite:"):
        fetch_model(uri, "models:/unknown@champion", tmp_path)
    with pytest.raises(RegistryError, match=r"there is no model 'unknown' in the registry"):
        history(uri, "unknown")
    for name in ("..", "o'neil", "a/b", "", "n" * 201):
        with pytest.raises(UsageError, match=f"{name!r} is no name for a model: use up to 200"):
            register_folder(uri, name, tmp_path / "model")
    with pytest.raises(RegistryError, match="there is no version 9 of known"):
        fetch_model(uri, "models:/known/9", tmp_path)
    with pytest.raises(RegistryError, match="there is no version  of known"):
        promote(uri, "known", version="", compare=_compare, cache=tmp_path)
    with pytest.raises(RegistryError, match="known has no version with the alias champion"):
        fetch_model(uri, "models:/known@champion", tmp_path)
    with pytest.raises(UsageError, match="'models:/known' is no model URI: write models:/NAME@"):
        fetch_model(uri, "models:/known", tmp_path)
    with pytest.raises(
        RegistryError, match="known has no previous champion to go back to: promote"
    ):
        rollback(uri, "known")
    promote(uri, "known", compare=_compare, cache=tmp_path)
    with pytest.raises(RegistryError, match="known has no version with the alias challenger"):
        promote(uri, "known", compare=_compare, cache=tmp_path)
    with pytest.raises(RegistryError, match="version 1 of known is the champion already: reg"):
        promote(uri, "known", version="1", compare=_compare, cache=tmp_path)


def test_a_version_of_another_project_is_refused(uri: str, tmp_path: Path) -> None:
    client = MlflowClient(uri, uri)
    (tmp_path / "MLmodel").write_text("flavors: {sklearn: {}}\n")
    client.create_registered_model("foreign")
    client.create_model_version("foreign", source=tmp_path.as_uri())
    with pytest.raises(RegistryError, match="models:/foreign/1 holds no sentence encoder"):
        fetch_model(uri, "models:/foreign/1", tmp_path / "cache")


def test_a_database_that_cannot_be_opened_is_one_line(tmp_path: Path) -> None:
    before = time.monotonic()
    with pytest.raises(TrackingError, match=f"tracking database {tmp_path} cannot be opened"):
        rollback(f"sqlite:///{tmp_path}", "demo")  # a folder
    (tmp_path / "text").write_text("no database " * 100)
    with pytest.raises(
        TrackingError, match=r"text cannot be opened \(file is not a database\): corr"
    ):
        rollback(f"sqlite:///{tmp_path}/text", "demo")
    assert time.monotonic() - before < 5


PROMOTE = """
import sys, time
from pathlib import Path
from simcse_platform.errors import RegistryError
import numpy as np
from simcse.evaluation.significance import ItemMean
from simcse_platform.tracking.promotion import Comparison, Measured
from simcse_platform.tracking.champions import promote

uri, version, folder = sys.argv[1], sys.argv[2], Path(sys.argv[3])

def compare(champion, challenger):
    (folder / f"ready-{version}").touch()
    while not (folder / "go").exists():
        time.sleep(0.01)
    one, two = (
        Measured(headlines={"A": score}, samples={"A": ItemMean(np.full(9, score))})
        for score in (1.0, 2.0)
    )
    return Comparison(champion=one, challenger=two, data_sha256={})

try:
    decision = promote(uri, "race", version=version, compare=compare, cache=folder / "cache")
    print("promoted" if decision.promoted else decision.reason)
except RegistryError as error:
    print(error)
"""


def test_of_two_promotions_at_once_one_wins(uri: str, tmp_path: Path) -> None:
    for version in ("1", "2", "3"):
        register_folder(uri, "race", _model(tmp_path / version, score=int(version)))
    promote(uri, "race", version="1", compare=_compare, cache=tmp_path / "cache")
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", PROMOTE, uri, version, tmp_path],
            stdout=subprocess.PIPE,
            text=True,
        )
        for version in ("2", "3")
    ]
    while not all((tmp_path / f"ready-{version}").exists() for version in ("2", "3")):
        assert all(process.poll() is None for process in processes)
        time.sleep(0.05)
    (tmp_path / "go").touch()
    said = [process.communicate(timeout=300)[0].strip() for process in processes]
    assert sorted(text == "promoted" for text in said) == [False, True]
    winner, loser = ("2", "3") if said[0] == "promoted" else ("3", "2")
    assert (
        f"the champion of race changed from version 1 to version {winner} while version {loser} "
        "was compared with it: promote again"
    ) in said
    aliases = _aliases(uri, "race")
    assert (aliases["champion"], aliases["previous"]) == (winner, "1")
    assert [(past["version"], outcome(past)) for past in history(uri, "race")] == [
        ("1", "champion"),
        (winner, "champion"),
    ]


def test_a_lease_left_by_a_killed_process_is_taken_over(
    uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease, "LEASE_SECONDS", 2.0)
    register_folder(uri, "left", _model(tmp_path, score=1))
    MlflowClient(uri, uri).set_registered_model_tag("left", "promotion_lock", "killed 123")
    before = time.monotonic()
    assert promote(uri, "left", compare=_compare, cache=tmp_path / "cache").promoted
    assert time.monotonic() - before >= 2
    assert "promotion_lock" not in MlflowClient(uri, uri).get_registered_model("left").tags
