r"""STS sets in folders, in the two layouts that people have.

`SentEvalLayout` is what SentEval's download script writes: `STS/STS12-en-test/STS.input.MSRpar.txt`
with `STS.gs.MSRpar.txt`, `STS/STSBenchmark/sts-test.csv`, `SICK/SICK_test_annotated.txt`.
`TsvLayout` has one file a subset, `STS12/MSRpar.tsv`, `STSBenchmark/test.tsv`, with the header
`score sentence1 sentence2`. All files are UTF-8, tab-separated and without quoting. Lines end at
`\n`, with or without `\r`; other characters that Unicode takes for line ends are text.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np

from simcse.errors import DataError
from simcse.evaluation.sts import Pairs, STSSet, words
from simcse.evaluation.suite import STS_SUITE, Split

_TSV_HEADER = ["score", "sentence1", "sentence2"]
_SICK_HEADER = ["pair_ID", "sentence_A", "sentence_B", "relatedness_score"]
_SICK_PART = {"train": "train", "dev": "trial", "test": "test_annotated"}


class _Row(NamedTuple):
    """One line with a gold score, as text."""

    line: int
    score: str
    first: str
    second: str


class Layout(Protocol):
    """Where a layout keeps a set, and how one of its files is read."""

    @property
    def root(self) -> Path: ...

    def folder(self, name: str) -> Path:
        """The folder of a set, whether it is there or not."""

    def files(self, name: str, subset: str) -> list[Path]:
        """Files of one subset; the one with the gold scores is the last."""

    def rows(self, name: str, contents: Sequence[_Lines]) -> Iterator[_Row]:
        """Rows of a subset whose gold score is not empty."""


class TsvLayout:
    def __init__(self, root: Path) -> None:
        self.root = root

    def folder(self, name: str) -> Path:
        return self.root / name

    def files(self, name: str, subset: str) -> list[Path]:
        return [self.folder(name) / f"{subset}.tsv"]

    def rows(self, name: str, contents: Sequence[_Lines]) -> Iterator[_Row]:
        [table] = contents
        return table.rows(score=0, first=1, second=2, header=_TSV_HEADER)


class SentEvalLayout:
    def __init__(self, root: Path) -> None:
        self.root = root

    def folder(self, name: str) -> Path:
        match name:
            case "SICKRelatedness":
                return self.root / "SICK"
            case "STSBenchmark":
                return self.root / "STS" / name
            case _:
                return self.root / "STS" / f"{name}-en-test"

    def files(self, name: str, subset: str) -> list[Path]:
        folder = self.folder(name)
        match name:
            case "SICKRelatedness":
                return [folder / f"SICK_{_SICK_PART[subset]}.txt"]
            case "STSBenchmark":
                return [folder / f"sts-{subset}.csv"]
            case _:
                return [folder / f"STS.input.{subset}.txt", folder / f"STS.gs.{subset}.txt"]

    def rows(self, name: str, contents: Sequence[_Lines]) -> Iterator[_Row]:
        match name:
            case "SICKRelatedness":
                return contents[0].rows(score=3, first=1, second=2, header=_SICK_HEADER)
            case "STSBenchmark":
                return contents[0].rows(score=4, first=5, second=6)
            case _:
                return _beside(*contents)


class _Lines:
    """A text file as its lines, with the checksum of its bytes."""

    def __init__(self, path: Path) -> None:
        content = path.read_bytes()
        self.path = path
        self.sha256 = hashlib.sha256(content).hexdigest()
        try:
            text = content.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            line = content.count(b"\n", 0, error.start) + 1
            raise DataError(
                f"{path} line {line} is not UTF-8 (byte 0x{content[error.start]:02x}): "
                "convert the file to UTF-8"
            ) from None
        # Not splitlines: it also breaks at control characters that stand inside sentences.
        self.lines = [line.removesuffix("\r") for line in text.removesuffix("\n").split("\n")]

    def rows(
        self, *, score: int, first: int, second: int, header: Sequence[str] = ()
    ) -> Iterator[_Row]:
        """Rows by the indices of their columns; columns after the last of them are ignored."""
        if header and self.lines[0].split("\t")[: len(header)] != header:
            raise DataError(
                f"{self.path} begins with {self.lines[0][:80]!r}: its header must be "
                f"{', '.join(header)}, tab-separated"
            )
        needed = 1 + max(score, first, second)
        for number, line in enumerate(self.lines, start=1):
            fields = line.split("\t")
            if number == 1 and header:
                continue
            if len(fields) < needed:
                raise _wrong_columns(self.path, number, len(fields), needed)
            if fields[score].strip():
                yield _Row(number, fields[score], fields[first], fields[second])


def read_set(layout: Layout, name: str, split: Split) -> tuple[STSSet, dict[str, str]]:
    """A set from files that are all there, and the SHA-256 of each by its path in the layout.

    Raises `DataError` naming file and line for bytes that are not UTF-8, a missing column or a
    score that is no number, and naming the file for another number of pairs than the set has.
    """
    subsets: dict[str, Pairs] = {}
    sha256: dict[str, str] = {}
    for subset, expected in STS_SUITE[name][split].items():
        contents = [_Lines(path) for path in layout.files(name, subset)]
        sha256 |= {c.path.relative_to(layout.root).as_posix(): c.sha256 for c in contents}
        gold_path = contents[-1].path
        pairs = _pairs(gold_path, layout.rows(name, contents))
        if len(pairs) != expected:
            raise DataError(
                f"{gold_path} has {len(pairs)} pairs with a gold score, but {name} {subset} has "
                f"{expected}: replace the file by the released one, or leave {name} out of --tasks"
            )
        subsets[subset] = pairs
    return STSSet(name, split, subsets), sha256


def _beside(inputs: _Lines, gold: _Lines) -> Iterator[_Row]:
    if len(inputs.lines) != len(gold.lines):
        raise DataError(
            f"{inputs.path} has {len(inputs.lines)} lines but {gold.path.name} has "
            f"{len(gold.lines)}: line i of one belongs to line i of the other, so take both from "
            "the same release"
        )
    for number, (line, score) in enumerate(zip(inputs.lines, gold.lines, strict=True), start=1):
        if not score.strip():
            continue
        fields = line.split("\t")
        if len(fields) < 2:
            raise _wrong_columns(inputs.path, number, len(fields), 2)
        yield _Row(number, score, fields[0], fields[1])


def _pairs(gold_path: Path, rows: Iterator[_Row]) -> Pairs:
    first, second, gold = [], [], []
    for row in rows:
        gold.append(_number(gold_path, row))
        first.append(words(row.first))
        second.append(words(row.second))
    return Pairs(tuple(first), tuple(second), np.array(gold, dtype=np.float64))


def _number(path: Path, row: _Row) -> float:
    try:
        score = float(row.score)
    except ValueError:
        score = math.nan
    if not math.isfinite(score):
        raise DataError(
            f"{path} line {row.line}: the gold score {row.score!r} is no number; write one, or "
            "nothing for a pair without a score"
        )
    return score


def _wrong_columns(path: Path, line: int, found: int, needed: int) -> DataError:
    return DataError(
        f"{path} line {line} has {found} tab-separated column{'s' * (found != 1)}, at least "
        f"{needed} are needed: restore the line from the release"
    )
