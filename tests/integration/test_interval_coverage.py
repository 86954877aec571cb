"""How often the paired bootstrap's interval holds the truth."""

from __future__ import annotations

import math

import numpy as np

from simcse.evaluation.significance import RankCorrelation, paired_bootstrap


def test_the_interval_holds_the_true_difference_as_often_as_it_says() -> None:
    """1,000 worlds in which the difference is known: 95 % intervals of 300 pairs.

    Of normal variables that correlate by c, Spearman's coefficient is 6 / pi * asin(c / 2).
    """
    random = np.random.default_rng(0)
    correlations = (0.8, 0.75)
    better, worse = (6 / math.pi * math.asin(c / 2) for c in correlations)
    covariance = np.array([[1, *correlations], [0.8, 1, 0.7], [0.75, 0.7, 1]])
    held = 0
    for world in range(1000):
        gold_n, first_n, second_n = random.multivariate_normal(np.zeros(3), covariance, 300).T
        found = paired_bootstrap(
            {"a": RankCorrelation(second_n, gold_n)},
            {"a": RankCorrelation(first_n, gold_n)},
            resamples=500,
            seed=world,
        )
        held += found.average.low <= 100 * (better - worse) <= found.average.high
    assert 930 <= held <= 970
