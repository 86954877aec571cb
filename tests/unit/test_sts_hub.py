"""STS sets from the hub, without a hub."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import huggingface_hub
import pytest

from simcse.evaluation import hub, load_sts


def _serve(monkeypatch: pytest.MonkeyPatch, pairs: Mapping[str, int]) -> list[tuple[str, str, str]]:
    """Datasets with so many pairs each instead of the hub; the list fills with what is asked."""
    asked: list[tuple[str, str, str]] = []

    def fetch_rows(dataset: str, revision: str, split: str) -> Sequence[Mapping[str, object]]:
        asked.append((dataset, revision, split))
        return [
            {"score": i % 6, "sentence1": f"one  {i}", "sentence2": "two"}
            for i in range(pairs[dataset])
        ]

    monkeypatch.setattr(hub, "fetch_rows", fetch_rows)
    return asked


def test_sets_come_from_pinned_revisions(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = _serve(monkeypatch, {"mteb/sts16-sts": 1186, "mteb/stsbenchmark-sts": 1379})
    loaded = load_sts(["STS16", "STSBenchmark"], data=None, mode="test")
    assert asked == [
        ("mteb/sts16-sts", "4d8694f8f0e0100860b497b999b3dbed754a0513", "test"),
        ("mteb/stsbenchmark-sts", "b0fddb56ed78048fa8b90373c8a3cfc37b684831", "test"),
    ]
    year, benchmark = loaded.sets
    assert (year.subsets_known, benchmark.subsets_known) == (False, True)
    assert year.subsets["test"].first[1] == "one 1"
    assert year.subsets["test"].gold_n[5] == 5.0
    assert list(loaded.sha256) == [f"{dataset}@{revision}/test" for dataset, revision, _ in asked]


def test_the_dev_split_is_called_validation_on_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = _serve(monkeypatch, {"mteb/stsbenchmark-sts": 1500})
    [found] = load_sts(["STSBenchmark"], data=None, mode="dev").sets
    assert (found.split, asked[0][2]) == ("dev", "validation")


def test_sick_r_with_all_its_pairs_is_not_taken_for_the_test_split(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _serve(monkeypatch, {"mteb/sickr-sts": 9927})
    loaded = load_sts(["SICKRelatedness"], data=None, mode="test")
    assert loaded.sets == []
    assert loaded.missing["SICKRelatedness"] == (
        "mteb/sickr-sts on the hub has 9927 pairs in its test split, but SICKRelatedness test has "
        "4927: point --data at a folder that holds it"
    )


def test_a_hub_that_does_not_answer_is_asked_once_and_every_set_is_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[str] = []

    def dataset_info(self: huggingface_hub.HfApi, repo_id: str, **options: object) -> None:
        asked.append(repo_id)
        assert options["timeout"] == 5.0
        raise TimeoutError("timed out\nafter 5 s")

    monkeypatch.setattr(huggingface_hub.HfApi, "dataset_info", dataset_info)
    loaded = load_sts(["STS12", "STS13"], data=None, mode="test")
    reason = (
        "the hub cannot be reached for mteb/sts12-sts (TimeoutError: timed out after 5 s): point "
        "--data at a folder that holds the set"
    )
    assert loaded.missing == {"STS12": reason, "STS13": reason}
    assert asked == ["mteb/sts12-sts"]
    assert loaded.sets == []
