"""One window of training, read and cut into slices; Ray is not needed for it.

A slice is one rank's rows of one global batch, as a row of an Arrow table whose list columns hold
row ids and, for each text column, ids end to end and lengths.

W: ranks, k: steps of a window, B: rows of a global batch, R: rows of the window, T: tokens of R
sentences.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import accumulate, chain, count, pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from simcse.batch import Batch
from simcse.errors import DataError
from simcse.tokenizer import load_tokenizer, tokenize
from simcse.tokens import RaggedTokens
from simcse_platform.ingest import readers
from simcse_platform.ingest.manifest import TOKENS_SUFFIX
from simcse_platform.ingest.parquet import corrupt, open_file
from simcse_platform.ingest.plan import Order, Range, Window, rank_rows
from simcse_platform.ingest.source import Corpus

NO_STEP = -1
"""Step of a slice that only fills its block."""

_INT32S = pa.list_(pa.int32())
_INT64S = pa.list_(pa.int64())


@dataclass(frozen=True)
class WindowPlan:
    """What a run reads, in which order and how far."""

    corpus: Corpus
    seed: int
    global_batch_size: int
    batches_per_window: int
    total_steps: int
    """Steps of the run; it may end within an epoch."""

    @cached_property
    def order(self) -> Order:
        """The order of the corpus, for any number of epochs."""
        return Order(self.corpus.rows, self.seed, self.global_batch_size, self.batches_per_window)

    def read(self, number: int, world_size: int) -> pa.Table:
        """The W x k slices of a window, rank by rank; short windows are filled with `NO_STEP`.

        Raises `DataError` naming file and row of a text that cannot be used.
        """
        window = self.order.window(number)
        permutation_R = self.order.permutation(window)
        row_ids_R = self.order.row_ids(window)[permutation_R]
        columns = _read_columns(self.corpus, window, permutation_R)
        return _slice_table(window.epoch, self._cuts(window, world_size), row_ids_R, columns)

    def _cuts(self, window: Window, world_size: int) -> list[_Cut]:
        cuts = []
        starts = accumulate(window.batch_rows, initial=0)
        steps = list(zip(count(window.first_step), window.batch_rows, starts, strict=False))
        steps = [step for step in steps if step[0] < self.total_steps]
        for rank in range(world_size):
            for step, rows, first in steps:
                start, stop = rank_rows(rows, rank, world_size)
                cuts.append(_Cut(step, rank, rows, first + start, first + stop))
            cuts += [_Cut(NO_STEP, rank, 0, 0, 0)] * (self.batches_per_window - len(steps))
        return cuts


@dataclass(frozen=True, slots=True)
class _Cut:
    """Rows `start` to `stop` of a window in training order: a slice to be."""

    step: int
    rank: int
    global_rows: int
    start: int
    stop: int


def to_batch(slice_row: Mapping[str, pa.Scalar], num_columns: int) -> Batch:
    """A slice as the tensors that a step trains on."""
    return Batch(
        epoch=slice_row["epoch"].as_py(),
        step=slice_row["step"].as_py(),
        global_rows=slice_row["global_rows"].as_py(),
        row_ids_b=_tensor(slice_row["row_ids"]),
        columns=tuple(
            RaggedTokens(_tensor(slice_row[f"ids_{i}"]), _tensor(slice_row[f"lengths_{i}"]))
            for i in range(num_columns)
        ),
    )


@dataclass(frozen=True, slots=True)
class _Ragged:
    """Sentences of one column as in `RaggedTokens`."""

    ids_T: NDArray[np.int32]
    lengths_R: NDArray[np.int32]


def _slice_table(
    epoch: int, cuts: Sequence[_Cut], row_ids_R: NDArray[np.int64], columns: Sequence[_Ragged]
) -> pa.Table:
    lists: dict[str, pa.Array] = {
        "row_ids": pa.array([row_ids_R[cut.start : cut.stop] for cut in cuts], _INT64S)
    }
    for i, column in enumerate(columns):
        ends = np.concatenate([[0], column.lengths_R.cumsum(dtype=np.int64)])
        lists[f"ids_{i}"] = pa.array(
            [column.ids_T[ends[cut.start] : ends[cut.stop]] for cut in cuts], _INT32S
        )
        lists[f"lengths_{i}"] = pa.array(
            [column.lengths_R[cut.start : cut.stop] for cut in cuts], _INT32S
        )
    return pa.table(
        {
            "epoch": pa.array([epoch] * len(cuts), pa.int64()),
            "step": pa.array([cut.step for cut in cuts], pa.int64()),
            "rank": pa.array([cut.rank for cut in cuts], pa.int64()),
            "global_rows": pa.array([cut.global_rows for cut in cuts], pa.int64()),
            **lists,
        }
    )


def _read_columns(
    corpus: Corpus, window: Window, permutation_R: NDArray[np.int64]
) -> list[_Ragged]:
    """The window's sentences in training order, one entry a text column."""
    found: dict[Range, pa.Table] = {}
    for shard in {part.shard for part in window.ranges}:
        asked = [part for part in window.ranges if part.shard == shard]
        found |= _read_ranges(corpus, corpus.files[shard], asked)
    table = pa.concat_tables([found[part] for part in window.ranges]).take(permutation_R)
    columns = [column.combine_chunks() for column in table.columns]
    if corpus.tokenised:
        return [_Ragged(c.flatten().to_numpy(), _lengths(c)) for c in columns]
    return [_tokenise(corpus, column.to_pylist()) for column in columns]


