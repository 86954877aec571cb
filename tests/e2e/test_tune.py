"""`simcse tune` on real workers: a sweep that is killed and goes on, and one by Optuna and ASHA."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from mlflow import MlflowClient

from simcse_platform.storage import RunFolder
from simcse_platform.sweep.space import trial_name
from simcse_platform.training.worker import Attempt

pytestmark = [pytest.mark.ray, pytest.mark.machines, pytest.mark.timeout(900)]

ROOT = Path(__file__).parents[2]
WORDS = ("dog", "cat", "man", "woman", "child", "house", "river", "city", "music", "game")


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
        environment = {k: v for k, v in os.environ.items() if k != "RAY_ADDRESS"}
        return subprocess.Popen(
            self._command,
            cwd=ROOT,
            env={**environment, "PYTHONPATH": "platform", "RAY_AUTH_MODE": "disabled"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self) -> dict[str, Any]:
        process = self.start()
        output = process.communicate(timeout=600)[0]
        assert process.returncode == 0, output
        assert "Traceback" not in output
        result: dict[str, Any] = json.loads(self._json.read_text())
        return result

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
        deadline = time.monotonic() + 300
        while not sweep.attempts(last):
            assert killed.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.1)
        killed.kill()
    assert (sweep.output / first / "summary.json").exists()

    result = sweep.run()
    trials = {trial["name"]: trial for trial in result["trials"]}
    assert trials.keys() == set(names.values())
    for (_, lowest), name in names.items():
        assert trials[name]["status"] == ("finished" if lowest == "null" else "failed")
        if lowest == "101":
            assert trials[name]["reason"].startswith("the encoder has collapsed at step 0: its")
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


def test_optuna_draws_as_many_points_as_it_may(tiny_encoder: Path, tmp_path: Path) -> None:
    sweep = Sweep(
        tmp_path,
        tiny_encoder,
        *("--search", "optim.learning_rate=loguniform(1e-5,1e-2)"),
        *("--sampler", "optuna", "--trials", "3", "--asha"),
    )
    result = sweep.run()
    rates = {float(trial["assignments"]["optim.learning_rate"]) for trial in result["trials"]}
    assert len(rates) == 3
    assert all(1e-5 <= rate <= 1e-2 for rate in rates)
    assert {trial["status"] for trial in result["trials"]} <= {"finished", "stopped early"}
    children = sweep.mlflow.search_runs(
        [sweep.mlflow.get_run(result["run_id"]).info.experiment_id],
        f"tags.`mlflow.parentRunId` = '{result['run_id']}'",
    )
    assert {run.info.status for run in children} <= {"FINISHED", "KILLED"}
    assert len(children) == 3
