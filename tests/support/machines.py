"""Several Ray nodes on this machine, that can be killed. The only use of Ray's private cluster."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from ray.cluster_utils import Cluster

_OBJECT_STORE = 100_000_000
# A node that is gone is noticed within a second or two, not within half a minute.
_QUICK_HEALTH_CHECKS = {
    "health_check_initial_delay_ms": 0,
    "health_check_period_ms": 500,
    "health_check_failure_threshold": 4,
}


class Machines:
    """A head whose CPU is left to Ray Data, and machines for one worker each."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.address: str = cluster.address

    def add(self) -> None:
        """One more machine."""
        self._cluster.add_node(num_cpus=2, object_store_memory=_OBJECT_STORE)

    def resize(self, count: int) -> None:
        """So many machines beside the head; what is too many fails."""
        while (surplus := len(self._cluster.list_all_nodes()) - 1 - count) > 0:
            self.kill(self._cluster.list_all_nodes()[-1].node_id)
        for _ in range(-surplus):
            self.add()

    def kill(self, node_id: str) -> None:
        """Power failure of a machine."""
        nodes: list[Any] = self._cluster.list_all_nodes()
        [node] = [node for node in nodes if node.node_id == node_id]
        self._cluster.remove_node(node, allow_graceful=False)


@contextmanager
def machines() -> Iterator[Machines]:
    """A head alone, which `Machines.resize` gives company."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_AUTH_MODE", "disabled")
        cluster = Cluster(
            initialize_head=True,
            head_node_args={
                "num_cpus": 1,
                "object_store_memory": _OBJECT_STORE,
                "include_dashboard": False,
                "_system_config": _QUICK_HEALTH_CHECKS,
            },
        )
        try:
            yield Machines(cluster)
        finally:
            cluster.shutdown()
