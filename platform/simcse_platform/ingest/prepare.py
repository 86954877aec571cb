"""Raw text to a prepared dataset: cleaned, tokenised parquet shards with a manifest.

Reading a file is one task; its rows flow in order into blocks of `rows_per_shard`, and cleaning,
tokenising and writing one block is one task. What comes out does not depend on how many run at
once.
"""

from __future__ import annotations

import hashlib
import io
import json
import shutil
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq
import ray
from pydantic import BaseModel
from ray.data import Dataset, ExecutionOptions
from transformers import PreTrainedTokenizerFast

from simcse.errors import DataError, UsageError
from simcse.tokenizer import load_tokenizer, tokenize, tokenizer_fingerprint
from simcse_platform import runtime
from simcse_platform.ingest import readers
from simcse_platform.ingest.manifest import (
    FORMAT_VERSION,
    MANIFEST,
    QUARANTINE,
    TOKENS_SUFFIX,
    Manifest,
    Shard,
    is_prepared,
    read_manifest,
)
from simcse_platform.storage import check_writable

ROWS_PER_SHARD = 32_768
# A training window reads short runs of rows from many shards, and a row group is read whole.
_ROWS_PER_GROUP = 2048
_BLOCK_BYTES = 16 * 2**20

_Key = TypeVar("_Key", str, int)


@dataclass(frozen=True, slots=True)
class PrepareResult:
    """A prepared dataset, and whether this call made it or found it finished."""

    folder: Path
    manifest: Manifest
    created: bool


class _ShardReport(BaseModel):
    """What became of one block of raw rows."""

    read: int
    shard: Shard | None
    dropped: dict[str, int]
    bad: list[tuple[int, int, str]]
    """File number, row and reason."""
    cut: int
    lengths: dict[str, dict[int, int]]


@dataclass(frozen=True, slots=True)
class _Job:
    folder: str
    files: tuple[str, ...]
    columns: tuple[str, ...]
    tokenizer_model: str
    max_length: int


def prepare(
    sources: Sequence[str | Path],
    output: Path,
    *,
    tokenizer_model: str,
    max_length: int,
    columns: Sequence[str] | None = None,
    max_bad_share: float = 0.01,
    rows_per_shard: int = ROWS_PER_SHARD,
    progress: Callable[[int], None] | None = None,
) -> PrepareResult:
    """The rows of `sources` as a prepared dataset in `output`, which appears whole or not at all.

    White space is collapsed; rows with an empty text and repetitions within a shard are dropped and
    counted, unusable rows are listed in `quarantine.jsonl`. `progress` gets the number of rows read
    since it was last called. A finished `output` of the same input and settings is left as it is.
    Raises `UsageError` for paths and columns, `DataError` for content: a file that cannot be read,
    more than `max_bad_share` of unusable rows, no usable row.
    """
    files = readers.find_files(sources)
    columns = readers.common_columns(files, columns)
    fingerprint = tokenizer_fingerprint(_tokenizer(tokenizer_model))
    key = content_key(files, columns, fingerprint, max_length, rows_per_shard)
    output = output.expanduser().absolute()
    if finished := _finished(output, key):
        return PrepareResult(output, finished, created=False)
    partial = output.parent / f".{output.name}.{uuid.uuid4().hex[:8]}.partial"
    check_writable(output.parent)
    partial.mkdir()
    try:
        job = _Job(str(partial), tuple(map(str, files)), columns, tokenizer_model, max_length)
        reports = list(_run(job, rows_per_shard, progress))
        _check_bad_share(reports, files, max_bad_share)
        manifest = Manifest(
            content_key=key,
            rows=sum(report.shard.rows for report in reports if report.shard),
            columns=columns,
            shards=_number_shards(partial, reports),
            tokenizer_model=tokenizer_model,
            tokenizer_fingerprint=fingerprint,
            max_length=max_length,
            dropped=_total(report.dropped for report in reports),
            quarantined=_total(Counter(b[2] for b in report.bad) for report in reports),
            cut=sum(report.cut for report in reports),
            lengths={
                column: dict(sorted(_total(r.lengths.get(column, {}) for r in reports).items()))
                for column in columns
            },
        )
        if manifest.rows == 0:
            raise DataError(
                f"no usable row in {_name(files)}: {list_counts(manifest.dropped)} were dropped"
            )
        _write_quarantine(partial, reports, files)
        (partial / MANIFEST).write_text(manifest.model_dump_json(indent=2), encoding="utf-8")
        partial.rename(output)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return PrepareResult(output, manifest, created=True)


