"""Twenty steps of one plan have one loss curve, at any number of workers."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from simcse_platform.config import TrainRun
from simcse_platform.ingest.source import open_corpus
from simcse_platform.training import loop
from simcse_platform.training.checkpoint import Progress
from simcse_platform.training.dev import DevEvaluation
from simcse_platform.training.engines import build_engine
from simcse_platform.training.trainer import plan_steps
from support.ranks import run_on_ranks
from support.training import Recorder, make_task, planned_batches

SHARDS = (70, 5, 41, 1, 60)
STEPS = 20
WORDS = ("dog", "cat", "man", "woman", "child", "house", "river", "city", "music", "game")


@pytest.fixture(scope="module")
def run(tiny_encoder: Path, tmp_path_factory: pytest.TempPathFactory) -> TrainRun:
    """Five uneven shards, batches of 10, windows of 3: the last batch of an epoch has 7 rows."""
    folder = tmp_path_factory.mktemp("corpus")
    first = 0
    for number, rows in enumerate(SHARDS):
        ids = range(first, first + rows)
        texts = [f"the {WORDS[i % 10]} and {i} {WORDS[i % 7]}" for i in ids]
        pairs = [f"{i} times a {WORDS[i % 10]}" for i in ids]
        pq.write_table(pa.table({"a": texts, "b": pairs}), folder / f"{number}.parquet")
        first += rows
    return TrainRun.model_validate(
        {
            "encoder": {"model": str(tiny_encoder), "dropout": 0.0, "length_buckets": 2},
            "data": {"corpus": [str(folder)], "batches_per_window": 3},
            "optim": {"learning_rate": 1e-3},
            "tracking": {"log_every": 1},
            "global_batch_size": 10,
            "epochs": 2,
            "max_steps": STEPS,
        }
    )


def train(rank: int, world: int, run: TrainRun, folder: Path) -> None:
    corpus = open_corpus(run.data, run.encoder, folder, lambda line: None)
    engine = build_engine(make_task(run), run)
    recorder = Recorder(folder / str(world))
    loop.train(
        engine,
        planned_batches(plan_steps(run, corpus)),
        DevEvaluation([], engine.task.encoder),
        recorder,
        run,
        total_steps=STEPS,
        progress=Progress(),
        attempt="only",
        lineage={},
    )
    if rank == 0:
        (folder / f"{world}.json").write_text(json.dumps(recorder.series("loss")))


def test_the_loss_curve_is_the_same_at_one_two_and_four_workers(
    run: TrainRun, tmp_path: Path
) -> None:
    curves = {}
    for world in (1, 2, 4):
        run_on_ranks(train, world, tmp_path, run, tmp_path)
        curves[world] = json.loads((tmp_path / f"{world}.json").read_text())
    assert list(curves[1]) == [str(step) for step in range(1, STEPS + 1)]
    assert max(curves[1].values()) > min(curves[1].values()) + 0.5
    for world in (2, 4):
        assert curves[world] == pytest.approx(curves[1], abs=1e-5)
