"""No more trials at a time than a sweep may have, whoever started them and however they end."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
import ray

from simcse_platform.runtime import Resources
from simcse_platform.sweep.concurrency import permit

pytestmark = pytest.mark.ray


def hold(folder: Path, name: str, at_once: int, seconds: float) -> tuple[float, float]:
    """When the permit was had and when it was given back, once as many were had as there are."""
    with permit("sweep", at_once):
        begun = time.time()
        (folder / name).write_text(str(os.getpid()))
        while len(list(folder.iterdir())) < at_once:
            time.sleep(0.1)
        time.sleep(seconds)
        return begun, time.time()


@pytest.fixture(autouse=True)
def ray_here(ray_cluster: Resources) -> None:
    """These tests hand tasks to Ray themselves."""


def test_five_trials_share_two_permits(tmp_path: Path) -> None:
    task = ray.remote(num_cpus=0)(hold)
    spans = ray.get([task.remote(tmp_path, str(i), 2, 1.0) for i in range(5)], timeout=120)
    most = max(sum(start <= begun < end for start, end in spans) for begun, _ in spans)
    assert most == 2


def test_a_killed_trial_gives_its_permit_back(tmp_path: Path) -> None:
    killed = ray.remote(num_cpus=0, max_retries=0)(hold).remote(tmp_path, "killed", 1, 600)
    while not (tmp_path / "killed").exists() or not (tmp_path / "killed").read_text():
        time.sleep(0.1)
    waiting = ray.remote(num_cpus=0)(hold).remote(tmp_path, "waiting", 1, 0)
    ready, _ = ray.wait([waiting], timeout=5)
    assert not ready
    os.kill(int((tmp_path / "killed").read_text()), 9)
    ray.get(waiting, timeout=60)
    with pytest.raises(ray.exceptions.WorkerCrashedError):
        ray.get(killed)