def content_key(
    files: Sequence[Path],
    columns: Sequence[str],
    fingerprint: str,
    max_length: int,
    rows_per_shard: int = ROWS_PER_SHARD,
) -> str:
    """sha256 of everything that decides a prepared dataset: bytes of the files and settings.

    All files are read, in this thread: seconds for each gigabyte of text, at every start of a run
    on text that is prepared implicitly.
    """
    digest = hashlib.sha256(
        json.dumps([FORMAT_VERSION, columns, fingerprint, max_length, rows_per_shard]).encode()
    )
    for file in files:
        with file.open("rb") as content:
            digest.update(file.suffix.encode() + hashlib.file_digest(content, "sha256").digest())
    return digest.hexdigest()


def list_counts(counts: Mapping[str, int]) -> str:
    """Counts by reason in words: `2 empty, 1 duplicate`, or `none`."""
    return ", ".join(f"{count} {reason}" for reason, count in counts.items()) or "none"


def _finished(output: Path, key: str) -> Manifest | None:
    if is_prepared(output):
        manifest = read_manifest(output)
        if manifest.content_key == key:
            return manifest
        raise UsageError(
            f"{output} holds a dataset prepared from other input or settings: name another folder "
            "or remove it"
        )
    if output.exists() and not (output.is_dir() and not any(output.iterdir())):
        raise UsageError(f"{output} exists and is no prepared dataset: name another folder")
    return None


def _run(
    job: _Job, rows_per_shard: int, progress: Callable[[int], None] | None
) -> Iterator[_ShardReport]:
    """The reports of all blocks, in the order of the input."""
    files = ray.data.range(len(job.files), override_num_blocks=len(job.files))
    rows = files.map_batches(partial(_read_files, job=job), batch_size=1)
    blocks = rows.repartition(target_num_rows_per_block=rows_per_shard, strict=True)
    reports: Dataset = blocks.map_batches(
        partial(_write_shard, job=job), batch_size=None, batch_format="pyarrow"
    )
    reports.context.execution_options = ExecutionOptions(preserve_order=True)
    reports.context.target_max_block_size = _BLOCK_BYTES
    try:
        for row in reports.iter_rows():
            report = _ShardReport.model_validate_json(row["report"])
            if progress:
                progress(report.read)
            yield report
    except Exception as error:
        if found := runtime.cause(error):
            raise found from error
        raise


def _read_files(batch: Any, *, job: _Job) -> Iterator[pa.Table]:
    for number in batch["id"].tolist():
        for table in readers.read(Path(job.files[number]), job.columns):
            yield table.append_column("file", pa.repeat(pa.scalar(number), len(table)))


def _write_shard(table: Any, *, job: _Job) -> pa.Table:
    """One block cleaned, tokenised and written; a table of one row with its `_ShardReport`."""
    bad = table.filter(table["reason"].is_valid())
    good = table.filter(table["reason"].is_null())
    rows, dropped = _clean([good[f"text_{place}"].to_pylist() for place in range(len(job.columns))])
    arrays: dict[str, pa.Array] = {}
    lengths: dict[str, dict[int, int]] = {}
    cut = 0
    for place, column in enumerate(job.columns):
        texts = [row[place] for row in rows]
        ids = tokenize(_tokenizer(job.tokenizer_model), texts, job.max_length)
        cut += _count_cut(texts, ids, job)
        lengths[column] = dict(Counter(map(len, ids)))
        arrays[column] = pa.array(texts, pa.string())
        arrays[column + TOKENS_SUFFIX] = pa.array(ids, pa.list_(pa.int32()))
    name = f"{table['file'][0].as_py():06d}-{table['row'][0].as_py():012d}.parquet"
    report = _ShardReport(
        read=len(table),
        shard=_write(Path(job.folder) / name, pa.table(arrays)) if rows else None,
        dropped=dropped,
        bad=list(zip(*(bad[c].to_pylist() for c in ("file", "row", "reason")), strict=True)),
        cut=cut,
        lengths=lengths,
    )
    return pa.table({"report": [report.model_dump_json()]})


