"""Raw text to a prepared dataset: cleaned, tokenised parquet shards with a manifest.

Reading a piece of the corpus is one task; its usable rows flow in order into blocks of
`rows_per_shard`, and tokenising and writing one block is one task. Where rows are chosen, a first
reading of everything comes before. What comes out does not depend on how many tasks run at once.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
import ray
from ray.data import Dataset, ExecutionOptions

from simcse.errors import DataError, UsageError
from simcse.tokenizer import load_tokenizer, tokenizer_fingerprint
from simcse_platform import runtime
from simcse_platform.ingest import readers
from simcse_platform.ingest.choice import choose
from simcse_platform.ingest.cleaning import DUPLICATE, RowOptions, Tally
from simcse_platform.ingest.manifest import (
    FORMAT_VERSION,
    MANIFEST,
    QUARANTINE,
    Manifest,
    Shard,
    is_prepared,
    read_manifest,
)
from simcse_platform.ingest.shards import Job, ShardReport
from simcse_platform.ingest.sources import files_by_source
from simcse_platform.storage import check_writable

ROWS_PER_SHARD = 32_768
DEFAULT_ROWS = RowOptions()
_BLOCK_BYTES = 4 * 2**20
# What the rules of cleaning and building make of the same input and settings.
_RULES_VERSION = 2

_Key = TypeVar("_Key", str, int)


@dataclass(frozen=True, slots=True)
class PrepareResult:
    """A prepared dataset, and whether this call made it or found it finished."""

    folder: Path
    manifest: Manifest
    created: bool


@dataclass(frozen=True, slots=True)
class Plan:
    """A dataset to be made: everything that decides what is in it."""

    files: tuple[Path, ...]
    sources: tuple[str, ...]
    """The source that each file belongs to."""
    input_columns: tuple[str, ...]
    options: RowOptions
    tokenizer_model: str
    fingerprint: str
    """Of the tokenizer."""
    max_length: int
    rows_per_shard: int
    key: str
    """sha256 of the bytes of the files and of every setting that shapes the dataset."""


def plan(
    sources: Sequence[str | Path],
    *,
    tokenizer_model: str,
    max_length: int,
    columns: Sequence[str] | None = None,
    options: RowOptions = DEFAULT_ROWS,
    rows_per_shard: int = ROWS_PER_SHARD,
) -> Plan:
    """What `make` is to make of `sources`, checked as far as paths and headers go.

    All files are read for the key, in this thread: seconds for each gigabyte of text, at every
    start of a run on text that is prepared implicitly. Raises `UsageError` for paths and columns,
    `DataError` for files.
    """
    by_source = files_by_source(sources)
    files = tuple(chain.from_iterable(by_source))
    for source, found in zip(sources, by_source, strict=True):
        if options.sample_each and not found:
            raise UsageError(
                f"every file of {source} belongs to a source before it, so that --sample-each has "
                "nothing to take from it: name each file once"
            )
    names = [str(s) for s, found in zip(sources, by_source, strict=True) for _ in found]
    columns = options.input_columns(files, columns)
    fingerprint = tokenizer_fingerprint(load_tokenizer(tokenizer_model))
    settings = [columns, asdict(options), fingerprint, max_length, rows_per_shard]
    if options.sample_each:
        settings.append([len(found) for found in by_source])
    return Plan(
        files=files,
        sources=tuple(names),
        input_columns=columns,
        options=options,
        tokenizer_model=tokenizer_model,
        fingerprint=fingerprint,
        max_length=max_length,
        rows_per_shard=rows_per_shard,
        key=_content_key(files, settings),
    )


def prepare(
    sources: Sequence[str | Path],
    output: Path,
    *,
    tokenizer_model: str,
    max_length: int,
    columns: Sequence[str] | None = None,
    options: RowOptions = DEFAULT_ROWS,
    max_bad_share: float = 0.01,
    rows_per_shard: int = ROWS_PER_SHARD,
    progress: Callable[[int], None] | None = None,
    address: str | None = None,
) -> PrepareResult:
    """The rows of `sources` as a prepared dataset in `output`: `make` of their `plan`."""
    planned = plan(
        sources,
        tokenizer_model=tokenizer_model,
        max_length=max_length,
        columns=columns,
        options=options,
        rows_per_shard=rows_per_shard,
    )
    return make(planned, output, max_bad_share=max_bad_share, progress=progress, address=address)


def make(
    plan: Plan,
    output: Path,
    *,
    max_bad_share: float = 0.01,
    progress: Callable[[int], None] | None = None,
    address: str | None = None,
) -> PrepareResult:
    """The planned dataset in `output`, which appears whole or not at all.

    White space is collapsed; rows with an empty text, with a text that repeats its own anchor or
    positive, and repetitions within a shard are dropped and counted; unusable rows are listed in
    `quarantine.jsonl`. `progress` gets the number of rows tokenised since it was last called. A
    finished `output` of the same plan is left as it is, and Ray is not needed for it; otherwise the
    cluster at `address` is joined unless a connection exists. Raises `UsageError` for `output`,
    `DataError` for content: a file that cannot be read, more than `max_bad_share` of unusable rows,
    no usable row, fewer rows than a sample needs.
    """
    output = output.expanduser().absolute()
    if finished := _finished(output, plan.key):
        return PrepareResult(output, finished, created=False)
    partial = output.parent / f".{output.name}.{uuid.uuid4().hex[:8]}.partial"
    check_writable(output.parent)
    partial.mkdir()
    try:
        with runtime.connect(address) as cluster:
            # A row is read in less than half the time that it takes to be tokenised and written.
            readers = max(1, int(cluster.cpus) // 2)
            manifest = _fill(partial, plan, max_bad_share, readers, progress)
        (partial / MANIFEST).write_text(manifest.model_dump_json(indent=2), encoding="utf-8")
        partial.rename(output)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return PrepareResult(output, manifest, created=True)


def list_counts(counts: Mapping[str, int]) -> str:
    """Counts by reason in words: `2 empty, 1 duplicate`, or `none`."""
    return ", ".join(f"{count} {reason}" for reason, count in counts.items()) or "none"


def _content_key(files: Sequence[Path], settings: Sequence[object]) -> str:
    digest = hashlib.sha256(json.dumps([FORMAT_VERSION, _RULES_VERSION, settings]).encode())
    for file in files:
        with file.open("rb") as content:
            form = f"{readers.form_of(file)}{file.suffix}"
            digest.update(form.encode() + hashlib.file_digest(content, "sha256").digest())
    return digest.hexdigest()


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


def _fill(
    folder: Path,
    plan: Plan,
    max_bad_share: float,
    readers: int,
    progress: Callable[[int], None] | None,
) -> Manifest:
    """The shards of a dataset, written into `folder`."""
    builder = plan.options.builder
    numbers = range(len(plan.files))
    job = Job(
        folder=folder,
        files=plan.files,
        pieces=(tuple(numbers),) if builder and builder.joins else tuple((n,) for n in numbers),
        input_columns=plan.input_columns,
        columns=plan.options.output_columns(plan.input_columns),
        options=plan.options,
        tokenizer_model=plan.tokenizer_model,
        max_length=plan.max_length,
    )
    job.work.mkdir()
    repeated = _choose_rows(job, plan) if plan.options.chooses else 0
    reports = list(_run(job, plan.rows_per_shard, readers, progress))
    tallies = [job.tally(piece) for piece in range(len(job.pieces))]
    _check_bad_share(tallies, plan.files, max_bad_share)
    duplicates = repeated + sum(report.duplicates for report in reports)
    dropped = _total([*(t.dropped for t in tallies), {DUPLICATE: duplicates} if duplicates else {}])
    if not reports:
        raise DataError(
            f"no usable row in {_name(plan.files)}: {list_counts(dropped)} were dropped"
        )
    _write_quarantine(folder, tallies, plan.files)
    shutil.rmtree(job.work)
    rows = sum(report.shard.rows for report in reports)
    return Manifest(
        content_key=plan.key,
        rows=rows,
        columns=job.columns,
        shards=_number_shards(folder, reports),
        tokenizer_model=plan.tokenizer_model,
        tokenizer_fingerprint=plan.fingerprint,
        max_length=plan.max_length,
        dropped=dropped,
        quarantined=_total(Counter(reason for *_, reason in tally.bad) for tally in tallies),
        cut=sum(report.cut for report in reports),
        lengths={
            column: dict(sorted(_total(report.lengths[column] for report in reports).items()))
            for column in job.columns
        },
        keep_order=plan.options.keep_order,
        lexical_overlap=(
            sum(report.overlap for report in reports) / rows if len(job.columns) > 1 else None
        ),
    )


def _choose_rows(job: Job, plan: Plan) -> int:
    """Leave for each piece which of its rows to take; how many rows repeat another one."""
    pieces = _pieces(job).map_batches(partial(_survey, job=job), batch_size=1)
    with _named_errors():
        pieces.materialize()
    hashes = [job.hashes(piece) for piece in range(len(job.pieces))]
    sources = [plan.sources[files[0]] for files in job.pieces]
    choice = choose(hashes, sources, plan.options)
    for piece, places in enumerate(choice.places):
        job.save_choice(piece, places)
    return choice.repeated


def _run(
    job: Job, rows_per_shard: int, readers: int, progress: Callable[[int], None] | None
) -> Iterator[ShardReport]:
    """The reports of all shards, in the order of the input.

    The processors are for the writers, which tokenise: a reader waits for them most of the time,
    and would keep a processor meanwhile.
    """
    rows = _pieces(job).map_batches(
        partial(_read, job=job), batch_size=1, num_cpus=0, concurrency=min(readers, len(job.pieces))
    )
    written = rows.map_batches(
        partial(_write, job=job), batch_size=rows_per_shard, batch_format="pyarrow"
    )
    # Ray Data makes one of this and the map before it, which so gets the rows of whole shards.
    # Ahead of that map it would be one more task that keeps a processor while it waits.
    reports: Dataset = written.repartition(target_num_rows_per_block=rows_per_shard, strict=True)
    reports.context.execution_options = ExecutionOptions(preserve_order=True)
    reports.context.target_max_block_size = _BLOCK_BYTES
    with _named_errors():
        for row in reports.iter_rows():
            report = ShardReport.model_validate_json(row["report"])
            if progress:
                progress(report.shard.rows + report.duplicates)
            yield report


def _pieces(job: Job) -> Dataset:
    pieces = [{"piece": number} for number in range(len(job.pieces))]
    return ray.data.from_items(pieces, override_num_blocks=len(pieces))


def _survey(batch: Any, *, job: Job) -> Any:
    for piece in batch["piece"].tolist():
        job.survey(piece)
    return batch


def _read(batch: Any, *, job: Job) -> Iterator[pa.Table]:
    for piece in batch["piece"].tolist():
        yield from job.read(piece)


def _write(block: Any, *, job: Job) -> pa.Table:
    return pa.table({"report": [job.write(block).model_dump_json()]})


@contextmanager
def _named_errors() -> Iterator[None]:
    """Takes the project's own error out of what Ray raises for a failed task."""
    try:
        yield
    except Exception as error:
        if found := runtime.cause(error):
            raise found from error
        raise


def _number_shards(folder: Path, reports: Sequence[ShardReport]) -> tuple[Shard, ...]:
    numbered = []
    for number, report in enumerate(reports):
        path = folder / f"shard-{number:05d}.parquet"
        (folder / report.shard.path).rename(path)
        numbered.append(report.shard.model_copy(update={"path": path.name}))
    return tuple(numbered)


def _check_bad_share(tallies: Sequence[Tally], files: Sequence[Path], max_bad_share: float) -> None:
    bad = [entry for tally in tallies for entry in tally.bad]
    read = sum(tally.read for tally in tallies)
    if len(bad) > max_bad_share * read:
        file, row, reason = bad[0]
        raise DataError(
            f"{len(bad)} of {read} rows ({len(bad) / read:.1%}) cannot be used, the first is "
            f"{files[file]}:{row} ({reason}): mend them or raise data.max_bad_share or "
            f"--max-bad-share (now {max_bad_share:g})"
        )


def _write_quarantine(folder: Path, tallies: Sequence[Tally], files: Sequence[Path]) -> None:
    lines = [
        json.dumps({"file": str(files[file]), "row": row, "reason": reason}, ensure_ascii=False)
        for tally in tallies
        for file, row, reason in tally.bad
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
