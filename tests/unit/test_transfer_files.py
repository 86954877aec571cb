"""Reading transfer tasks from SentEval's files, and what is wrong in them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from simcse.errors import DataError, UsageError
from simcse.evaluation import TRANSFER_SUITE, TransferSet, load_sets

TREC_CLASSES = ("ABBR", "DESC", "ENTY", "HUM", "LOC", "NUM")


def _lines(name: str, path: str, count: int) -> Iterator[str]:
    """Lines whose sentences have two to six words, and the label of every third line changes."""
    if name == "MRPC":
        yield "\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String"
    for i in range(count):
        sentence = f"{Path(path).name} {i} " + "w " * (i % 5)
        match name:
            case "SST2":
                yield f"{sentence}\t{i % 3 % 2}"
            case "TREC":
                yield f"{TREC_CLASSES[i % 6]}:any  {sentence}?"
            case "MRPC":
                yield f'{i % 3 % 2}\t{i}\t{i + 1}\t"{sentence}\tSecond {sentence}'
            case _:
                yield sentence


def write_task(root: Path, name: str) -> None:
    for path, count in TRANSFER_SUITE[name].items():
        file = root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("".join(line + "\n" for line in _lines(name, path, count)), "utf-8")


def _load(name: str, data: Path, mode: str = "test") -> TransferSet:
    loaded = load_sets([name], data=data, mode=mode)
    assert not loaded.missing
    [found] = loaded.sets
    assert isinstance(found, TransferSet)
    return found


@pytest.fixture
def short_sst2(monkeypatch: pytest.MonkeyPatch) -> None:
    """SST2 with nine training examples, for what does not hang on its 67,349."""
    files = dict(TRANSFER_SUITE["SST2"]) | {"SST/binary/sentiment-train": 9}
    monkeypatch.setitem(TRANSFER_SUITE, "SST2", files)


@pytest.mark.parametrize("name", TRANSFER_SUITE)
def test_every_task_is_read_whole_beside_the_others_or_by_itself(name: str, tmp_path: Path) -> None:
    write_task(tmp_path / "transfer", name)
    for data in (tmp_path, tmp_path / "transfer"):
        found = _load(name, data)
        assert (found.name, found.split) == (name, "test")
        counts = list(TRANSFER_SUITE[name].values())
        if name in ("SST2", "TREC", "MRPC"):
            names = ("train", "dev", "test") if name == "SST2" else ("train", "test")
            assert {part: len(e.labels_n) for part, e in found.parts.items()} == dict(
                zip(names, counts, strict=True)
            )
        else:
            # The first file holds the examples of class 1.
            assert np.bincount(found.parts["all"].labels_n).tolist() == counts[::-1]
    files = {path: tmp_path / "transfer" / path for path in TRANSFER_SUITE[name]}
    assert load_sets([name], data=tmp_path, mode="test").sha256 == {
        path: hashlib.sha256(file.read_bytes()).hexdigest() for path, file in files.items()
    }


def test_examples_are_ordered_by_length_and_label_as_folds_are_dealt_by_it(tmp_path: Path) -> None:
    for name in ("CR", "MRPC"):
        write_task(tmp_path, name)
    reviews = _load("CR", tmp_path).parts["all"]
    keys = [
        (len(text.split()), label)
        for text, label in zip(reviews.columns[0], reviews.labels_n, strict=True)
    ]
    assert keys == sorted(keys)
    # Equal keys keep the order of the file.
    assert reviews.columns[0][:2] == ("custrev.neg 0", "custrev.neg 5")
    pairs = _load("MRPC", tmp_path).parts["test"]
    keys = [
        (len(first.split()), len(second.split()), label)
        for first, second, label in zip(*pairs.columns, pairs.labels_n, strict=True)
    ]
    assert keys == sorted(keys)
    assert pairs.columns[0][0] == '"msr_paraphrase_test.txt 0'
    assert pairs.columns[1][0] == "Second msr_paraphrase_test.txt 0"


def test_labels_and_questions_of_trec_stand_apart(tmp_path: Path) -> None:
    write_task(tmp_path, "TREC")
    test = _load("TREC", tmp_path).parts["test"]
    by_number = dict(
        zip((int(text.split()[1]) for text in test.columns[0]), test.labels_n, strict=True)
    )
    assert [by_number[i] for i in range(500)] == [i % 6 for i in range(500)]
    assert "TREC_10.label 1 w ?" in test.columns[0]


@pytest.mark.usefixtures("short_sst2")
def test_files_are_opened_as_senteval_opens_them(tmp_path: Path) -> None:
    for name in ("CR", "SST2"):
        write_task(tmp_path, name)
    _replace_line(tmp_path / "CR/custrev.pos", 1, "caf\u00e9 d\u00e0 ".encode())
    _replace_line(tmp_path / "SST/binary/sentiment-dev", 1, "caf\u00e9\t1".encode())
    # UTF-8 read as latin-1; the second byte of "à" is then a space.
    assert "caf\u00c3\u00a9 d\u00c3" in _load("CR", tmp_path).parts["all"].columns[0]
    assert "caf\u00e9" in _load("SST2", tmp_path).parts["dev"].columns[0]
    _replace_line(tmp_path / "CR/custrev.pos", 1, b"caf\xe9")
    assert "caf\u00e9" in _load("CR", tmp_path).parts["all"].columns[0]


def test_the_mode_says_folds_and_whether_the_test_part_is_read(tmp_path: Path) -> None:
    write_task(tmp_path, "TREC")
    found = {mode: _load("TREC", tmp_path, mode) for mode in ("test", "fasttest", "dev")}
    assert {mode: task.split for mode, task in found.items()} == {
        "test": "test",
        "fasttest": "test",
        "dev": "dev",
    }
    assert {mode: task.settings.folds for mode, task in found.items()} == {
        "test": 10,
        "fasttest": 5,
        "dev": 5,
    }
    assert {mode: list(task.parts) for mode, task in found.items()} == {
        "test": ["train", "test"],
        "fasttest": ["train", "test"],
        "dev": ["train"],
    }


def test_tasks_that_are_not_there_are_listed_with_what_is_missing(tmp_path: Path) -> None:
    write_task(tmp_path / "transfer", "CR")
    write_task(tmp_path / "transfer", "TREC")
    (tmp_path / "transfer/TREC/TREC_10.label").unlink()
    loaded = load_sets(["transfer"], data=tmp_path, mode="test")
    assert [found.name for found in loaded.sets] == ["CR"]
    assert list(loaded.missing) == ["MR", "SUBJ", "MPQA", "SST2", "TREC", "MRPC"]
    assert loaded.missing["SUBJ"] == f"there is no folder of SUBJ in {tmp_path}"
    assert loaded.missing["TREC"] == f"there is no file {tmp_path}/transfer/TREC/TREC_10.label"


def test_the_hub_is_not_asked_for_transfer_tasks() -> None:
    assert load_sets(["CR"], data=None, mode="test").missing == {
        "CR": "the hub is asked for STS sets only: point --data at a folder that holds CR"
    }


def _replace_line(path: Path, number: int, line: bytes) -> None:
    lines = path.read_bytes().split(b"\n")
    lines[number - 1] = line
    path.write_bytes(b"\n".join(lines))


@pytest.mark.usefixtures("short_sst2")
@pytest.mark.parametrize(
    ("name", "file", "line", "message"),
    [
        ("CR", "CR/custrev.neg", b"a\nb", r"custrev\.neg has 1369 examples, but CR has 1368 there"),
        (
            "SST2",
            "SST/binary/sentiment-dev",
            b"no label",
            r"dev line 3 has 1 tab-separated column,",
        ),
        (
            "SST2",
            "SST/binary/sentiment-dev",
            b"a\t2",
            r"line 3: the label '2' is none of 0, 1: res",
        ),
        ("SST2", "SST/binary/sentiment-dev", b"\xff\t1", r"sentiment-dev line 3 is not UTF-8"),
        ("TREC", "TREC/TREC_10.label", b"What?", r"line 3: the label 'What\?' is none of ABBR, DE"),
        ("MRPC", "MRPC/msr_paraphrase_test.txt", b"1\t2\t3\ta", r"3 has 4 tab-.* at least 5 are"),
        (
            "MRPC",
            "MRPC/msr_paraphrase_test.txt",
            b"x\t2\t3\ta\tb",
            r"line 3: the label 'x' is none",
        ),
    ],
)
def test_a_file_with_wrong_content_is_named(
    tmp_path: Path, name: str, file: str, line: bytes, message: str
) -> None:
    write_task(tmp_path, name)
    _replace_line(tmp_path / file, 3, line)
    with pytest.raises(DataError, match=message):
        load_sets([name], data=tmp_path, mode="test")


def test_a_folder_without_any_set_is_refused(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    with pytest.raises(UsageError, match=r"holds no evaluation set: give a folder that holds sts/"):
        load_sets(["CR"], data=tmp_path, mode="test")
