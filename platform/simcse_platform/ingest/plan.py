"""The order of training: a pure function of the shards' row counts, the seed and the epoch.

Shards are cut into short segments of consecutive rows. An epoch permutes the segments and walks
them; `batches_per_window` global batches of that walk are a window, which therefore draws from many
shards, and the rows of a window are permuted again. What is kept is one integer a segment, and any
window is found without the ones before it.

B: rows of a global batch, R: rows of a window, S: segments.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

_SEGMENTS_PER_WINDOW = 16


@dataclass(frozen=True, slots=True)
class Range:
    """Rows `start` to `stop` of one shard."""

    shard: int
    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True, slots=True)
class Window:
    """Consecutive global batches of one epoch and the rows they are made of."""

    epoch: int
    number_in_epoch: int
    first_step: int
    """Steps of the whole run before this window."""
    batch_rows: tuple[int, ...]
    """B of each step; only the last step of an epoch may be short."""
    ranges: tuple[Range, ...]
    """Where the R rows lie, in the order of the walk."""

    @property
    def rows(self) -> int:
        return sum(self.batch_rows)


@dataclass(frozen=True, slots=True)
class Order:
    """The windows of all epochs, numbered through."""

    shard_rows: tuple[int, ...]
    seed: int
    global_batch_size: int
    batches_per_window: int

    @property
    def rows(self) -> int:
        """Rows of one epoch."""
        return sum(self.shard_rows)

    @property
    def steps_per_epoch(self) -> int:
        return -(-self.rows // self.global_batch_size)

    @property
    def windows_per_epoch(self) -> int:
        return -(-self.steps_per_epoch // self.batches_per_window)

    def window_of(self, step: int) -> int:
        """Number of the window that holds `step` (both counted over epochs)."""
        epoch, step_in_epoch = divmod(step, self.steps_per_epoch)
        return epoch * self.windows_per_epoch + step_in_epoch // self.batches_per_window

    def window(self, number: int) -> Window:
        """The window of that number."""
        epoch, number_in_epoch = divmod(number, self.windows_per_epoch)
        size = self.global_batch_size * self.batches_per_window
        start = number_in_epoch * size
        stop = min(start + size, self.rows)
        full, rest = divmod(stop - start, self.global_batch_size)
        return Window(
            epoch=epoch,
            number_in_epoch=number_in_epoch,
            first_step=epoch * self.steps_per_epoch + number_in_epoch * self.batches_per_window,
            batch_rows=(self.global_batch_size,) * full + ((rest,) if rest else ()),
            ranges=_walk(self, epoch, start, stop),
        )

    def row_ids(self, window: Window) -> NDArray[np.int64]:
        """Corpus positions of the window's rows in the order of `ranges`, int64 `[R]`."""
        first_of_shard = np.concatenate([[0], np.cumsum(self.shard_rows)])
        return np.concatenate(
            [
                first_of_shard[part.shard] + np.arange(part.start, part.stop)
                for part in window.ranges
            ]
        )

    def permutation(self, window: Window) -> NDArray[np.int64]:
        """The window's own shuffle: training row i is walked row `permutation[i]`, int64 `[R]`."""
        return _permutation(window.rows, self.seed, window.epoch, window.number_in_epoch)


def rank_rows(rows: int, rank: int, world_size: int) -> tuple[int, int]:
    """First and last-plus-one row of `rank`'s share of a global batch of `rows`."""
    return rank * rows // world_size, (rank + 1) * rows // world_size


def _walk(order: Order, epoch: int, start: int, stop: int) -> tuple[Range, ...]:
    """Rows `start` to `stop` of the epoch's walk over its permuted segments."""
    shards_S, firsts_S, ends_S = _segments(order, epoch)
    ranges = []
    for place in range(int(np.searchsorted(ends_S, start, side="right")), len(ends_S)):
        begin = int(ends_S[place - 1]) if place else 0
        if begin >= stop:
            break
        end = int(ends_S[place])
        first = int(firsts_S[place])
        ranges.append(
            Range(
                shard=int(shards_S[place]),
                start=first + max(start - begin, 0),
                stop=first + min(stop, end) - begin,
            )
        )
    return tuple(ranges)


@lru_cache(maxsize=2)
def _segments(
    order: Order, epoch: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Shard, first row in it and end in the walk of each segment, in the epoch's order; `[S]`."""
    window = order.global_batch_size * order.batches_per_window
    size = max(1, window // _SEGMENTS_PER_WINDOW)
    rows = np.asarray(order.shard_rows, dtype=np.int64)
    counts = -(-rows // size)
    shards_S = np.repeat(np.arange(len(rows)), counts)
    firsts_S = (np.arange(len(shards_S)) - np.repeat(counts.cumsum() - counts, counts)) * size
    lengths_S = np.minimum(size, rows[shards_S] - firsts_S)
    permuted_S = _permutation(len(shards_S), order.seed, epoch)
    return shards_S[permuted_S], firsts_S[permuted_S], lengths_S[permuted_S].cumsum()


def _permutation(n: int, seed: int, *key: int) -> NDArray[np.int64]:
    # NumPy fixes the bits of a generator for good, but not what `permutation` makes of them.
    bits = np.random.PCG64(np.random.SeedSequence(seed, spawn_key=key))
    return np.argsort(bits.random_raw(n), kind="stable")
