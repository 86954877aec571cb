"""A run that hangs is worse than one that fails: each wait ends in an error that names it."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import ray
from ray.util import placement_group, remove_placement_group

from simcse_platform.errors import ClusterError, StalledError, StreamError, TrainingError
from support.ray_runs import Runs

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_cluster")]


@pytest.fixture(scope="module")
def runs(tiny_encoder: Path, tmp_path_factory: pytest.TempPathFactory) -> Runs:
    return Runs(tiny_encoder, tmp_path_factory.mktemp("hangs"))


@pytest.fixture
def busy_cluster(ray_cluster: object) -> Iterator[None]:
    """A cluster whose CPUs somebody else holds for as long as the test lasts."""
    held = placement_group([{"CPU": 4}])
    ray.get(held.ready())
    yield
    remove_placement_group(held)


def test_machines_that_others_hold_are_not_waited_for_without_end(
    runs: Runs, busy_cluster: None
) -> None:
    start = time.monotonic()
    with pytest.raises(
        ClusterError,
        match=r"^the cluster did not start 2 worker\(s\) within 8 s: something else holds what "
        r"they need, or machines are slow; run the same command again later, use fewer workers, or "
        r"raise scale.timeout_s$",
    ):
        runs.fit("busy", runs.settings(0, timeout_s=8))
    assert time.monotonic() - start < 120


def test_an_elastic_run_does_not_wait_for_them_without_end_either(
    runs: Runs, busy_cluster: None
) -> None:
    start = time.monotonic()
    with pytest.raises(
        ClusterError,
        # Ray bounds the first start, and we what comes after; which of them says so is a race here.
        match=r"^(the cluster did not start 2 worker\(s\) within 10 s|given up after 10 s: no "
        r"workers have been started): something else holds what they need, or machines are slow; ",
    ):
        runs.fit("elastic", runs.settings(0, timeout_s=10, max_workers=3))
    assert time.monotonic() - start < 120


@pytest.mark.machines
def test_a_rank_that_hangs_in_a_step_is_not_waited_for_without_end(
    runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S", "200")

    def hang(rank: int, step: int) -> None:
        if (rank, step) == (1, 5):
            time.sleep(600)

    with pytest.raises(
        StalledError,
        match=r"^rank 0 waited 60 s for the others: one of them hangs or is far behind; see its "
        r"log, or raise scale.timeout_s$",
    ):
        runs.fit("hanging", runs.settings(0, timeout_s=60), hang)


@pytest.mark.machines
def test_a_rank_whose_batches_end_before_those_of_the_others_ends_the_run(runs: Runs) -> None:
    with pytest.raises(
        StreamError,
        match=r"^the batches of rank 1 ended at step 4 of 12: start the run again from its last "
        r"checkpoint$",
    ):
        runs.fit("uneven", runs.settings(0, timeout_s=60), windows_of_rank_1=1)


@pytest.mark.machines
def test_a_rank_that_dies_without_restarts_ends_the_run_in_one_line(runs: Runs) -> None:
    def die(rank: int, step: int) -> None:
        if (rank, step) == (1, 5):
            os.kill(os.getpid(), signal.SIGKILL)

    with pytest.raises(
        TrainingError,
        match=r"^run dying failed: .+; run the same command again to go on from its last "
        r"checkpoint, with --debug to see the whole error$",
    ):
        runs.fit("dying", runs.settings(0, timeout_s=60), die)
