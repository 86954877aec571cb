from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pytest

from simcse.errors import DataError
from simcse_platform.ingest.choice import choose, fingerprints
from simcse_platform.ingest.cleaning import RowOptions, UsableRow


def chosen(
    rows: Sequence[str], bounds: Sequence[int], options: RowOptions, sources: Sequence[str] = ()
) -> tuple[list[str], int]:
    """The rows taken of a corpus that is cut into pieces at `bounds`, and how many repeated one."""
    edges = [0, *bounds, len(rows)]
    pieces = [rows[first:last] for first, last in pairwise(edges)]
    hashes = [fingerprints(UsableRow((text,), 0) for text in piece) for piece in pieces]
    choice = choose(hashes, sources or ["one"] * len(pieces), options)
    taken = [
        piece[place]
        for piece, places in zip(pieces, choice.places, strict=True)
        for place in places.tolist()
    ]
    return taken, choice.repeated


def test_repetitions_are_dropped_wherever_the_first_one_was() -> None:
    rows = list("abacbdaae")
    for bounds in ([], [3], [1, 4, 4, 8]):
        assert chosen(rows, bounds, RowOptions(dedupe_corpus=True)) == (list("abcde"), 4)


def test_a_sample_depends_on_rows_and_seed_and_not_on_pieces() -> None:
    rows = [str(number) for number in range(1000)]
    one = chosen(rows, [], RowOptions(sample=100, seed=3))
    assert one == chosen(rows, [0, 10, 11, 700], RowOptions(sample=100, seed=3))
    assert one != chosen(rows, [], RowOptions(sample=100, seed=4))
    taken = [int(row) for row in one[0]]
    assert (len(set(taken)), taken) == (100, sorted(taken))
    assert chosen(rows, [500], RowOptions(sample=1000)) == (rows, 0)


def test_every_set_of_rows_is_drawn_as_often_as_any_other() -> None:
    rows = list("abcd")
    drawn = Counter(
        "".join(chosen(rows, [2], RowOptions(sample=2, seed=seed))[0]) for seed in range(1200)
    )
    # Six pairs, each 200 times but for chance: the standard deviation is 13.
    assert sorted(drawn) == ["ab", "ac", "ad", "bc", "bd", "cd"]
    assert max(abs(count - 200) for count in drawn.values()) < 60


def test_as_many_rows_are_drawn_from_each_source() -> None:
    rows = [f"{source}{number}" for source in "xyz" for number in range(50)]
    options = RowOptions(sample_each=20, seed=1)
    taken, _ = chosen(rows, [30, 50, 100], options, ["x", "x", "y", "z"])
    assert Counter(row[0] for row in taken) == {"x": 20, "y": 20, "z": 20}
    assert taken == sorted(taken, key=rows.index)
    assert taken == chosen(rows, [50, 100, 120], options, ["x", "y", "z", "z"])[0]


def test_a_sample_is_drawn_from_what_is_no_repetition() -> None:
    rows = list("aaaaaaab")
    assert chosen(rows, [4], RowOptions(dedupe_corpus=True, sample=2)) == (["a", "b"], 6)
    with pytest.raises(
        DataError, match=r"the corpus has 2 usable row\(s\) and --sample asks for 3"
    ):
        chosen(rows, [4], RowOptions(dedupe_corpus=True, sample=3))


def test_a_source_with_fewer_rows_than_asked_is_named() -> None:
    with pytest.raises(
        DataError, match=r"b\.txt has 1 usable row\(s\) and --sample-each asks for 2"
    ):
        chosen(list("xyz"), [2], RowOptions(sample_each=2), ["a.txt", "b.txt"])


def test_rows_that_differ_in_where_a_column_ends_have_different_hashes() -> None:
    rows = [UsableRow(("a b", "c"), 0), UsableRow(("a", "b c"), 0), UsableRow(("a b", "c"), 1)]
    first, second, third = fingerprints(rows)
    assert first == third != second
    assert fingerprints([]).dtype == np.uint64