def _read_ranges(corpus: Corpus, file: str, ranges: Sequence[Range]) -> dict[Range, pa.Table]:
    """The rows of one file that are asked for, from no more than the row groups that hold them."""
    suffix = TOKENS_SUFFIX if corpus.tokenised else ""
    try:
        parquet = open_file(file)
        groups = [parquet.metadata.row_group(i).num_rows for i in range(parquet.num_row_groups)]
        begins = list(accumulate(groups, initial=0))
        needed = [
            group
            for group, (begin, end) in enumerate(pairwise(begins))
            if any(part.start < end and part.stop > begin for part in ranges)
        ]
        table = parquet.read_row_groups(needed, columns=[c + suffix for c in corpus.columns])
    except (pa.ArrowException, OSError) as error:
        raise corrupt(file, error) from error
    # Groups left out move what follows forward: where each needed group begins in the table.
    shifted = dict(zip(needed, accumulate((groups[g] for g in needed), initial=0), strict=False))
    found: dict[Range, pa.Table] = {}
    for part in ranges:
        group = bisect_right(begins, part.start) - 1
        rows = table.slice(shifted[group] + part.start - begins[group], len(part))
        found[part] = rows if corpus.tokenised else _checked(rows, file, part.start)
    return found


def _checked(rows: pa.Table, file: str, first_row: int) -> pa.Table:
    """Texts as plain strings. Raises `DataError` naming the first row without a usable text."""
    columns = []
    for name in rows.column_names:
        texts = rows[name].cast(pa.string()).combine_chunks()
        bad = dict.fromkeys(readers.invalid_utf8(texts), readers.NOT_UTF8)
        if not bad:
            blank = pc.fill_null(pc.equal(pc.utf8_trim_whitespace(texts), ""), True)
            bad = dict.fromkeys(np.flatnonzero(blank).tolist(), "empty")
        for place, reason in bad.items():
            raise DataError(
                f"{file}:{first_row + place + 1}: the text in column {name!r} is {reason}: "
                "`simcse prepare` sorts such rows out"
            )
        columns.append(texts)
    return pa.table(columns, names=rows.column_names)


def _tokenise(corpus: Corpus, texts: Sequence[str]) -> _Ragged:
    clean = [readers.collapse_spaces(text) for text in texts]
    ids = tokenize(_tokenizer(corpus.tokenizer_model), clean, corpus.max_length)
    lengths_R = np.fromiter(map(len, ids), np.int32, len(ids))
    ids_T = np.fromiter(chain.from_iterable(ids), np.int32, int(lengths_R.sum()))
    return _Ragged(ids_T, lengths_R)


def _lengths(lists: pa.ListArray) -> NDArray[np.int32]:
    lengths: NDArray[np.int32] = pc.list_value_length(lists).to_numpy()
    return lengths


def _tensor(scalar: pa.ListScalar) -> Tensor:
    return torch.from_numpy(scalar.values.to_numpy().astype(np.int64))


@cache
def _tokenizer(model: str) -> PreTrainedTokenizerFast:
    return load_tokenizer(model)
