"""`simcse tune` on real workers: a sweep that is killed and goes on, and one by Optuna and ASHA."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from mlflow import MlflowClient

from simcse_platform.storage import RunFolder
from simcse_platform.sweep.space import trial_name
from simcse_platform.training.worker import Attempt
from support.mlflow_server import Server

pytestmark = [pytest.mark.ray, pytest.mark.machines, pytest.mark.timeout(1800)]

ROOT = Path(__file__).parents[2]
WORDS = ("dog", "cat", "man", "woman", "child", "house", "river", "city", "music", "game")


ENVIRONMENT = {
    **{k: v for k, v in os.environ.items() if k not in ("RAY_ADDRESS", "SIMCSE_DATA")},
    **{"PYTHONPATH": "platform", "RAY_AUTH_MODE": "disabled"},
}


def run_to_its_end(command: Sequence[str]) -> str:
    """What a command that succeeds says; one that hangs is killed."""
    done = subprocess.run(
        command,
        cwd=ROOT,
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=1500,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


class Sweep:
    """A command of `simcse tune` in a folder of its own."""

    def __init__(self, folder: Path, model: Path, *options: str) -> None:
        self.output = folder / "runs"
        corpus, config = folder / "corpus.txt", folder / "run.yaml"
        corpus.write_text("\n".join(f"the {WORDS[i % 10]} of {i} runs" for i in range(400)))
        config.write_text(
            yaml.safe_dump(
                {
                    "encoder": {"model": str(model), "length_buckets": 2},
                    "dev": {"tasks": ["DemoPairs"], "every": 5},
                    "checkpoint": {"every": 5},
                    "global_batch_size": 16,
                    "max_steps": 15,
                }
            )
        )
        self._json = folder / "result.json"
        self._command = [
            *(sys.executable, "-m", "pipelines", "tune", "--config", str(config)),
            *("--corpus", str(corpus), "--output", str(self.output), "--name", "sweep"),
            *("--json", str(self._json), *options),
        ]

    def start(self) -> subprocess.Popen[str]:
        return subprocess.Popen(
            self._command,
            cwd=ROOT,
            env=ENVIRONMENT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self) -> dict[str, Any]:
        output = run_to_its_end(self._command)
        assert "Traceback" not in output
        return self.result()

    def result(self) -> dict[str, Any]:
        result: dict[str, Any] = json.loads(self._json.read_text())
        return result

    @staticmethod
    def wait_for(happened: Callable[[], bool], running: subprocess.Popen[str]) -> None:
        deadline = time.monotonic() + 600
        while not happened():
            assert running.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.1)

    def attempts(self, trial: str) -> int:
        return len(Attempt.recorded(RunFolder(self.output / trial)))

    @property
    def mlflow(self) -> MlflowClient:
        return MlflowClient(f"sqlite:///{self.output / 'mlflow.db'}")


def test_a_killed_sweep_goes_on_with_what_is_left(tiny_encoder: Path, tmp_path: Path) -> None:
    """Two of its four trials fail, since no encoder has the dev score that they demand."""
    sweep = Sweep(
        tmp_path,
        tiny_encoder,
        *("--search", "objective.temperature=0.05,0.2"),
        *("--search", "dev.lowest_score=null,101", "--register", "swept"),
    )
    names = {
        (temperature, lowest): trial_name(
            "sweep", {"objective.temperature": temperature, "dev.lowest_score": lowest}
        )
        for temperature in ("0.05", "0.2")
        for lowest in ("null", "101")
    }
    first, last = names["0.05", "null"], names["0.2", "null"]
    with sweep.start() as killed:
        sweep.wait_for(lambda: sweep.attempts(last) > 0, killed)
        killed.kill()
    assert (sweep.output / first / "summary.json").exists()

    result = sweep.run()
    trials = {trial["name"]: trial for trial in result["trials"]}
    assert trials.keys() == set(names.values())
    for (_, lowest), name in names.items():
        assert trials[name]["status"] == ("finished" if lowest == "null" else "failed")
        if lowest == "101":
            assert trials[name]["reason"].startswith("the encoder has collapsed at step 5: its")
    scores = {name: trials[name]["score"] for name in (first, last)}
    assert result["best"] == max(scores, key=lambda name: scores[name])
    # The first had ended when the sweep was killed, the last had begun.
    assert sweep.attempts(first) == 1
    assert sweep.attempts(last) == 2

    parent = sweep.mlflow.get_run(result["run_id"])
    assert parent.info.status == "FINISHED"
    assert len(parent.inputs.dataset_inputs) == 1
    assert parent.data.metrics["best_dev_score"] == max(scores.values())
    children = sweep.mlflow.search_runs(
        [parent.info.experiment_id], f"tags.`mlflow.parentRunId` = '{result['run_id']}'"
    )
    assert sorted((run.info.run_name, run.info.status) for run in children) == sorted(
        (name, "FINISHED" if lowest == "null" else "FAILED") for (_, lowest), name in names.items()
    )
    artifacts = {file.path for file in sweep.mlflow.list_artifacts(result["run_id"], "figures")}
    assert artifacts == {"figures/heat_map.png", "figures/parallel_coordinates.png"}
    challenger = sweep.mlflow.get_model_version_by_alias("swept", "challenger")
    assert challenger.run_id == trials[result["best"]]["run_id"]

    assert sweep.run()["trials"] == result["trials"]
    assert [sweep.attempts(name) for name in (first, last)] == [1, 2]


def test_a_sweep_outlives_its_tracking_server(tiny_encoder: Path, tmp_path: Path) -> None:
    """The server goes while the first trial trains and comes back when the second would begin."""
    server = Server(tmp_path)
    try:
        sweep = Sweep(
            tmp_path,
            tiny_encoder,
            *("--search", "objective.temperature=0.05", "--seeds", "2", "--tracking", server.uri),
        )
        names = [
            trial_name("sweep", {"objective.temperature": "0.05", "seed": seed})
            for seed in ("42", "43")
        ]
        with sweep.start() as running:
            sweep.wait_for(lambda: sweep.attempts(names[0]) > 0, running)
            server.kill()
            # Without a server the first trial cannot end, and the second cannot begin.
            spool = sweep.output / names[0] / "tracking.jsonl"
            sweep.wait_for(lambda: "dev_score" in spool.read_text(), running)
            time.sleep(10)
            assert sweep.attempts(names[1]) == 0
            server.start()
            output = running.communicate(timeout=1500)[0]
        assert running.returncode == 0, output
        point = "objective.temperature=0.05, seed=43: "
        assert f"{point}240 rows, dev score " in output
        assert f"{point}ended, 2 of 2 trials so far" in output
        result = sweep.result()
        assert [trial["status"] for trial in result["trials"]] == ["finished"] * 2
        client = MlflowClient(server.uri)
        for trial in result["trials"]:
            history = client.get_metric_history(trial["run_id"], "dev_score")
            assert sorted(metric.step for metric in history) == [0, 5, 10, 15]
            assert client.get_run(trial["run_id"]).info.status == "FINISHED"
        assert client.get_run(result["run_id"]).info.status == "FINISHED"
        # The best seed's model says what the other gave.
        [repeated] = result["seeds"]
        card = (sweep.output / result["best"] / "best" / "README.md").read_text()
        assert "over 2 seeds: mean ± deviation" in card
        assert f"{repeated['score']['mean']:.2f} ± {repeated['score']['deviation']:.2f}" in card
    finally:
        server.kill()


def test_of_six_points_that_optuna_draws_one_fails_until_its_cause_is_gone(
    tiny_encoder: Path, tmp_path: Path
) -> None:
    """The seed is one that draws the encoder which is not there once."""
    encoders = [tmp_path / name for name in ("a", "b", "c", "d", "absent")]
    for folder in encoders[:-1]:
        shutil.copytree(tiny_encoder, folder)
    sweep = Sweep(
        tmp_path,
        tiny_encoder,
        *("--search", "optim.learning_rate=loguniform(1e-5,1e-2)"),
        *("--search", f"encoder.model={','.join(map(str, encoders))}"),
        *("--sampler", "optuna", "--trials", "6", "--seed", "1", "--asha"),
    )
    result = sweep.run()
    rates = {float(trial["assignments"]["optim.learning_rate"]) for trial in result["trials"]}
    assert len(rates) == 6
    assert all(1e-5 <= rate <= 1e-2 for rate in rates)
    *scored, failed = result["trials"]
    assert failed["status"] == "failed"
    assert failed["assignments"]["encoder.model"] == str(encoders[-1])
    assert str(encoders[-1]) in failed["reason"]
    assert {trial["status"] for trial in scored} == {"finished", "stopped early"}
    assert all(trial["score"] > 0 for trial in scored)
    children = sweep.mlflow.search_runs(
        [sweep.mlflow.get_run(result["run_id"]).info.experiment_id],
        f"tags.`mlflow.parentRunId` = '{result['run_id']}'",
    )
    statuses = {run.info.run_name: run.info.status for run in children}
    as_mlflow_has_it = {"finished": "FINISHED", "stopped early": "KILLED"}
    assert {trial["name"]: as_mlflow_has_it[trial["status"]] for trial in scored} == {
        name: status for name, status in statuses.items() if name != failed["name"]
    }

    shutil.copytree(tiny_encoder, encoders[-1])
    again = {trial["name"]: trial for trial in sweep.run()["trials"]}
    mended = again.pop(failed["name"])
    assert mended["status"] in ("finished", "stopped early")
    assert mended["score"] > 0
    assert again == {trial["name"]: trial for trial in scored}


def test_a_figure_of_the_paper_is_reproduced_on_any_encoder(
    tiny_encoder: Path, tmp_path: Path
) -> None:
    corpus, result_file = tmp_path / "corpus.txt", tmp_path / "result.json"
    corpus.write_text("\n".join(f"the {WORDS[i % 10]} of {i} runs" for i in range(200)))
    command = [
        *(sys.executable, "-m", "pipelines", "reproduce", "figure2", "--scale", "small"),
        *("--encoder", str(tiny_encoder), "--corpus", str(corpus), "--name", "figure"),
        *("--set", "max_steps=3", "--set", "dev.tasks=[DemoPairs]"),
        *("--output", str(tmp_path / "runs"), "--json", str(result_file)),
    ]
    first, again = run_to_its_end(command), run_to_its_end(command)
    assert "ours: scaled down, not the paper's, and max_steps=3, dev.tasks=[DemoPairs], on " in (
        again
    )
    assert "unsupervised SimCSE: 192 rows, dev score " in first
    result = json.loads(result_file.read_text())
    rows = {row["row"]: row for row in result["rows"]}
    assert list(rows) == ["unsupervised SimCSE", "no dropout", "fixed 0.1", "delete one word"]
    for row in rows.values():
        assert (row["note"], row["failure"]) == ("", "")
        assert row["ours"].keys() == {
            *("DemoPairs dev", "uniformity start", "uniformity end"),
            *("alignment start", "alignment end"),
        }
    # All begin with the same encoder, and training moves each elsewhere.
    starts = [row["ours"]["uniformity start"] for row in rows.values()]
    assert starts == pytest.approx([starts[0]] * 4)
    ends = [row["ours"]["uniformity end"] for row in rows.values()]
    assert len(set(ends)) == 4
    comparison = tmp_path / "runs" / "figure" / "comparison"
    assert {path.name for path in comparison.iterdir()} == {"figure2.json", "figure2.png"}
    client = MlflowClient(f"sqlite:///{tmp_path / 'runs' / 'mlflow.db'}")
    [experiment] = client.search_experiments(filter_string="name = 'simcse'")
    parents = [
        run
        for run in client.search_runs([experiment.experiment_id])
        if "mlflow.parentRunId" not in run.data.tags
    ]
    [parent] = parents
    logged = {file.path for file in client.list_artifacts(parent.info.run_id, "comparison")}
    assert logged == {"comparison/figure2.json", "comparison/figure2.png"}
    # The second command trained nothing again.
    for trial in (tmp_path / "runs").glob("figure-*"):
        assert len(Attempt.recorded(RunFolder(trial))) == 1
