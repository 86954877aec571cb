"""A training run through the whole platform, in a folder that goes with the benchmark."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from simcse_platform import runtime
from simcse_platform.config import TrainRun
from simcse_platform.run import execute
from simcse_platform.storage import RunFolder


class Record(NamedTuple):
    """What the worker measured since its last record."""

    step: int
    at_s: float
    """When the driver got it, by `time.monotonic`."""
    measured: Mapping[str, float]


def train(
    run: TrainRun, scratch: Path, *, object_store_bytes: int
) -> tuple[Mapping[str, Any], list[Record]]:
    """What `simcse train` does, from a corpus to a model in MLflow: its summary and its records."""
    folder = RunFolder.of(str(scratch / f"runs-{uuid.uuid4().hex}"), "benchmark")
    records: list[Record] = []

    def show(step: int, measured: Mapping[str, float]) -> None:
        records.append(Record(step, time.monotonic(), measured))

    @contextmanager
    def watch(total_steps: int) -> Iterator[Callable[[int, Mapping[str, float]], None]]:
        yield show

    with runtime.connect(num_cpus=2, object_store_memory=object_store_bytes) as resources:
        finished = execute(run, folder, [], resources=resources, say=_ignore, watch=watch)
    return finished.summary, records


def _ignore(line: str) -> None:
    """What a run tells its user."""
