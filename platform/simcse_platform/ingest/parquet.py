"""Parquet files: their columns, their footers, and reading that notices damage."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from simcse.errors import DataError, UsageError
from simcse_platform.errors import StorageError

_PASSING = {
    errno.EIO,
    errno.ESTALE,
    errno.ETIMEDOUT,
    errno.EAGAIN,
    errno.EBUSY,
    errno.ENOTCONN,
    errno.ECONNRESET,
    errno.EHOSTDOWN,
    errno.EHOSTUNREACH,
    errno.ENETDOWN,
    errno.ENETUNREACH,
}
"""What the next attempt may not meet again."""
UNREADABLE = (pa.ArrowException, OSError, UnicodeError)
"""What reading raises of a file that is not what it should be, is not there, or does not answer."""


def choose_columns(
    path: Path | str, wanted: Sequence[str] | None, existing: Sequence[str]
) -> tuple[str, ...]:
    """The wanted columns, or all. Raises `UsageError` naming one that `path` does not have."""
    for column in wanted or ():
        if column not in existing:
            raise UsageError(
                f"{path} has no text column {column!r}: it has {', '.join(map(repr, existing))}"
            )
    return tuple(existing if wanted is None else wanted)


def read_footer(path: Path) -> pq.FileMetaData:
    """The footer of a parquet file. Raises `DataError` or `StorageError` as `unreadable` says."""
    try:
        return pq.read_metadata(path)
    except UNREADABLE as error:
        raise unreadable(path, error) from error


def open_file(path: Path | str) -> pq.ParquetFile:
    """A parquet file whose pages are compared with their checksums, where it has any.

    zstd notices less than half of all flipped bits. Raises Arrow's own errors, as reading does.
    """
    return pq.ParquetFile(path, page_checksum_verification=True)


def count_nulls(footer: pq.FileMetaData, column: str) -> int:
    """Nulls in a column, as far as the statistics of the row groups tell."""
    count = 0
    for group in map(footer.row_group, range(footer.num_row_groups)):
        for chunk in map(group.column, range(group.num_columns)):
            statistics = chunk.statistics if chunk.path_in_schema == column else None
            if statistics is not None and statistics.has_null_count:
                count += statistics.null_count
    return count


def unreadable(
    path: Path | str, error: Exception, kind: str = "parquet"
) -> DataError | StorageError:
    """The error for a file that cannot be read: `StorageError` where the next attempt may."""
    reason = str(error).partition("\n")[0]
    # Arrow's own errors of content are `OSError` too, without a number.
    number = error.errno if isinstance(error, OSError) else None
    if number in _PASSING or isinstance(error, MemoryError):
        return StorageError(
            f"{path} cannot be read now ({reason}): see to its storage and to free memory, and "
            "run the same command again"
        )
    return DataError(f"{path} is no readable {kind} file ({reason}): restore or remove it")
