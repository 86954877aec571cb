"""Scores of retrieval sets."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from simcse.evaluation import RetrievalSet, evaluate, metric_name
from simcse.evaluation.protocol import Progress

VECTORS = {"q1": [1.0, 0.1], "q2": [0.2, 2.0], "d1": [0.5, 0.5], "d2": [0.1, 1.0], "d3": [3.0, 0.0]}


class Lookup:
    def encode(self, sentences: Sequence[str], *, progress: Progress | None = None) -> np.ndarray:
        return np.array([VECTORS[sentence] for sentence in sentences], dtype=np.float32)


def test_each_query_counts_by_the_rank_of_its_document() -> None:
    found = RetrievalSet("Lookup", "dev", ("q1", "q2"), ("d1", "d2", "d3"), (0, 1))
    scores = evaluate(Lookup(), [found]).scores["Lookup"]
    # q1 is nearest to d3, so its own d1 is second; q2 finds its own d2 at once.
    assert scores.headline == pytest.approx(100 * (1 / 2 + 1) / 2)
    assert scores.numbers == {"queries": 2, "documents": 3, "mrr": scores.headline}
    assert metric_name(found, scores) == "dev_lookup_mrr"


def test_queries_and_documents_are_all_embedded() -> None:
    found = RetrievalSet("Lookup", "dev", ("q1",), ("d1", "d2"), (0,))
    assert found.sentences() == ["q1", "d1", "d2"]
