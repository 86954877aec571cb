"""Global batches from Ray Data, in the planned order at any number of workers.

A task reads the rows of a window, tokenises them if need be, permutes them and emits, rank by rank,
one slice a step: a row of the dataset that holds one rank's rows of one global batch.
The window's W x k slices leave as W blocks of k, and an equal, order-preserving split deals block j
to rank j mod W. How Ray deals is its own affair, so every slice names its step and rank and
`batches` refuses one that is out of turn.

W: ranks, k: steps of a window.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from queue import Empty, Full, Queue
from typing import Any, TypeVar, cast

import numpy as np
import pyarrow as pa
import ray
import ray.train
from numpy.typing import NDArray
from ray.data import DataIterator, Dataset, ExecutionOptions

from simcse.batch import Batch
from simcse_platform import runtime
from simcse_platform.errors import StreamError
from simcse_platform.ingest.plan import rank_rows
from simcse_platform.ingest.window import NO_STEP, WindowPlan, to_batch

# Ray Data makes all tasks of a source before the first one runs, at a millisecond or two each. Of a
# run with more windows than this, a task reads several, one after the other.
_MAX_TASKS = 2048
_SECONDS_BETWEEN_LOOKS = 0.2

T = TypeVar("T")


class PlannedDataConfig(ray.train.DataConfig):
    """Ray Train's dealing of the dataset of `window_dataset`: every rank gets its planned slices.

    Ray calls `configure` whenever a worker group starts, and only then is W known.
    """

    def __init__(self, plan: WindowPlan) -> None:
        super().__init__()
        self._plan = plan

    def configure(
        self,
        datasets: dict[str, Dataset],
        world_size: int,
        worker_handles: Any,
        worker_node_ids: Any,
        **kwargs: Any,
    ) -> list[dict[str, DataIterator]]:
        """One iterator a rank for each dataset of windows."""
        dealt: list[dict[str, DataIterator]] = [{} for _ in range(world_size)]
        for name, windows in datasets.items():
            for rank, iterator in enumerate(split(windows, self._plan, world_size)):
                dealt[rank][name] = iterator
        return dealt


def window_dataset(plan: WindowPlan, first_step: int = 0) -> Dataset:
    """The numbers of the windows from the one that holds `first_step` to the end of the run.

    All epochs are in one dataset, so no rank waits for the others between two.
    """
    first = plan.order.window_of(first_step)
    count = plan.order.window_of(plan.total_steps - 1) + 1 - first
    numbers = ray.data.range(count, override_num_blocks=min(count, _MAX_TASKS))
    return numbers.map_batches(partial(_shifted, first=first))


def split(windows: Dataset, plan: WindowPlan, world_size: int) -> list[DataIterator]:
    """The slices of each rank, as one iterator a rank; all of them must be consumed together."""
    slices = windows.map_batches(
        partial(_read, plan=plan, world_size=world_size), batch_size=None
    ).repartition(target_num_rows_per_block=plan.batches_per_window)
    slices.context.execution_options = ExecutionOptions(preserve_order=True)
    return slices.streaming_split(world_size, equal=True)


def batches(
    iterator: DataIterator,
    plan: WindowPlan,
    *,
    rank: int,
    world_size: int,
    first_step: int = 0,
    timeout_s: float,
) -> Iterator[Batch]:
    """This rank's batches from `first_step` to the end of the run, the next window prefetched.

    Raises `StreamError` for a batch out of turn, or when none comes within `timeout_s`, and what
    `WindowPlan.read` raises.
    """
    step = first_step
    for found in _in_time(_slices(iterator), timeout_s):
        if found["step"].as_py() == NO_STEP or found["step"].as_py() < first_step:
            continue
        batch = to_batch(found, plan.num_columns)
        start, stop = rank_rows(batch.global_rows, rank, world_size)
        epoch = step // plan.order.steps_per_epoch
        turn = (batch.epoch, batch.step, found["rank"].as_py(), len(batch))
        if turn != (epoch, step, rank, stop - start):
            raise StreamError(
                f"rank {rank} waited for step {step} of epoch {epoch} and got {turn[3]} rows of "
                f"step {turn[1]} of epoch {turn[0]} for rank {turn[2]}: start the run again from "
                "its last checkpoint"
            )
        yield batch
        step += 1
    if step < plan.total_steps:
        raise StreamError(
            f"the batches of rank {rank} ended at step {step} of {plan.total_steps}: start the run "
            "again from its last checkpoint"
        )


def _in_time(items: Iterator[T], timeout_s: float) -> Iterator[T]:
    """The same items, taken by a thread of their own, since waiting for Ray Data has no limit."""
    taken: Queue[T | BaseException | None] = Queue(maxsize=1)
    left = threading.Event()

    def hand_over(item: T | BaseException | None) -> None:
        while not left.is_set():
            try:
                return taken.put(item, timeout=_SECONDS_BETWEEN_LOOKS)
            except Full:
                continue

    def take() -> None:
        try:
            for item in items:
                hand_over(item)
                if left.is_set():
                    return
            hand_over(None)
        except BaseException as error:
            hand_over(error)

    threading.Thread(target=take, daemon=True).start()
    try:
        while (item := _next_of(taken, timeout_s)) is not None:
            if isinstance(item, BaseException):
                raise item
            yield item
    finally:
        left.set()


def _next_of(taken: Queue[T], timeout_s: float) -> T:
    try:
        return taken.get(timeout=timeout_s)
    except Empty:
        raise StreamError(
            f"no batch came for {timeout_s:g} s: Ray Data needs a CPU that no worker has reserved, "
            "and storage that answers; lower scale.cpus_per_worker, or raise scale.timeout_s"
        ) from None


def _shifted(batch: Any, *, first: int) -> dict[str, NDArray[np.int64]]:
    return {"window": batch["id"] + first}


def _read(batch: Any, *, plan: WindowPlan, world_size: int) -> Iterator[pa.Table]:
    for number in batch["window"].tolist():
        yield plan.read(number, world_size)


def _slices(iterator: DataIterator) -> Iterator[Mapping[str, pa.Scalar]]:
    try:
        blocks = iterator.iter_batches(
            batch_size=cast(int, None),  # whole blocks, for which Ray's annotation has no room
            batch_format="pyarrow",
        )
        for block in cast(Iterable[pa.Table], blocks):
            for i in range(len(block)):
                yield {name: block[name][i] for name in block.column_names}
    except Exception as error:
        if found := runtime.cause(error):
            raise found from error
        raise
