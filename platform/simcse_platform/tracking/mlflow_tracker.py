"""MLflow as the keeper of runs and models: one run a training, continued over restarts.

The driver calls `start_run`, and hands the id to rank 0, which logs through `MlflowTracker`; after
training the driver does the same. MLflow is used through explicit clients, inside `session`.
"""

from __future__ import annotations

import json
import logging
import os
import sqlite3
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from mlflow import MlflowClient
from mlflow.entities import (
    Dataset,
    DatasetInput,
    Metric,
    Param,
    RunTag,
)
from mlflow.exceptions import MlflowException
from mlflow.utils.mlflow_tags import (
    MLFLOW_GIT_COMMIT,
    MLFLOW_LOGGED_ARTIFACTS,
    MLFLOW_RUN_NOTE,
    MLFLOW_USER,
)

from simcse_platform.errors import TrackingError
from simcse_platform.provenance import git_commit
from simcse_platform.tracking.location import author
from simcse_platform.tracking.spool import PACE, Pace, Record, Spool, SpooledTracker

logger = logging.getLogger(__name__)

_MAX_PARAM, _MAX_TAG, _MAX_DIGEST, _MAX_LABELS = 6000, 8000, 36, 100

_ALWAYS = {
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    "MLFLOW_UV_AUTO_DETECT": "false",
}
# MLflow retries for four minutes, two minutes a try. We come back later instead.
_IMPATIENT = {"MLFLOW_HTTP_REQUEST_TIMEOUT": "5", "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0"}
_PATIENT = {"MLFLOW_HTTP_REQUEST_TIMEOUT": "120", "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2"}


@contextmanager
def session(uri: str, *, patient: bool = False) -> Iterator[MlflowClient]:
    """A client of `uri`, with MLflow's settings as we want them until the block ends.

    `patient` is for model files, which may take minutes; everything else fails within seconds.
    Time-outs and retries that the user set in the environment are kept. Raises `TrackingError`.
    """
    _open_sqlite(uri)
    # MLflow's SQL registry opens a client of its own, on the URI of the environment.
    forced = _ALWAYS | {"MLFLOW_TRACKING_URI": uri, "MLFLOW_REGISTRY_URI": uri}
    limits = _PATIENT if patient else _IMPATIENT
    chatter = logging.getLogger("mlflow")
    level = chatter.level
    before = {name: os.environ.get(name) for name in forced | limits}
    os.environ.update(limits | {name: text for name, text in before.items() if text} | forced)
    chatter.setLevel(logging.WARNING)
    try:
        # Warnings of MLflow about its own dependencies are none of the user's business.
        with warnings.catch_warnings(action="ignore"):
            yield MlflowClient(tracking_uri=uri, registry_uri=uri)
    except (MlflowException, OSError) as error:
        raise TrackingError(_reason(uri, error)) from error
    finally:
        chatter.setLevel(level)
        for name, text in before.items():
            if text is None:
                del os.environ[name]
            else:
                os.environ[name] = text


def _open_sqlite(uri: str) -> None:
    """Raise `TrackingError` for a file that is no database; MLflow would try for minutes."""
    if not uri.startswith("sqlite:"):
        return
    path = Path(uri.removeprefix("sqlite:///"))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with closing(sqlite3.connect(path)) as database:
            database.execute("PRAGMA schema_version")
    except (OSError, sqlite3.Error) as error:
        raise TrackingError(
            f"tracking database {path} cannot be opened ({error}): correct tracking.uri"
        ) from error


def _reason(uri: str, error: Exception) -> str:
    # MLflow raises on the connection errors and time-outs of `requests`, which are OSErrors.
    if isinstance(error.__context__, OSError):
        return f"tracking server {uri} does not answer: start it, or correct tracking.uri"
    return f"tracking server {uri} refuses: {' '.join(str(error).split())[:500]}"


