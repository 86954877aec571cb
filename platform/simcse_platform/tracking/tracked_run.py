"""A run that is recorded, by name only: what a driver hands to the process that records it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from simcse_platform.tracking.tracker import Tracker


@dataclass(frozen=True)
class TrackedRun:
    """The run `run_id` of the MLflow at `uri`, whose records go through the file `spool`.

    Pickling it is cheap, and unpickling it loads no library.
    """

    uri: str
    run_id: str
    spool: Path

    def open(self) -> Tracker:
        """Its tracker, in any process that reaches `uri` and the folder of `spool`."""
        # Late: MLflow takes seconds of every process that imports it, and one of all ranks logs.
        from simcse_platform.tracking.mlflow_tracker import MlflowTracker

        return MlflowTracker(self.uri, self.run_id, self.spool)
