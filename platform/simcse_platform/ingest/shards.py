"""The work of preparing, task by task; Ray is not needed for it.

The folder in the making is how the tasks talk: beside the shards it holds `work/` with what each
piece of the corpus came to. A piece is one file, or all files where rows are joined.
"""

from __future__ import annotations

import gc
import hashlib
import io
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from pydantic import BaseModel

from simcse.tokenizer import cached_tokenizer, tokenize
from simcse_platform.ingest.choice import fingerprints
from simcse_platform.ingest.cleaning import (
    RowOptions,
    Tally,
    UsableRow,
    following,
    lexical_overlap,
    usable_rows,
)
from simcse_platform.ingest.manifest import FOLLOWING, TOKENS_SUFFIX, Shard

_ROWS_PER_TABLE = 4096
# A training window reads short runs of rows from many shards, and a row group is read whole.
_ROWS_PER_GROUP = 2048


@contextmanager
def _no_garbage() -> Iterator[None]:
    """Nobody looks for garbage: among so many small objects that costs a third of the time.

    Rows and ids have no cycles, and are freed without it.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@dataclass(frozen=True, slots=True)
class Job:
    """What every task of a preparation knows."""

    folder: Path
    files: tuple[Path, ...]
    pieces: tuple[tuple[int, ...], ...]
    """Numbers of the files of each piece."""
    input_columns: tuple[str, ...]
    columns: tuple[str, ...]
    """Those of the dataset."""
    options: RowOptions
    tokenizer_model: str
    max_length: int

    @property
    def work(self) -> Path:
        """Folder for what the tasks tell each other; it is gone when the dataset is whole."""
        return self.folder / "work"

    def tally(self, piece: int) -> Tally:
        """What became of the rows of a piece that has been read."""
        return Tally.model_validate_json(self._tally_file(piece).read_bytes())

    def hashes(self, piece: int) -> NDArray[np.uint64]:
        """Hashes of the usable rows of a piece that has been surveyed."""
        hashes: NDArray[np.uint64] = np.load(self._hashes_file(piece))
        return hashes

    def save_choice(self, piece: int, places: NDArray[np.int64]) -> None:
        """Leave for the reading of a piece which of its usable rows it is to take."""
        np.save(self._choice_file(piece), places)

    def survey(self, piece: int) -> None:
        """Read a piece for the hashes of its usable rows."""
        with _no_garbage():
            np.save(self._hashes_file(piece), fingerprints(self._usable_rows(piece, Tally())))

    def read(self, piece: int) -> Iterator[pa.Table]:
        """The rows of a piece that are taken, as tables of place, run and texts."""
        tally = Tally()
        rows: Iterator[tuple[int, UsableRow]] = enumerate(self._usable_rows(piece, tally))
        if self.options.chooses:
            rows = _pick(rows, np.load(self._choice_file(piece)))
        with _no_garbage():
            while chunk := list(islice(rows, _ROWS_PER_TABLE)):
                yield self._table(piece, chunk)
        self._tally_file(piece).write_text(tally.model_dump_json(), encoding="utf-8")

    @_no_garbage()
    def write(self, block: pa.Table) -> ShardReport:
        """A block of rows tokenised and written as a shard."""
        columns = [block[f"text_{i}"].to_pylist() for i in range(len(self.columns))]
        texts = list(zip(*columns, strict=True))
        read = len(texts)
        if not self.options.keep_order:
            texts = list(dict.fromkeys(texts))
        arrays: dict[str, pa.Array] = {}
        lengths: dict[str, dict[int, int]] = {}
        cut = 0
        for column, sentences in zip(self.columns, zip(*texts, strict=True), strict=True):
            tokenizer = cached_tokenizer(self.tokenizer_model)
            ids, longer = tokenize(tokenizer, sentences, self.max_length)
            cut += longer
            lengths[column] = dict(Counter(map(len, ids)))
            arrays[column] = pa.array(sentences, pa.string())
            arrays[column + TOKENS_SUFFIX] = pa.array(ids, pa.list_(pa.int32()))
        if self.options.keep_order:
            runs = list(zip(block["piece"].to_pylist(), block["run"].to_pylist(), strict=True))
            arrays[FOLLOWING] = pa.array(following(runs), pa.int32())
        name = f"{block['piece'][0].as_py():06d}-{block['place'][0].as_py():012d}.parquet"
        return ShardReport(
            shard=_write(self.folder / name, pa.table(arrays)),
            duplicates=read - len(texts),
            cut=cut,
            lengths=lengths,
            overlap=sum(lexical_overlap(*row[:2]) for row in texts) if len(self.columns) > 1 else 0,
        )

    def _usable_rows(self, piece: int, tally: Tally) -> Iterator[UsableRow]:
        files = {number: self.files[number] for number in self.pieces[piece]}
        return usable_rows(files, self.input_columns, self.options, tally)

    def _table(self, piece: int, rows: Sequence[tuple[int, UsableRow]]) -> pa.Table:
        places, usable = zip(*rows, strict=True)
        texts = zip(*(row.texts for row in usable), strict=True)
        return pa.table(
            {
                "piece": pa.array([piece] * len(rows), pa.int64()),
                "place": pa.array(places, pa.int64()),
                "run": pa.array([row.run for row in usable], pa.int64()),
                **{f"text_{i}": pa.array(column, pa.string()) for i, column in enumerate(texts)},
            }
        )

    def _tally_file(self, piece: int) -> Path:
        return self.work / f"tally-{piece}.json"

    def _hashes_file(self, piece: int) -> Path:
        return self.work / f"hashes-{piece}.npy"

    def _choice_file(self, piece: int) -> Path:
        return self.work / f"choice-{piece}.npy"


class ShardReport(BaseModel):
    """What became of one block of usable rows."""

    shard: Shard
    duplicates: int
    cut: int
    lengths: dict[str, dict[int, int]]
    overlap: float
    """Sum of the lexical overlap of anchor and positive."""


def _pick(
    rows: Iterator[tuple[int, UsableRow]], places: NDArray[np.int64]
) -> Iterator[tuple[int, UsableRow]]:
    """The rows at ascending `places`; all are read, because the reading also counts."""
    wanted = iter(places.tolist())
    place = next(wanted, None)
    for row in rows:
        if row[0] == place:
            yield row
            place = next(wanted, None)


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
