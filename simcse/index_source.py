"""Sentences in a text file, read line by line."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from pathlib import Path

from simcse.errors import DataError, UsageError


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
        for number, line in enumerate(self._lines(), start=1):
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

    def _lines(self) -> Iterator[bytes]:
        open_file = gzip.open if self.path.suffix == ".gz" else open
        try:
            with open_file(self.path, "rb") as file:
                yield from file
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            raise DataError(f"{self.path} is no complete gz file ({error}): copy it anew") from None
