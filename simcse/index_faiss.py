"""Search of a `SentenceIndex` by faiss, an optional library: quicker, with all vectors in memory.

q: queries, c: candidates of one query, D: width.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from simcse.errors import UsageError
from simcse.index import Hit, SentenceIndex, unit_vectors
from simcse.index_ranking import Float32, Positions, Ranking, check_search, float32_slack

if TYPE_CHECKING:
    import faiss

_TRAINING_VECTORS_PER_CELL = 256
"""As many as faiss itself would sample."""
_SPARE_CANDIDATES = 16


def check_installed() -> None:
    """Raises `UsageError` when faiss is not installed."""
    try:
        import faiss  # noqa: F401
    except ImportError:
        raise UsageError(
            "use_faiss and faiss_fast need faiss, which is not installed: pip install "
            "'simcse-platform[faiss]', or leave them out for exact search without it"
        ) from None


class FaissSearch:
    """Hits among the candidates that faiss finds, ranked as `SentenceIndex.search` ranks them.

    `num_cells` None compares a query with every vector and finds what exact search finds. With a
    number, the vectors that are there now are clustered into that many cells, and a query is
    compared with the vectors of the `num_searched_cells` nearest only. Sentences added to the index
    later are found too. Raises `UsageError` for an empty index.
    """

    def __init__(
        self, index: SentenceIndex, *, num_cells: int | None = None, num_searched_cells: int = 1
    ) -> None:
        if len(index) == 0:
            raise UsageError("the index is empty: add sentences before a search")
        self._index = index
        if num_cells is None:
            self._faiss = _flat(index.dimension)
        else:
            self._faiss = _clustered(index, min(num_cells, len(index)), num_searched_cells)

    def search(
        self, queries_qD: NDArray[np.floating], *, top_k: int, threshold: float
    ) -> list[list[Hit]]:
        check_search(top_k=top_k, threshold=threshold)
        top_k = min(top_k, len(self._index))
        queries_qD = unit_vectors(queries_qD)
        results = []
        for query_D, positions_c in zip(
            queries_qD, self._candidates(queries_qD, top_k), strict=True
        ):
            ranking = Ranking(query_D, top_k=top_k, threshold=threshold)
            ranking.add(positions_c, self._index.vectors(positions_c))
            results.append(self._index.read_hits(ranking.hits()))
        return results

    def _candidates(self, queries_qD: Float32, top_k: int) -> Iterator[Positions]:
        """Ascending positions for each query, its `top_k` best found vectors among them."""
        found = self._up_to_date()
        slack = float32_slack(self._index.dimension)
        wanted = min(top_k + _SPARE_CANDIDATES, len(self._index))
        while True:
            scores_qc, positions_qc = found.search(queries_qD, wanted)
            # faiss fills up with position -1; until the last one is clearly worse than the
            # top_k-th, vectors of equal score may have been left out.
            is_cut_q = (positions_qc[:, -1] >= 0) & (
                scores_qc[:, -1] >= scores_qc[:, top_k - 1] - slack
            )
            if wanted == len(self._index) or not is_cut_q.any():
                return (np.sort(row_c[row_c >= 0]) for row_c in positions_qc)
            wanted = min(2 * wanted, len(self._index))

    def _up_to_date(self) -> faiss.Index:
        """The faiss index with every vector that the index has by now."""
        for _, tile_tD in self._index.tiles(first=self._faiss.ntotal):
            self._faiss.add(tile_tD)
        return self._faiss


def _flat(width: int) -> faiss.Index:
    import faiss

    return faiss.IndexFlatIP(width)


def _clustered(index: SentenceIndex, num_cells: int, num_searched_cells: int) -> faiss.Index:
    """Cells around the centres of an even sample of the vectors; they hold nothing yet."""
    import faiss

    cells = faiss.IndexIVFFlat(
        _flat(index.dimension), index.dimension, num_cells, faiss.METRIC_INNER_PRODUCT
    )
    cells.nprobe = min(num_searched_cells, num_cells)
    # Small indexes are no mistake, so faiss need not warn of them.
    cells.cp.min_points_per_centroid = 1
    size = min(len(index), _TRAINING_VECTORS_PER_CELL * num_cells)
    cells.train(index.vectors(np.linspace(0, len(index) - 1, size, dtype=np.intp)))
    return cells
