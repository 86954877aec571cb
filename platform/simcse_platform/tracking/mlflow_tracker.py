"""MLflow as the keeper of runs and models: one run a training, continued over restarts.

The driver calls `start_run` and logs through `MlflowTracker`, before and after training; in between
rank 0 does so, from a `TrackedRun`.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from mlflow import MlflowClient
from mlflow.entities import (
    Dataset,
    DatasetInput,
    InputTag,
    Metric,
    Param,
    RunTag,
)
from mlflow.exceptions import MlflowException
from mlflow.utils.mlflow_tags import (
    MLFLOW_DATASET_CONTEXT,
    MLFLOW_GIT_COMMIT,
    MLFLOW_LOGGED_ARTIFACTS,
    MLFLOW_PARENT_RUN_ID,
    MLFLOW_RUN_NOTE,
    MLFLOW_USER,
)

from simcse_platform.errors import TrackingError
from simcse_platform.provenance import git_commit
from simcse_platform.storage import write_atomically
from simcse_platform.tracking.location import author, without_password
from simcse_platform.tracking.mlflow_session import session
from simcse_platform.tracking.spool import PACE, Pace, Record, Spool, SpooledTracker

logger = logging.getLogger(__name__)

MAX_PARAM, _MAX_TAG, _MAX_DIGEST, _MAX_LABELS = 6000, 8000, 36, 100
_NOTE = "mlflow_run.json"
_REFUSED = ("INVALID_PARAMETER_VALUE", "BAD_REQUEST")


@dataclass(frozen=True, kw_only=True)
class CorpusRecord:
    """The corpus, as a run's dataset input."""

    name: str
    source: str
    fingerprint: str
    rows: int
    columns: Sequence[str]


def start_run(
    uri: str,
    experiment: str,
    run_name: str,
    *,
    storage: Path,
    spool: Path,
    description: str = "",
    tags: Mapping[str, str] | None = None,
    parent_run_id: str | None = None,
    corpus: CorpusRecord | None = None,
) -> str:
    """Id of the run that `storage` remembers, or of a new one; it is RUNNING from here on.

    What an earlier start could not send is sent first. A run that was deleted, or that was kept
    on another server, is recorded anew, with everything its spool holds.
    Raises `TrackingError` when the server does not answer.
    """
    note = storage / _NOTE
    labels = dict(tags or {}) | run_labels(description)
    if parent_run_id is not None:
        labels[MLFLOW_PARENT_RUN_ID] = parent_run_id
    with session(uri) as client:
        run_id = _remembered(client, uri, note)
        if run_id is None:
            run = client.create_run(
                experiment_id(client, uri, experiment), run_name=run_name, tags=labels
            )
            run_id = str(run.info.run_id)
            if corpus is not None:
                client.log_inputs(run_id, [_dataset_input(corpus)])
            # The note last: whoever reads it takes for granted what comes before it.
            Spool(spool).rewind()
            write_atomically(note, json.dumps({"uri": without_password(uri), "run_id": run_id}))
        else:
            _set_tags(client, run_id, labels)
        drain(spool, uri, run_id)
        client.update_run(run_id, status="RUNNING")
    return run_id


def run_labels(description: str = "") -> dict[str, str]:
    """The tags by which MLflow's page says who made a run, by which sources, and what it is."""
    labels = {MLFLOW_USER: author()}
    if description:
        labels[MLFLOW_RUN_NOTE] = description
    if commit := git_commit():
        labels[MLFLOW_GIT_COMMIT] = commit
    return labels


class MlflowTracker(SpooledTracker):
    """Tracker of the run `run_id`, in any process that reaches `uri` and the folder of `spool`.

    Making one contacts nobody.
    """

    def __init__(self, uri: str, run_id: str, spool: Path, pace: Pace = PACE) -> None:
        super().__init__(spool, partial(_send, uri, run_id), pace)


def log_files(uri: str, run_id: str, folder: Path) -> None:
    """The files of a folder as artifacts of the run, under its name. Raises `TrackingError`."""
    with session(uri, patient=True) as client:
        client.log_artifacts(run_id, str(folder), folder.name)


def log_text(uri: str, run_id: str, text: str, name: str) -> None:
    """An artifact `name` with this text, of a run that may have ended. Raises `TrackingError`."""
    with session(uri, patient=True) as client:
        client.log_text(run_id, text, name)


def run_of(storage: Path) -> str | None:
    """Id of the run that `start_run` made for `storage`, if it has."""
    note = storage / _NOTE
    return json.loads(note.read_text(encoding="utf-8"))["run_id"] if note.exists() else None


def drain(spool: Path, uri: str, run_id: str) -> None:
    """Nothing left in the spool. Raises `TrackingError` when the server does not answer."""
    Spool(spool).drain(partial(_send, uri, run_id))


def _remembered(client: MlflowClient, uri: str, note: Path) -> str | None:
    if not note.exists():
        return None
    remembered = json.loads(note.read_text(encoding="utf-8"))
    if remembered["uri"] != without_password(uri):
        return None
    try:
        run = client.get_run(remembered["run_id"])
    except MlflowException as error:
        if error.error_code == "RESOURCE_DOES_NOT_EXIST":
            return None
        raise
    return str(run.info.run_id) if run.info.lifecycle_stage == "active" else None


