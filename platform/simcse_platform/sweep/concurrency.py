"""How many trials run at a time, and that no more do."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import ray

from simcse.errors import UsageError
from simcse_platform.config import TrainRun, override
from simcse_platform.runtime import Resources
from simcse_platform.training.trainer import place

_POLL_S = 1.0
_ROUNDING = 1e-9


def concurrency(run: TrainRun, resources: Resources, wanted: int | None) -> int:
    """Trials that the cluster holds at a time, beside one CPU for Ray Data.

    A trial's own driver takes no CPU, so that trials never wait for each other's workers. Raises
    `UsageError` when more are wanted, `ClusterError` when not even one fits.
    """
    placement = place(run.scale, resources)
    workers = run.scale.max_workers or run.scale.num_workers
    nodes = resources.node_cpus or (resources.cpus,)
    most = _places(nodes, placement.cpus_per_worker) // workers
    if placement.use_gpu:
        most = min(most, math.floor(resources.gpus / workers))
    most = max(1, most)
    if wanted is not None and wanted > most:
        raise UsageError(
            f"--concurrent is {wanted}, but the cluster holds {most} trial(s) of {workers} "
            "worker(s) at a time: lower it, or use fewer workers a trial"
        )
    return wanted or most


def _places(nodes: Sequence[float], cpus_per_worker: float) -> int:
    """Workers that the nodes hold when Ray Data has its CPU on the one that loses least by it."""

    def held(cpus: float) -> int:
        return math.floor(cpus / cpus_per_worker + _ROUNDING)

    lost = [held(node) - held(node - 1) for node in nodes if node >= 1]
    return sum(map(held, nodes)) - min(lost, default=0)


def share_cores(base: TrainRun, resources: Resources, trials: int) -> TrainRun:
    """The base with as many threads a worker as are left when so many trials run."""
    if base.scale.threads_per_worker is not None:
        return base
    threads = place(base.scale, resources).threads_per_worker // trials
    return override(base, [f"scale.threads_per_worker={max(1, threads)}"])


@contextmanager
def permit(sweep: str, at_once: int) -> Iterator[None]:
    """One of the `at_once` permits of a sweep, waited for; it ends with the block or its process.

    Ray Tune's own limit counts what its search hands out. The trials that had failed or were under
    way when a sweep was interrupted are not, and start all at once when it goes on.
    """
    held = None
    while held is None:
        held = _taken(sweep, at_once)
        if held is None:
            time.sleep(_POLL_S)
    try:
        yield
    finally:
        ray.kill(held)


class _Permit:
    """Of its name there is one, and Ray ends it with the process that made it."""


def _taken(sweep: str, at_once: int) -> Any:
    for number in range(at_once):
        try:
            return ray.remote(num_cpus=0)(_Permit).options(name=f"{sweep} {number}").remote()
        except ValueError:
            # Another trial has it.
            continue
    return None
