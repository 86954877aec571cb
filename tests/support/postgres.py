"""A real PostgreSQL of the system's packages, in a folder and at a port of its own."""

from __future__ import annotations

import os
import pwd
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from support.mlflow_server import free_port


@contextmanager
def postgres() -> Iterator[str]:
    """URI of an empty database; the test is skipped where PostgreSQL is not installed."""
    programs = _programs()
    if programs is None:
        pytest.skip("PostgreSQL is not installed: apt install postgresql")
    identity = _identity()
    port = free_port()
    # Not in pytest's folders, which other users may not enter.
    with TemporaryDirectory() as folder:
        if identity:
            os.chown(folder, identity["user"], identity["group"])
        data = Path(folder, "data")

        def run(program: str, *arguments: str | Path) -> None:
            subprocess.run(
                [programs / program, "-D", data, *arguments],
                cwd=folder,
                stdout=subprocess.DEVNULL,
                check=True,
                **identity,
            )

        run("initdb", "--username=mlflow", "--auth=trust", "--no-sync", "--encoding=UTF8")
        options = f"-p {port} -h 127.0.0.1 -F -c unix_socket_directories=''"
        run("pg_ctl", "start", "-w", "-t", "120", "-l", Path(folder, "log"), "-o", options)
        try:
            yield f"postgresql://mlflow@127.0.0.1:{port}/postgres"
        finally:
            run("pg_ctl", "stop", "-m", "immediate")


def _programs() -> Path | None:
    """The folder that holds `initdb`; Debian keeps one a version, away from the PATH."""
    found = list(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    if found:
        return max(found, key=lambda program: int(re.sub(r"\D", "", program.parts[-3]) or 0)).parent
    program = shutil.which("initdb")
    return Path(program).parent if program else None


def _identity() -> dict[str, Any]:
    """Whom it runs as, for `subprocess`: it refuses to run as root."""
    if os.getuid() != 0:
        return {}
    names = {entry.pw_name: entry for entry in pwd.getpwall()}
    entry = names.get("postgres") or names["nobody"]
    return {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}
