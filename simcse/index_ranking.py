"""The best of many vectors for a query: exact, the same on every machine and in any tiling.

Matrix products in float32 differ in their last bits with the shape of the operands, so equal
vectors can get unequal scores. Here they only choose candidates, by a bound on their error; what
ranks is the float64 score of each candidate by itself. All vectors have unit length.

q: queries, t: vectors of one tile, c: candidates of one query, D: width.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from simcse.errors import UsageError

Float32 = NDArray[np.float32]
Positions = NDArray[np.intp]


class Ranking:
    """The `top_k` best positions of one query so far; equal scores stand in order of position."""

    def __init__(self, query_D: Float32, *, top_k: int, threshold: float) -> None:
        self._query_D = query_D.astype(np.float64)
        self._top_k, self._threshold = top_k, threshold
        self._positions = np.empty(0, np.intp)
        self._scores = np.empty(0, np.float64)

    @property
    def floor(self) -> float:
        """Score below which nothing can enter any more."""
        return float(self._scores[-1]) if len(self._scores) == self._top_k else self._threshold

    def add(self, positions_c: Positions, vectors_cD: Float32) -> None:
        """Candidates in ascending order of position, all behind those of earlier calls."""
        scores_c = (vectors_cD * self._query_D).sum(axis=1)
        kept_c = scores_c >= self._threshold
        scores = np.concatenate([self._scores, scores_c[kept_c]])
        positions = np.concatenate([self._positions, positions_c[kept_c]])
        order = np.argsort(-scores, kind="stable")[: self._top_k]
        self._scores, self._positions = scores[order], positions[order]

    def hits(self) -> list[tuple[int, float]]:
        """Position and cosine, best first."""
        return list(zip(self._positions.tolist(), self._scores.tolist(), strict=True))


def rank_tiles(
    queries_qD: Float32, tiles: Iterable[tuple[int, Float32]], *, top_k: int, threshold: float
) -> list[list[tuple[int, float]]]:
    """Hits of each query among all vectors; a tile is its first position and vectors `[t, D]`."""
    rankings = [Ranking(query_D, top_k=top_k, threshold=threshold) for query_D in queries_qD]
    slack = float32_slack(queries_qD.shape[1])
    for start, tile_tD in tiles:
        scores_qt = queries_qD @ tile_tD.T
        last = len(tile_tD) - min(top_k, len(tile_tD))
        tile_floor_q = np.partition(scores_qt, last, axis=1)[:, last]
        floor_q = np.maximum(tile_floor_q, [ranking.floor for ranking in rankings])
        is_candidate_qt = scores_qt >= floor_q[:, None] - slack
        for query in np.flatnonzero(is_candidate_qt.any(axis=1)):
            within_c = np.flatnonzero(is_candidate_qt[query])
            rankings[query].add(start + within_c, tile_tD[within_c])
    return [ranking.hits() for ranking in rankings]


def float32_slack(width: int) -> float:
    """How much two float32 dot products of unit vectors may differ that are equal in truth, twice.

    One is off by at most width x 2^-24, in any order of summation (Higham 2002, section 3.1).
    """
    return 2 * width * float(np.finfo(np.float32).eps)


def check_search(*, top_k: int, threshold: float) -> None:
    """Raises `UsageError` for what no search can have."""
    if top_k < 1:
        raise UsageError(f"top_k is {top_k}: ask for at least 1 sentence")
    if not -1 <= threshold <= 1:
        raise UsageError(f"threshold is {threshold}: give a cosine, from -1 to 1")
