"""The load of a machine, recorded by a thread beside a block."""

from __future__ import annotations

import errno
import os
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from mlflow.system_metrics.metrics import gpu_monitor

from simcse_platform.tracking import system_metrics as module
from simcse_platform.tracking.spool import Pace, Record, Spool, SpooledTracker
from simcse_platform.tracking.system_metrics import system_metrics
from simcse_platform.tracking.tracker import NullTracker

NEVER = 10**6


class Samples(NullTracker):
    """Keeps what it is given."""

    def __init__(self) -> None:
        self.values: list[Mapping[str, float]] = []

    def log_sample(self, values: Mapping[str, float]) -> None:
        self.values.append(values)

    def wait_for(self, count: int) -> None:
        deadline = time.monotonic() + 60
        while len(self.values) < count:
            assert time.monotonic() < deadline, "no sample"
            time.sleep(0.005)


class Load:
    """A monitor that counts its measurements."""

    def __init__(self) -> None:
        self._count = 0

    def collect_metrics(self) -> None:
        self._count += 1

    def aggregate_metrics(self) -> Mapping[str, float]:
        return {"count": self._count}

    def clear_metrics(self) -> None: ...


class Broken(Load):
    """A monitor that fails from its third measurement on."""

    def collect_metrics(self) -> None:
        super().collect_metrics()
        if self._count > 2:
            raise RuntimeError("the driver is gone")


@pytest.fixture(autouse=True)
def nothing_stays() -> Iterator[None]:
    """No thread outlives its block."""
    yield
    assert "system-metrics" not in [thread.name for thread in threading.enumerate()]


def test_the_names_are_those_of_mlflow(tmp_path: Path) -> None:
    samples = Samples()
    with system_metrics(samples, 0.02):
        samples.wait_for(2)
    expected = {
        "system/cpu_utilization_percentage",
        "system/system_memory_usage_megabytes",
        "system/system_memory_usage_percentage",
        "system/disk_usage_percentage",
        "system/disk_usage_megabytes",
        "system/disk_available_megabytes",
        "system/network_receive_megabytes",
        "system/network_transmit_megabytes",
    }
    for values in samples.values:
        assert expected <= values.keys()
        assert 0 < values["system/system_memory_usage_percentage"] < 100


def test_the_load_of_the_cpu_is_measured_between_two_samples() -> None:
    samples = Samples()
    with system_metrics(samples, NEVER):
        end = time.monotonic() + 0.5
        while time.monotonic() < end:
            pass
    (values,) = samples.values
    assert values["system/cpu_utilization_percentage"] > 0


def test_a_gpu_is_recorded_where_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    card = SimpleNamespace(
        NVMLError=RuntimeError,
        nvmlInit=lambda: None,
        nvmlDeviceGetCount=lambda: 1,
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetMemoryInfo=lambda card: SimpleNamespace(used=2e9, total=8e9),
        nvmlDeviceGetUtilizationRates=lambda card: SimpleNamespace(gpu=73),
        nvmlDeviceGetPowerUsage=_unsupported,
    )
    monkeypatch.setattr(gpu_monitor, "pynvml", card, raising=False)
    monkeypatch.setitem(sys.modules, "pynvml", card)
    samples = Samples()
    with system_metrics(samples, NEVER):
        pass
    (values,) = samples.values
    assert values["system/gpu_0_utilization_percentage"] == 73
    assert values["system/gpu_0_memory_usage_percentage"] == 25
    assert "system/gpu_0_power_usage_watts" not in values


def _unsupported(card: int) -> int:
    raise RuntimeError("Not Supported")


def test_what_a_machine_does_not_have_is_left_out(
    monkeypatch: pytest.MonkeyPatch, said: list[str]
) -> None:
    monkeypatch.setattr(psutil, "net_io_counters", lambda: None)
    samples = Samples()
    with system_metrics(samples, NEVER):
        pass
    (values,) = samples.values
    assert "system/disk_usage_percentage" in values
    assert not [name for name in values if "network" in name]
    assert said == []


def test_a_monitor_that_fails_stops_neither_the_block_nor_the_others(
    monkeypatch: pytest.MonkeyPatch, said: list[str]
) -> None:
    monkeypatch.setattr(module, "_monitors", lambda: [Broken(), Load()])
    samples = Samples()
    with system_metrics(samples, 0.001):
        samples.wait_for(5)
    assert [values["system/count"] for values in samples.values[:5]] == [2, 3, 4, 5, 6]
    assert said == [
        "the load of this machine is recorded without Broken from now on: the driver is gone"
    ]


def test_a_block_shorter_than_the_interval_has_one_sample_and_does_not_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_monitors", lambda: [Load()])
    samples, before = Samples(), time.monotonic()
    with pytest.raises(ValueError, match="of the block"), system_metrics(samples, NEVER):
        raise ValueError("of the block")
    assert time.monotonic() - before < 60
    assert samples.values == [{"system/count": 2}]


def test_a_full_disk_ends_the_record_and_not_the_block(
    monkeypatch: pytest.MonkeyPatch, said: list[str]
) -> None:
    monkeypatch.setattr(module, "_monitors", lambda: [Load()])

    class Full(Samples):
        def log_sample(self, values: Mapping[str, float]) -> None:
            super().log_sample(values)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    samples = Full()
    with system_metrics(samples, 0.001):
        samples.wait_for(1)
    assert len(samples.values) == 1
    assert said == [
        "the load of this machine is no longer recorded: [Errno 28] No space left on device"
    ]


def test_numbers_go_on_after_a_restart_and_an_outage_is_no_concern_of_the_thread(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(module, "_monitors", lambda: [Load()])
    threads: set[str] = set()

    def send(request: Sequence[Record]) -> None:
        threads.add(threading.current_thread().name)

    for last in (0, 1):
        tracker = SpooledTracker(tmp_path / "spool.jsonl", send, Pace(records=1, seconds=0))
        with system_metrics(tracker, NEVER):
            tracker.log_metrics({"loss": 1.0}, last)
        assert Spool(tmp_path / "spool.jsonl").last_steps() == {"loss": last, "system/count": last}
    assert threads == {threading.current_thread().name}