def check_server(uri: str) -> None:
    """Raise `TrackingError` when nothing answers at `uri`, or it is no MLflow server."""
    with session(uri) as client:
        client.search_experiments(max_results=1)


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
    corpus: CorpusRecord | None = None,
) -> str:
    """Id of the run that `storage` remembers, or of a new one; it is RUNNING from here on.

    What an earlier start could not send is sent first. A run that was deleted, or that was kept
    on another server, is recorded anew, with everything its spool holds.
    Raises `TrackingError` when the server does not answer.
    """
    note = storage / "mlflow_run.json"
    labels = dict(tags or {}) | {MLFLOW_USER: author()}
    if description:
        labels[MLFLOW_RUN_NOTE] = description
    if commit := git_commit():
        labels[MLFLOW_GIT_COMMIT] = commit
    with session(uri) as client:
        run_id = _remembered(client, uri, note)
        if run_id is None:
            run = client.create_run(
                experiment_id(client, uri, experiment), run_name=run_name, tags=labels
            )
            run_id = str(run.info.run_id)
            storage.mkdir(parents=True, exist_ok=True)
            note.write_text(json.dumps({"uri": uri, "run_id": run_id}), encoding="utf-8")
            Spool(spool).rewind()
            if corpus is not None:
                client.log_inputs(run_id, [_dataset_input(corpus)])
        else:
            _log_labels(client, run_id, tags=labels)
        drain(spool, uri, run_id)
        client.update_run(run_id, status="RUNNING")
    return run_id


class MlflowTracker(SpooledTracker):
    """Tracker of the run `run_id`, in any process that reaches `uri` and the folder of `spool`.

    Making one contacts nobody. It may be pickled; the copy opens the spool where it is used.
    """

    def __init__(
        self,
        uri: str,
        run_id: str,
        spool: Path,
        pace: Pace = PACE,
    ) -> None:
        super().__init__(spool, lambda request: _send(uri, run_id, request), pace)
        self._arguments = (uri, run_id, spool, pace)

    def __reduce__(self) -> tuple[type[MlflowTracker], tuple[str, str, Path, Pace]]:
        return MlflowTracker, self._arguments


def drain(spool: Path, uri: str, run_id: str) -> None:
    """Nothing left in the spool. Raises `TrackingError` when the server does not answer."""
    Spool(spool).drain(lambda request: _send(uri, run_id, request))


def _remembered(client: MlflowClient, uri: str, note: Path) -> str | None:
    if not note.exists():
        return None
    remembered = json.loads(note.read_text(encoding="utf-8"))
    if remembered["uri"] != uri:
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
        tags=[],
    )


def _send(uri: str, run_id: str, request: Sequence[Record]) -> None:
    """One request of a spool.

    A record that the server finds wrong is dropped: it would hold back all others for ever.
    """
    try:
        with session(uri) as client:
            _deliver(client, run_id, request)
    except TrackingError as error:
        refusal = error.__cause__
        if isinstance(refusal, MlflowException) and refusal.error_code in (
            "INVALID_PARAMETER_VALUE",
            "BAD_REQUEST",
        ):
            logger.warning("a record was dropped: %s", error)
            return
        raise
    except Exception as error:
        # Artifact stores raise what they like, and none of it may stop training.
        raise TrackingError(f"tracking server {uri}: {type(error).__name__}: {error}") from error


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
                _log_labels(client, run_id, params=record["values"])
            case "tags":
                _log_labels(client, run_id, tags=record["values"])
            case "text":
                client.log_text(run_id, record["text"], record["name"])
            case "table":
                client.log_text(run_id, record["text"], record["name"])
                _mark_table(client, run_id, record["name"])
            case "end":
                client.set_terminated(run_id, record["status"], record["time"])
    if metrics:
        client.log_batch(run_id, metrics=metrics)


def _log_labels(
    client: MlflowClient,
    run_id: str,
    *,
    params: Mapping[str, str] | None = None,
    tags: Mapping[str, str] | None = None,
) -> None:
    """Parameters and tags, as many a request as MLflow takes.

    MLflow keeps a parameter for ever. One that has another value in a continued run, such as the
    number of workers, becomes the tag `continued.<name>`.
    """
    params = {name: text[:_MAX_PARAM] for name, text in (params or {}).items()}
    tags = {name: text[:_MAX_TAG] for name, text in (tags or {}).items()}
    if params:
        known = client.get_run(run_id).data.params
        tags |= {
            f"continued.{name}": text
            for name, text in params.items()
            if known.get(name, text) != text
        }
        params = {name: text for name, text in params.items() if name not in known}
    new = [Param(name, text) for name, text in params.items()]
    for start in range(0, len(new), _MAX_LABELS):
        client.log_batch(run_id, params=new[start : start + _MAX_LABELS])
    facts = [RunTag(name, text) for name, text in tags.items()]
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
