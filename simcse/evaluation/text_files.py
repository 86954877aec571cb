"""Text files of evaluation sets: their lines, and the checksum of their bytes."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Literal

from simcse.errors import DataError


class TextFile:
    r"""A text file as its lines.

    Lines end at `\n`, with or without `\r`; other characters that Unicode takes for line ends are
    text. Raises `DataError` naming the line of bytes that are not in the encoding.
    """

    def __init__(self, path: Path, encoding: Literal["utf-8-sig", "latin-1"] = "utf-8-sig") -> None:
        content = path.read_bytes()
        self.path = path
        self.sha256 = hashlib.sha256(content).hexdigest()
        try:
            text = content.decode(encoding)
        except UnicodeDecodeError as error:
            line = content.count(b"\n", 0, error.start) + 1
            raise DataError(
                f"{path} line {line} is not UTF-8 (byte 0x{content[error.start]:02x}): "
                "convert the file to UTF-8"
            ) from None
        # Not splitlines: it also breaks at control characters that stand inside sentences.
        self.lines = [line.removesuffix("\r") for line in text.removesuffix("\n").split("\n")]


def words(sentence: str) -> str:
    """The sentence with single spaces between its words, as SentEval hands it to an encoder."""
    return " ".join(sentence.split())


def wrong_columns(path: Path, line: int, found: int, needed: int) -> DataError:
    """The error of a line that has too few columns."""
    return DataError(
        f"{path} line {line} has {found} tab-separated column{'s' * (found != 1)}, at least "
        f"{needed} are needed: correct the line, or restore it from the release"
    )
