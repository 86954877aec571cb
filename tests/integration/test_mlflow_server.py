"""Tracking against a real MLflow server: outages, restarts, and models through its proxy."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from mlflow import MlflowClient

from simcse.encoder import SentenceEncoder
from simcse.errors import ModelError
from simcse_platform.errors import RegistryError, TrackingError
from simcse_platform.tracking.mlflow_model import log_model
from simcse_platform.tracking.mlflow_tracker import CorpusRecord, MlflowTracker, drain, start_run
from simcse_platform.tracking.registry import fetch_model, register
from simcse_platform.tracking.spool import Pace
from support.mlflow_server import Server

AT_ONCE = Pace(records=1, seconds=0, retry_seconds=0)
SENTENCES = ["A dog runs in the park.", "It rained all night.", "rain"]


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(tmp_path_factory.mktemp("server"))
    yield server
    server.kill()


@pytest.fixture
def server(process: Server, monkeypatch: pytest.MonkeyPatch) -> Server:
    """The server, however long a busy machine makes it take."""
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "120")
    # For MLflow's own functions in a test; ours are told where to go.
    monkeypatch.setenv("MLFLOW_TRACKING_URI", process.uri)
    return process


@pytest.fixture
def silent_uri() -> Iterator[str]:
    """A server that takes connections and never answers."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


