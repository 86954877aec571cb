"""Average word vectors, the literature's oldest baseline (paper table 5: "GloVe embeddings").

n: sentences, V: words of the file, m: words of some of its lines, D: width.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, islice
from math import isfinite
from pathlib import Path
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from simcse.errors import DataError, UsageError
from simcse.evaluation.protocol import Progress
from simcse.text_lines import read_lines

FILE_NAMES = (".txt", ".vec", ".txt.gz", ".vec.gz")
"""What the names of such files end in."""

_LINES_AT_ONCE = 8192
_HEADER = re.compile(r"(\d+) (\d+)")
_PARTS = re.compile(r"\w+|[^\w\s]")


class WordVectorAverage:
    """A sentence as the mean of the vectors of its words."""

    def __init__(self, row: Mapping[str, int], vectors_VD: NDArray[np.float32]) -> None:
        self._row = row
        self._vectors_VD = vectors_VD
        self.dimension = vectors_VD.shape[1]
        self.words = 0
        """Words encoded so far."""
        self.unknown_words = 0
        """Those of them that have no vector and were left out."""

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """The vectors of a text file, plain or gz, as GloVe, word2vec and fastText write it.

        A line is a word and its numbers, separated by single spaces; the first line may give the
        counts of both instead. Of a word that comes twice the first vector counts. Raises
        `UsageError` when there is no file, `DataError` when one is incomplete or has a line of
        another width or without numbers.
        """
        file = Path(path).expanduser()
        if not file.is_file():
            raise UsageError(f"there is no file of word vectors {path}: check the path")
        lines = _numbered_lines(file)
        first = next(lines, None)
        if first is None:
            raise DataError(f"{file} is empty: a line is a word and its numbers")
        header = _HEADER.fullmatch(first.text)
        width = int(header[2]) if header else first.text.count(" ")
        if width == 0:
            raise DataError(f"{file} line 1 has no numbers after its word: check the file")
        if not header:
            lines = chain([first], lines)
        row: dict[str, int] = {}
        blocks: list[NDArray[np.float32]] = []
        count = 0
        while chunk := list(islice(lines, _LINES_AT_ONCE)):
            words, block_mD = _parse(file, chunk, width)
            blocks.append(block_mD)
            for index, word in enumerate(words, start=count):
                row.setdefault(word, index)
            count += len(words)
        if header and count != int(header[1]):
            raise DataError(
                f"{file} has the vectors of {count} words, but its first line says {header[1]}: "
                "copy it anew"
            )
        if not blocks:
            raise DataError(f"{file} has no words: copy it anew")
        return cls(row, np.concatenate(blocks))

    def encode(
        self, sentences: Sequence[str], *, progress: Progress | None = None
    ) -> NDArray[np.float32]:
        """Vectors `[n, D]`; zeros, whose cosine is 0, for a sentence without a known word.

        Words are what white space separates. One without a vector is tried in lower case, and then
        as its letters and its marks apart: text may be tokenised or not.
        """
        vectors_nD = np.zeros((len(sentences), self.dimension), dtype=np.float32)
        for index, sentence in enumerate(sentences):
            rows = [row for word in sentence.split() for row in self._rows(word)]
            known = [row for row in rows if row is not None]
            self.words += len(rows)
            self.unknown_words += len(rows) - len(known)
            if known:
                vectors_nD[index] = self._vectors_VD[known].mean(axis=0)
            if progress:
                progress(index + 1)
        return vectors_nD

    def _rows(self, word: str) -> list[int | None]:
        row = self._find(word)
        return [row] if row is not None else [self._find(part) for part in _PARTS.findall(word)]

    def _find(self, word: str) -> int | None:
        return self._row.get(word, self._row.get(word.lower()))


class _Line(NamedTuple):
    number: int
    text: str


def _numbered_lines(file: Path) -> Iterator[_Line]:
    for number, line in enumerate(read_lines(file), start=1):
        # A word that is not UTF-8 is one that no sentence has; fastText ends lines with a space.
        yield _Line(number, line.decode("utf-8", errors="replace").rstrip(" \r\n"))


def _parse(file: Path, lines: Sequence[_Line], width: int) -> tuple[list[str], NDArray[np.float32]]:
    """Words of these lines and their vectors `[m, D]`."""
    words: list[str] = []
    numbers: list[str] = []
    for line in lines:
        word, *rest = line.text.rsplit(" ", width)
        # Some words of GloVe hold spaces; one that ends in a number is a number too many.
        if len(rest) != width or not word or (" " in word and _is_number(word.rsplit(" ", 1)[1])):
            raise DataError(
                f"{file} line {line.number} has {line.text.count(' ')} numbers after its word, but "
                f"{width} are expected: restore or remove the line"
            )
        words.append(word)
        numbers.append(line.text[len(word) + 1 :])
    try:
        block_mD = np.loadtxt(numbers, dtype=np.float32, comments=None, delimiter=" ", ndmin=2)
    except ValueError:
        block_mD = None
    if block_mD is None or not np.isfinite(block_mD).all():
        number, text = next(
            (line.number, text)
            for line, texts in zip(lines, numbers, strict=True)
            for text in texts.split(" ")
            if not _is_number(text)
        )
        raise DataError(f"{file} line {number}: {text!r} is no number: restore or remove the line")
    return words, block_mD


def _is_number(text: str) -> bool:
    # Python reads 1_0 as a number; files of vectors and NumPy do not.
    try:
        return "_" not in text and isfinite(float(text))
    except ValueError:
        return False
