"""n: sentences, q: queries, D: width."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from simcse.errors import UsageError
from simcse.index import SentenceIndex
from simcse.index_faiss import FaissSearch, check_installed

WIDTH = 24


def index_of(folder: Path, vectors_nD: NDArray[np.float32]) -> SentenceIndex:
    made = SentenceIndex.create(folder, model="mine", fingerprint="abc", dimension=WIDTH)
    append(made, vectors_nD)
    return made


def append(index: SentenceIndex, vectors_nD: NDArray[np.float32]) -> None:
    index.append([([f"sentence {len(index) + i}" for i in range(len(vectors_nD))], vectors_nD)])


def clustered(count: int, seed: int) -> NDArray[np.float32]:
    """Vectors around 50 centres, as sentences lie around topics."""
    generator = np.random.default_rng(seed)
    centres = np.random.default_rng(0).standard_normal((50, WIDTH))
    noise = generator.standard_normal((count, WIDTH))
    return (centres[generator.integers(0, 50, count)] + 0.9 * noise).astype(np.float32)


@pytest.fixture(autouse=True)
def _faiss_is_there() -> None:
    pytest.importorskip("faiss")


@pytest.mark.parametrize("top_k", [1, 4, 30, 1000])
def test_flat_search_finds_what_exact_search_finds_ties_included(
    tmp_path: Path, top_k: int
) -> None:
    vectors_nD = clustered(400, seed=1)
    vectors_nD[100:300] = vectors_nD[7]
    index = index_of(tmp_path / "index", vectors_nD)
    queries_qD = np.concatenate([vectors_nD[5:9], clustered(20, seed=2)])
    for threshold in (-1, 0.6):
        assert FaissSearch(index).search(
            queries_qD, top_k=top_k, threshold=threshold
        ) == index.search(queries_qD, top_k=top_k, threshold=threshold)


def test_cells_find_most_of_what_is_nearest_in_the_right_order(tmp_path: Path) -> None:
    index = index_of(tmp_path / "index", clustered(5000, seed=1))
    queries_qD = clustered(100, seed=2)
    exact = index.search(queries_qD, top_k=10, threshold=-1)
    search = FaissSearch(index, num_cells=50, num_searched_cells=5)
    found = search.search(queries_qD, top_k=10, threshold=-1)
    for hits, best in zip(found, exact, strict=True):
        assert [score for _, score in hits] == sorted((s for _, s in hits), reverse=True)
        assert set(hits) & set(best) == {hit for hit in hits if hit[1] >= best[-1][1]}
    recall = sum(len(set(a) & set(b)) for a, b in zip(found, exact, strict=True)) / 1000
    assert 0.9 < recall < 1
    all_cells = FaissSearch(index, num_cells=50, num_searched_cells=50)
    assert all_cells.search(queries_qD, top_k=10, threshold=-1) == exact


def test_few_sentences_in_the_cells_searched_give_few_hits_and_no_foreign_one(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    index = index_of(tmp_path / "index", clustered(12, seed=1))
    search = FaissSearch(index, num_cells=100, num_searched_cells=1)
    (hits,) = search.search(clustered(1, seed=2), top_k=12, threshold=-1)
    assert 1 <= len(hits) < 12
    everything = index.search(clustered(1, seed=2), top_k=12, threshold=-1)[0]
    assert hits == [hit for hit in everything if hit in hits]
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("num_cells", [None, 10])
def test_sentences_added_after_a_search_are_found(tmp_path: Path, num_cells: int | None) -> None:
    index = index_of(tmp_path / "index", clustered(50, seed=1))
    search = FaissSearch(index, num_cells=num_cells, num_searched_cells=10)
    queries_qD = clustered(3, seed=2)
    search.search(queries_qD, top_k=5, threshold=-1)
    append(index, queries_qD)
    found = search.search(queries_qD, top_k=5, threshold=-1)
    assert [hits[0][0] for hits in found] == ["sentence 50", "sentence 51", "sentence 52"]
    assert found == index.search(queries_qD, top_k=5, threshold=-1)


def test_a_search_that_cannot_be_is_refused(tmp_path: Path) -> None:
    empty = SentenceIndex.create(tmp_path, model="mine", fingerprint="abc", dimension=WIDTH)
    with pytest.raises(UsageError, match=r"^the index is empty: add sentences before a search$"):
        FaissSearch(empty)
    search = FaissSearch(index_of(tmp_path / "index", clustered(50, seed=1)))
    with pytest.raises(UsageError, match=r"^top_k is 0: ask"):
        search.search(clustered(1, seed=2), top_k=0, threshold=0)


def test_without_faiss_the_way_to_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "faiss", None)
    with pytest.raises(UsageError, match=r"faiss, which is not installed: pip install 'simcse-pl"):
        check_installed()
