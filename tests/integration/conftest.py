"""One local Ray for all tests that need it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from simcse_platform import runtime


@pytest.fixture(scope="session")
def ray_cluster() -> Iterator[runtime.Resources]:
    """A small local cluster: four logical CPUs, 150 MB of object store."""
    with (
        pytest.MonkeyPatch.context() as patch,
        runtime.connect(num_cpus=4, object_store_memory=150_000_000) as resources,
    ):
        patch.setenv("RAY_TRAIN_HEALTH_CHECK_INTERVAL_S", "0.2")
        yield resources
