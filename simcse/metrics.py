"""Measures of sentence vectors, in float64 throughout.

n: rows, m: vectors, D: width, q: queries, d: documents.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats

Vectors = NDArray[np.floating[Any]]
Float64 = NDArray[np.float64]

_TILE = 1024
"""Rows of a similarity matrix held at a time."""


def unit_rows(vectors_nD: Vectors) -> Float64:
    """Float64 rows of Euclidean length 1; a row of zeros stays zero."""
    rows_nD = np.asarray(vectors_nD, dtype=np.float64)
    norm_n1 = np.linalg.norm(rows_nD, axis=-1, keepdims=True)
    return rows_nD / np.where(norm_n1 == 0, 1.0, norm_n1)


def cosine_rows(first_nD: Vectors, second_nD: Vectors) -> Float64:
    """Cosine of row i of one with row i of the other, `[n]`."""
    cosine_n = np.einsum("nd,nd->n", unit_rows(first_nD), unit_rows(second_nD))
    return _tied(cosine_n)


def spearman(predicted_n: ArrayLike, gold_n: ArrayLike) -> float:
    """Spearman's rank correlation, where tied predictions count as ordered at random.

    This is the mean of the coefficient over all orders of the tied predictions; tied gold values
    share their mean rank as usual. STS12 has 65 pairs of equal sentences in one subset: their
    cosine is 1 up to rounding, by which code in float32 orders them, so that published numbers are
    draws from what this is the mean of. Without tied predictions it is scipy's coefficient. 0 when
    either side is constant: a collapsed encoder orders nothing.
    """
    predicted_n, gold_n = (
        stats.rankdata(np.asarray(side_n, np.float64)) for side_n in (predicted_n, gold_n)
    )
    count = len(gold_n)
    if np.ptp(gold_n) == 0:
        return 0.0
    covariance = np.mean((predicted_n - predicted_n.mean()) * (gold_n - gold_n.mean()))
    # (n^2 - 1) / 12 is the variance of the ranks 1 to n, none of them shared.
    return float(covariance / np.sqrt((count**2 - 1) / 12 * gold_n.var()))


def pearson(predicted_n: ArrayLike, gold_n: ArrayLike) -> float:
    """Pearson's correlation; 0 where either side is constant, as in `spearman`."""
    predicted_n, gold_n = np.asarray(predicted_n, np.float64), np.asarray(gold_n, np.float64)
    if np.ptp(predicted_n) == 0 or np.ptp(gold_n) == 0:
        return 0.0
    return float(stats.pearsonr(predicted_n, gold_n).statistic)


def alignment(first_nD: Vectors, second_nD: Vectors) -> float:
    """Mean squared distance of normalised positive pairs (Wang and Isola 2020, alpha = 2)."""
    difference_nD = unit_rows(first_nD) - unit_rows(second_nD)
    return float(np.mean(np.sum(difference_nD**2, axis=1)))


def uniformity(vectors_mD: Vectors, *, t: float = 2.0) -> float:
    """Log of the mean Gaussian potential over distinct pairs (Wang and Isola 2020).

    The matrix of all pairs is never whole in memory. Raises `ValueError` below two vectors.
    """
    rows_mD = unit_rows(vectors_mD)
    count = len(rows_mD)
    if count < 2:
        raise ValueError(f"uniformity needs at least two vectors, got {count}")
    total = 0.0
    for top in range(0, count, _TILE):
        upper_uD = rows_mD[top : top + _TILE]
        for left in range(top, count, _TILE):
            # |x - y|^2 = 2 - 2 x.y on the unit sphere.
            potential_uv = np.exp(2 * t * (upper_uD @ rows_mD[left : left + _TILE].T - 1))
            total += float((np.triu(potential_uv, k=1) if left == top else potential_uv).sum())
    return float(np.log(total / (count * (count - 1) / 2)))


def reciprocal_ranks(
    queries_qD: Vectors, documents_dD: Vectors, relevant_q: NDArray[np.intp]
) -> Float64:
    """1 / rank of the one relevant document of each query, ranked by cosine, `[q]`.

    Tied documents share their mean rank, so that a collapsed encoder gains nothing.
    """
    queries_qD, documents_dD = unit_rows(queries_qD), unit_rows(documents_dD)
    reciprocal: list[Float64] = []
    for top in range(0, len(queries_qD), _TILE):
        cosine_ud = _tied(queries_qD[top : top + _TILE] @ documents_dD.T)
        relevant_u = relevant_q[top : top + _TILE]
        own_u1 = np.take_along_axis(cosine_ud, relevant_u[:, None], axis=1)
        above_u = (cosine_ud > own_u1).sum(axis=1)
        equal_u = (cosine_ud == own_u1).sum(axis=1)
        reciprocal.append(1 / (above_u + (equal_u + 1) / 2))
    return np.concatenate(reciprocal)


def _tied(cosine: Float64) -> Float64:
    # Two pairs of equal sentences must tie at 1, not differ by the rounding of their norms.
    return cosine.round(12)
