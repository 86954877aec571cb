"""What MLflow keeps of a run, read back: for figures, comparisons and reports."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from mlflow import MlflowClient
from mlflow.entities import Metric, Run

from simcse_platform.errors import TrackingError
from simcse_platform.tracking.mlflow_session import session


@dataclass(frozen=True, kw_only=True)
class RecordedRun:
    """A run as the tracking server has it."""

    status: str
    """MLflow's: RUNNING, FINISHED, FAILED or KILLED."""
    started: datetime
    ended: datetime | None
    corpus_rows: int | None
    """Of the dataset that it was trained on, if that is on record."""


def read_run(uri: str, run_id: str) -> RecordedRun:
    """One run. Raises `TrackingError` when it is not there or the server does not answer."""
    database = Path(uri.removeprefix("sqlite:///"))
    if uri.startswith("sqlite:") and not database.exists():
        # Opening it would make an empty one.
        raise TrackingError(f"there is no tracking database {database}: name it by --tracking")
    with session(uri) as client:
        run = client.get_run(run_id)
    return RecordedRun(
        status=run.info.status,
        started=_time(run.info.start_time),
        ended=_time(run.info.end_time) if run.info.end_time else None,
        corpus_rows=_corpus_rows(run),
    )


def metric_histories(
    uri: str, run_id: str, names: Iterable[str]
) -> dict[str, Sequence[tuple[int, float]]]:
    """Step and value of each metric that the run has, one value a step, in the order of steps.

    A step that was recorded again by a restarted run counts with its last value.
    """
    found: dict[str, Sequence[tuple[int, float]]] = {}
    with session(uri) as client:
        for name in names:
            values = {metric.step: metric.value for metric in _in_time(client, run_id, name)}
            if values:
                found[name] = sorted(values.items())
    return found


def _corpus_rows(run: Run) -> int | None:
    for found in run.inputs.dataset_inputs if run.inputs else ():
        rows = json.loads(found.dataset.profile or "{}").get("num_rows")
        if rows is not None:
            return int(rows)
    return None


def _in_time(client: MlflowClient, run_id: str, name: str) -> list[Metric]:
    return sorted(client.get_metric_history(run_id, name), key=lambda metric: metric.timestamp)


def _time(milliseconds: int) -> datetime:
    return datetime.fromtimestamp(milliseconds / 1000, UTC)
