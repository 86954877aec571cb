"""Finished runs and sweeps as the commands leave them, recorded in MLflow, made without Ray."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from itertools import product
from pathlib import Path

from pydantic import JsonValue

from simcse.encoder import SentenceEncoder
from simcse.evaluation import evaluate, metric_name
from simcse.evaluation.geometry import describe, graded_pairs
from simcse.evaluation.sts_files import read_tsv
from simcse_platform.config import TrainRun, override, to_yaml
from simcse_platform.run import SETTINGS_FILE, SPOOL_FILE, SUMMARY_FILE
from simcse_platform.storage import RunFolder
from simcse_platform.sweep.execute import SWEEP_FILE, TRIALS_FILE
from simcse_platform.sweep.execute import describe as describe_sweep
from simcse_platform.sweep.space import Space
from simcse_platform.sweep.sweep import SearchPlan, TrialResult, table
from simcse_platform.tracking.location import tracking_uri
from simcse_platform.tracking.mlflow_tracker import CorpusRecord, start_run
from simcse_platform.tracking.tracked_run import TrackedRun
from simcse_platform.training.checkpoint import Best, Progress
from simcse_platform.training.worker import BEST, WorkerResult

STEPS, EVERY = 40, 10


def write_pairs(path: Path, *, hostile: str = "") -> Path:
    """32 pairs of short sentences with every grade from 0 to 5; one of them says `hostile`."""
    subjects = (
        "the man",
        "a woman",
        "the child",
        "a dog",
        "the old cat",
        "a red bird",
        "they",
        "we",
    )
    verbs = ("eats food", "runs on the road", "sleeps", "reads a book")
    lines = ["score\tsentence1\tsentence2"]
    for number, (subject, verb) in enumerate(product(subjects, verbs)):
        other = subjects[(number + number % 3) % len(subjects)]
        ending = f" {hostile}" if number == 7 else ""
        lines.append(f"{number % 6}\t{subject} {verb}{ending}\t{other} {verb} in the city")
    path.write_text("\n".join(lines) + "\n")
    return path


def run_settings(encoder: Path, pairs: Path) -> TrainRun:
    return TrainRun.model_validate(
        {
            "encoder": {"model": str(encoder), "pooling": "avg", "head": "none"},
            "optim": {"learning_rate": 1e-4},
            "data": {"corpus": ["/data/corpus.txt"]},
            "dev": {"tasks": [str(pairs)], "every": EVERY},
            "global_batch_size": 16,
        }
    )


def record_run(output: Path, name: str, run: TrainRun, *, parent: str | None = None) -> RunFolder:
    """A run of 40 steps whose best model is its encoder, scored as it is on its one dev set."""
    folder = RunFolder.of(str(output), name)
    folder.write_text(SETTINGS_FILE, to_yaml(run))
    uri, spool = tracking_uri(run.tracking.uri, output), folder.path / SPOOL_FILE
    rows = STEPS * run.global_batch_size
    run_id = start_run(
        uri,
        run.tracking.experiment,
        name,
        storage=folder.path,
        spool=spool,
        parent_run_id=parent,
        corpus=CorpusRecord(
            name="corpus.txt",
            source="/data/corpus.txt",
            fingerprint="00ff",
            rows=rows,
            columns=["text"],
        ),
    )
    encoder = SentenceEncoder.load(run.encoder.model, pooling=run.encoder.pooling)
    dev, _ = read_tsv(Path(run.dev.tasks[0]), "dev")
    found = evaluate(encoder, [dev])
    pairs = graded_pairs([dev])
    assert pairs is not None
    assert found.vectors is not None
    geometry = describe(pairs, found.vectors)
    metric, score = metric_name(dev, found.scores[dev.name]), found.scores[dev.name].headline

    tracker = TrackedRun(uri, run_id, spool).open()
    for step in range(0, STEPS + 1, EVERY):
        left = 1 - step / STEPS
        tracker.log_metrics(
            {
                metric: score - 20 * left,
                "dev_uniformity": geometry["uniformity"] + left,
                "dev_alignment": (geometry["alignment"] or 0) + left**2,
            },
            step,
        )
    for step in range(5, STEPS + 1, 5):
        tracker.log_metrics(
            {"loss": math.exp(-step / 20), "gradient_norm": 3 / step, "rows_per_s": 700 + step},
            step,
        )
    tracker.finish("FINISHED")
    lineage: dict[str, JsonValue] = {
        "run": run.model_dump(mode="json"),
        "mlflow_run_id": run_id,
        "data_sha256": "00ff" * 16,
        "source_hash": "ee11" * 16,
        "versions": {"torch": "2.13.0"},
        "step": STEPS,
    }
    encoder.save(folder.path / BEST, lineage=lineage, scores={metric: score})
    (folder.path / BEST / SETTINGS_FILE).write_text(to_yaml(run))
    done = Progress(
        step=STEPS,
        rows=rows,
        tokens=9 * rows,
        positions=10 * rows,
        seconds=rows / 720,
        stalled_seconds=rows / 720 / 50,
        dev_before={metric: score - 20},
        dev={metric: score},
        best=Best(step=STEPS, score=score, scores={metric: score}, geometry=geometry),
    )
    summary = WorkerResult(progress=done, peak_rss_mb=812.5).summary(
        run_id=run_id, model=folder.path / BEST
    )
    folder.write_text(SUMMARY_FILE, json.dumps(summary))
    return folder


def record_sweep(
    output: Path,
    name: str,
    base: TrainRun,
    space: Space,
    plan: SearchPlan,
    results: Sequence[TrialResult],
) -> RunFolder:
    """A sweep with these results; the first of those that finished has a run of its own."""
    folder = RunFolder.of(str(output), name)
    folder.write_text(SWEEP_FILE, describe_sweep(base, space, plan))
    uri, spool = tracking_uri(base.tracking.uri, output), folder.path / SPOOL_FILE
    run_id = start_run(uri, base.tracking.experiment, name, storage=folder.path, spool=spool)
    best = next((result for result in results if result.status == "finished"), None)
    if best is not None:
        assignments = [f"{path}={value}" for path, value in best.assignments.items()]
        record_run(output, best.name, override(base, assignments), parent=run_id)
    TrackedRun(uri, run_id, spool).open().finish("FINISHED")
    folder.write_text(TRIALS_FILE, json.dumps(table(results)))
    return folder
