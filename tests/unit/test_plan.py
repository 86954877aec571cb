from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from simcse_platform.ingest.plan import Order, rank_rows

SHARDS = (700, 1, 0, 333, 58, 911)


def an_order(**changes: int) -> Order:
    settings = {"seed": 5, "global_batch_size": 64, "batches_per_window": 4} | changes
    return Order(SHARDS, **settings)


def epoch_rows(order: Order, epoch: int) -> np.ndarray:
    first = epoch * order.windows_per_epoch
    windows = [order.window(first + i) for i in range(order.windows_per_epoch)]
    assert {window.epoch for window in windows} == {epoch}
    return np.concatenate([order.row_ids(w)[order.permutation(w)] for w in windows])


@pytest.mark.parametrize("epoch", [0, 1, 7])
def test_every_row_comes_once_an_epoch(epoch: int) -> None:
    rows = epoch_rows(an_order(), epoch)
    assert np.array_equal(np.sort(rows), np.arange(sum(SHARDS)))


def test_epochs_and_seeds_have_orders_of_their_own() -> None:
    order = an_order()
    assert not np.array_equal(epoch_rows(order, 0), epoch_rows(order, 1))
    assert not np.array_equal(epoch_rows(order, 0), epoch_rows(an_order(seed=6), 0))


def test_the_order_is_the_same_in_another_process() -> None:
    script = (
        "from simcse_platform.ingest.plan import Order\n"
        f"order = Order({SHARDS}, seed=5, global_batch_size=64, batches_per_window=4)\n"
        "window = order.window(9)\n"
        "print(order.row_ids(window)[order.permutation(window)].tolist())"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={"PYTHONPATH": ":".join(filter(None, sys.path))},
        capture_output=True,
        text=True,
        check=True,
    )
    order = an_order()
    window = order.window(9)
    assert done.stdout.strip() == str(order.row_ids(window)[order.permutation(window)].tolist())


def test_only_the_last_batch_of_an_epoch_is_short() -> None:
    order = an_order()
    windows = [order.window(i) for i in range(2 * order.windows_per_epoch)]
    sizes = [rows for window in windows for rows in window.batch_rows]
    assert order.steps_per_epoch == 32
    assert sizes == ([64] * 31 + [2003 - 31 * 64]) * 2


def test_steps_and_windows_are_numbered_through_the_epochs() -> None:
    order = an_order(batches_per_window=5)
    for step in range(3 * order.steps_per_epoch):
        window = order.window(order.window_of(step))
        assert window.first_step <= step < window.first_step + len(window.batch_rows)


def test_a_window_draws_from_several_shards() -> None:
    order = Order((500,) * 20, seed=0, global_batch_size=64, batches_per_window=4)
    shards = [len({part.shard for part in order.window(i).ranges}) for i in range(20)]
    assert min(shards) >= 6


def test_a_batch_mixes_rows_that_were_apart() -> None:
    order = Order((10_000,), seed=0, global_batch_size=64, batches_per_window=16)
    window = order.window(0)
    batch = np.sort(order.row_ids(window)[order.permutation(window)][:64])
    assert np.count_nonzero(np.diff(batch) > 1) > 48


def test_a_corpus_smaller_than_a_batch_is_one_short_batch() -> None:
    order = Order((3, 2), seed=0, global_batch_size=64, batches_per_window=4)
    assert (order.steps_per_epoch, order.windows_per_epoch) == (1, 1)
    assert order.window(0).batch_rows == (5,)


def test_planning_keeps_segments_and_not_rows() -> None:
    order = Order((10**7,) * 100, seed=0, global_batch_size=512, batches_per_window=64)
    window = order.window(order.windows_per_epoch - 1)
    assert sum(map(len, window.ranges)) == window.rows
    assert len(window.ranges) < 40


@pytest.mark.parametrize("world_size", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("rows", [0, 1, 5, 64])
def test_ranks_share_a_batch_without_gap_or_overlap(rows: int, world_size: int) -> None:
    shares = [range(*rank_rows(rows, rank, world_size)) for rank in range(world_size)]
    assert [row for share in shares for row in share] == list(range(rows))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1