def experiment_id(client: MlflowClient, uri: str, name: str) -> str:
    """Id of the experiment; it is made where it is not there."""
    found = client.get_experiment_by_name(name)
    if found is not None:
        return str(found.experiment_id)
    # A server knows where artifacts go; SQLite would put them under the current folder.
    beside = uri.startswith("sqlite:") and Path(uri.removeprefix("sqlite:///")).parent
    location = (beside / "mlartifacts").as_uri() if beside else None
    try:
        return str(client.create_experiment(name, artifact_location=location))
    except MlflowException as error:
        # Another run made it in between.
        found = client.get_experiment_by_name(name)
        if error.error_code != "RESOURCE_ALREADY_EXISTS" or found is None:
            raise
        return str(found.experiment_id)


def _dataset_input(corpus: CorpusRecord) -> DatasetInput:
    return DatasetInput(
        Dataset(
            name=corpus.name,
            digest=corpus.fingerprint[:_MAX_DIGEST],
            source_type="local",
            source=json.dumps({"uri": corpus.source}),
            schema=json.dumps(
                {
                    "mlflow_colspec": [
                        {"name": name, "type": "string", "required": True}
                        for name in corpus.columns
                    ]
                }
            ),
            profile=json.dumps({"num_rows": corpus.rows, "fingerprint": corpus.fingerprint}),
        ),
        tags=[InputTag(MLFLOW_DATASET_CONTEXT, "training")],
    )


def _send(uri: str, run_id: str, request: Sequence[Record]) -> None:
    """One request of a spool, in halves where the server finds something in it wrong.

    A record that is refused alone is dropped: it would hold back all others for ever.
    """
    try:
        with session(uri) as client:
            _deliver(client, run_id, request)
    except TrackingError as error:
        refusal = error.__cause__
        if not isinstance(refusal, MlflowException) or refusal.error_code not in _REFUSED:
            raise
        if len(request) == 1:
            logger.warning("%s dropped: %s", _shown(request[0]), error)
            return
        half = len(request) // 2
        for part in (request[:half], request[half:]):
            _send(uri, run_id, part)
    except Exception as error:
        # Artifact stores raise what they like, and none of it may stop training.
        where = without_password(uri)
        raise TrackingError(f"tracking server {where}: {type(error).__name__}: {error}") from error


def _shown(record: Record) -> str:
    """The record as the subject of a message."""
    match record["kind"]:
        case "metrics":
            return f"metrics of step {record['step']} ({', '.join(record['values'])}) were"
        case "params":
            return f"{len(record['values'])} parameters were"
        case "text" | "table":
            return f"{record['name']} was"
        case "end":
            return f"the end of the run ({record['status']}) was"


def _deliver(client: MlflowClient, run_id: str, request: Sequence[Record]) -> None:
    metrics: list[Metric] = []
    for record in request:
        match record["kind"]:
            case "metrics":
                metrics += [
                    Metric(name, value, record["time"], record["step"])
                    for name, value in record["values"].items()
                ]
            case "params":
                _log_params(client, run_id, record["values"])
            case "text":
                client.log_text(run_id, record["text"], record["name"])
            case "table":
                client.log_text(run_id, record["text"], record["name"])
                _mark_table(client, run_id, record["name"])
            case "end":
                client.set_terminated(run_id, record["status"], record["time"])
    if metrics:
        client.log_batch(run_id, metrics=metrics)


def _log_params(client: MlflowClient, run_id: str, params: Mapping[str, str]) -> None:
    """Parameters, as many a request as MLflow takes.

    MLflow keeps a parameter for ever. One that has another value in a continued run, such as the
    number of workers, becomes the tag `continued.<name>`.
    """
    params = {name: text[:MAX_PARAM] for name, text in params.items()}
    known = client.get_run(run_id).data.params
    changed = {
        f"continued.{name}": text for name, text in params.items() if known.get(name, text) != text
    }
    new = [Param(name, text) for name, text in params.items() if name not in known]
    for start in range(0, len(new), _MAX_LABELS):
        client.log_batch(run_id, params=new[start : start + _MAX_LABELS])
    _set_tags(client, run_id, changed)


def _set_tags(client: MlflowClient, run_id: str, tags: Mapping[str, str]) -> None:
    facts = [RunTag(name, text[:_MAX_TAG]) for name, text in tags.items()]
    for start in range(0, len(facts), _MAX_LABELS):
        client.log_batch(run_id, tags=facts[start : start + _MAX_LABELS])


def _mark_table(client: MlflowClient, run_id: str, name: str) -> None:
    """The tag by which MLflow's page shows the file as a table.

    `MlflowClient.log_table` would append the rows to those of an earlier try.
    """
    tags = client.get_run(run_id).data.tags
    tables = json.loads(tags.get(MLFLOW_LOGGED_ARTIFACTS, "[]"))
    entry = {"path": name, "type": "table"}
    if entry not in tables:
        client.set_tag(run_id, MLFLOW_LOGGED_ARTIFACTS, json.dumps([*tables, entry]))
