"""Where a run is recorded, by whom, and from which source. No MLflow here."""

from __future__ import annotations

import getpass
import os
import subprocess
from pathlib import Path

from simcse.errors import UsageError


def tracking_uri(configured: str | None, output: Path, *, num_nodes: int = 1) -> str:
    """The URI to record to, the same from every folder: the default is SQLite beside `output`.

    Raises `UsageError` for SQLite with workers on several nodes, and for a path without a scheme.
    """
    uri = configured or f"sqlite:///{output.absolute() / 'mlflow.db'}"
    scheme, separator, rest = uri.partition("://")
    if not separator or scheme == "file":
        raise UsageError(
            f"tracking.uri is {uri!r}: give the URI of an MLflow server (http://host:port) or "
            "sqlite:///file.db"
        )
    if scheme != "sqlite":
        return uri
    if num_nodes > 1:
        raise UsageError(
            f"tracking.uri is {uri!r}, but the workers are on {num_nodes} nodes and SQLite serves "
            "one: set tracking.uri to an MLflow server that all of them reach"
        )
    return f"sqlite:///{Path(rest.removeprefix('/')).absolute()}"


def author() -> str:
    """The user's name, for the record."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        # A container may run under a user id without a name.
        return f"uid {os.getuid()}"


def git_commit() -> str | None:
    """Commit of the checkout this code runs from; None for an installed package."""
    root = Path(__file__).parents[3]
    if not (root / ".git").exists():
        return None
    try:
        git = subprocess.run(
            ["git", "rev-parse", "HEAD"], cwd=root, capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return git.stdout.strip()
