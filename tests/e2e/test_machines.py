"""Machines and drivers that are killed, and machines that join: the run ends as if undisturbed."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from mlflow import MlflowClient

from simcse_platform import config
from simcse_platform.config import TrainRun
from simcse_platform.ingest.source import open_corpus
from simcse_platform.storage import LOCK, RunFolder
from simcse_platform.training import checkpoint, loop
from simcse_platform.training.checkpoint import Progress
from simcse_platform.training.dev import DevEvaluation
from simcse_platform.training.engines import build_engine
from simcse_platform.training.trainer import plan_steps
from simcse_platform.training.worker import Attempt
from support.bad_input import write_parquet
from support.machines import Machines, machines
from support.mlflow_server import Server
from support.ranks import run_on_ranks
from support.training import Recorder, make_task, planned_batches

pytestmark = [pytest.mark.ray, pytest.mark.machines, pytest.mark.timeout(900)]

ROOT = Path(__file__).parents[2]
ROWS = 1203
BATCH = 8
EVERY = 20
WORDS = ("dog", "cat", "man", "woman", "child", "house", "river", "city", "music", "game")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Machines]:
    with machines() as started:
        yield started


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(tmp_path_factory.mktemp("server"))
    yield server
    server.kill()


class Command:
    """`simcse train` in a process of its own, whose steps are read as it prints them."""

    def __init__(
        self, corpus: Path, output: Path, cluster: Machines, tracking: str, config: Path, name: str
    ) -> None:
        self.run = RunFolder(output / name)
        self._step = -1
        self._lines: list[str] = []
        self.process = subprocess.Popen(
            [
                *(sys.executable, "-m", "pipelines", "train", "--config", config, "--name", name),
                *("--corpus", corpus, "--output", output),
                *("--tracking", tracking, "--address", cluster.address),
            ],
            cwd=ROOT,
            env={
                **{k: v for k, v in os.environ.items() if k != "RAY_ADDRESS"},
                "PYTHONPATH": "platform",
                "RAY_AUTH_MODE": "disabled",
                "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.2",
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as lines:
            self._follow(lines)

    def _follow(self, lines: Iterable[str]) -> None:
        for line in lines:
            self._lines.append(line)
            if match := re.search(r"(\d+)/\d+ loss", line):
                self._step = int(match[1])

    def attempts(self) -> list[Attempt]:
        return Attempt.recorded(self.run)

    def wait_until(self, what: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 300
        while not what():
            assert self.process.poll() is None, self.output()
            assert time.monotonic() < deadline, self.output()
            time.sleep(0.05)

    def wait_for_step_of_attempt(self, number: int, step: int) -> None:
        """Until the attempt of that number has shown that it is past a step."""
        self.wait_until(lambda: len(self.attempts()) == number and self._step >= step)

    @contextmanager
    def slow_motion(self) -> Iterator[None]:
        """Its one worker stands still most of the time, as long as the block lasts or it lives.

        Ray looks for new machines three times a minute, in which a small run would end.
        """
        [(_, process)] = self.attempts()[-1].processes
        worker, ended = psutil.Process(process), threading.Event()

        def slow_down() -> None:
            with suppress(psutil.NoSuchProcess):
                while not ended.wait(0.04):
                    worker.suspend()
                    time.sleep(0.4)
                    worker.resume()

        thread = threading.Thread(target=slow_down)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()

    def end(self, code: int = 0) -> str:
        assert self.process.wait(timeout=300) == code, self.output()
        return self.output()

    def output(self) -> str:
        self._reader.join(timeout=5)
        return "".join(self._lines)


class Runs:
    """Runs of one corpus on one cluster."""

    def __init__(self, folder: Path, model: Path, cluster: Machines, tracking: str) -> None:
        self.folder = folder
        self.tracking = tracking
        self.cluster = cluster
        self._model = model
        (folder / "corpus").mkdir()
        for shard in range(3):
            texts = [f"the {WORDS[i % 10]} of {i}" for i in range(shard * 401, (shard + 1) * 401)]
            write_parquet(folder / "corpus" / f"{shard}.parquet", texts)

    def start(
        self,
        name: str,
        *,
        output: Path | None = None,
        dropout: float | None = None,
        global_batch_size: int = BATCH,
        epochs: int = 1,
        every: int = EVERY,
        **scale: Any,
    ) -> Command:
        file = self.folder / f"{name}.yaml"
        settings: Mapping[str, Any] = {
            "encoder": {"model": str(self._model), "dropout": dropout, "length_buckets": 2},
            "views": {"allow_equal_views": dropout == 0},
            "optim": {"learning_rate": 1e-3},
            "data": {"batches_per_window": 8},
            "dev": {"tasks": []},
            "scale": {"num_workers": 2, "cpus_per_worker": 2, "threads_per_worker": 1, **scale},
            "checkpoint": {"every": every},
            "tracking": {"log_every": 1},
            "global_batch_size": global_batch_size,
            "epochs": epochs,
        }
        file.write_text(json.dumps(settings))
        output = output or self.folder / "runs"
        return Command(self.folder / "corpus", output, self.cluster, self.tracking, file, name)

    def losses(self, name: str) -> dict[int, float]:
        """The loss of each step in MLflow, where each must be once and in one run."""
        client = MlflowClient(tracking_uri=self.tracking)
        experiment = client.get_experiment_by_name("simcse")
        assert experiment is not None
        runs = client.search_runs([experiment.experiment_id])
        [run] = [run for run in runs if run.info.run_name == name]
        assert run.info.status == "FINISHED"
        history = client.get_metric_history(run.info.run_id, "loss")
        assert sorted(metric.step for metric in history) == list(range(1, len(history) + 1))
        return {metric.step: metric.value for metric in history}


@pytest.fixture(scope="module")
def runs(
    tiny_encoder: Path,
    cluster: Machines,
    server: Server,
    tmp_path_factory: pytest.TempPathFactory,
) -> Runs:
    return Runs(tmp_path_factory.mktemp("machines"), tiny_encoder, cluster, server.uri)


def train_undisturbed(rank: int, world: int, run: TrainRun, folder: Path) -> None:
    """The same run without Ray or faults; leaves its last checkpoint and its losses."""
    corpus = open_corpus(run.data, run.encoder, folder, lambda line: None)
    plan = plan_steps(run, corpus)
    engine, recorder = build_engine(make_task(run), run), Recorder(folder)
    loop.train(
        engine,
        planned_batches(plan),
        DevEvaluation([], engine.task.encoder),
        recorder,
        run,
        total_steps=plan.total_steps,
        progress=Progress(),
        attempt="undisturbed",
        lineage={},
    )
    if rank == 0:
        (folder / "losses.json").write_text(json.dumps(recorder.series("loss")))


def losses_in(folder: Path) -> dict[int, float]:
    stored = json.loads((folder / "losses.json").read_text())
    return {int(step): loss for step, loss in stored.items()}


def assert_same_end(got: RunFolder, want: RunFolder) -> None:
    """Weights and moments bit for bit, and every row counted once."""
    ends = []
    for folder in (got, want):
        name = checkpoint.newest(folder)
        assert name is not None
        ends.append(checkpoint.load(folder, name))
    got_end, want_end = ends
    assert got_end.progress.step == want_end.progress.step == -(-ROWS // BATCH)
    assert got_end.progress.rows == want_end.progress.rows == ROWS
    for name, weight in want_end.weights.items():
        assert got_end.weights[name].equal(weight), name
        for moment, value in want_end.moments[name].items():
            assert got_end.moments[name][moment].equal(value), (name, moment)


def assert_as_if_undisturbed(runs: Runs, command: Command, folder: Path) -> None:
    """Weights, moments and losses bit for bit, and every row counted once."""
    run = config.load(runs.folder / f"{command.run.name}.yaml")
    run = config.override(run, [f"data.corpus=[{runs.folder / 'corpus'}]"])
    folder.mkdir(exist_ok=True)
    run_on_ranks(train_undisturbed, 2, folder, run, folder)
    assert_same_end(command.run, RunFolder(folder))
    assert runs.losses(command.run.name) == losses_in(folder)


def test_a_run_survives_its_driver_and_then_a_machine(
    runs: Runs, server: Server, tmp_path: Path
) -> None:
    """And the tracking server is away while the machine is lost."""
    runs.cluster.resize(2)
    killed = runs.start("killed")
    killed.wait_for_step_of_attempt(1, EVERY + 7)
    killed.process.kill()
    killed.process.wait()
    command = runs.start("killed")
    command.wait_for_step_of_attempt(2, 0)
    second_start = command.attempts()[1].first_step
    command.wait_for_step_of_attempt(2, second_start + EVERY + 7)
    server.kill()
    lost = command.attempts()[1].processes[1][0]
    runs.cluster.kill(lost)
    runs.cluster.add()
    command.wait_for_step_of_attempt(3, 0)
    command.wait_for_step_of_attempt(3, command.attempts()[2].first_step + 7)
    server.start()
    output = command.end()

    first, second, third = command.attempts()
    assert f"going on with run killed from step {second.first_step} of" in output
    assert (first.first_step, second.first_step >= EVERY) == (0, True)
    assert third.first_step >= second.first_step + EVERY
    pids = [{pid for _, pid in attempt.processes} for attempt in (first, second, third)]
    assert not pids[0] & pids[1]
    assert not pids[1] & pids[2]
    assert lost not in {node for node, _ in third.processes}
    names = {path.name for path in command.run.path.iterdir()}
    checkpoints = sorted(name for name in names if name.startswith(checkpoint.PREFIX))
    assert [checkpoint.step_of(name) for name in checkpoints] == [140, 151]
    # What is being written has a hidden name; those that stay are Ray's and the owner's lock.
    assert {name for name in names if name.startswith(".")} == {".validate_storage_marker", LOCK}

    assert_as_if_undisturbed(runs, command, tmp_path)


def test_a_run_survives_the_loss_of_all_its_workers_at_once(runs: Runs, tmp_path: Path) -> None:
    runs.cluster.resize(1)
    command = runs.start("alone", cpus_per_worker=1)
    command.wait_for_step_of_attempt(1, EVERY + 7)
    [lost] = {node for node, _ in command.attempts()[0].processes}
    runs.cluster.kill(lost)
    runs.cluster.add()
    command.end()
    _, second = command.attempts()
    assert second.first_step >= EVERY
    assert lost not in {node for node, _ in second.processes}
    assert_as_if_undisturbed(runs, command, tmp_path)


@pytest.mark.parametrize(("name", "scale"), [("fixed", {}), ("elastic", {"max_workers": 2})])
def test_a_run_whose_machines_stay_away_is_given_up(
    runs: Runs, name: str, scale: Mapping[str, int]
) -> None:
    runs.cluster.resize(1)
    command = runs.start(f"given-up-{name}", num_workers=1, timeout_s=60, **scale)
    command.wait_for_step_of_attempt(1, EVERY + 7)
    runs.cluster.resize(0)
    output = command.end(code=1)
    # Ray's limit and ours end at the same time.
    assert re.match(
        r"error: (the cluster did not start 1 worker\(s\) within 60 s: something else holds|given "
        r"up after 60 s: 1 worker\(s\) of 2 CPUs leave none of the cluster's 1 to Ray Data)",
        output.strip().splitlines()[-1],
    ), output


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own, in memory."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=32m", "tmpfs", disk]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("only root may mount a file system")
    yield disk
    subprocess.run(["umount", "--lazy", disk], check=True)


def fill(disk: Path) -> Path:
    """A file that leaves no room beside it."""
    filler = disk / "filler"
    with filler.open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(2**16))
    return filler


def test_a_full_disk_stops_a_run_which_goes_on_when_there_is_room(
    runs: Runs, small_disk: Path, tmp_path: Path
) -> None:
    """From the last checkpoint but one, since the last is damaged meanwhile."""
    runs.cluster.resize(2)
    full = runs.start("full", output=small_disk)
    full.wait_for_step_of_attempt(1, 2 * EVERY + 7)
    filler = fill(small_disk)
    output = full.end(code=1)
    assert "No space left on device" in output
    last_line = output.strip().splitlines()[-1]
    assert last_line.startswith("error: "), output
    assert "cannot be written" in last_line
    assert "make room in the temporary and the output folder, and run the same" in last_line
    filler.unlink()
    newest = checkpoint.newest(full.run)
    assert newest is not None
    bad = full.run.path / newest
    damaged = next(bad.glob("*.safetensors"))
    content = bytearray(damaged.read_bytes())
    content[-1] ^= 1
    damaged.write_bytes(content)
    again = runs.start("full", output=small_disk)
    output = again.end()
    assert f"{damaged} is damaged: its content has changed; it is passed over" in output
    assert EVERY <= again.attempts()[-1].first_step < checkpoint.step_of(bad.name)

    assert_as_if_undisturbed(runs, again, tmp_path / "undisturbed")


def test_an_elastic_run_takes_machines_in_and_lets_them_go(runs: Runs, tmp_path: Path) -> None:
    # An epoch is four steps.
    sections = {"dropout": 0.0, "global_batch_size": 400, "epochs": 60, "every": 4}
    runs.cluster.resize(1)
    elastic = runs.start("elastic", num_workers=1, max_workers=2, resize_every_s=3, **sections)
    elastic.wait_for_step_of_attempt(1, 2)
    with elastic.slow_motion():
        runs.cluster.add()
        elastic.wait_until(lambda: len(elastic.attempts()) == 2)
    grown = elastic.attempts()[1]
    elastic.wait_for_step_of_attempt(2, grown.first_step + 8)
    runs.cluster.kill(grown.processes[1][0])
    elastic.end()
    assert [len(attempt.processes) for attempt in elastic.attempts()] == [1, 2, 1]

    run = config.load(runs.folder / "elastic.yaml")
    run = config.override(run, [f"data.corpus=[{runs.folder / 'corpus'}]"])
    run_on_ranks(train_undisturbed, 1, tmp_path, run, tmp_path)
    assert runs.losses("elastic") == pytest.approx(losses_in(tmp_path), abs=1e-4)
