"""STS sets from the hub, without a hub."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Mapping
from pathlib import Path

import datasets
import huggingface_hub
import pytest

from simcse.evaluation import hub, load_sets

STS16 = ("mteb/sts16-sts", "4d8694f8f0e0100860b497b999b3dbed754a0513")
STSBENCHMARK = ("mteb/stsbenchmark-sts", "b0fddb56ed78048fa8b90373c8a3cfc37b684831")
SICK = ("mteb/sickr-sts", "20a6d6f312dd54037fe07a32d58e5e168867909d")

Serve = Callable[[Mapping[tuple[str, str], Mapping[str, int]]], None]


@pytest.fixture
def downloaded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Serve:
    """Lays out files as the hub has them, so many pairs a split, instead of downloading."""
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")

    def serve(pairs: Mapping[tuple[str, str], Mapping[str, int]]) -> None:
        def download(dataset: str, revision: str) -> str:
            folder = tmp_path / revision
            folder.mkdir()
            for split, count in pairs[dataset, revision].items():
                rows = [
                    {"split": split, "sentence1": f"one  {i}", "sentence2": "2", "score": i % 6 / 1}
                    for i in range(count)
                ]
                text = "\n".join(map(json.dumps, rows))
                (folder / f"{split}.jsonl.gz").write_bytes(gzip.compress(text.encode()))
            return str(folder)

        monkeypatch.setattr(hub, "cached_folder", lambda dataset, revision: None)
        monkeypatch.setattr(hub, "download", download)

    return serve


def test_sets_come_from_pinned_revisions_and_years_have_no_subsets(downloaded: Serve) -> None:
    downloaded({STS16: {"test": 1186}, STSBENCHMARK: {"validation": 1500, "test": 1379}})
    loaded = load_sets(["STS16", "STSBenchmark"], data=None, mode="test")
    year, benchmark = loaded.sets
    assert (year.subsets_known, benchmark.subsets_known) == (False, True)
    assert year.subsets["test"].first[1] == "one 1"
    assert year.subsets["test"].gold_n[5] == 5.0
    assert list(loaded.sha256) == [f"{name}@{sha}/test" for name, sha in (STS16, STSBENCHMARK)]


def test_the_dev_split_is_called_validation_on_the_hub(downloaded: Serve) -> None:
    downloaded({STSBENCHMARK: {"validation": 1500, "test": 1379}, SICK: {"test": 9927}})
    loaded = load_sets(["sts"], data=None, mode="dev")
    assert [(found.name, found.split) for found in loaded.sets] == [("STSBenchmark", "dev")]
    assert loaded.missing == {
        "SICKRelatedness": "mteb/sickr-sts on the hub has no validation split: point --data at a "
        "folder that holds the set"
    }


def test_sick_r_with_all_its_pairs_is_not_taken_for_the_test_split(downloaded: Serve) -> None:
    downloaded({SICK: {"test": 9927}})
    loaded = load_sets(["SICKRelatedness"], data=None, mode="test")
    assert loaded.sets == []
    assert loaded.missing == {
        "SICKRelatedness": "mteb/sickr-sts on the hub has 9927 pairs in its test split, but "
        "SICKRelatedness test has 4927: point --data at a folder that holds the set"
    }


def test_a_hub_that_does_not_answer_is_asked_once_and_every_set_is_missing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: list[str] = []

    def dataset_info(self: huggingface_hub.HfApi, repo_id: str, **options: object) -> None:
        asked.append(repo_id)
        assert options["timeout"] == 5.0
        raise TimeoutError("timed out\nwhile connecting")

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(huggingface_hub.HfApi, "dataset_info", dataset_info)
    loaded = load_sets(["STS12", "STS13"], data=None, mode="test")
    reason = (
        "the hub cannot be reached (TimeoutError: timed out): point --data at a folder that holds "
        "the set"
    )
    assert loaded.missing == {"STS12": reason, "STS13": reason}
    assert asked == ["mteb/sts12-sts"]
    assert loaded.sets == []


def test_a_set_that_the_hub_refuses_leaves_the_others_alone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    class RefusedError(huggingface_hub.errors.HfHubHTTPError):
        def __init__(self) -> None:
            Exception.__init__(self, "404 Client Error\nmore")

    asked: list[str] = []

    def dataset_info(self: huggingface_hub.HfApi, repo_id: str, **options: object) -> None:
        asked.append(repo_id)
        raise RefusedError

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(huggingface_hub.HfApi, "dataset_info", dataset_info)
    loaded = load_sets(["STS12", "STS13"], data=None, mode="test")
    assert asked == ["mteb/sts12-sts", "mteb/sts13-sts"]
    assert loaded.missing["STS12"].startswith(
        "the hub refuses mteb/sts12-sts (RefusedError: 404 Client Error): point --data"
    )
