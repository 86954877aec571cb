"""Scores of STS sets, and what they share with every other set."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from scipy import stats

from simcse.errors import ModelError
from simcse.evaluation import (
    STS_SUITE,
    EmbeddingTable,
    Pairs,
    Scores,
    STSSet,
    distinct_sentences,
    evaluate,
    metric_name,
)
from simcse.evaluation.protocol import Progress


class HashEmbedder:
    """A vector from the letters of each sentence; remembers what it was asked."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def encode(self, sentences: Sequence[str], *, progress: Progress | None = None) -> np.ndarray:
        self.asked += sentences
        rows = [np.random.default_rng(list(s.encode())).normal(size=8) for s in sentences]
        return np.array(rows, dtype=np.float32)


def _pairs(count: int, seed: int) -> Pairs:
    random = np.random.default_rng(seed)
    return Pairs(
        tuple(f"left {seed} {i}" for i in range(count)),
        tuple(f"right {seed} {i}" for i in range(count)),
        random.integers(0, 26, size=count) / 5,
    )


def _cosines(pairs: Pairs) -> np.ndarray:
    first, second = (
        HashEmbedder().encode(side).astype(float) for side in (pairs.first, pairs.second)
    )
    return (first * second).sum(1) / np.linalg.norm(first, axis=1) / np.linalg.norm(second, axis=1)


def test_pairs_subsets_and_sets_are_those_of_the_literature() -> None:
    pairs = {name: sum(splits["test"].values()) for name, splits in STS_SUITE.items()}
    assert pairs == {
        "STS12": 3108,
        "STS13": 1500,
        "STS14": 3750,
        "STS15": 3000,
        "STS16": 1186,
        "STSBenchmark": 1379,
        "SICKRelatedness": 4927,
    }


def test_all_mean_and_wmean_equal_scipy_over_the_subsets() -> None:
    subsets = {"large": _pairs(60, seed=1), "small": _pairs(20, seed=2)}
    scores = evaluate(HashEmbedder(), [STSSet("STS99", "test", subsets)]).scores["STS99"]
    cosines = [_cosines(part) for part in subsets.values()]
    golds = [part.gold_n for part in subsets.values()]
    for name, correlation in (("spearman", stats.spearmanr), ("pearson", stats.pearsonr)):
        large, small = (
            100 * correlation(c, g).statistic for c, g in zip(cosines, golds, strict=True)
        )
        together = correlation(np.concatenate(cosines), np.concatenate(golds)).statistic
        got = scores.numbers[name]
        assert got == pytest.approx(
            {"all": 100 * together, "mean": (large + small) / 2, "wmean": (3 * large + small) / 4}
        )
        assert scores.numbers["subsets"]["small"][name] == pytest.approx(small)
    assert scores.numbers["pairs"] == 80
    assert scores.headline == scores.numbers["spearman"]["all"]
    assert scores.measure == "spearman"


def test_a_source_without_subsets_gives_no_mean_over_them() -> None:
    mixed = STSSet("STS12", "test", {"test": _pairs(30, seed=3)}, subsets_known=False)
    numbers = evaluate(HashEmbedder(), [mixed]).scores["STS12"].numbers
    assert numbers["spearman"]["mean"] is None
    assert numbers["pearson"]["wmean"] is None
    assert numbers["subsets"] == {}


def test_a_sentence_of_several_sets_is_embedded_once_and_shortest_first() -> None:
    shared = Pairs(("a b", "a"), ("a long sentence", "a b"), np.array([1.0, 2.0]))
    sets = [STSSet("one", "test", {"x": shared}), STSSet("two", "test", {"y": shared})]
    embedder = HashEmbedder()
    evaluation = evaluate(embedder, sets)
    assert embedder.asked == ["a", "a b", "a long sentence"] == distinct_sentences(sets)
    assert evaluation.scores["one"].headline == evaluation.scores["two"].headline
    assert list(evaluation.seconds) == ["embedding", "one", "two"]


def test_a_vector_that_is_not_finite_is_refused_with_its_sentence() -> None:
    vectors = np.ones((3, 4), np.float32)
    vectors[1, 2] = np.nan
    with pytest.raises(ModelError, match=r"1 of 3 sentences are not finite, the first for 'b'"):
        EmbeddingTable(["a", "b", "c"], vectors)


@pytest.mark.parametrize(
    ("name", "want"),
    [
        ("STSBenchmark", "dev_stsb_spearman"),
        ("SICKRelatedness", "dev_sickr_spearman"),
        ("DemoPairs", "dev_demopairs_spearman"),
        ("my pairs (2)", "dev_my_pairs_2__spearman"),
    ],
)
def test_metric_names_hold_split_set_and_measure(name: str, want: str) -> None:
    scores = Scores(headline=1.0, measure="spearman", numbers={})
    assert metric_name(STSSet(name, "dev", {}), scores) == want
