"""Retrieval: each query must find the one document that belongs to it. q: queries."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypedDict

import numpy as np

from simcse.evaluation.protocol import EmbeddingTable, Scores
from simcse.evaluation.significance import ItemMean
from simcse.metrics import reciprocal_ranks


class RetrievalNumbers(TypedDict):
    queries: int
    documents: int
    mrr: float


@dataclass(frozen=True, slots=True)
class RetrievalSet:
    """Queries with one relevant document each, among all documents."""

    name: str
    split: str
    queries: tuple[str, ...]
    documents: tuple[str, ...]
    relevant: tuple[int, ...]
    """`[q]`: the index in `documents` of what each query should find."""

    def sentences(self) -> Sequence[str]:
        return [*self.queries, *self.documents]

    def score(self, vectors: EmbeddingTable) -> Scores:
        """Mean reciprocal rank x 100 by cosine."""
        found_q = 100 * reciprocal_ranks(
            vectors[self.queries], vectors[self.documents], np.asarray(self.relevant, np.intp)
        )
        mrr = float(found_q.mean())
        numbers = RetrievalNumbers(
            queries=len(self.queries), documents=len(self.documents), mrr=mrr
        )
        return Scores(headline=mrr, measure="mrr", numbers=numbers, sample=ItemMean(found_q))
