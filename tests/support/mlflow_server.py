"""A real MLflow server in a process of its own."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path

MLFLOW = (sys.executable, "-m", "mlflow", "server")


class Server:
    """An MLflow server on a port of its own, which can be stopped and started again.

    Without other variables in `environment` it keeps runs in SQLite; artifacts lie in `artifacts`,
    and what it says in `log`.
    """

    def __init__(
        self,
        folder: Path,
        command: Sequence[str | Path] = MLFLOW,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        port = free_port()
        self.uri = f"http://127.0.0.1:{port}"
        self.artifacts = folder / "artifacts"
        self.log = folder / "server.log"
        self._folder = folder
        self._command = command
        self._environment = {
            "MLFLOW_HOST": "127.0.0.1",
            "MLFLOW_PORT": str(port),
            "MLFLOW_WORKERS": "1",
            "MLFLOW_BACKEND_STORE_URI": f"sqlite:///{folder}/server.db",
            "MLFLOW_ARTIFACTS_DESTINATION": str(self.artifacts),
            "MLFLOW_DISABLE_TELEMETRY": "true",
            "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
            **(environment or {}),
        }
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> None:
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command,
                cwd=self._folder,
                env=os.environ | self._environment,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        for _ in range(900):
            with contextlib.suppress(OSError):
                urllib.request.urlopen(f"{self.uri}/health", timeout=5).close()
                return
            if self._process.poll() is not None:
                break
            time.sleep(0.2)
        self.kill()
        raise TimeoutError(self.log.read_text())

    def kill(self) -> None:
        assert self._process is not None
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, 9)
        self._process.wait()


def free_port() -> int:
    """A port of this machine at which nobody listens."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])
