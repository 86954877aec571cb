"""Sentences beside those that an encoder puts nearest: what a reader judges by.

n: sentences compared, q: queries, D: width.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from simcse import metrics
from simcse.evaluation.protocol import EmbeddingTable


class Neighbour(NamedTuple):
    """A sentence near another one."""

    sentence: str
    cosine: float


class Example(NamedTuple):
    """A sentence and its nearest others, the nearest first."""

    query: str
    neighbours: tuple[Neighbour, ...]

    def as_json(self) -> dict[str, object]:
        """Query, and neighbours with sentence and cosine."""
        return {"query": self.query, "neighbours": [found._asdict() for found in self.neighbours]}


def nearest(
    vectors: EmbeddingTable, *, queries: int = 5, count: int = 3, among: int = 4000, seed: int = 0
) -> list[Example]:
    """A few sentences of a table, each with its nearest others of at most `among` sentences.

    Queries and sentences compared are a function of the table's sentences and the seed.
    """
    sentences = vectors.sentences
    drawn = np.random.default_rng(seed).permutation(len(sentences))[:among]
    compared = [sentences[place] for place in drawn]
    if not compared:
        return []
    rows_nD = metrics.unit_rows(vectors[compared])
    cosine_qn = rows_nD[:queries] @ rows_nD.T
    # A sentence is its own nearest.
    np.fill_diagonal(cosine_qn, -np.inf)
    order_qn = np.argsort(-cosine_qn, axis=1, kind="stable")[:, : min(count, len(compared) - 1)]
    return [
        Example(
            compared[query],
            tuple(Neighbour(compared[n], float(cosine_qn[query, n])) for n in order_n),
        )
        for query, order_n in enumerate(order_qn)
    ]
