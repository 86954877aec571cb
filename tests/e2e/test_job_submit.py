"""The chain through `ray job submit`, on a head that `ray start --head` started."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from mlflow import MlflowClient

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
HEAD_SECONDS = 90


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()


def _environment() -> dict[str, str]:
    # `python` in a job is the one first on the PATH of the shell that started Ray.
    kept = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    path = f"{BIN}{os.pathsep}{os.environ['PATH']}"
    return kept | {"PATH": path, "RAY_AUTH_MODE": "disabled", "HF_HUB_OFFLINE": "1"}


@pytest.fixture
def dashboard(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of the job server of a head with ports of its own."""
    port, dashboard_port, agent_port, client_port = _free_ports(4)
    # A socket's path has room for about 100 characters.
    temp = Path("/tmp") / f"simcse-job-{os.getpid()}"
    command = [
        *(BIN / "ray", "start", "--head", "--block", "--num-cpus=2"),
        *(f"--port={port}", f"--dashboard-port={dashboard_port}", f"--temp-dir={temp}"),
        *(f"--dashboard-agent-listen-port={agent_port}", f"--ray-client-server-port={client_port}"),
        *("--min-worker-port=21000", "--max-worker-port=22000"),
        "--object-store-memory=200000000",
    ]
    log = tmp_path_factory.mktemp("head") / "head.log"
    with log.open("w") as output:
        head = subprocess.Popen(command, env=_environment(), stdout=output, stderr=output)
        address = f"http://127.0.0.1:{dashboard_port}"
        try:
            _await_answer(f"{address}/api/version", head, log)
            yield address
        finally:
            head.terminate()
            head.wait(timeout=60)


def _await_answer(url: str, head: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + HEAD_SECONDS
    while time.monotonic() < deadline and head.poll() is None:
        try:
            urllib.request.urlopen(url, timeout=5).close()
        except OSError:
            time.sleep(0.5)
        else:
            return
    pytest.fail(f"the head did not start: {log.read_text()[-2000:]}")


@pytest.mark.ray
def test_a_submitted_run_succeeds_and_is_in_mlflow(
    dashboard: str, tiny_encoder: Path, tmp_path: Path
) -> None:
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("".join(f"sentence {i} of the river\n" for i in range(40)))
    job = [
        *("python", "-m", "pipelines", "train", "--recipe", "demo", "--name", "submitted"),
        *("--corpus", str(corpus), "--output", str(tmp_path / "runs")),
        *("--set", f"encoder.model={tiny_encoder}", "--set", "encoder.max_length=16"),
        *("--set", "global_batch_size=8", "--set", "max_steps=4", "--set", "dev.tasks=[]"),
    ]
    submitted = subprocess.run(
        [
            *(BIN / "ray", "job", "submit", "--address", dashboard, "--working-dir", "."),
            *("--runtime-env", "cluster/runtime_env.yaml", "--", *job),
        ],
        cwd=ROOT,
        env=_environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert submitted.returncode == 0, submitted.stdout + submitted.stderr
    assert "succeeded" in submitted.stdout

    client = MlflowClient(tracking_uri=f"sqlite:///{tmp_path}/runs/mlflow.db")
    experiment = client.get_experiment_by_name("simcse")
    assert experiment is not None
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.info.status == "FINISHED"
    assert run.data.params["global_batch_size"] == "8"
    assert run.data.metrics["loss"] > 0
    assert run.data.metrics["system/cpu_utilization_percentage"] >= 0
    assert (tmp_path / "runs" / "submitted" / "best" / "model.safetensors").is_file()
