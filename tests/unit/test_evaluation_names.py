"""Names of evaluation sets, of groups of them, and paths of a user's own."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from simcse.errors import DataError, UsageError
from simcse.evaluation import STS_SUITE, TRANSFER_SUITE, STSSet, load_sets, resolve_tasks
from simcse.evaluation.geometry import GeometrySet

STS_DEV = ("STSBenchmark", "SICKRelatedness")


def test_groups_stand_for_every_set_that_has_the_split() -> None:
    for mode in ("test", "fasttest"):
        assert resolve_tasks(["sts"], mode) == tuple(STS_SUITE)
        assert resolve_tasks(["transfer"], mode) == tuple(TRANSFER_SUITE)
        assert resolve_tasks(["full"], mode) == (*STS_SUITE, *TRANSFER_SUITE)
    assert resolve_tasks(["sts"], "dev") == STS_DEV
    assert resolve_tasks(["full"], "dev") == (*STS_DEV, *TRANSFER_SUITE)


def test_transfer_tasks_stand_in_the_order_of_the_originals_table() -> None:
    assert tuple(TRANSFER_SUITE) == ("MR", "CR", "SUBJ", "MPQA", "SST2", "TREC", "MRPC")
    assert {name: sum(files.values()) for name, files in TRANSFER_SUITE.items()} == {
        "MR": 10662,
        "CR": 3775,
        "SUBJ": 10000,
        "MPQA": 10606,
        "SST2": 70042,
        "TREC": 5952,
        "MRPC": 5801,
    }


def test_names_are_taken_once_in_the_order_given() -> None:
    tasks = ["MRPC", "STS13", "my.tsv", "geometry", "STS13", "transfer", "my.tsv"]
    assert resolve_tasks(tasks, "test") == (
        *("MRPC", "STS13", "my.tsv", "geometry"),
        *(name for name in TRANSFER_SUITE if name != "MRPC"),
    )


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("STS-B", "STSBenchmark"),
        ("SICK-R", "SICKRelatedness"),
        ("sts12", "STS12"),
        ("STSBenchmak", "STSBenchmark"),
        ("mrpc", "MRPC"),
        ("SST-2", "SST2"),
        ("Transfer", "transfer"),
        ("Geometry", "geometry"),
    ],
)
def test_an_unknown_set_is_refused_with_the_nearest(name: str, nearest: str) -> None:
    with pytest.raises(UsageError, match=rf"set '{name}' \(did you mean {nearest}\?\): the sets"):
        resolve_tasks([name], "test")


def test_a_set_like_no_other_is_refused_with_the_list() -> None:
    with pytest.raises(
        UsageError,
        match=r"'quora': the sets are STS12, .*, MRPC, geometry; sts, transfer and full stand for "
        r"several, and a path that ends in \.tsv is a set of your own$",
    ):
        resolve_tasks(["quora"], "test")


def test_a_set_without_the_split_is_refused() -> None:
    with pytest.raises(UsageError, match="STS12 has no dev split: STSBenchmark, SICKRelatedness"):
        resolve_tasks(["STS12"], "dev")


def _own(folder: Path, *lines: str, name: str = "my.tsv") -> Path:
    path = folder / name
    path.write_text("".join(f"{line}\n" for line in ("score\tsentence1\tsentence2", *lines)))
    return path


def test_geometry_describes_the_pairs_of_sts_b(tmp_path: Path) -> None:
    for split, pairs in (("dev", 1500), ("test", 1379)):
        rows = "".join(f"{i % 6}\tfirst {i}\tsecond {i}\n" for i in range(pairs))
        file = tmp_path / "STSBenchmark" / f"{split}.tsv"
        file.parent.mkdir(exist_ok=True)
        file.write_text(f"score\tsentence1\tsentence2\n{rows}")
        [found] = load_sets(["geometry"], data=tmp_path, mode=split).sets
        assert isinstance(found, GeometrySet)
        assert (found.name, found.split, len(found.pairs)) == ("geometry", split, pairs)
    file.unlink()
    assert load_sets(["geometry"], data=tmp_path, mode="test").missing == {
        "geometry": f"there is no file {file}"
    }


@pytest.mark.parametrize(("mode", "split"), [("test", "test"), ("dev", "dev")])
def test_a_users_own_pairs_are_an_sts_set_of_any_scale(
    tmp_path: Path, mode: str, split: str
) -> None:
    path = _own(tmp_path, "-1.5\tone  two\tthree", "\tnot\tgraded", "200\tfour\tfive")
    loaded = load_sets([str(path)], data=None, mode=mode)
    [found] = loaded.sets
    assert isinstance(found, STSSet)
    assert (found.name, found.split) == ("my", split)
    pairs = found.subsets["my"]
    assert (pairs.first, pairs.second) == (("one two", "four"), ("three", "five"))
    np.testing.assert_array_equal(pairs.gold_n, [-1.5, 200])
    assert list(loaded.sha256) == ["my.tsv"]


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([], r"my\.tsv has no pair with a gold score: write one after the header$"),
        (["\ta\tb"], r"my\.tsv has no pair with a gold score"),
        (["2\ta\tb", "2.0\tc\td"], r"my\.tsv grades all its pairs 2: a correlation needs differ"),
        (["1\ta\tb", "good\tc\td"], r"my\.tsv line 3: the gold score 'good' is no number"),
        (["1\ta"], r"my\.tsv line 2 has 2 tab-separated columns, at least 3 are needed: correct"),
    ],
)
def test_a_users_own_pairs_that_say_nothing_are_refused(
    tmp_path: Path, lines: list[str], message: str
) -> None:
    with pytest.raises(DataError, match=message):
        load_sets([str(_own(tmp_path, *lines))], data=None, mode="dev")


def test_a_users_own_file_with_another_header_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "my.tsv"
    path.write_text("a\tb\t1\n")
    with pytest.raises(DataError, match=r"header must be score, sentence1, sentence2, tab-separ"):
        load_sets([str(path)], data=None, mode="dev")


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=rf"^there is no file {tmp_path}/no\.tsv: a task that end"):
        load_sets([f"{tmp_path}/no.tsv"], data=None, mode="dev")


def test_two_sets_of_one_name_are_refused(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    rows = ("1\ta\tb", "2\tc\td")
    paths = [_own(tmp_path, *rows), _own(tmp_path / "other", *rows)]
    with pytest.raises(
        UsageError,
        match=r"^two sets are called my, or are when they are recorded: rename .*/other/my\.tsv$",
    ):
        load_sets([str(path) for path in paths], data=None, mode="dev")
