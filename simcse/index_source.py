"""Sentences in a text file, read line by line."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from simcse.errors import DataError, UsageError
from simcse.text_lines import read_lines


class SentenceFile:
    """Sentences of a UTF-8 text file, plain or gz, one a line; it may be larger than memory.

    White space at the end of a line is dropped, and so are lines without text. The whole file is
    read once at the start, so that a bad line is found before hours of work: raises `UsageError`
    when there is no file, `DataError` when it is corrupt, not UTF-8, or without sentences.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path).expanduser()
        if not self.path.is_file():
            raise UsageError(f"there is no file of sentences {path}: check the path")
        self._count = sum(1 for _ in self)
        if self._count == 0:
            raise DataError(f"{path} holds no sentences: write one a line")

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[str]:
        for number, line in enumerate(read_lines(self.path), start=1):
            try:
                # Editors on Windows start a file with a byte order mark.
                sentence = line.decode("utf-8-sig").rstrip()
            except UnicodeDecodeError:
                raise DataError(
                    f"{self.path} is not UTF-8 in line {number}: convert the file, or remove the "
                    "line"
                ) from None
            if sentence:
                yield sentence
