"""Nearest sentences, against plain loops."""

from __future__ import annotations

import numpy as np
import pytest

from simcse.evaluation.neighbours import Example, nearest
from simcse.evaluation.protocol import EmbeddingTable

SENTENCES = [f"sentence {i}" for i in range(40)]
VECTORS = np.random.default_rng(3).normal(size=(40, 8)).astype(np.float32)


def cosine(one: str, other: str) -> float:
    first, second = (VECTORS[SENTENCES.index(text)].astype(np.float64) for text in (one, other))
    return float(first @ second / np.sqrt((first**2).sum() * (second**2).sum()))


def test_neighbours_are_the_nearest_others_in_their_order() -> None:
    found = nearest(EmbeddingTable(SENTENCES, VECTORS), queries=5, count=3)
    assert len({example.query for example in found}) == 5
    for example in found:
        others = [text for text in SENTENCES if text != example.query]
        want = sorted(others, key=lambda text: -cosine(example.query, text))[:3]
        assert [neighbour.sentence for neighbour in example.neighbours] == want
        for neighbour in example.neighbours:
            assert neighbour.cosine == pytest.approx(cosine(example.query, neighbour.sentence))


def test_the_seed_decides_what_is_shown() -> None:
    table = EmbeddingTable(SENTENCES, VECTORS)
    assert nearest(table, seed=1) == nearest(table, seed=1)
    assert nearest(table, seed=1) != nearest(table, seed=2)


def test_a_large_table_is_compared_in_part() -> None:
    found = nearest(EmbeddingTable(SENTENCES, VECTORS), among=6, queries=6, count=9)
    shown = {text for example in found for text in (example.query, *dict(example.neighbours))}
    assert len(shown) == 6
    assert all(len(example.neighbours) == 5 for example in found)


def test_one_sentence_has_no_neighbour_and_none_no_example() -> None:
    assert nearest(EmbeddingTable(["one"], VECTORS[:1])) == [Example("one", ())]
    assert nearest(EmbeddingTable([], VECTORS[:0])) == []
