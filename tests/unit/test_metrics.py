"""Measures against scipy and against plain loops."""

from __future__ import annotations

from collections.abc import Callable
from itertools import permutations

import numpy as np
import pytest
from scipy import stats
from scipy.spatial.distance import pdist

from simcse import metrics


def _vectors(rows: int, width: int = 5, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(rows, width)).astype(np.float32)


def test_spearman_is_that_of_scipy_where_only_the_gold_values_tie() -> None:
    random = np.random.default_rng(0)
    predicted, gold = random.normal(size=200), random.integers(0, 6, size=200)
    want = stats.spearmanr(predicted, gold).statistic
    assert metrics.spearman(predicted, gold) == pytest.approx(want, abs=1e-12)


def test_spearman_is_the_mean_over_all_orders_of_tied_predictions() -> None:
    predicted = np.array([0.1, 0.9, 0.9, 0.9, 0.3, 0.3, 0.7])
    gold = np.array([1.0, 5.0, 2.0, 4.0, 3.0, 3.0, 5.0])
    first, second = np.flatnonzero(predicted == 0.9), np.flatnonzero(predicted == 0.3)
    orders = []
    for order_first in permutations(range(3)):
        for order_second in permutations(range(2)):
            untied = predicted.copy()
            untied[first] += 1e-6 * np.array(order_first)
            untied[second] += 1e-6 * np.array(order_second)
            orders.append(stats.spearmanr(untied, gold).statistic)
    assert metrics.spearman(predicted, gold) == pytest.approx(np.mean(orders), abs=1e-12)


def test_pearson_is_that_of_scipy() -> None:
    predicted, gold = np.random.default_rng(1).normal(size=(2, 50))
    want = stats.pearsonr(predicted, gold).statistic
    assert metrics.pearson(predicted, gold) == pytest.approx(want, abs=1e-12)


@pytest.mark.parametrize("correlation", [metrics.spearman, metrics.pearson])
def test_a_constant_side_correlates_with_nothing(correlation: Callable[..., float]) -> None:
    assert correlation([0.5, 0.5, 0.5], [1, 2, 3]) == 0
    assert correlation([1, 2, 3], [4, 4, 4]) == 0


def test_cosine_of_rows_equals_the_definition() -> None:
    first, second = _vectors(20), _vectors(20, seed=1)
    want = [
        np.dot(a, b) / (np.linalg.norm(a) * np.linalg.norm(b))
        for a, b in zip(first.astype(float), second.astype(float), strict=True)
    ]
    np.testing.assert_allclose(metrics.cosine_rows(first, second), want, atol=1e-12)


def test_equal_rows_have_cosine_one_exactly_and_zeros_have_none() -> None:
    rows = _vectors(1000, width=384)
    assert set(metrics.cosine_rows(rows, rows)) == {1.0}
    assert metrics.cosine_rows(np.zeros((1, 3)), np.ones((1, 3))) == [0.0]


def test_alignment_is_the_mean_squared_distance_on_the_unit_sphere() -> None:
    first, second = np.array([[2.0, 0.0], [0.0, 3.0]]), np.array([[0.0, 1.0], [0.0, 5.0]])
    assert metrics.alignment(first, second) == pytest.approx((2 + 0) / 2)


@pytest.mark.parametrize("rows", [2, 300, 1500])
def test_uniformity_equals_that_of_the_whole_matrix(rows: int) -> None:
    vectors = _vectors(rows)
    unit = vectors / np.linalg.norm(vectors.astype(float), axis=1, keepdims=True)
    want = np.log(np.mean(np.exp(-2 * pdist(unit) ** 2)))
    assert metrics.uniformity(vectors) == pytest.approx(want, abs=1e-6)


def test_uniformity_of_one_vector_is_refused() -> None:
    with pytest.raises(ValueError, match="at least two vectors, got 1"):
        metrics.uniformity(_vectors(1))


def test_reciprocal_rank_counts_the_documents_above() -> None:
    documents = np.eye(4)
    queries = np.array([[1.0, 0, 0, 0], [0.9, 0.5, 0.1, 0], [0.9, 0.5, 0.1, 0]])
    got = metrics.reciprocal_ranks(queries, documents, np.array([0, 1, 3])).mean()
    assert got == pytest.approx((1 + 1 / 2 + 1 / 4) / 3)


def test_reciprocal_rank_over_many_queries_equals_a_plain_sort() -> None:
    queries, documents = _vectors(1100), _vectors(30, seed=1)
    relevant = np.random.default_rng(2).integers(0, 30, size=1100)
    cosine = metrics.unit_rows(queries) @ metrics.unit_rows(documents).T
    order = np.argsort(-cosine, axis=1)
    rank = 1 + np.argmax(order == relevant[:, None], axis=1)
    got = metrics.reciprocal_ranks(queries, documents, relevant).mean()
    assert got == pytest.approx(np.mean(1 / rank))


def test_a_collapsed_encoder_gets_the_middle_rank() -> None:
    queries, documents = np.ones((3, 2)), np.ones((9, 2))
    got = metrics.reciprocal_ranks(queries, documents, np.array([0, 4, 8])).mean()
    assert got == pytest.approx(1 / 5)