def _clean(columns: Sequence[Sequence[str | None]]) -> tuple[list[tuple[str, ...]], dict[str, int]]:
    """Rows with white space collapsed that are neither empty nor repeated; the others by reason."""
    dropped: Counter[str] = Counter()
    kept: dict[tuple[str, ...], None] = {}
    for row in zip(*columns, strict=True):
        texts = tuple(readers.collapse_spaces(text or "") for text in row)
        if not all(texts):
            dropped["empty"] += 1
        elif texts in kept:
            dropped["duplicate"] += 1
        else:
            kept[texts] = None
    return list(kept), dict(dropped)


def _count_cut(texts: Sequence[str], ids: Sequence[Sequence[int]], job: _Job) -> int:
    full = [text for text, row in zip(texts, ids, strict=True) if len(row) == job.max_length]
    longer = tokenize(_tokenizer(job.tokenizer_model), full, job.max_length + 1)
    return sum(len(row) > job.max_length for row in longer)


def _write(path: Path, table: pa.Table) -> Shard:
    buffer = io.BytesIO()
    pq.write_table(
        table,
        buffer,
        compression="zstd",
        row_group_size=_ROWS_PER_GROUP,
        write_page_checksum=True,
    )
    content = buffer.getvalue()
    path.write_bytes(content)
    digest = hashlib.sha256(content).hexdigest()
    return Shard(path=path.name, rows=len(table), size=len(content), sha256=digest)


def _number_shards(folder: Path, reports: Sequence[_ShardReport]) -> tuple[Shard, ...]:
    shards = [report.shard for report in reports if report.shard]
    numbered = []
    for number, shard in enumerate(shards):
        renamed = (folder / shard.path).rename(folder / f"shard-{number:05d}.parquet")
        numbered.append(shard.model_copy(update={"path": renamed.name}))
    return tuple(numbered)


def _check_bad_share(
    reports: Sequence[_ShardReport], files: Sequence[Path], max_bad_share: float
) -> None:
    bad = [entry for report in reports for entry in report.bad]
    read = sum(report.read for report in reports)
    if len(bad) > max_bad_share * read:
        file, row, reason = bad[0]
        raise DataError(
            f"{len(bad)} of {read} rows ({len(bad) / read:.1%}) cannot be used, the first is "
            f"{files[file]}:{row} ({reason}): mend them or raise data.max_bad_share "
            f"(now {max_bad_share:g})"
        )


def _write_quarantine(folder: Path, reports: Sequence[_ShardReport], files: Sequence[Path]) -> None:
    lines = [
        json.dumps({"file": str(files[file]), "row": row, "reason": reason}, ensure_ascii=False)
        for report in reports
        for file, row, reason in report.bad
    ]
    if lines:
        (folder / QUARANTINE).write_text("\n".join(lines) + "\n", encoding="utf-8")


def _total(counts: Iterable[Mapping[_Key, int]]) -> dict[_Key, int]:
    total: Counter[_Key] = Counter()
    for count in counts:
        total.update(count)
    return dict(total)


def _name(files: Sequence[Path]) -> str:
    return str(files[0]) if len(files) == 1 else f"{files[0]} and {len(files) - 1} more"


@cache
def _tokenizer(model: str) -> PreTrainedTokenizerFast:
    return load_tokenizer(model)
