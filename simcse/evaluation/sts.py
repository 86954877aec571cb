"""Semantic textual similarity: sentence pairs that people graded, ordered by cosine.

n: pairs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypedDict

import numpy as np
from numpy.typing import NDArray

from simcse import metrics
from simcse.evaluation.protocol import EmbeddingTable, Scores
from simcse.evaluation.significance import RankCorrelation


@dataclass(frozen=True, slots=True)
class Pairs:
    """Graded sentence pairs."""

    first: tuple[str, ...]
    second: tuple[str, ...]
    gold_n: NDArray[np.float64]
    """Grades; only their order matters to Spearman, and any scale will do."""

    def __len__(self) -> int:
        return len(self.gold_n)


class Aggregates(TypedDict):
    """One correlation x 100 over a set of several subsets (paper appendix B)."""

    all: float
    """Over the pairs of all subsets put together: the literature's number."""
    mean: float | None
    """Plain mean over subsets; null where the source does not tell subsets apart."""
    wmean: float | None
    """Mean over subsets weighted by their pairs; null like `mean`."""


class SubsetNumbers(TypedDict):
    pairs: int
    spearman: float
    pearson: float


class STSNumbers(TypedDict):
    pairs: int
    spearman: Aggregates
    pearson: Aggregates
    subsets: dict[str, SubsetNumbers]


@dataclass(frozen=True, slots=True)
class STSSet:
    """One split of one STS set."""

    name: str
    split: str
    subsets: Mapping[str, Pairs]
    """Pairs by the name of their subset."""
    subsets_known: bool = True
    """False where the source mixes a year's subsets: `subsets` then holds all pairs as one."""

    def sentences(self) -> Sequence[str]:
        return [text for part in self.subsets.values() for text in (*part.first, *part.second)]

    def score(self, vectors: EmbeddingTable) -> Scores:
        """Spearman and Pearson of cosine and grade; the headline is Spearman `all`."""
        cosines = [
            metrics.cosine_rows(vectors[part.first], vectors[part.second])
            for part in self.subsets.values()
        ]
        golds = [part.gold_n for part in self.subsets.values()]
        subsets = {
            name: SubsetNumbers(
                pairs=len(gold_n),
                spearman=100 * metrics.spearman(cosine_n, gold_n),
                pearson=100 * metrics.pearson(cosine_n, gold_n),
            )
            for name, cosine_n, gold_n in zip(self.subsets, cosines, golds, strict=True)
        }
        cosine_n, gold_n = np.concatenate(cosines), np.concatenate(golds)
        weights = [len(part) for part in self.subsets.values()]
        spearman = self._aggregate(
            metrics.spearman(cosine_n, gold_n), [s["spearman"] for s in subsets.values()], weights
        )
        numbers = STSNumbers(
            pairs=len(gold_n),
            spearman=spearman,
            pearson=self._aggregate(
                metrics.pearson(cosine_n, gold_n), [s["pearson"] for s in subsets.values()], weights
            ),
            subsets=subsets if self.subsets_known else {},
        )
        return Scores(
            headline=spearman["all"],
            measure="spearman",
            numbers=numbers,
            sample=RankCorrelation(cosine_n, gold_n),
        )

    def _aggregate(
        self, together: float, apart: Sequence[float], weights: Sequence[int]
    ) -> Aggregates:
        return Aggregates(
            all=100 * together,
            mean=float(np.mean(apart)) if self.subsets_known else None,
            wmean=float(np.average(apart, weights=weights)) if self.subsets_known else None,
        )