@pytest.fixture
def unused_uri() -> str:
    """An address where nobody listens."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{free.getsockname()[1]}"


def _start(uri: str, storage: Path) -> str:
    return start_run(uri, "simcse", "demo", storage=storage, spool=storage / "spool.jsonl")


def _steps(uri: str, run_id: str, metric: str) -> list[int]:
    history = MlflowClient(uri, uri).get_metric_history(run_id, metric)
    return sorted(entry.step for entry in history)


def test_a_run_has_all_that_was_recorded(
    server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    corpus = CorpusRecord(
        name="wiki", source="/data/wiki.txt", fingerprint="ab" * 32, rows=7, columns=("sentence",)
    )
    spool = tmp_path / "spool.jsonl"
    run_id = start_run(
        server.uri,
        "simcse",
        "demo",
        storage=tmp_path,
        spool=spool,
        description="A *demo*.",
        tags={"lineage": "x"},
        corpus=corpus,
    )
    tracker = MlflowTracker(server.uri, run_id, spool)
    many = {f"section.field_{i}": str(i) for i in range(250)}
    tracker.log_params(many | {"data.corpus": "c" * 7000})
    tracker.log_metrics({"loss": 0.5, "dev_stsb_spearman": 81.25}, 10)
    tracker.log_text("seed: 42\n", "run.yaml")
    tracker.log_table([{"set": "STS12", "spearman": 70.5, "pairs": 3108}], "sts.json")
    tracker.finish("FINISHED")

    client = MlflowClient(server.uri, server.uri)
    run = client.get_run(run_id)
    assert run.info.run_name == "demo"
    assert run.info.status == "FINISHED"
    assert run.info.end_time is not None
    assert run.data.params == many | {"data.corpus": "c" * 6000}
    assert run.data.metrics == {"loss": 0.5, "dev_stsb_spearman": 81.25}
    assert run.data.tags["mlflow.note.content"] == "A *demo*."
    assert run.data.tags["lineage"] == "x"
    (trained_on,) = run.inputs.dataset_inputs
    assert (trained_on.dataset.name, trained_on.dataset.digest) == ("wiki", ("ab" * 32)[:36])
    assert [(tag.key, tag.value) for tag in trained_on.tags] == [
        ("mlflow.data.context", "training")
    ]
    assert client.list_artifacts(run_id)[0].path == "run.yaml"
    table = client.load_table(run.info.experiment_id, "sts.json", run_ids=[run_id])
    assert table.to_dict("records") == [{"set": "STS12", "spearman": 70.5, "pairs": 3108}]
    assert capsys.readouterr().out == ""


def test_a_restarted_run_continues_the_same_run(server: Server, tmp_path: Path) -> None:
    run_id = _start(server.uri, tmp_path)
    first = MlflowTracker(server.uri, run_id, tmp_path / "spool.jsonl", AT_ONCE)
    first.log_params({"scale.num_workers": "2", "seed": "1"})
    for step in range(5):
        first.log_metrics({"loss": float(step)}, step)
    first.finish("FAILED")

    assert _start(server.uri, tmp_path) == run_id
    client = MlflowClient(server.uri, server.uri)
    assert client.get_run(run_id).info.status == "RUNNING"
    second = MlflowTracker(server.uri, run_id, tmp_path / "spool.jsonl", AT_ONCE)
    second.log_params({"scale.num_workers": "3", "seed": "1", "new": "x"})
    for step in range(3, 8):
        second.log_metrics({"loss": float(step)}, step)
    second.finish("FINISHED")
    run = client.get_run(run_id)
    assert run.info.status == "FINISHED"
    assert run.data.params == {"scale.num_workers": "2", "seed": "1", "new": "x"}
    assert run.data.tags["continued.scale.num_workers"] == "3"
    assert "continued.seed" not in run.data.tags
    assert _steps(server.uri, run_id, "loss") == list(range(8))


def test_a_deleted_run_is_recorded_anew_with_its_whole_history(
    server: Server, tmp_path: Path
) -> None:
    run_id = _start(server.uri, tmp_path)
    tracker = MlflowTracker(server.uri, run_id, tmp_path / "spool.jsonl", AT_ONCE)
    tracker.log_metrics({"loss": 1.0}, 1)
    MlflowClient(server.uri, server.uri).delete_run(run_id)
    again = _start(server.uri, tmp_path)
    assert again != run_id
    assert _steps(server.uri, again, "loss") == [1]


def test_a_server_killed_in_mid_run_costs_little_and_loses_nothing(
    server: Server, tmp_path: Path
) -> None:
    run_id = _start(server.uri, tmp_path)
    spool = tmp_path / "spool.jsonl"
    tracker = MlflowTracker(server.uri, run_id, spool, Pace(records=5, seconds=1, retry_seconds=1))
    for step in range(20):
        tracker.log_metrics({"loss": 1 / (step + 1)}, step)
    server.kill()
    try:
        slowest = 0.0
        for step in range(20, 40):
            before = time.monotonic()
            tracker.log_metrics({"loss": 1 / (step + 1), "other": 0.0}, step)
            slowest = max(slowest, time.monotonic() - before)
        assert slowest < 5
        tracker.log_text("later\n", "later.txt")
        tracker.finish("FINISHED")
    finally:
        server.start()
    # Another process drains it, as the driver does when it is started again.
    drain(spool, server.uri, run_id)
    assert _steps(server.uri, run_id, "loss") == list(range(40))
    assert _steps(server.uri, run_id, "other") == list(range(20, 40))
    client = MlflowClient(server.uri, server.uri)
    assert client.get_run(run_id).info.status == "FINISHED"
    assert [file.path for file in client.list_artifacts(run_id)] == ["later.txt"]
    history = client.get_metric_history(run_id, "loss")
    assert {entry.step: entry.value for entry in history} == {s: 1 / (s + 1) for s in range(40)}


def test_metrics_whose_answer_was_lost_are_there_once(server: Server, tmp_path: Path) -> None:
    run_id = _start(server.uri, tmp_path)
    spool = tmp_path / "spool.jsonl"
    tracker = MlflowTracker(server.uri, run_id, spool, AT_ONCE)
    for step in range(5):
        tracker.log_metrics({"loss": float("nan") if step == 2 else float(step)}, step)
    (tmp_path / "spool.jsonl.sent").unlink()  # they arrived, but nobody heard of it
    drain(spool, server.uri, run_id)
    assert _steps(server.uri, run_id, "loss") == list(range(5))


def test_a_record_that_mlflow_refuses_does_not_hold_back_the_others(
    server: Server, tmp_path: Path, said: list[str]
) -> None:
    run_id = _start(server.uri, tmp_path)
    tracker = MlflowTracker(server.uri, run_id, tmp_path / "spool.jsonl", AT_ONCE)
    tracker.log_metrics({"loss": 1.0}, 1)
    tracker.log_metrics({"a bad name: $": 1.0}, 2)
    tracker.log_metrics({"loss": 1.0}, 3)
    assert _steps(server.uri, run_id, "loss") == [1, 3]
    tracker = MlflowTracker(server.uri, run_id, tmp_path / "spool.jsonl")
    for step in range(10, 50):
        tracker.log_metrics({"loss": 1.0} if step != 33 else {"also bad: $": 0.0}, step)
    tracker.flush()
    assert _steps(server.uri, run_id, "loss") == [1, 3, *range(10, 33), *range(34, 50)]
    assert [text.partition(": tracking server")[0] for text in said] == [
        "metrics of step 2 (a bad name: $) were dropped",
        "metrics of step 33 (also bad: $) were dropped",
    ]


def test_what_a_finished_run_could_not_send_is_sent_later_and_once(
    server: Server, tmp_path: Path, unused_uri: str, said: list[str]
) -> None:
    run_id, spool = _start(server.uri, tmp_path), tmp_path / "spool.jsonl"
    for uri in (unused_uri, unused_uri):
        MlflowTracker(uri, run_id, spool).finish("FINISHED")
    assert f"{unused_uri} does not answer" in "".join(said)
    said.clear()
    MlflowTracker(server.uri, run_id, spool).flush()
    assert MlflowClient(server.uri, server.uri).get_run(run_id).info.status == "FINISHED"
    MlflowTracker(unused_uri, run_id, spool).flush()  # nothing is left, so nobody is asked
    assert said == []


def test_a_start_killed_before_it_noted_its_run_keeps_the_record_for_the_next(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = _start(server.uri, tmp_path)
    MlflowTracker(server.uri, lost, tmp_path / "spool.jsonl", AT_ONCE).log_metrics({"loss": 1.0}, 1)
    MlflowClient(server.uri, server.uri).delete_run(lost)
    note = (tmp_path / "mlflow_run.json").read_text()

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", killed)
        with pytest.raises(KeyboardInterrupt):
            _start(server.uri, tmp_path)
    assert (tmp_path / "mlflow_run.json").read_text() == note
    assert _steps(server.uri, _start(server.uri, tmp_path), "loss") == [1]


def test_training_goes_on_when_the_server_never_answers(silent_uri: str, tmp_path: Path) -> None:
    before = time.monotonic()
    tracker = MlflowTracker(silent_uri, "0" * 32, tmp_path / "spool.jsonl", Pace(records=10))
    for step in range(100):
        tracker.log_metrics({"loss": 0.0}, step)
    assert time.monotonic() - before < 8


@pytest.mark.parametrize("kind", ["silent_uri", "unused_uri"])
@pytest.mark.parametrize(
    "command",
    [
        _start,
        lambda uri, folder: register(uri, "demo", run_id="0" * 32),
        lambda uri, folder: fetch_model(uri, "models:/demo@champion", folder),
    ],
    ids=["start", "register", "fetch"],
)
def test_a_server_that_does_not_answer_is_one_line_within_seconds(
    kind: str,
    command: Callable[[str, Path], object],
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> None:
    uri = request.getfixturevalue(kind)
    environment = dict(os.environ)
    before = time.monotonic()
    with pytest.raises(TrackingError) as raised:
        command(uri, tmp_path)
    assert time.monotonic() - before < 8
    assert str(raised.value) == (
        f"tracking server {uri} does not answer: start it, or correct tracking.uri"
    )
    assert list(tmp_path.iterdir()) == []
    assert dict(os.environ) == environment


def test_a_refusal_of_the_server_is_one_line(server: Server, tmp_path: Path) -> None:
    spool = tmp_path / "spool.jsonl"
    with pytest.raises(TrackingError, match=f"tracking server {server.uri} refuses: .*") as raised:
        start_run(server.uri, "name" * 200, "demo", storage=tmp_path, spool=spool)
    assert "\n" not in str(raised.value)


def test_a_model_served_by_the_server_loads_in_a_fresh_process_without_pickle(
    server: Server, minilm: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run_id = _start(server.uri, tmp_path)
    model_uri = log_model(server.uri, run_id, minilm)
    version = register(server.uri, "served", run_id=run_id)
    assert capfd.readouterr().out == ""
    client = MlflowClient(server.uri, server.uri)
    assert client.get_run(run_id).data.tags["model_uri"] == model_uri
    assert client.get_model_version("served", version.version).source == model_uri

    model_id = model_uri.removeprefix("models:/")
    (stored,) = server.artifacts.rglob(f"{model_id}/artifacts")
    requirements = (stored / "requirements.txt").read_text().splitlines()
    assert f"torch=={torch.__version__.partition('+')[0]}" in requirements
    assert all(re.fullmatch(r"[a-z-]+==[\d.]+", line) for line in requirements)
    assert list(stored.rglob("*.safetensors"))
    assert not [*stored.rglob("*.pkl"), *stored.rglob("*.bin"), *stored.rglob("__pycache__")]

    script = tmp_path / "load.py"
    script.write_text(
        "import sys, numpy as np, pandas as pd, mlflow.pyfunc\n"
        "model = mlflow.pyfunc.load_model(sys.argv[1])\n"
        "sentences = sys.argv[3:]\n"
        "vectors = model.predict(pd.DataFrame({'sentence': sentences}))\n"
        "assert vectors.dtype == np.float32, vectors.dtype\n"
        "assert np.array_equal(vectors, model.predict(sentences))\n"
        "import simcse\n"
        "assert '/code/simcse/' in simcse.__file__, simcse.__file__\n"
        "assert 'simcse_platform' not in sys.modules\n"
        "np.save(sys.argv[2], vectors)\n"
    )
    fresh = subprocess.run(
        [sys.executable, script, version.uri, tmp_path / "vectors.npy", *SENTENCES],
        cwd=tmp_path,
        env=os.environ
        | {
            "MLFLOW_TRACKING_URI": server.uri,
            "MLFLOW_ALLOW_PICKLE_DESERIALIZATION": "false",
            "MLFLOW_DISABLE_TELEMETRY": "true",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert fresh.returncode == 0, fresh.stderr
    want = SentenceEncoder.load(minilm).encode(SENTENCES)
    np.testing.assert_allclose(np.load(tmp_path / "vectors.npy"), want, atol=1e-6)

    folder = fetch_model(server.uri, "models:/served@challenger", tmp_path / "cache")
    np.testing.assert_array_equal(SentenceEncoder.load(folder).encode(SENTENCES), want)
    assert fetch_model(server.uri, version.uri, tmp_path / "cache") == folder


def test_a_folder_that_is_no_model_is_refused_before_anything_is_recorded(
    server: Server, tmp_path: Path
) -> None:
    run_id = _start(server.uri, tmp_path)
    with pytest.raises(ModelError, match=f"model folder {tmp_path} has no config.json"):
        log_model(server.uri, run_id, tmp_path)
    with pytest.raises(RegistryError, match=f"run {run_id} has no model"):
        register(server.uri, "empty", run_id=run_id)
