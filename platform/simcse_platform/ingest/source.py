"""The corpus of a run: prepared, streamed as it is, or prepared first."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from simcse.config import EncoderConfig
from simcse.errors import DataError, UsageError
from simcse.tokenizer import load_tokenizer, tokenizer_fingerprint
from simcse_platform.config import DataConfig
from simcse_platform.ingest import readers
from simcse_platform.ingest.manifest import (
    check_compatible,
    check_shards,
    is_prepared,
    read_manifest,
)
from simcse_platform.ingest.parquet import choose_columns, count_nulls, read_footer
from simcse_platform.ingest.prepare import make, plan
from simcse_platform.ingest.sources import find_files

_LARGE_ROW_GROUP = 50_000
_SECONDS_BETWEEN_LINES = 10.0


@dataclass(frozen=True, slots=True)
class Corpus:
    """Parquet files with known row counts: all that planning and streaming need."""

    files: tuple[str, ...]
    """Absolute paths."""
    rows: tuple[int, ...]
    """Rows of each file."""
    columns: tuple[str, ...]
    """Text columns in the order anchor, positive, hard negatives."""
    tokenised: bool
    """Whether the ids lie beside the text."""
    tokenizer_model: str
    """Folder or hub id."""
    max_length: int
    fingerprint: str
    """sha256 that identifies the content, for the lineage of a model."""
    keep_order: bool = False
    """Whether rows are in document order, with a column `following`."""


def text_columns(data: DataConfig) -> tuple[tuple[str, ...], bool]:
    """The corpus's text columns, and whether it keeps the order of its documents.

    Only headers are read. Raises `UsageError` and `DataError` as `open_corpus` does.
    """
    if prepared := _prepared(data):
        manifest = read_manifest(prepared)
        return choose_columns(prepared, data.columns, manifest.columns), manifest.keep_order
    return readers.common_columns(find_files(data.corpus), data.columns), False


def open_corpus(
    data: DataConfig, encoder: EncoderConfig, scratch: Path, say: Callable[[str], None]
) -> Corpus:
    """The corpus that `data` names, ready to be planned.

    A folder written by `prepare` and raw parquet are taken as they are; other formats do not know
    their row counts and are prepared first, into a folder of `scratch` named by content. `say` gets
    lines about what is done. Raises `UsageError` for paths, columns and settings, `DataError`
    for files.
    """
    if prepared := _prepared(data):
        say(f"corpus: prepared dataset {prepared}")
        return _open_prepared(prepared, data.columns, encoder)
    files = find_files(data.corpus)
    if all(file.suffix == ".parquet" for file in files):
        say(
            f"corpus: {len(files)} parquet file(s), tokenised while training; a row without text "
            "stops the run, `simcse prepare` sorts such rows out"
        )
        columns = readers.common_columns(files, data.columns)
        return _open_parquet(files, columns, encoder, say)
    planned = plan(
        files,
        tokenizer_model=encoder.model,
        max_length=encoder.max_length,
        columns=data.columns,
    )
    folder = scratch / f"corpus-{planned.key[:16]}"
    if not is_prepared(folder):
        uncounted = next(file for file in files if file.suffix != ".parquet")
        say(
            f"corpus: tokenising {len(files)} file(s) once, into {folder}: only parquet, which "
            f"{uncounted} is not, streams straight into training"
        )
    result = make(
        planned, folder, max_bad_share=data.max_bad_share, progress=_rows_now_and_then(say)
    )
    done = "prepared" if result.created else "already prepared"
    say(f"corpus: {done} from {len(files)} file(s) into {result.folder}")
    return _open_prepared(result.folder, None, encoder)


def _prepared(data: DataConfig) -> Path | None:
    """The prepared dataset that the corpus is, if it is one."""
    folders = [Path(source).expanduser().absolute() for source in data.corpus]
    prepared = [folder for folder in folders if is_prepared(folder)]
    if prepared and len(folders) > 1:
        raise UsageError(
            f"data.corpus names the prepared dataset {prepared[0]} and more: prepare all of them "
            "into one folder"
        )
    return prepared[0] if prepared else None


def _open_prepared(folder: Path, columns: Sequence[str] | None, encoder: EncoderConfig) -> Corpus:
    manifest = read_manifest(folder)
    fingerprint = tokenizer_fingerprint(load_tokenizer(encoder.model))
    check_compatible(folder, manifest, fingerprint, encoder.max_length)
    check_shards(folder, manifest)
    return Corpus(
        files=tuple(str(folder / shard.path) for shard in manifest.shards),
        rows=tuple(shard.rows for shard in manifest.shards),
        columns=choose_columns(folder, columns, manifest.columns),
        tokenised=True,
        tokenizer_model=encoder.model,
        max_length=encoder.max_length,
        fingerprint=_digest(shard.sha256 for shard in manifest.shards),
        keep_order=manifest.keep_order,
    )


def _open_parquet(
    files: Sequence[Path],
    columns: Sequence[str],
    encoder: EncoderConfig,
    say: Callable[[str], None],
) -> Corpus:
    footers = [read_footer(file) for file in files]
    rows = tuple(footer.num_rows for footer in footers)
    if not sum(rows):
        raise DataError(f"{files[0]} has no rows: name a corpus with text")
    for file, footer in zip(files, footers, strict=True):
        for column in columns:
            if nulls := count_nulls(footer, column):
                raise DataError(
                    f"{file} has {nulls} row(s) without text in column {column!r}: "
                    "`simcse prepare` sorts such rows out"
                )
    largest = max(f.row_group(i).num_rows for f in footers for i in range(f.num_row_groups))
    if largest > _LARGE_ROW_GROUP:
        say(
            f"corpus: row groups of up to {largest} rows are read whole for a few rows each; "
            "`simcse prepare` writes small ones"
        )
    return Corpus(
        files=tuple(map(str, files)),
        rows=rows,
        columns=tuple(columns),
        tokenised=False,
        tokenizer_model=encoder.model,
        max_length=encoder.max_length,
        fingerprint=_digest(map(_footer, files)),
    )


def _rows_now_and_then(say: Callable[[str], None]) -> Callable[[int], None]:
    """The progress of preparing as a line every few seconds."""
    rows, said = 0, time.monotonic()

    def add(read: int) -> None:
        nonlocal rows, said
        rows += read
        if time.monotonic() - said >= _SECONDS_BETWEEN_LINES:
            say(f"corpus: {rows} rows prepared")
            said = time.monotonic()

    return add


def _footer(file: Path) -> str:
    # Offsets, sizes and statistics of every row group: reading all of a large corpus to name it
    # would take longer than many a run.
    with file.open("rb") as content:
        content.seek(-8, 2)
        length = int.from_bytes(content.read(4), "little")
        content.seek(-8 - length, 2)
        return hashlib.sha256(content.read()).hexdigest()


def _digest(parts: Iterable[str]) -> str:
    return hashlib.sha256("".join(parts).encode()).hexdigest()
