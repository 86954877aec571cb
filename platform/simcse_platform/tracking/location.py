"""Where a run is recorded, and by whom. MLflow is not imported here."""

from __future__ import annotations

import getpass
import os
import re
from pathlib import Path

from simcse.errors import UsageError

_CREDENTIALS = re.compile(r"(?<=:)//[^/]*@")


def tracking_uri(configured: str | None, output: Path, *, num_nodes: int = 1) -> str:
    """The URI to record to, the same from every folder: the default is SQLite in `output`.

    Raises `UsageError` for SQLite with workers on several nodes or at a path that its address
    cannot have, and for what is neither SQLite nor a server.
    """
    uri = configured or f"sqlite:///{output.expanduser().absolute() / 'mlflow.db'}"
    scheme, _, rest = uri.partition("://")
    if scheme in ("http", "https"):
        return uri
    if scheme != "sqlite":
        raise UsageError(
            f"tracking.uri is {without_password(uri)!r}: give the URI of an MLflow server "
            "(http://host:port) or sqlite:///file.db"
        )
    if num_nodes > 1:
        raise UsageError(
            f"tracking.uri is {without_password(uri)!r}, but the workers are on {num_nodes} nodes "
            "and SQLite serves one: set tracking.uri to an MLflow server that all of them reach"
        )
    path = str(Path(rest.removeprefix("/")).expanduser().absolute())
    if found := next((character for character in "?%" if character in path), None):
        raise UsageError(
            f"{path} holds {found!r}, which means something else in the address of a SQLite "
            "database: choose another --output, or give --tracking"
        )
    return f"sqlite:///{path}"


def without_password(uri: str) -> str:
    """The URI as it may be shown and kept: without the name and password before an `@`."""
    return _CREDENTIALS.sub("//", uri)


def author() -> str:
    """The user's name, for the record."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        # A container may run under a user id without a name.
        return f"uid {os.getuid()}"
