"""Reading STS sets from folders: both layouts, and what is wrong in them."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest

from simcse.errors import DataError, UsageError
from simcse.evaluation import STS_SUITE, load_sets

SICK_HEADER = "pair_ID\tsentence_A\tsentence_B\trelatedness_score\tentailment_judgment"


def _rows(name: str, subset: str, count: int) -> list[tuple[str, str, str]]:
    return [
        (f"{i % 26 / 5:.3f}", f'A "{name}" {subset} {i} .', f"Another one {i}")
        for i in range(count)
    ]


def _write(path: Path, lines: list[str], end: str = "\n") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes("".join(line + end for line in lines).encode())


def write_tsv(root: Path, name: str, split: str = "test") -> None:
    for subset, count in STS_SUITE[name][split].items():
        rows = ["\t".join(row) for row in _rows(name, subset, count)]
        _write(root / name / f"{subset}.tsv", ["score\tsentence1\tsentence2", *rows])


def write_senteval(root: Path, name: str, split: str = "test") -> None:
    for subset, count in STS_SUITE[name][split].items():
        rows = _rows(name, subset, count)
        if name == "SICKRelatedness":
            part = {"dev": "trial", "test": "test_annotated"}[split]
            lines = [f"{i}\t{a}\t{b}\t{score}\tNEUTRAL" for i, (score, a, b) in enumerate(rows)]
            _write(root / "SICK" / f"SICK_{part}.txt", [SICK_HEADER, *lines], end="\r\n")
        elif name == "STSBenchmark":
            lines = [f"genre\tfile\tyear\t{i}\t{s}\t{a}\t{b}" for i, (s, a, b) in enumerate(rows)]
            _write(root / "STS" / name / f"sts-{split}.csv", lines)
        else:
            # Between any two graded pairs stands one that nobody graded, as in STS15 and STS16.
            folder = root / "STS" / f"{name}-en-test"
            inputs = [line for _, a, b in rows for line in (f"{a}\t{b}", "Not\tgraded")]
            gold = [line for score, _, _ in rows for line in (score, "")]
            _write(folder / f"STS.input.{subset}.txt", inputs)
            _write(folder / f"STS.gs.{subset}.txt", gold)


WRITERS = {"sts": write_tsv, "sts_senteval": write_senteval}


@pytest.mark.parametrize("name", STS_SUITE)
@pytest.mark.parametrize("layout", WRITERS)
def test_every_set_is_read_whole_from_either_layout(tmp_path: Path, layout: str, name: str) -> None:
    WRITERS[layout](tmp_path / layout, name)
    for data in (tmp_path, tmp_path / layout):
        loaded = load_sets([name], data=data, mode="test")
        [found] = loaded.sets
        assert (found.name, found.split, loaded.missing) == (name, "test", {})
        assert {k: len(v) for k, v in found.subsets.items()} == STS_SUITE[name]["test"]
        for subset, pairs in found.subsets.items():
            rows = _rows(name, subset, len(pairs))
            assert pairs.first == tuple(first for _, first, _ in rows)
            assert pairs.second == tuple(second for _, _, second in rows)
            np.testing.assert_array_equal(pairs.gold_n, [float(score) for score, _, _ in rows])


@pytest.mark.parametrize("layout", WRITERS)
def test_the_checksum_of_each_file_is_listed_by_its_path_in_the_layout(
    tmp_path: Path, layout: str
) -> None:
    WRITERS[layout](tmp_path / layout, "STS13")
    root = tmp_path / layout
    files = [path for path in root.rglob("*") if path.is_file()]
    want = {
        path.relative_to(root).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in files
    }
    assert load_sets(["STS13"], data=tmp_path, mode="test").sha256 == want
    assert load_sets(["STS13"], data=root, mode="test").sha256 == want


@pytest.mark.parametrize("layout", WRITERS)
def test_the_dev_splits_are_read_too(tmp_path: Path, layout: str) -> None:
    for name in ("STSBenchmark", "SICKRelatedness"):
        WRITERS[layout](tmp_path / layout, name, "dev")
    loaded = load_sets(["sts"], data=tmp_path, mode="dev")
    assert [(found.name, found.split) for found in loaded.sets] == [
        ("STSBenchmark", "dev"),
        ("SICKRelatedness", "dev"),
    ]


def test_the_fast_mode_reads_the_test_split(tmp_path: Path) -> None:
    write_tsv(tmp_path, "STS13")
    test, fast = (load_sets(["STS13"], data=tmp_path, mode=mode) for mode in ("test", "fasttest"))
    assert (fast.sha256, fast.sets[0].split) == (test.sha256, "test")


def test_sts_is_preferred_and_the_other_layout_fills_its_gaps(tmp_path: Path) -> None:
    write_tsv(tmp_path / "sts", "STS13")
    write_tsv(tmp_path / "sts", "STS16")
    (tmp_path / "sts/STS16/plagiarism.tsv").unlink()
    for name in ("STS12", "STS13", "STS16"):
        write_senteval(tmp_path / "sts_senteval", name)
    loaded = load_sets(["STS12", "STS13", "STS16"], data=tmp_path, mode="test")
    assert len(loaded.sets) == 3
    assert "STS13/FNWN.tsv" in loaded.sha256
    assert "STS/STS12-en-test/STS.gs.MSRpar.txt" in loaded.sha256
    assert "STS/STS16-en-test/STS.gs.plagiarism.txt" in loaded.sha256


def test_a_set_that_is_not_there_is_listed_with_what_is_missing(tmp_path: Path) -> None:
    write_tsv(tmp_path / "sts", "STS13")
    (tmp_path / "sts/STS13/OnWN.tsv").unlink()
    loaded = load_sets(["STS12", "STS13"], data=tmp_path, mode="test")
    assert loaded.sets == []
    assert loaded.missing == {
        "STS12": f"there is no folder of STS12 in {tmp_path}",
        "STS13": f"there is no file {tmp_path}/sts/STS13/OnWN.tsv",
    }


def test_spaces_between_words_are_single_as_in_senteval(tmp_path: Path) -> None:
    write_tsv(tmp_path, "STS13")
    path = tmp_path / "STS13/FNWN.tsv"
    lines = path.read_text().splitlines()
    lines[1] = "1.0\t two  words \tone\u00a0\rword\u2028more"
    _write(path, lines)
    [found] = load_sets(["STS13"], data=tmp_path, mode="test").sets
    assert found.subsets["FNWN"].first[0] == "two words"
    assert found.subsets["FNWN"].second[0] == "one word more"


def test_a_folder_that_is_not_there_or_holds_no_set_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=f"there is no folder {tmp_path}/absent"):
        load_sets(["sts"], data=tmp_path / "absent", mode="test")
    with pytest.raises(UsageError, match=f"{tmp_path} holds no evaluation set: give a folder that"):
        load_sets(["sts"], data=tmp_path, mode="test")


def _replace_line(path: Path, number: int, line: bytes) -> None:
    lines = path.read_bytes().split(b"\n")
    lines[number - 1] = line
    path.write_bytes(b"\n".join(lines))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"five\tone\ttwo", r"FNWN\.tsv line 3: the gold score 'five' is no number"),
        (b"nan\tone\ttwo", r"FNWN\.tsv line 3: the gold score 'nan' is no number"),
        (b"5.0\tone", r"FNWN\.tsv line 3 has 2 tab-separated columns, at least 3 are needed"),
        (b"", r"FNWN\.tsv line 3 has 1 tab-separated column, at least 3"),
        (b"5.0\tcaf\xe9\ttwo", r"FNWN\.tsv line 3 is not UTF-8 \(byte 0xe9\)"),
        (b"\tone\ttwo", r"FNWN\.tsv has 188 pairs with a gold score, but STS13 FNWN has 189"),
    ],
)
def test_a_bad_row_of_a_tsv_is_named(tmp_path: Path, line: bytes, message: str) -> None:
    write_tsv(tmp_path, "STS13")
    _replace_line(tmp_path / "STS13/FNWN.tsv", 3, line)
    with pytest.raises(DataError, match=message):
        load_sets(["STS13"], data=tmp_path, mode="test")


@pytest.mark.parametrize(
    ("file", "line", "message"),
    [
        ("STS.gs.FNWN.txt", b"four", r"STS\.gs\.FNWN\.txt line 3: the gold score 'four'"),
        ("STS.gs.FNWN.txt", b"4.0\n4.0", r"FNWN\.txt has 378 lines but STS\.gs\.FNWN\.txt has 379"),
        ("STS.input.FNWN.txt", b"one", r"STS\.input\.FNWN\.txt line 3 has 1 tab-separated column"),
        ("STS.input.FNWN.txt", b"\xff\tb", r"STS\.input\.FNWN\.txt line 3 is not UTF-8"),
    ],
)
def test_a_bad_row_of_senteval_is_named(
    tmp_path: Path, file: str, line: bytes, message: str
) -> None:
    write_senteval(tmp_path, "STS13")
    _replace_line(tmp_path / "STS/STS13-en-test" / file, 3, line)
    with pytest.raises(DataError, match=message):
        load_sets(["STS13"], data=tmp_path, mode="test")


def test_a_file_with_another_header_is_named(tmp_path: Path) -> None:
    write_tsv(tmp_path / "sts", "STSBenchmark", "dev")
    _replace_line(tmp_path / "sts/STSBenchmark/dev.tsv", 1, b"sentence1\tsentence2\tscore")
    with pytest.raises(DataError, match=r"header must be score, sentence1, sentence2"):
        load_sets(["STSBenchmark"], data=tmp_path, mode="dev")
    write_senteval(tmp_path, "SICKRelatedness", "dev")
    _replace_line(tmp_path / "SICK/SICK_trial.txt", 1, b"1\ta\tb\t3.0\tNEUTRAL\r")
    with pytest.raises(DataError, match=r"SICK_trial\.txt begins with .*pair_ID, sentence_A"):
        load_sets(["SICKRelatedness"], data=tmp_path, mode="dev")
