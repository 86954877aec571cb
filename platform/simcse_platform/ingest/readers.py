"""Raw text in files: which files, which columns, and their rows as Arrow tables.

A format is two functions in `FORMATS`. A row that cannot be used is not an error here but a row
with a reason: `prepare` counts it.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from simcse.errors import DataError, UsageError
from simcse_platform.ingest.parquet import choose_columns, corrupt, open_file

NOT_UTF8 = "not UTF-8"
WRONG_COLUMNS = "wrong number of columns"
MALFORMED = "malformed quoting"

_BATCH_ROWS = 4096
_ESCAPED_BYTE = re.compile("[\udc80-\udcff]")

Row = tuple[int, Sequence[str | None] | None, str | None]
"""Row number from 1 as an editor counts, texts, reason why there are none."""


@dataclass(frozen=True, slots=True)
class Format:
    """How one kind of file is read."""

    columns: Callable[[Path], tuple[str, ...]]
    """Names of the text columns of a file."""
    tables: Callable[[Path, Sequence[str]], Iterator[pa.Table]]
    """Rows of a file as tables of `table_schema(columns)`, texts in the order asked for."""


def table_schema(num_columns: int) -> pa.Schema:
    """`row` number, `reason` of a bad row, `text_0`, `text_1` and so on."""
    texts = [(f"text_{place}", pa.string()) for place in range(num_columns)]
    return pa.schema([("row", pa.int64()), ("reason", pa.string()), *texts])


def find_files(sources: Sequence[str | Path]) -> list[Path]:
    """Absolute paths of the files behind files, folders and globs: in the order given, each once.

    A folder stands for all files below it that have a known format, by name; names that begin with
    `.` or `_`, of folders too, are left out. Raises `UsageError` naming a source without files and
    a file without known format, `DataError` an empty file.
    """
    if not sources:
        raise UsageError("no corpus is named: give data.corpus a file, a folder or a glob")
    files = list(dict.fromkeys(chain.from_iterable(_expand(str(source)) for source in sources)))
    for file in files:
        if file.suffix not in FORMATS:
            raise UsageError(f"{file} has no known format: the name must end in {_endings()}")
        if file.stat().st_size == 0:
            raise DataError(f"{file} is empty: remove it from the corpus")
    return files


def common_columns(files: Sequence[Path], wanted: Sequence[str] | None) -> tuple[str, ...]:
    """The text columns to read from every file: `wanted`, or all those of the first file.

    Raises `UsageError` naming the first file that lacks one.
    """
    columns = tuple(wanted) if wanted is not None else text_columns(files[0])
    for file in files:
        choose_columns(file, columns, text_columns(file))
    return columns


def text_columns(file: Path) -> tuple[str, ...]:
    """Names of the text columns of a file. Raises `DataError` when there is none."""
    columns = FORMATS[file.suffix].columns(file)
    if not columns:
        raise DataError(f"{file} has no text column: remove it from the corpus")
    return columns


def read(file: Path, columns: Sequence[str]) -> Iterator[pa.Table]:
    """The rows of a file as tables of `table_schema`. Raises `DataError` when it has none."""
    rows = 0
    for table in FORMATS[file.suffix].tables(file, columns):
        rows += table.num_rows
        yield table
    if rows == 0:
        raise DataError(f"{file} has no rows: remove it from the corpus")


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


def _expand(source: str) -> list[Path]:
    path = Path(source).expanduser().absolute()
    if path.is_dir():
        below = sorted(file for file in path.rglob("*") if file.suffix in FORMATS)
        found = [file for file in below if file.is_file() and not _is_hidden(file, path)]
    elif path.exists():
        found = [path]
    else:
        matches = Path(path.anchor).glob(str(path.relative_to(path.anchor)))
        found = sorted(match for match in matches if match.is_file())
    if not found:
        raise UsageError(f"{source} names no file: give a file, a folder or a glob of {_endings()}")
    return found


def _is_hidden(file: Path, folder: Path) -> bool:
    return any(part.startswith((".", "_")) for part in file.relative_to(folder).parts)


def _endings() -> str:
    return ", ".join(FORMATS)


def _tables(rows: Iterable[Row], num_columns: int) -> Iterator[pa.Table]:
    """Rows gathered into tables; texts with bytes that are no UTF-8 become bad rows."""
    schema = table_schema(num_columns)
    blank: Sequence[str | None] = [None] * num_columns
    batch: list[tuple[int, str | None, *tuple[str | None, ...]]] = []
    for number, texts, reason in rows:
        if texts is not None and any(t and _ESCAPED_BYTE.search(t) for t in texts):
            texts, reason = None, NOT_UTF8
        batch.append((number, reason, *(blank if texts is None else texts)))
        if len(batch) == _BATCH_ROWS:
            yield _table(batch, schema)
            batch = []
    if batch:
        yield _table(batch, schema)


def _table(rows: Sequence[Sequence[object]], schema: pa.Schema) -> pa.Table:
    return pa.Table.from_arrays(
        [pa.array(c, f.type) for c, f in zip(zip(*rows, strict=True), schema, strict=True)],
        schema=schema,
    )


def _txt_columns(file: Path) -> tuple[str, ...]:
    return ("text",)


def _txt_tables(file: Path, columns: Sequence[str]) -> Iterator[pa.Table]:
    with file.open(encoding="utf-8-sig", errors="surrogateescape", newline="\n") as lines:
        yield from _tables(((i, [line], None) for i, line in enumerate(lines, 1)), 1)


def _csv_columns(file: Path) -> tuple[str, ...]:
    with file.open(encoding="utf-8-sig", errors="surrogateescape", newline="") as lines:
        header = next(csv.reader(lines), [])
    if len(set(header)) < len(header) or not all(header) or _ESCAPED_BYTE.search("".join(header)):
        raise DataError(
            f"{file}:1: the header must name each column once, in UTF-8: it is {header}"
        )
    return tuple(header)


def _csv_tables(file: Path, columns: Sequence[str]) -> Iterator[pa.Table]:
    header = _csv_columns(file)
    places = [header.index(column) for column in columns]

    def rows() -> Iterator[Row]:
        with file.open(encoding="utf-8-sig", errors="surrogateescape", newline="") as lines:
            records = csv.reader(lines, strict=True)
            next(records)
            while True:
                number = records.line_num + 1
                try:
                    record = next(records, None)
                except csv.Error:
                    yield number, None, MALFORMED
                    continue
                if record is None:
                    return
                if not record:
                    yield number, [None] * len(places), None
                elif len(record) != len(header):
                    yield number, None, WRONG_COLUMNS
                else:
                    yield number, [record[place] for place in places], None

    yield from _tables(rows(), len(columns))


def _parquet_columns(file: Path) -> tuple[str, ...]:
    try:
        schema = pq.read_schema(file)
    except (pa.ArrowException, OSError) as error:
        raise corrupt(file, error) from error
    return tuple(field.name for field in schema if _is_text(field.type))


def _parquet_tables(file: Path, columns: Sequence[str]) -> Iterator[pa.Table]:
    schema = table_schema(len(columns))
    row = 1
    try:
        for batch in open_file(file).iter_batches(_BATCH_ROWS, columns=list(columns)):
            texts = [batch.column(column).cast(pa.string(), safe=False) for column in columns]
            bad = {place for text in texts for place in invalid_utf8(text)}
            if bad:
                good = pa.array([place not in bad for place in range(len(batch))])
                texts = [pc.if_else(good, text, None) for text in texts]
                reasons = pa.array(
                    [NOT_UTF8 if place in bad else None for place in range(len(batch))], pa.string()
                )
            else:
                reasons = pa.nulls(len(batch), pa.string())
            numbers = pa.array(range(row, row + len(batch)), pa.int64())
            yield pa.Table.from_arrays([numbers, reasons, *texts], schema=schema)
            row += len(batch)
    except (pa.ArrowException, OSError) as error:
        raise corrupt(file, error) from error


def _is_text(kind: pa.DataType) -> bool:
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    return bool(
        pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)
    )


FORMATS = {
    ".txt": Format(_txt_columns, _txt_tables),
    ".csv": Format(_csv_columns, _csv_tables),
    ".parquet": Format(_parquet_columns, _parquet_tables),
}
