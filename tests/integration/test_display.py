"""The way of a run's records from a worker to the command that shows them."""

from __future__ import annotations

import time
from collections.abc import Mapping

import pytest
import ray
from ray.exceptions import RayError

from simcse_platform.training.supervision import shown

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_cluster")]


def test_all_that_was_recorded_is_shown_before_the_block_ends() -> None:
    seen: list[tuple[int, dict[str, float]]] = []

    def show(step: int, values: Mapping[str, float]) -> None:
        seen.append((step, dict(values)))

    with shown(show) as queue:
        assert queue is not None
        for step in range(50):
            queue.put((step, {"loss": float(step)}))
    assert seen == [(step, {"loss": float(step)}) for step in range(50)]


def test_a_display_that_goes_with_its_machine_holds_nothing_up() -> None:
    start = time.monotonic()
    with shown(lambda step, values: None) as queue:
        assert queue is not None
        ray.kill(queue.actor)
        with pytest.raises(RayError):
            queue.put((1, {}))
    assert time.monotonic() - start < 30


def test_without_a_display_there_is_no_queue() -> None:
    with shown(None) as queue:
        assert queue is None
