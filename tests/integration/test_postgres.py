"""cluster/mlflow/server.sh over a real PostgreSQL, from a run's record to the model in use."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psycopg2
import pytest
from mlflow import MlflowClient

from simcse.encoder import SentenceEncoder
from simcse.evaluation.significance import ItemMean
from simcse_platform.tracking.champions import promote, rollback
from simcse_platform.tracking.mlflow_model import log_model
from simcse_platform.tracking.mlflow_tracker import MlflowTracker, start_run
from simcse_platform.tracking.promotion import Comparison, Measured
from simcse_platform.tracking.registry import fetch_model, register, register_folder
from support.mlflow_server import Server, free_port
from support.postgres import postgres

SERVER = Path(__file__).parents[2] / "cluster" / "mlflow" / "server.sh"
PATH = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"


@pytest.fixture(scope="module")
def database() -> Iterator[str]:
    with postgres() as uri:
        yield uri


@pytest.fixture(scope="module")
def server(database: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    environment = {"PATH": PATH, "MLFLOW_BACKEND_STORE_URI": database}
    server = Server(tmp_path_factory.mktemp("server"), [SERVER], environment)
    yield server
    server.kill()


def _compare(champion: Path | None, challenger: Path) -> Comparison:
    """Every challenger is better than its champion."""

    def measured(score: float) -> Measured:
        return Measured(headlines={"A": score}, samples={"A": ItemMean(np.full(9, score))})

    return Comparison(
        champion=measured(1.0) if champion else None, challenger=measured(2.0), data_sha256={}
    )


def test_runs_and_models_are_in_postgres_and_files_in_the_destination(
    server: Server,
    database: str,
    tiny_encoder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # However long a busy machine makes it take.
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "120")
    model, spool = tmp_path / "model", tmp_path / "spool.jsonl"
    scores = {"dev_stsb_spearman": 81.25}
    SentenceEncoder.load(tiny_encoder, pooling="avg").save(model, scores=scores)
    run_id = start_run(server.uri, "simcse", "demo", storage=tmp_path, spool=spool)
    tracker = MlflowTracker(server.uri, run_id, spool)
    tracker.log_params({"optim.learning_rate": "3e-5", "data.corpus": "c" * 7000})
    for step in range(3):
        tracker.log_metrics({"loss": 1 / (step + 1)}, step)
    tracker.log_metrics({"gradient_norm": float("nan")}, 2)
    tracker.log_table([{"set": "STS12", "spearman": 70.5}], "scores.json")
    model_uri = log_model(server.uri, run_id, model)
    tracker.finish("FINISHED")

    def rows(query: str, *values: object) -> list[tuple[object, ...]]:
        with psycopg2.connect(database) as connection, connection.cursor() as cursor:
            cursor.execute(query, values)
            return cursor.fetchall()

    losses = "SELECT step, value FROM metrics WHERE run_uuid = %s AND key = 'loss' ORDER BY step"
    assert rows(losses, run_id) == [(0, 1.0), (1, 1 / 2), (2, 1 / 3)]
    assert rows("SELECT is_nan FROM metrics WHERE key = 'gradient_norm'") == [(True,)]
    params = dict(rows("SELECT key, value FROM params WHERE run_uuid = %s", run_id))
    assert params == {"optim.learning_rate": "3e-5", "data.corpus": "c" * 6000}
    assert rows("SELECT status FROM runs WHERE run_uuid = %s", run_id) == [("FINISHED",)]

    # The client knows no other place for its files than the server.
    run = MlflowClient(server.uri, server.uri).get_run(run_id)
    assert run.info.artifact_uri.startswith("mlflow-artifacts:/")
    (table,) = server.artifacts.rglob(f"{run_id}/artifacts/scores.json")
    assert "STS12" in table.read_text()
    (stored,) = server.artifacts.rglob(f"{model_uri.removeprefix('models:/')}/artifacts")
    assert list(stored.rglob("*.safetensors"))
    requests = server.log.read_text()
    assert f"{run_id}/artifacts/scores.json HTTP/1.1" in requests

    name, cache = "encoder", tmp_path / "cache"
    first = register(server.uri, name, run_id=run_id)
    assert promote(server.uri, name, compare=_compare, cache=cache).promoted
    logged = rows("SELECT metric_name, metric_value FROM logged_model_metrics")
    assert dict(logged) == scores
    (described,) = rows("SELECT description FROM model_versions WHERE name = %s", name)
    assert "`dev_stsb_spearman` 81.25" in str(described[0])
    second = register_folder(server.uri, name, model)
    assert promote(server.uri, name, compare=_compare, cache=cache).champion_before == "1"
    assert rollback(server.uri, name).version == first.version
    aliases = rows("SELECT alias, version FROM registered_model_aliases WHERE name = %s", name)
    assert dict(aliases) == {"champion": 1, "previous": int(second.version)}

    fetched = fetch_model(server.uri, f"models:/{name}@champion", cache)
    np.testing.assert_array_equal(
        SentenceEncoder.load(fetched).encode(["the dog runs", "rain"]),
        SentenceEncoder.load(model).encode(["the dog runs", "rain"]),
    )


@pytest.mark.parametrize(
    ("changed", "code", "line"),
    [
        (
            {"MLFLOW_BACKEND_STORE_URI": ""},
            2,
            "MLFLOW_BACKEND_STORE_URI is not set: export it as "
            "postgresql://USER@HOST:5432/DATABASE",
        ),
        (
            {"MLFLOW_ARTIFACTS_DESTINATION": ""},
            2,
            "MLFLOW_ARTIFACTS_DESTINATION is not set: export the folder, or s3://BUCKET/FOLDER, "
            "that keeps artifacts",
        ),
        (
            {"MLFLOW_BACKEND_STORE_URI": "mysql://me:secret@here/mlflow"},
            2,
            "MLFLOW_BACKEND_STORE_URI names no PostgreSQL: export it as "
            "postgresql://USER@HOST:5432/DATABASE",
        ),
        (
            {"MLFLOW_ARTIFACTS_DESTINATION": f"{__file__}/artifacts"},
            2,
            f"MLFLOW_ARTIFACTS_DESTINATION: {__file__}/artifacts cannot be made, name a folder "
            "that can",
        ),
        (
            {},
            1,
            "no connection to PostgreSQL: start it, or correct MLFLOW_BACKEND_STORE_URI "
            '(connection to server at "127.0.0.1", port PORT failed: Connection refused Is the '
            "server running on that host and accepting TCP/IP connections?)",
        ),
        (
            {"MLFLOW_BACKEND_STORE_URI": "postgresql://me:secret@here:port/mlflow"},
            1,
            "no connection to PostgreSQL: start it, or correct MLFLOW_BACKEND_STORE_URI (invalid "
            "literal for int() with base 10: 'port')",
        ),
    ],
    ids=["no database", "no store", "mysql", "a file", "no answer", "no such port"],
)
def test_what_the_server_script_lacks_is_one_line(
    changed: dict[str, str], code: int, line: str, tmp_path: Path
) -> None:
    port = free_port()
    done = _script(f"postgresql://me:secret@127.0.0.1:{port}/mlflow", tmp_path, **changed)
    assert (done.returncode, done.stdout) == (code, "")
    assert done.stderr == f"{line.replace('PORT', str(port))}\n"


def test_a_driver_that_is_not_installed_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "psycopg2.py").write_text(
        "raise ModuleNotFoundError(\"No module named 'psycopg2'\", name='psycopg2')\n"
    )
    done = _script("postgresql://127.0.0.1:1/mlflow", tmp_path, PYTHONPATH=str(tmp_path))
    assert done.returncode == 1
    assert done.stderr == "psycopg2 is not installed: pip install 'simcse-platform[postgres]'\n"


def test_a_database_that_is_not_there_is_one_line(database: str, tmp_path: Path) -> None:
    done = _script(database.removesuffix("postgres") + "absent", tmp_path)
    assert done.returncode == 1
    assert done.stderr.startswith("no connection to PostgreSQL: start it, or correct MLFLOW_BACK")
    assert done.stderr.endswith('FATAL: database "absent" does not exist)\n')
    assert done.stderr.count("\n") == 1


def _script(uri: str, folder: Path, **changed: str) -> subprocess.CompletedProcess[str]:
    environment = {
        "PATH": PATH,
        "MLFLOW_BACKEND_STORE_URI": uri,
        "MLFLOW_ARTIFACTS_DESTINATION": str(folder / "artifacts"),
        **changed,
    }
    return subprocess.run([SERVER], env=environment, capture_output=True, text=True, check=False)
