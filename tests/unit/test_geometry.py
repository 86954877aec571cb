import json

import numpy as np
import pytest

from simcse.evaluation.geometry import GeometrySet, spectrum
from simcse.evaluation.protocol import EmbeddingTable
from simcse.evaluation.sts import Pairs

VECTORS = {
    "east": [1.0, 0.0],
    "far east": [3.0, 0.0],
    "north": [0.0, 2.0],
    "west": [-1.0, 0.0],
    "north-east": [1.0, 1.0],
}
PAIRS = [
    ("east", "far east", 5.0),
    ("east", "north-east", 4.2),
    ("north", "north-east", 4.0),
    ("east", "north", 1.0),
    ("east", "west", 0.0),
]


@pytest.fixture
def geometry():
    first, second, gold = zip(*PAIRS, strict=True)
    return GeometrySet(Pairs(first, second, np.array(gold)), "dev")


@pytest.fixture
def scores(geometry):
    table = EmbeddingTable(list(VECTORS), np.array(list(VECTORS.values()), dtype=np.float32))
    return geometry.score(table)


def test_alignment_is_over_pairs_graded_above_four_and_uniformity_over_distinct_sentences(scores):
    numbers = scores.numbers
    assert (numbers["pairs"], numbers["sentences"], numbers["positive_pairs"]) == (5, 5, 2)
    # |east - far east|^2 = 0 on the sphere, |east - north-east|^2 = 2 - 2 cos 45.
    assert numbers["alignment"] == pytest.approx((0 + 2 - 2**0.5) / 2)
    degrees = np.array([0, 0, 90, 180, 45])
    distances = [
        2 - 2 * np.cos(np.deg2rad(degrees[i] - degrees[j])) for i in range(5) for j in range(i)
    ]
    assert numbers["uniformity"] == pytest.approx(np.log(np.mean(np.exp(-2 * np.array(distances)))))


def test_the_headline_is_uniformity_and_everything_is_ready_for_json(geometry, scores):
    assert (geometry.name, geometry.split, scores.measure) == ("geometry", "dev", "uniformity")
    assert scores.headline == scores.numbers["uniformity"]
    assert json.loads(json.dumps(scores.numbers)) == scores.numbers


def test_cosines_are_counted_in_classes_by_grade(scores):
    cosines = scores.numbers["cosines"]
    edges = cosines["edges"]
    assert (edges[0], edges[20], edges[-1], len(edges)) == (-1.0, 0.0, 1.0, 41)
    where = {grade: np.flatnonzero(counts).tolist() for grade, counts in cosines["counts"].items()}
    # cos 45 = 0.707 lies in the class from 0.70 to 0.75; a grade of 4 belongs to "4-5".
    assert where == {"0-1": [0], "1-2": [20], "2-3": [], "3-4": [], "4-5": [34, 39]}
    assert sum(sum(counts) for counts in cosines["counts"].values()) == 5
    assert cosines["counts"]["4-5"][34] == 2


def test_a_flat_spectrum_has_full_rank_and_a_line_rank_one():
    flat = spectrum(np.array([[2.0, 0, 0], [0, 5, 0], [0, 0, 1]]))
    assert flat["singular_values"] == pytest.approx([1, 1, 1])
    assert flat["effective_rank"] == pytest.approx(3)
    assert flat["first_share"] == pytest.approx(1 / 3)
    line = spectrum(np.array([[1.0, 2.0], [2, 4], [-1, -2]]))
    assert line["singular_values"] == pytest.approx([1, 0], abs=1e-7)
    assert line["effective_rank"] == pytest.approx(1, abs=1e-5)
    assert line["first_share"] == pytest.approx(1)


def test_the_spectrum_is_that_of_the_normalised_vectors():
    vectors = np.random.default_rng(0).normal(size=(50, 6)) + 1.0
    rows = vectors / np.sqrt((vectors**2).sum(1, keepdims=True))
    values = np.sqrt(np.linalg.eigvalsh(rows.T @ rows)[::-1])
    found = spectrum(vectors)
    assert found["singular_values"] == pytest.approx(values / values[0])
    shares = values / values.sum()
    assert found["effective_rank"] == pytest.approx(np.exp(-(shares * np.log(shares)).sum()))
    assert found["first_share"] == pytest.approx(values[0] ** 2 / (values**2).sum())
