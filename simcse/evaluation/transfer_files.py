"""Transfer tasks in SentEval's files, whose folders and sizes `TRANSFER_SUITE` lists.

MR, CR, SUBJ and MPQA have one file a class with a sentence a line. SST2 has `sentence TAB label`,
TREC `CLASS:subclass question`, MRPC a header and `label, id, id, sentence, sentence`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from simcse.errors import DataError
from simcse.evaluation.suite import TRANSFER_SUITE, Mode, split_of
from simcse.evaluation.text_files import TextFile, words, wrong_columns
from simcse.evaluation.transfer import SETTINGS, Examples, Part, TransferSet

_TREC_CLASSES = ("ABBR", "DESC", "ENTY", "HUM", "LOC", "NUM")
_UTF8_TASKS = ("SST2", "MRPC")
"""SentEval opens the others as latin-1, whatever they are."""


class _Example(NamedTuple):
    label: int
    sentences: tuple[str, ...]


def read_transfer_set(root: Path, name: str, mode: Mode) -> tuple[TransferSet, dict[str, str]]:
    """A task from files that are all there, and the SHA-256 of each by its path below `root`.

    Raises `DataError` naming file and line for what cannot be read, and naming the file for another
    number of examples than the task has.
    """
    sha256: dict[str, str] = {}
    by_file: list[list[_Example]] = []
    for place, (path, expected) in enumerate(TRANSFER_SUITE[name].items()):
        file = TextFile(root / path, "utf-8-sig" if name in _UTF8_TASKS else "latin-1")
        examples = list(_read(name, file, place))
        if len(examples) != expected:
            raise DataError(
                f"{file.path} has {len(examples)} examples, but {name} has {expected} there: "
                f"replace the file by the released one, or leave {name} out of --tasks"
            )
        sha256[path] = file.sha256
        by_file.append(examples)
    parts: dict[Part, Examples] = {
        part: _in_order(examples) for part, examples in _parts(name, by_file).items()
    }
    if split_of(mode) == "dev":
        parts.pop("test", None)
    return TransferSet(name, split_of(mode), parts, SETTINGS[mode]), sha256


def _read(name: str, file: TextFile, place: int) -> Iterator[_Example]:
    """Examples of the file at a place of its task."""
    match name:
        case "SST2":
            return _labelled_sentences(file)
        case "TREC":
            return _questions(file)
        case "MRPC":
            return _paraphrases(file)
        case _:
            # The first file of these tasks has label 1: positive, or objective.
            return (_Example(1 - place, (words(line),)) for line in file.lines)


def _labelled_sentences(file: TextFile) -> Iterator[_Example]:
    for number, line in enumerate(file.lines, start=1):
        sentence, label = _columns(file, number, line, 2)
        yield _Example(_class(file, number, label, ("0", "1")), (words(sentence),))


def _questions(file: TextFile) -> Iterator[_Example]:
    for number, line in enumerate(file.lines, start=1):
        label, _, question = line.partition(" ")
        coarse, _, _ = label.partition(":")
        yield _Example(_class(file, number, coarse, _TREC_CLASSES), (words(question),))


def _paraphrases(file: TextFile) -> Iterator[_Example]:
    for number, line in enumerate(file.lines[1:], start=2):
        label, _, _, first, second = _columns(file, number, line, 5)
        yield _Example(_class(file, number, label, ("0", "1")), (words(first), words(second)))


def _columns(file: TextFile, number: int, line: str, needed: int) -> list[str]:
    columns = line.split("\t")
    if len(columns) < needed:
        raise wrong_columns(file.path, number, len(columns), needed)
    return columns[:needed]


def _class(file: TextFile, number: int, label: str, classes: Sequence[str]) -> int:
    if label not in classes:
        raise DataError(
            f"{file.path} line {number}: the label {label!r} is none of {', '.join(classes)}: "
            "restore the line from the release"
        )
    return classes.index(label)


def _parts(name: str, by_file: Sequence[list[_Example]]) -> dict[Part, list[_Example]]:
    match name:
        case "SST2":
            train, dev, test = by_file
            return {"train": train, "dev": dev, "test": test}
        case "TREC" | "MRPC":
            train, test = by_file
            return {"train": train, "test": test}
        case _:
            return {"all": [example for examples in by_file for example in examples]}


def _in_order(examples: Sequence[_Example]) -> Examples:
    """By number of words, then label: the order that SentEval deals folds from."""
    ordered = sorted(
        examples, key=lambda e: (*(len(text.split()) for text in e.sentences), e.label)
    )
    columns = tuple(zip(*(example.sentences for example in ordered), strict=True))
    return Examples(columns, np.array([example.label for example in ordered], dtype=np.intp))
