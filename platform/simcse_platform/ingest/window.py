"""One window of training, read and cut into slices; Ray is not needed for it.

A slice is one rank's rows of one global batch, as a row of an Arrow table whose list columns hold
row ids and, for each text column, ids end to end and lengths.

W: ranks, k: steps of a window, B: rows of a global batch, R: rows of the window, T: tokens of R
sentences.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate, count

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray
from torch import Tensor

from simcse.batch import Batch
from simcse.config import ViewsConfig
from simcse.tokens import RaggedTokens
from simcse_platform.ingest.columns import Ragged, read_columns
from simcse_platform.ingest.plan import Order, Window, rank_rows
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
    views: ViewsConfig = field(default_factory=ViewsConfig)
    """Where positives come from that the corpus has no column for."""

    @property
    def num_columns(self) -> int:
        """Columns of a batch: those of the corpus, and the positive that a view makes."""
        return len(self.corpus.columns) + (self.views.positive != "same_sentence")

    @cached_property
    def order(self) -> Order:
        """The order of the corpus, for any number of epochs."""
        return Order(self.corpus.rows, self.seed, self.global_batch_size, self.batches_per_window)

    def read(self, number: int, world_size: int) -> pa.Table:
        """The W x k slices of a window, rank by rank; short windows are filled with `NO_STEP`.

        Raises as `rows.read_rows` does.
        """
        window = self.order.window(number)
        permutation_R = self.order.permutation(window)
        row_ids_R = self.order.row_ids(window)[permutation_R]
        columns = read_columns(
            self.corpus, self.views, window, permutation_R, row_ids_R, seed=self.seed
        )
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


def _slice_table(
    epoch: int, cuts: Sequence[_Cut], row_ids_R: NDArray[np.int64], columns: Sequence[Ragged]
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


def _tensor(scalar: pa.ListScalar) -> Tensor:
    return torch.from_numpy(scalar.values.to_numpy().astype(np.int64))
