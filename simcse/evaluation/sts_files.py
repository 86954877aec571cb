"""STS sets in folders, in the two layouts that people have.

`SentEvalLayout` is what SentEval's download script writes: `STS/STS12-en-test/STS.input.MSRpar.txt`
with `STS.gs.MSRpar.txt`, `STS/STSBenchmark/sts-test.csv`, `SICK/SICK_test_annotated.txt`.
`TsvLayout` has one file a subset, `STS12/MSRpar.tsv`, `STSBenchmark/test.tsv`, with the header
`score sentence1 sentence2`; a user's own set is such a file too. All files are UTF-8, tab-separated
and without quoting.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np

from simcse.errors import DataError
from simcse.evaluation.sts import Pairs, STSSet
from simcse.evaluation.suite import STS_SUITE, Split
from simcse.evaluation.text_files import TextFile, words, wrong_columns

_TSV_HEADER = ["score", "sentence1", "sentence2"]
_SICK_HEADER = ["pair_ID", "sentence_A", "sentence_B", "relatedness_score"]
_SICK_PART = {"dev": "trial", "test": "test_annotated"}


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

    def rows(self, name: str, contents: Sequence[TextFile]) -> Iterator[_Row]:
        """Rows of a subset whose gold score is not empty."""


class TsvLayout:
    def __init__(self, root: Path) -> None:
        self.root = root

    def folder(self, name: str) -> Path:
        return self.root / name

    def files(self, name: str, subset: str) -> list[Path]:
        return [self.folder(name) / f"{subset}.tsv"]

    def rows(self, name: str, contents: Sequence[TextFile]) -> Iterator[_Row]:
        [table] = contents
        return _read_rows(table, score=0, first=1, second=2, header=_TSV_HEADER)


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

    def rows(self, name: str, contents: Sequence[TextFile]) -> Iterator[_Row]:
        match name:
            case "SICKRelatedness":
                return _read_rows(contents[0], score=3, first=1, second=2, header=_SICK_HEADER)
            case "STSBenchmark":
                return _read_rows(contents[0], score=4, first=5, second=6)
            case _:
                return _beside(*contents)


def _read_rows(
    file: TextFile, *, score: int, first: int, second: int, header: Sequence[str] = ()
) -> Iterator[_Row]:
    """Rows by the indices of their columns; columns after the last of them are ignored."""
    if header and file.lines[0].split("\t")[: len(header)] != header:
        raise DataError(
            f"{file.path} begins with {file.lines[0][:80]!r}: its header must be "
            f"{', '.join(header)}, tab-separated"
        )
    needed = 1 + max(score, first, second)
    for number, line in enumerate(file.lines, start=1):
        fields = line.split("\t")
        if number == 1 and header:
            continue
        if len(fields) < needed:
            raise wrong_columns(file.path, number, len(fields), needed)
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
        contents = [TextFile(path) for path in layout.files(name, subset)]
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


def read_tsv(path: Path, split: str) -> tuple[STSSet, dict[str, str]]:
    """A user's own set of graded pairs, named like its file, and the SHA-256 of the file.

    Raises `DataError` as `read_set` does, and where there is nothing to order pairs by.
    """
    file = TextFile(path)
    pairs = _pairs(path, _read_rows(file, score=0, first=1, second=2, header=_TSV_HEADER))
    if not pairs:
        raise DataError(f"{path} has no pair with a gold score: write one after the header")
    if np.ptp(pairs.gold_n) == 0:
        raise DataError(
            f"{path} grades all its pairs {pairs.gold_n[0]:g}: a correlation needs different grades"
        )
    return STSSet(path.stem, split, {path.stem: pairs}), {path.name: file.sha256}


def _beside(inputs: TextFile, gold: TextFile) -> Iterator[_Row]:
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
            raise wrong_columns(inputs.path, number, len(fields), 2)
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
