"""How the vectors of STS-B lie on the unit sphere (paper sections 5 and 7, appendices F and G).

n: pairs, m: distinct sentences, D: width.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

# Python 3.11's own does not tell pydantic which keys are required.
from typing_extensions import TypedDict

from simcse import metrics
from simcse.evaluation.protocol import EmbeddingTable, EvaluationSet, Scores
from simcse.evaluation.sts import Pairs, STSSet
from simcse.metrics import Float64, Vectors

_POSITIVE_ABOVE = 4.0
"""Pairs graded higher count as positive."""
_GRADES = tuple(range(6))
_COSINE_EDGES = np.linspace(-1, 1, 41)


class Spectrum(TypedDict):
    """Singular values of the matrix of normalised vectors: flat is isotropic (section 5)."""

    singular_values: list[float]
    """From the largest down, as shares of the largest (figure F.1)."""
    effective_rank: float
    """Exponential of the entropy of their shares of the sum (Roy and Vetterli 2007), 1 to D."""
    first_share: float
    """Share of the first direction in the sum of squares: 1 when all vectors are one line."""


class CosineHistogram(TypedDict):
    """Cosines of pairs by their grade (figure G.1)."""

    edges: list[float]
    """Borders of the classes of cosine."""
    counts: dict[str, list[int]]
    """Pairs in each class, by grade: "0-1" holds 0 and not 1, "4-5" both 4 and 5."""


class GeometryNumbers(TypedDict):
    pairs: int
    sentences: int
    """Distinct ones."""
    positive_pairs: int
    """Those graded above 4."""
    alignment: float | None
    """Mean squared distance of the positive pairs, null without any; lower is better."""
    uniformity: float
    """Log of the mean Gaussian potential over all pairs of distinct sentences; lower is better."""
    spectrum: Spectrum
    cosines: CosineHistogram


@dataclass(frozen=True, slots=True)
class GeometrySet:
    """Pairs graded 0 to 5, whose vectors are described and not scored.

    The headline is uniformity: unlike other headlines, lower is better.
    """

    pairs: Pairs
    split: str
    name: str = "geometry"

    def sentences(self) -> Sequence[str]:
        return [*self.pairs.first, *self.pairs.second]

    def score(self, vectors: EmbeddingTable) -> Scores:
        """Alignment, uniformity, singular values and cosines by grade."""
        numbers = describe(self.pairs, vectors)
        return Scores(headline=numbers["uniformity"], measure="uniformity", numbers=numbers)


def describe(pairs: Pairs, vectors: EmbeddingTable) -> GeometryNumbers:
    """How the vectors of pairs graded 0 to 5 lie."""
    cosine_n = metrics.cosine_rows(vectors[pairs.first], vectors[pairs.second])
    distinct_mD = vectors[list(dict.fromkeys([*pairs.first, *pairs.second]))]
    return GeometryNumbers(
        pairs=len(pairs),
        sentences=len(distinct_mD),
        positive_pairs=int((pairs.gold_n > _POSITIVE_ABOVE).sum()),
        alignment=positive_alignment(pairs, vectors),
        uniformity=metrics.uniformity(distinct_mD),
        spectrum=spectrum(distinct_mD),
        cosines=_histogram(cosine_n, pairs.gold_n),
    )


def graded_pairs(sets: Iterable[EvaluationSet]) -> Pairs | None:
    """The pairs which `describe` takes: those of STS-B, or else of the first set that is like it.

    Such a set has one subset, grades from 0 to 5, and positive pairs by them.
    """
    candidates = [found for found in sets if isinstance(found, STSSet) and len(found.subsets) == 1]
    for found in sorted(candidates, key=lambda found: found.name != "STSBenchmark"):
        [pairs] = found.subsets.values()
        if pairs.gold_n.min() >= _GRADES[0] and _POSITIVE_ABOVE < pairs.gold_n.max() <= _GRADES[-1]:
            return pairs
    return None


def positive_alignment(pairs: Pairs, vectors: EmbeddingTable) -> float | None:
    """Alignment (section 2, equation 2) of the pairs graded above 4 of 5, None without any."""
    positive_n = pairs.gold_n > _POSITIVE_ABOVE
    if not positive_n.any():
        return None
    first_nD, second_nD = vectors[pairs.first][positive_n], vectors[pairs.second][positive_n]
    return metrics.alignment(first_nD, second_nD)


def spectrum(vectors_mD: Vectors) -> Spectrum:
    """Singular values of the normalised vectors, not centred, and two numbers about them."""
    rows_mD = metrics.unit_rows(vectors_mD)
    value_D = np.linalg.svd(rows_mD, compute_uv=False)
    share_D = value_D / value_D.sum()
    entropy = -np.sum(share_D * np.log(share_D, where=share_D > 0, out=np.zeros_like(share_D)))
    return Spectrum(
        singular_values=(value_D / value_D[0]).tolist(),
        effective_rank=float(np.exp(entropy)),
        first_share=float(value_D[0] ** 2 / np.sum(value_D**2)),
    )


def _histogram(cosine_n: Float64, gold_n: Float64) -> CosineHistogram:
    # The grades' last class is closed, as numpy closes that of the cosines.
    counts, _, _ = np.histogram2d(gold_n, cosine_n, bins=[_GRADES, _COSINE_EDGES])
    grades = [f"{low}-{high}" for low, high in pairwise(_GRADES)]
    return CosineHistogram(
        edges=_COSINE_EDGES.round(2).tolist(),
        counts=dict(zip(grades, counts.astype(int).tolist(), strict=True)),
    )
