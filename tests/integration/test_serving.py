"""The version in use, served by MLflow's own server."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import numpy as np

from simcse.encoder import SentenceEncoder
from simcse_platform.tracking.location import tracking_uri
from simcse_platform.tracking.registry import register_folder
from support.tiny import save_tiny_encoder

SENTENCES = ["the dog runs", "it rained", "日本"]


def test_requests_with_sentences_return_our_vectors(tmp_path: Path) -> None:
    uri = tracking_uri(None, tmp_path / "output")
    model = tmp_path / "model"
    SentenceEncoder.load(save_tiny_encoder(tmp_path / "plain"), pooling="avg").save(model)
    register_folder(uri, "served", model)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "mlflow", "models", "serve", "--env-manager", "local"]
    command += ["-m", "models:/served@challenger", "--port", str(port), "--host", "127.0.0.1"]
    with (tmp_path / "log").open("wb") as log:
        server = subprocess.Popen(
            command,
            cwd=tmp_path,
            env={
                **os.environ,
                # MLflow looks for uvicorn there.
                "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
                "MLFLOW_TRACKING_URI": uri,
                "MLFLOW_ALLOW_PICKLE_DESERIALIZATION": "false",
                "MLFLOW_DISABLE_TELEMETRY": "true",
            },
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        for _ in range(1500):
            with contextlib.suppress(OSError):
                urllib.request.urlopen(f"http://127.0.0.1:{port}/ping", timeout=5).close()
                break
            assert server.poll() is None, (tmp_path / "log").read_text()
            time.sleep(0.2)
        request = urllib.request.Request(
            f"http://127.0.0.1:{port}/invocations",
            json.dumps({"inputs": SENTENCES}).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=120) as answer:
            vectors_nD = json.load(answer)["predictions"]
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(server.pid, signal.SIGKILL)
        server.wait()
    want_nD = SentenceEncoder.load(model).encode(SENTENCES)
    np.testing.assert_allclose(np.array(vectors_nD), want_nD, rtol=0, atol=1e-6)
