"""Whether two encoders differ by more than chance: a paired bootstrap over the items of each set.

n: items of a set, r: resamples at a time, R: all resamples, G: groups of equal values.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from statistics import fmean
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from simcse.metrics import Float64

Counts = NDArray[np.int64]

_ITEMS_AT_ONCE = 1 << 20
"""Resamples are taken together until they hold so many items, which fit into a processor's cache
and a little more."""


class Sample(Protocol):
    """What a headline was computed from, item by item."""

    def __len__(self) -> int: ...

    def headlines(self, counts_rn: Counts) -> Float64:
        """The headline of each resample, `[r]`, which holds item i `counts_rn[:, i]` times."""


@dataclass(frozen=True, eq=False)
class ItemMean:
    """A headline that is the mean of a value of each item, such as a reciprocal rank."""

    value_n: Float64

    def __len__(self) -> int:
        return len(self.value_n)

    def headlines(self, counts_rn: Counts) -> Float64:
        means_r: Float64 = counts_rn @ self.value_n / len(self)
        return means_r


@dataclass(frozen=True, eq=False)
class RankCorrelation:
    """A headline that is Spearman's coefficient x 100 of predictions and grades.

    As in `metrics.spearman`, tied predictions count as ordered at random, so that an encoder gains
    nothing by them; only what a resample holds twice is tied with itself. Orders are sorted once; a
    resample only counts how many stand before each.
    """

    predicted_n: Float64
    gold_n: Float64

    def __len__(self) -> int:
        return len(self.gold_n)

    def headlines(self, counts_rn: Counts) -> Float64:
        predicted_rn, gold_rn = (order.deviations(counts_rn) for order in self._orders)
        covariance_r = np.einsum("rn,rn,rn->r", counts_rn, predicted_rn, gold_rn)
        gold_r = np.einsum("rn,rn,rn->r", counts_rn, gold_rn, gold_rn)
        # Of ranks 1 to n, of which each item's copies share theirs.
        predicted_r = (len(self) ** 3 - (counts_rn**3).sum(axis=1)) / 12
        # A resample may be constant, and orders nothing then.
        scale_r = np.sqrt(predicted_r * gold_r)
        correlation_r: Float64 = 100 * covariance_r / np.where(scale_r == 0, 1.0, scale_r)
        return correlation_r

    @cached_property
    def _orders(self) -> tuple[_Order, _Order]:
        return _Order.of(self.predicted_n), _Order.of(self.gold_n)


@dataclass(frozen=True)
class _Order:
    """Items by value."""

    sorted_n: NDArray[np.intp]
    """Item at each place."""
    starts_G: NDArray[np.intp]
    """Place where each group of equal values begins."""
    group_n: NDArray[np.intp]
    """Group of each item."""

    @classmethod
    def of(cls, value_n: Float64) -> _Order:
        _, group_n = np.unique(value_n, return_inverse=True)
        sorted_n = np.argsort(group_n, kind="stable")
        starts_G = np.flatnonzero(np.diff(group_n[sorted_n], prepend=-1))
        return cls(sorted_n, starts_G, group_n)

    def deviations(self, counts_rn: Counts) -> Float64:
        """Rank of each item in each resample, less the mean rank, `[r, n]`."""
        size_rG = np.add.reduceat(counts_rn[:, self.sorted_n], self.starts_G, axis=1)
        rank_rG = size_rG.cumsum(axis=1) - (size_rG - 1) / 2
        deviations_rn: Float64 = (rank_rG - (len(self.group_n) + 1) / 2)[:, self.group_n]
        return deviations_rn


@dataclass(frozen=True, kw_only=True)
class Difference:
    """Challenger less champion, and between what bounds chance leaves it."""

    difference: float
    low: float
    high: float


@dataclass(frozen=True, kw_only=True)
class PairedBootstrap:
    """Differences of two encoders on the same items."""

    average: Difference
    """Of the mean headline over all sets."""
    sets: Mapping[str, Difference]
    confidence: float
    resamples: int
    seed: int
    average_R: Float64 = field(repr=False, compare=False)
    """The average's difference in every resample."""


def paired_bootstrap(
    champion: Mapping[str, Sample],
    challenger: Mapping[str, Sample],
    *,
    resamples: int = 10_000,
    confidence: float = 0.95,
    seed: int = 0,
) -> PairedBootstrap:
    """Percentile intervals of the differences, from resamples that both encoders share.

    Items are drawn with replacement within each set (Efron and Tibshirani 1993, chapters 13 and 16;
    Berg-Kirkpatrick et al. 2012), so that each set keeps its size and its weight. A set's draws
    depend on `seed` and its name, and on no other set.
    Raises `ValueError` for samples that are not of the same items.
    """
    if {name: len(sample) for name, sample in champion.items()} != {
        name: len(sample) for name, sample in challenger.items()
    }:
        raise ValueError("the two encoders were not scored on the same items")
    tail = (1 - confidence) / 2
    differences_R: dict[str, Float64] = {}
    observed: dict[str, float] = {}
    for name, own in challenger.items():
        other, once_1n = champion[name], np.ones((1, len(own)), np.int64)
        observed[name] = float((own.headlines(once_1n) - other.headlines(once_1n))[0])
        differences_R[name] = np.concatenate(
            [
                own.headlines(counts_rn) - other.headlines(counts_rn)
                for counts_rn in _resampled(len(own), resamples, [seed, *name.encode()])
            ]
        )

    def between(observed: float, difference_R: Float64) -> Difference:
        low, high = np.quantile(difference_R, [tail, 1 - tail])
        return Difference(difference=observed, low=float(low), high=float(high))

    average_R: Float64 = np.mean(list(differences_R.values()), axis=0)
    return PairedBootstrap(
        average=between(fmean(observed.values()), average_R),
        sets={name: between(observed[name], found_R) for name, found_R in differences_R.items()},
        confidence=confidence,
        resamples=resamples,
        seed=seed,
        average_R=average_R,
    )


def _resampled(items: int, resamples: int, seed: list[int]) -> Iterator[Counts]:
    """How often each item is in each resample, `[r, n]`, until there are `resamples`."""
    random = np.random.default_rng(seed)
    at_once = max(1, _ITEMS_AT_ONCE // items)
    for start in range(0, resamples, at_once):
        count = min(at_once, resamples - start)
        drawn_rn = random.integers(items, size=(count, items)) + items * np.arange(count)[:, None]
        yield np.bincount(drawn_rn.ravel(), minlength=count * items).reshape(count, items)
