"""Lines of text files, plain or gz."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from pathlib import Path

from simcse.errors import DataError


def read_lines(path: Path) -> Iterator[bytes]:
    """The lines as they stand. Raises `DataError` for a gz file that is damaged or cut short."""
    open_file = gzip.open if path.suffix == ".gz" else open
    try:
        with open_file(path, "rb") as file:
            yield from file
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise DataError(f"{path} is no complete gz file ({error}): copy it anew") from None
