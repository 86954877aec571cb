"""MLflow as it is used here: explicit clients, its settings as we want them, errors in one line."""

from __future__ import annotations

import logging
import os
import sqlite3
import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path

from mlflow import MlflowClient
from mlflow.exceptions import MlflowException
from requests import HTTPError, RequestException

from simcse_platform.errors import TrackingError, UnansweredError
from simcse_platform.tracking.location import without_password

_ALWAYS = {
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    "MLFLOW_UV_AUTO_DETECT": "false",
}
# MLflow retries for four minutes, two minutes a try. We come back later instead.
_IMPATIENT = {"MLFLOW_HTTP_REQUEST_TIMEOUT": "5", "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0"}
_PATIENT = {"MLFLOW_HTTP_REQUEST_TIMEOUT": "120", "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2"}

_SECONDS_BETWEEN_CALLS = 2.0


@contextmanager
def session(uri: str, *, patient: bool = False) -> Iterator[MlflowClient]:
    """A client of `uri`, quiet, and with time-outs that suit us until the block ends.

    `patient` is for model files, which may take minutes; everything else fails within seconds.
    Time-outs and retries that the user set in the environment are kept. Raises `TrackingError` for
    what the server refuses, or does not answer.
    """
    _open_sqlite(uri)
    limits = _PATIENT if patient else _IMPATIENT
    try:
        with quiet(uri, limits):
            yield MlflowClient(tracking_uri=uri, registry_uri=uri)
    except (MlflowException, RequestException) as error:
        raise _refusal(uri, error) from error


@contextmanager
def quiet(uri: str, defaults: Mapping[str, str] | None = None) -> Iterator[None]:
    """MLflow without its chatter, bound to `uri`, until the block ends.

    `defaults` are settings for the environment, where the user has not set them.
    """
    defaults = defaults or {}
    # MLflow's SQL registry opens a client of its own, on the URI of the environment.
    forced = _ALWAYS | {"MLFLOW_TRACKING_URI": uri, "MLFLOW_REGISTRY_URI": uri}
    chatter = logging.getLogger("mlflow")
    level = chatter.level
    before = {name: os.environ.get(name) for name in forced.keys() | defaults.keys()}
    os.environ.update({n: text for n, text in defaults.items() if not before[n]} | forced)
    chatter.setLevel(logging.WARNING)
    try:
        # Warnings of MLflow about its own dependencies are none of the user's business.
        with warnings.catch_warnings(action="ignore"):
            yield
    finally:
        chatter.setLevel(level)
        for name, text in before.items():
            if text is None:
                del os.environ[name]
            else:
                os.environ[name] = text


def check_server(uri: str, *, patience_s: float = 0.0) -> None:
    """Raise `TrackingError` when nothing answers at `uri`, or it is no MLflow server.

    A server that is away is waited for so long.
    """
    deadline = time.monotonic() + patience_s
    while True:
        try:
            with session(uri) as client:
                client.search_experiments(max_results=1)
            return
        except UnansweredError:
            if time.monotonic() >= deadline:
                raise
            time.sleep(_SECONDS_BETWEEN_CALLS)


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


def _refusal(uri: str, error: Exception) -> TrackingError:
    shown = without_password(uri)
    # MLflow raises its own errors on those of the connection, but for model files.
    cause = error if isinstance(error, RequestException) else error.__context__
    if isinstance(cause, RequestException) and not isinstance(cause, HTTPError):
        return UnansweredError(
            f"tracking server {shown} does not answer: start it, or correct tracking.uri"
        )
    return TrackingError(f"tracking server {shown} refuses: {' '.join(str(error).split())[:500]}")
