"""The paired bootstrap against plain loops, and how often its interval holds the truth."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from simcse.evaluation.significance import (
    ItemMean,
    RankCorrelation,
    Sample,
    paired_bootstrap,
)
from simcse.metrics import Float64, spearman


def draw_scores(count: int, *, seed: int = 0) -> tuple[Float64, Float64, Float64]:
    """Predictions of two encoders, and grades of which most are equal to others."""
    random = np.random.default_rng(seed)
    gold_n = random.integers(0, 6, count).astype(float)
    better_n = gold_n + random.normal(0, 1, count)
    worse_n = gold_n + random.normal(0, 3, count)
    return better_n, worse_n, gold_n


def resamples(sample: Sample, count: int) -> Float64:
    random = np.random.default_rng(1)
    drawn_rn = random.integers(len(sample), size=(count, len(sample)))
    return np.stack([np.bincount(row, minlength=len(sample)) for row in drawn_rn])


def test_a_resampled_rank_correlation_is_that_of_the_pairs_written_out() -> None:
    better_n, _, gold_n = draw_scores(40)
    sample = RankCorrelation(better_n, gold_n)
    counts_rn = resamples(sample, 25)
    for counts_n, got in zip(counts_rn, sample.headlines(counts_rn), strict=True):
        rows = np.repeat(np.arange(40), counts_n)
        want = 100 * stats.spearmanr(better_n[rows], gold_n[rows]).statistic
        assert got == pytest.approx(want, abs=1e-9)


@pytest.mark.parametrize("decimals", [0, 1, 8])
def test_once_each_is_the_headline_however_many_predictions_are_tied(decimals: int) -> None:
    better_n, _, gold_n = draw_scores(60)
    better_n = better_n.round(decimals)
    got = RankCorrelation(better_n, gold_n).headlines(np.ones((1, 60), np.int64))
    assert got[0] == pytest.approx(100 * spearman(better_n, gold_n), abs=1e-10)


def test_a_resampled_mean_is_that_of_the_items_written_out() -> None:
    sample = ItemMean(np.random.default_rng(0).random(30))
    counts_rn = resamples(sample, 25)
    want = [np.repeat(sample.value_n, counts_n).mean() for counts_n in counts_rn]
    assert sample.headlines(counts_rn) == pytest.approx(want, abs=1e-12)


@pytest.mark.parametrize("constant", ["predictions", "grades"])
def test_what_orders_nothing_correlates_with_nothing(constant: str) -> None:
    some_n, same_n = np.arange(5.0), np.ones(5)
    sample = RankCorrelation(*((same_n, some_n) if constant == "predictions" else (some_n, same_n)))
    assert sample.headlines(np.ones((1, 5), np.int64)).tolist() == [0]


def test_differences_are_of_one_draw_for_both() -> None:
    better_n, worse_n, gold_n = draw_scores(200)
    other_n, value_n = draw_scores(50, seed=3)[:2]
    champion = {"a": RankCorrelation(worse_n, gold_n), "b": ItemMean(other_n)}
    challenger = {"a": RankCorrelation(better_n, gold_n), "b": ItemMean(value_n)}
    found = paired_bootstrap(champion, challenger, resamples=400, seed=7)
    want = 100 * (
        stats.spearmanr(better_n, gold_n).statistic - stats.spearmanr(worse_n, gold_n).statistic
    )
    assert found.sets["a"].difference == pytest.approx(want)
    assert found.sets["b"].difference == pytest.approx(value_n.mean() - other_n.mean())
    assert found.average.difference == pytest.approx((want + found.sets["b"].difference) / 2)
    # What both share cancels, so that the difference varies less than what is subtracted.
    both = paired_bootstrap(champion, champion, resamples=400, seed=7)
    assert (both.average.low, both.average.difference, both.average.high) == (0, 0, 0)
    assert found.sets["a"].low < want < found.sets["a"].high
    assert found.average_R.shape == (400,)
    low, high = np.quantile(found.average_R, [0.025, 0.975])
    assert (found.average.low, found.average.high) == pytest.approx((low, high))


def test_a_seed_decides_the_interval_and_one_set_does_not_move_another() -> None:
    better_n, worse_n, gold_n = draw_scores(100)
    champion = {"a": RankCorrelation(worse_n, gold_n), "b": ItemMean(worse_n)}
    challenger = {"a": RankCorrelation(better_n, gold_n), "b": ItemMean(better_n)}
    first = paired_bootstrap(champion, challenger, resamples=200, seed=1)
    assert paired_bootstrap(champion, challenger, resamples=200, seed=1) == first
    assert paired_bootstrap(champion, challenger, resamples=200, seed=2) != first
    alone = paired_bootstrap({"a": champion["a"]}, {"a": challenger["a"]}, resamples=200, seed=1)
    assert alone.sets["a"] == first.sets["a"]


@pytest.mark.parametrize("challenger", [{"a": ItemMean(np.ones(4))}, {"b": ItemMean(np.ones(3))}])
def test_other_items_are_refused(challenger: dict[str, Sample]) -> None:
    with pytest.raises(ValueError, match="not scored on the same items"):
        paired_bootstrap({"a": ItemMean(np.ones(3))}, challenger, resamples=10)
