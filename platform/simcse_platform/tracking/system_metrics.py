"""The load of a run's machine, under the names that MLflow's page shows as system metrics.

MLflow's own monitors measure it: CPU, memory, disk, network and NVIDIA's GPUs. What they find goes
through the run's tracker, since MLflow's own thread would give up at the first outage.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Protocol

from simcse_platform.tracking.tracker import Tracker

logger = logging.getLogger(__name__)

PREFIX = "system/"
"""What the names of system metrics begin with."""


class Monitor(Protocol):
    """MLflow's `BaseMetricsMonitor`."""

    def collect_metrics(self) -> None:
        """One more measurement."""

    def aggregate_metrics(self) -> Mapping[str, float]:
        """The mean of those since the last `clear_metrics`, or the last where it counts."""

    def clear_metrics(self) -> None:
        """No measurement."""


@contextmanager
def system_metrics(tracker: Tracker, every_s: float) -> Iterator[None]:
    """Records the load of this machine every so many seconds until the block ends.

    A block that is shorter has one, of its end. Nothing that a monitor or the disk does stops it.

    The step of a sample is its number, which goes on after a restart (`Tracker.log_sample`): a
    step of training may take longer than the time between two samples, or a hundredth of it, and
    MLflow's page draws system metrics by their time anyway.
    """
    stop = threading.Event()
    thread = threading.Thread(
        target=_sample,
        args=(_monitors(), tracker, every_s, stop),
        name="system-metrics",
        daemon=True,
    )
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def _monitors() -> list[Monitor]:
    """Those that find what they measure on this machine."""
    # Late: MLflow takes seconds of every process that imports it.
    from mlflow.system_metrics.metrics.cpu_monitor import CPUMonitor
    from mlflow.system_metrics.metrics.disk_monitor import DiskMonitor
    from mlflow.system_metrics.metrics.gpu_monitor import GPUMonitor
    from mlflow.system_metrics.metrics.network_monitor import NetworkMonitor

    # With every sample it would warn of what a GPU does not tell, such as its power.
    logging.getLogger(GPUMonitor.__module__).setLevel(logging.ERROR)
    found: list[Monitor] = []
    for kind in (CPUMonitor, DiskMonitor, NetworkMonitor, GPUMonitor):
        try:
            found.append(kind())
        except Exception as error:
            # Their way to say that there is no GPU, or no network.
            logger.info("the load of this machine is recorded without %s: %s", kind.__name__, error)
    return found


def _sample(
    monitors: list[Monitor], tracker: Tracker, every_s: float, stop: threading.Event
) -> None:
    # The load of a CPU is that since the last look, in this thread; the first one has none.
    _look(monitors)
    try:
        sampled = False
        while not (stop.wait(every_s) and sampled):
            if values := _look(monitors):
                tracker.log_sample(values)
            sampled = True
    except OSError as error:
        # Of the spool's disk, which the loop meets as well.
        logger.warning("the load of this machine is no longer recorded: %s", error)


def _look(monitors: list[Monitor]) -> dict[str, float]:
    """What each monitor finds now; one that fails is left out from then on."""
    values: dict[str, float] = {}
    for monitor in monitors.copy():
        try:
            monitor.collect_metrics()
            found = monitor.aggregate_metrics()
            monitor.clear_metrics()
        except Exception as error:
            # Of psutil, of NVIDIA's library, of the system beneath them.
            monitors.remove(monitor)
            logger.warning(
                "the load of this machine is recorded without %s from now on: %s",
                type(monitor).__name__,
                error,
            )
        else:
            values |= {f"{PREFIX}{name}": float(value) for name, value in found.items()}
    return values
