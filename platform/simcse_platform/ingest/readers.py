"""Raw text in files: which columns they have, and their rows, one after another.

A format is two functions in `FORMATS`; text formats may be compressed. A row that cannot be used
is not an error here but a row with a reason: `prepare` counts it. No more than a few thousand rows
are in memory at a time.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, TextIO

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.ipc
import pyarrow.parquet as pq

from simcse.errors import DataError, UsageError
from simcse_platform.ingest.parquet import UNREADABLE, choose_columns, open_file, unreadable

NOT_UTF8 = "not UTF-8"
WRONG_COLUMNS = "wrong number of columns"
MALFORMED = "malformed quoting"
NOT_JSON = "no JSON object"
MISSING_FIELD = "missing field"
WRONG_TYPE = "field of another type"

_Kind = tuple[str, type]
"""A JSON field and what is in it."""

_BATCH_ROWS = 4096
_COMPRESSIONS = {".gz": "gzip", ".zst": "zstd"}


class Row(NamedTuple):
    """A row of a file: its texts, or why there are none."""

    number: int
    """From 1, as an editor counts."""
    texts: tuple[str | None, ...] | None
    reason: str | None = None


class Columns(NamedTuple):
    """Names of the columns that can be read as text."""

    texts: tuple[str, ...]
    numbers: tuple[str, ...] = ()
    """Columns of whole numbers, such as labels, which are read as their digits."""


@dataclass(frozen=True, slots=True)
class Format:
    """How one kind of file is read."""

    columns: Callable[[Path], Columns]
    rows: Callable[[Path, Sequence[str]], Iterator[Row]]
    """Rows of a file, texts in the order of the columns asked for."""


def form_of(file: Path) -> str | None:
    """The ending of a file without that of its compression, `.csv` for `a.csv.gz`.

    None for a file of no known format.
    """
    name = file.stem if file.suffix in _COMPRESSIONS else file.name
    form = Path(name).suffix
    known = FORMATS if name == file.name else _COMPRESSIBLE
    return form if form in known else None


def common_columns(
    files: Sequence[Path], wanted: Sequence[str] | None, *, numbers: Sequence[str] = ()
) -> tuple[str, ...]:
    """The columns to read from every file: `wanted`, or all text columns of the first file.

    Only columns in `numbers` may hold whole numbers instead of text. Raises `UsageError` naming a
    column that is wanted twice or the first file that lacks one, `DataError` a file without text.
    """
    if wanted is not None and not 0 < len(wanted) == len(set(wanted)):
        raise UsageError(f"the columns are {', '.join(wanted) or 'none'}: name each column once")
    columns = tuple(wanted) if wanted is not None else _columns(files[0]).texts
    for file in files:
        found = _columns(file)
        allowed = [name for name in found.numbers if name in numbers]
        choose_columns(file, columns, [*found.texts, *allowed])
    return columns


def read(file: Path, columns: Sequence[str]) -> Iterator[Row]:
    """The rows of a file. Raises `DataError` when it has none, or as `parquet.unreadable` says."""
    row = None
    with _named_when_damaged(file):
        for row in FORMATS[_form(file)].rows(file, columns):
            damaged = row.texts is not None and any(map(_is_damaged, row.texts))
            yield Row(row.number, None, NOT_UTF8) if damaged else row
    if row is None:
        raise DataError(f"{file} has no rows: remove it from the corpus")


def _is_damaged(text: str | None) -> bool:
    """Whether it holds bytes that are no UTF-8, as Python escapes them, or half a character."""
    # Most texts are known to be ASCII without a look at their characters.
    if text is None or text.isascii():
        return False
    try:
        text.encode()
        return False
    except UnicodeEncodeError:
        return True


def collapse_spaces(text: str) -> str:
    """The text without white space at its ends, and one space for every other run of it."""
    return " ".join(text.split())


def invalid_utf8(texts: pa.Array) -> list[int]:
    """Places in a string array whose bytes are no UTF-8."""
    try:
        texts.validate(full=True)
        return []
    except pa.ArrowInvalid:
        return [i for i, raw in enumerate(texts.cast(pa.binary()).to_pylist()) if _is_bad(raw)]


def _is_bad(raw: bytes | None) -> bool:
    try:
        (raw or b"").decode()
        return False
    except UnicodeDecodeError:
        return True


def _form(file: Path) -> str:
    form = form_of(file)
    assert form is not None
    return form


def _columns(file: Path) -> Columns:
    with _named_when_damaged(file):
        columns = FORMATS[_form(file)].columns(file)
    if not columns.texts:
        raise DataError(f"{file} has no text column: remove it from the corpus")
    return columns


@contextmanager
def _named_when_damaged(file: Path) -> Iterator[None]:
    try:
        yield
    except UNREADABLE as error:
        kind = _COMPRESSIONS.get(file.suffix, file.suffix[1:])
        raise unreadable(file, error, kind) from error


@contextmanager
def _open(file: Path, newline: str) -> Iterator[TextIO]:
    """A text file, unpacked on the way; a damaged or cut-off stream raises Arrow's errors.

    Of zstd damage is noticed only where the writer added a checksum, as the program `zstd` does.
    """
    compression = _COMPRESSIONS.get(file.suffix)
    with (
        pa.input_stream(str(file), compression=compression) as content,
        io.TextIOWrapper(
            content, encoding="utf-8-sig", errors="surrogateescape", newline=newline
        ) as lines,
    ):
        yield lines


# One sentence a line


def _txt_columns(file: Path) -> Columns:
    return Columns(("text",))


def _txt_rows(file: Path, columns: Sequence[str]) -> Iterator[Row]:
    with _open(file, "\n") as lines:
        for number, line in enumerate(lines, 1):
            yield Row(number, (line,))


# Comma-separated, with quotes


def _csv_columns(file: Path) -> Columns:
    with _open(file, "") as lines:
        return _header(file, next(csv.reader(lines), []))


def _csv_rows(file: Path, columns: Sequence[str]) -> Iterator[Row]:
    with _open(file, "") as lines:
        records = csv.reader(lines, strict=True)
        pick = _Pick(next(records), columns)
        while True:
            number = records.line_num + 1
            try:
                record = next(records, None)
            except csv.Error:
                yield Row(number, None, MALFORMED)
                continue
            if record is None:
                return
            yield pick(number, record)


# Tab-separated, without quotes


def _tsv_columns(file: Path) -> Columns:
    with _open(file, "\n") as lines:
        return _header(file, _fields(next(lines, "")))


def _tsv_rows(file: Path, columns: Sequence[str]) -> Iterator[Row]:
    with _open(file, "\n") as lines:
        pick = _Pick(_fields(next(lines)), columns)
        for number, line in enumerate(lines, 2):
            fields = _fields(line)
            yield pick(number, [] if fields == [""] else fields)


def _fields(line: str) -> list[str]:
    return line.rstrip("\r\n").split("\t")


def _header(file: Path, header: Sequence[str]) -> Columns:
    if len(set(header)) < len(header) or not all(header) or _is_damaged("".join(header)):
        raise DataError(
            f"{file}:1: the header must name each column once, in UTF-8: it is {list(header)}"
        )
    return Columns(tuple(header))


class _Pick:
    """Takes the wanted fields out of a record as wide as the header."""

    def __init__(self, header: Sequence[str], columns: Sequence[str]) -> None:
        self._width = len(header)
        self._places = [header.index(column) for column in columns]

    def __call__(self, number: int, record: Sequence[str]) -> Row:
        if not record:
            return Row(number, (None,) * len(self._places))
        if len(record) != self._width:
            return Row(number, None, WRONG_COLUMNS)
        return Row(number, tuple(record[place] for place in self._places))


# One JSON object a line


def _jsonl_columns(file: Path) -> Columns:
    with _open(file, "\n") as lines:
        first = next(filter(None, map(_parse, lines)), {})
    return Columns(
        tuple(name for name, value in first.items() if isinstance(value, str)),
        tuple(name for name, value in first.items() if type(value) is int),
    )


def _jsonl_rows(file: Path, columns: Sequence[str]) -> Iterator[Row]:
    numbers = _jsonl_columns(file).numbers
    kinds = [(column, int if column in numbers else str) for column in columns]
    with _open(file, "\n") as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                yield Row(number, (None,) * len(columns))
            else:
                yield _jsonl_row(number, _parse(line), kinds)


def _jsonl_row(number: int, fields: dict[str, object] | None, kinds: Sequence[_Kind]) -> Row:
    if fields is None:
        return Row(number, None, NOT_JSON)
    texts: list[str | None] = []
    for column, kind in kinds:
        if column not in fields:
            return Row(number, None, MISSING_FIELD)
        value = fields[column]
        if value is not None and type(value) is not kind:
            return Row(number, None, WRONG_TYPE)
        texts.append(None if value is None else str(value))
    return Row(number, tuple(texts))


def _parse(line: str) -> dict[str, object] | None:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


# Parquet, and Arrow streams as the `datasets` library saves them


def _parquet_columns(file: Path) -> Columns:
    return _arrow_columns(pq.read_schema(file))


def _parquet_rows(file: Path, columns: Sequence[str]) -> Iterator[Row]:
    yield from _batch_rows(
        open_file(file).iter_batches(_BATCH_ROWS, columns=list(columns)), columns
    )


def _stream_columns(file: Path) -> Columns:
    with pa.memory_map(str(file)) as content, pa.ipc.open_stream(content) as stream:
        return _arrow_columns(stream.schema)


def _stream_rows(file: Path, columns: Sequence[str]) -> Iterator[Row]:
    with pa.memory_map(str(file)) as content, pa.ipc.open_stream(content) as stream:
        yield from _batch_rows(stream, columns)


def _arrow_columns(schema: pa.Schema) -> Columns:
    return Columns(
        tuple(field.name for field in schema if _is_text(field.type)),
        tuple(field.name for field in schema if pa.types.is_integer(field.type)),
    )


def _is_text(kind: pa.DataType) -> bool:
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    return bool(
        pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)
    )


def _batch_rows(batches: Iterable[pa.RecordBatch], columns: Sequence[str]) -> Iterator[Row]:
    first = 1
    for batch in batches:
        texts = [batch.column(column).cast(pa.string(), safe=False) for column in columns]
        bad = {place for text in texts for place in invalid_utf8(text)}
        if bad:
            good = pa.array([place not in bad for place in range(len(batch))])
            texts = [pc.if_else(good, text, None) for text in texts]
        for place, values in enumerate(zip(*(text.to_pylist() for text in texts), strict=True)):
            if place in bad:
                yield Row(first + place, None, NOT_UTF8)
            else:
                yield Row(first + place, values)
        first += len(batch)


_COMPRESSIBLE = {
    ".txt": Format(_txt_columns, _txt_rows),
    ".csv": Format(_csv_columns, _csv_rows),
    ".tsv": Format(_tsv_columns, _tsv_rows),
    ".jsonl": Format(_jsonl_columns, _jsonl_rows),
}
FORMATS = _COMPRESSIBLE | {
    ".parquet": Format(_parquet_columns, _parquet_rows),
    ".arrow": Format(_stream_columns, _stream_rows),
}
"""Formats by ending. The text formats may have `.gz` or `.zst` behind it."""
ENDINGS = f"{', '.join(_COMPRESSIBLE)} (also with .gz or .zst), .parquet, .arrow"
