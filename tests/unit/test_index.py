"""n: sentences, q: queries, D: width."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from simcse import index as index_module
from simcse.errors import DataError, ModelError, UsageError
from simcse.index import SentenceIndex

WIDTH = 384
FILES = ("vectors.f32", "sentences.txt", "ends.i64")


def random_vectors(count: int, seed: int = 0) -> NDArray[np.float32]:
    return np.random.default_rng(seed).standard_normal((count, WIDTH), dtype=np.float32)


def names(count: int, first: int = 0) -> list[str]:
    return [f"sentence {place}" for place in range(first, first + count)]


def create(folder: Path) -> SentenceIndex:
    return SentenceIndex.create(folder, model="mine", fingerprint="abc", dimension=WIDTH)


def reopen(folder: Path) -> SentenceIndex:
    return SentenceIndex.open(folder, model="mine", fingerprint="abc")


def in_batches(
    sentences: Sequence[str], vectors_nD: NDArray[np.float32], size: int
) -> Iterator[tuple[Sequence[str], NDArray[np.float32]]]:
    for start in range(0, len(sentences), size):
        yield sentences[start : start + size], vectors_nD[start : start + size]


def built(folder: Path, vectors_nD: NDArray[np.float32]) -> SentenceIndex:
    made = create(folder)
    made.append(in_batches(names(len(vectors_nD)), vectors_nD, 7))
    return made


def brute_force(
    queries_qD: NDArray[np.float32],
    vectors_nD: NDArray[np.float32],
    *,
    top_k: int,
    threshold: float,
) -> list[list[tuple[str, float]]]:
    def unit(rows: NDArray[np.float32]) -> NDArray[np.float64]:
        lengths_n = np.array([np.sqrt(sum(float(x) ** 2 for x in row)) for row in rows])
        scaled: NDArray[np.float64] = rows / lengths_n[:, None]
        return scaled

    # Equal vectors have equal scores but for the order of summation.
    cosines_qn = (unit(queries_qD) @ unit(vectors_nD).T).round(9)
    results = []
    for cosines_n in cosines_qn:
        ranked = sorted(range(len(cosines_n)), key=lambda place: (-cosines_n[place], place))
        kept = [place for place in ranked if cosines_n[place] >= threshold][:top_k]
        results.append([(f"sentence {place}", float(cosines_n[place])) for place in kept])
    return results


def assert_same_hits(
    found: list[list[tuple[str, float]]], wanted: list[list[tuple[str, float]]]
) -> None:
    for hits, expected in zip(found, wanted, strict=True):
        assert [sentence for sentence, _ in hits] == [sentence for sentence, _ in expected]
        np.testing.assert_allclose(
            [score for _, score in hits], [score for _, score in expected], atol=1e-6, rtol=0
        )


def with_ties(count: int) -> NDArray[np.float32]:
    """Every vector up to four times, also far apart and on either side of a tile's end."""
    return random_vectors(count)[np.random.default_rng(1).integers(0, count // 4, count)]


@pytest.mark.parametrize("tile", [1, 3, 64, 100_000])
@pytest.mark.parametrize("top_k", [1, 3, 10, 500])
def test_hits_and_ties_are_those_of_brute_force_in_any_tiling(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tile: int, top_k: int
) -> None:
    monkeypatch.setattr(index_module, "_TILE_BYTES", tile * WIDTH * 4)
    monkeypatch.setattr(index_module, "_QUERIES_AT_ONCE", 5)
    vectors_nD = with_ties(200)
    queries_qD = np.concatenate([vectors_nD[:6], 3 * random_vectors(6, seed=2)])
    found = built(tmp_path / "index", vectors_nD).search(queries_qD, top_k=top_k, threshold=0.1)
    assert_same_hits(found, brute_force(queries_qD, vectors_nD, top_k=top_k, threshold=0.1))


def test_equal_vectors_score_alike_to_the_last_bit_and_stand_in_order_of_insertion(
    tmp_path: Path,
) -> None:
    vectors_nD = random_vectors(1000)
    copies = [3, 4, 331, 998, 999]
    vectors_nD[copies] = vectors_nD[3]
    (hits,) = built(tmp_path / "index", vectors_nD).search(vectors_nD[3:4], top_k=4, threshold=0.9)
    assert [sentence for sentence, _ in hits] == [f"sentence {place}" for place in copies[:4]]
    assert len({score for _, score in hits}) == 1


def test_no_query_changes_the_hits_of_another(tmp_path: Path) -> None:
    made = built(tmp_path / "index", with_ties(300))
    queries_qD = random_vectors(40, seed=3)
    together = made.search(queries_qD, top_k=5, threshold=-1)
    assert together == [
        made.search(query_D[None], top_k=5, threshold=-1)[0] for query_D in queries_qD
    ]


def test_the_threshold_itself_is_high_enough(tmp_path: Path) -> None:
    made = built(tmp_path / "index", random_vectors(50))
    queries_qD = random_vectors(1, seed=4)
    (everything,) = made.search(queries_qD, top_k=50, threshold=-1)
    third = everything[2][1]
    assert made.search(queries_qD, top_k=50, threshold=third) == [everything[:3]]
    above = float(np.nextafter(third, 1))
    assert made.search(queries_qD, top_k=50, threshold=above) == [everything[:2]]


def test_more_hits_than_sentences_are_all_sentences(tmp_path: Path) -> None:
    made = built(tmp_path / "index", random_vectors(9))
    (hits,) = made.search(random_vectors(1, seed=4), top_k=10**12, threshold=-1)
    assert sorted(sentence for sentence, _ in hits) == names(9)


def test_a_searched_and_reopened_index_grows_to_the_one_built_at_once(tmp_path: Path) -> None:
    vectors_nD, queries_qD = with_ties(60), random_vectors(5, seed=5)
    grown = built(tmp_path / "grown", vectors_nD[:20])
    grown.search(queries_qD, top_k=5, threshold=-1)
    grown.append([(names(10, 20), vectors_nD[20:30])])
    grown = reopen(tmp_path / "grown")
    grown.append([(names(30, 30), vectors_nD[30:])])
    assert list(grown) == names(60)
    found = grown.search(queries_qD, top_k=5, threshold=-1)
    assert_same_hits(found, brute_force(queries_qD, vectors_nD, top_k=5, threshold=-1))
    built(tmp_path / "whole", vectors_nD)
    for file in (*FILES, "index.json"):
        assert (tmp_path / "grown" / file).read_bytes() == (tmp_path / "whole" / file).read_bytes()


def test_sentences_come_back_as_they_were(tmp_path: Path) -> None:
    sentences = ["", "Größe, 東京", "two\nlines\r\n", " spaces ", "\n", ""]
    made = create(tmp_path / "index")
    made.append([(sentences, random_vectors(6))])
    assert list(reopen(tmp_path / "index")) == sentences


# Interruptions and damage


def test_an_append_that_fails_adds_nothing_and_can_be_repeated(tmp_path: Path) -> None:
    vectors_nD = random_vectors(30)
    made = built(tmp_path / "index", vectors_nD[:20])

    def interrupted() -> Iterator[tuple[list[str], NDArray[np.float32]]]:
        yield names(5, 20), vectors_nD[20:25]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        made.append(interrupted())
    for index in (made, reopen(tmp_path / "index")):
        assert list(index) == names(20)
    made.append([(names(10, 20), vectors_nD[20:])])
    assert list(reopen(tmp_path / "index")) == names(30)


def test_a_killed_build_opens_as_nothing_and_can_be_repeated(tmp_path: Path) -> None:
    script = (
        "import os, signal, sys, numpy\n"
        "from pathlib import Path\n"
        "from simcse.index import SentenceIndex\n"
        "def batches():\n"
        f"    yield ['x'] * 5000, numpy.ones((5000, {WIDTH}))\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "made = SentenceIndex.create(\n"
        f"    Path(sys.argv[1]), model='mine', fingerprint='abc', dimension={WIDTH}\n"
        ")\n"
        "made.append(batches())\n"
    )
    folder = tmp_path / "index"
    killed = subprocess.run([sys.executable, "-c", script, str(folder)], check=False)
    assert killed.returncode == -9
    assert (folder / "vectors.f32").stat().st_size > 0
    with pytest.raises(UsageError, match=r"there is no complete index in .*: build it, or check"):
        reopen(folder)
    (folder / ".index.json").write_text("{")  # where the last move alone was missing
    built(folder, random_vectors(10))
    assert list(reopen(folder)) == names(10)


@pytest.mark.parametrize("file", FILES)
def test_a_file_that_is_cut_off_or_damaged_is_named(tmp_path: Path, file: str) -> None:
    built(tmp_path / "index", random_vectors(10))
    path = tmp_path / "index" / file
    content = path.read_bytes()
    path.write_bytes(content[:-1])
    size = len(content)
    with pytest.raises(
        DataError,
        match=rf"{file} is cut off, {size - 1} of {size} bytes are there: remove the folder",
    ):
        reopen(tmp_path / "index")
    path.write_bytes(content[:5] + bytes([content[5] ^ 1]) + content[6:])
    with pytest.raises(DataError, match=rf"{file} is damaged, its checksum is another: remove"):
        reopen(tmp_path / "index")
    path.unlink()
    with pytest.raises(DataError, match=rf"{file} is cut off, 0 of {size} bytes are there"):
        reopen(tmp_path / "index")


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        ('"format":1', '"format":2', r"format: Input should be 1"),
        ("{", "", r"it: Invalid JSON"),
        ('"sentences":10', '"sentences":-1', r"sentences: Input should be greater than"),
    ],
)
def test_a_description_that_cannot_be_used_is_named(
    tmp_path: Path, old: str, new: str, fault: str
) -> None:
    built(tmp_path / "index", random_vectors(10))
    path = tmp_path / "index" / "index.json"
    text = path.read_text().replace(": ", ":")
    assert old in text
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(DataError, match=rf"index.json cannot be used \({fault}.*build the index"):
        reopen(tmp_path / "index")


def test_an_index_of_another_model_is_refused_by_name(tmp_path: Path) -> None:
    built(tmp_path / "index", random_vectors(10))
    with pytest.raises(
        UsageError, match=r"was made with another model \(mine\) than yours, or with other weights"
    ):
        SentenceIndex.open(tmp_path / "index", model="yours", fingerprint="xyz")


def test_a_folder_with_something_else_or_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(UsageError, match=r"already holds thesis.tex: name another folder"):
        create(tmp_path)
    with pytest.raises(UsageError, match=r"cannot be made \(Not a directory\): name another"):
        create(tmp_path / "thesis.tex" / "index")
    built(tmp_path / "index", random_vectors(10))
    with pytest.raises(UsageError, match=r"already holds index.json: name another folder"):
        create(tmp_path / "index")


@pytest.mark.parametrize("value", [np.nan, np.inf, 0.0])
def test_a_vector_without_direction_is_named_and_nothing_is_added(
    tmp_path: Path, value: float
) -> None:
    vectors_nD = random_vectors(10)
    vectors_nD[[4, 6]] = value
    made = create(tmp_path / "index")
    with pytest.raises(
        ModelError,
        match=r"2 of 10 vectors are zero or not finite, the first that of 'sentence 4': where",
    ):
        made.append([(names(10), vectors_nD)])
    assert len(made) == 0
    with pytest.raises(ModelError, match=r"the first that of row 4: "):
        built(tmp_path / "other", random_vectors(3)).search(vectors_nD, top_k=1, threshold=0)


def test_a_search_that_cannot_be_is_refused(tmp_path: Path) -> None:
    made, query_1D = create(tmp_path / "index"), random_vectors(1)
    with pytest.raises(UsageError, match=r"^the index is empty: add sentences before a search$"):
        made.search(query_1D, top_k=1, threshold=0)
    with pytest.raises(UsageError, match=r"^top_k is 0: ask for at least 1 sentence$"):
        made.search(query_1D, top_k=0, threshold=0)
    for threshold in (1.01, -2, float("nan")):
        with pytest.raises(UsageError, match=rf"^threshold is {threshold}: give a cosine, from"):
            made.search(query_1D, top_k=1, threshold=threshold)


def test_vectors_that_are_not_those_of_the_sentences_are_refused(tmp_path: Path) -> None:
    made = built(tmp_path / "index", random_vectors(9))
    with pytest.raises(ValueError, match=r"^3 sentences came with vectors of shape \(2, "):
        made.append([(names(3), random_vectors(2))])
    with pytest.raises(ValueError, match=r"and the index has vectors of \d+ numbers$"):
        made.append([(names(3), random_vectors(3)[:, 1:])])
    assert len(made) == 9


def test_a_description_that_contradicts_itself_is_refused(tmp_path: Path) -> None:
    built(tmp_path / "index", random_vectors(9))
    path = tmp_path / "index" / "index.json"
    path.write_text(path.read_text().replace('"sentences": 9', '"sentences": 5'))
    with pytest.raises(DataError, match=r"contradicts itself: it counts 5 sentences of \d+"):
        reopen(tmp_path / "index")
