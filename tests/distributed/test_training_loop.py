"""The training loop on two processes records what it records on one."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from simcse_platform.config import TrainRun
from simcse_platform.errors import TrainingError
from simcse_platform.storage import RunFolder
from simcse_platform.training import checkpoint, loop
from simcse_platform.training.checkpoint import Progress
from simcse_platform.training.dev import DevEvaluation
from simcse_platform.training.engine import Engine, rank_and_world
from simcse_platform.training.zero import ZeroEngine
from support.ranks import run_on_ranks
from support.training import TIMES, Recorder, ddp_engine, make_batches, make_task

STEPS = 6
LAST = "checkpoint-00000006-only"
STAGES = (0, 1, 2, 3)


def settings(folder: Path, stage: int = 0) -> TrainRun:
    return TrainRun.model_validate(
        {
            "encoder": {"model": str(folder), "dropout": 0.0, "length_buckets": 2},
            "optim": {"learning_rate": 1e-3, "weight_decay": 0.01, "eps": 1e-3},
            "scale": {"zero_stage": stage, "persistence_threshold": 0},
            "checkpoint": {"every": 4},
            "tracking": {"log_every": 1},
            "global_batch_size": 7,
        }
    )


def build(run: TrainRun, poison: float = 0.0) -> Engine:
    task = make_task(run)
    with torch.no_grad():
        task.encoder.backbone.get_parameter("encoder.layer.1.output.dense.bias")[3] += poison
    engine = ddp_engine(task, run)
    if not run.scale.zero_stage:
        return engine
    return ZeroEngine(task, engine._optimizer, run.scale, max_gradient_norm=1.0)


def train(
    run: TrainRun, engine: Engine, folder: Path, columns: int = 3
) -> tuple[Recorder, Progress]:
    rank, world = rank_and_world()
    reporter = Recorder(folder)
    progress = loop.train(
        engine,
        make_batches(run, range(STEPS), columns=columns, rank=rank, world=world),
        DevEvaluation([], engine.task.encoder),
        reporter,
        run,
        total_steps=STEPS,
        progress=Progress(),
        attempt="only",
        lineage={},
    )
    return reporter, progress


def comparable(values: dict[str, float]) -> dict[str, float]:
    # Ranks sort and pad their own rows, so they need not compute as many positions as one process.
    return {k: v for k, v in values.items() if k not in TIMES | {"padding_efficiency"}}


def check_loops(
    rank: int, world: int, model: Path, folder: Path, want: dict[int, dict[str, float]]
) -> None:
    want_last = checkpoint.load(RunFolder(folder / "one"), LAST)
    for stage in STAGES:
        run = settings(model, stage)
        reporter, progress = train(run, build(run), folder / f"stage-{stage}")
        logged = dict(reporter.logged)
        assert list(logged) == ([] if rank else list(want))
        for step, values in logged.items():
            assert comparable(values) == pytest.approx(want[step], rel=1e-5, abs=1e-5), stage
        assert (progress.step, progress.rows) == (STEPS, 7 * STEPS)
        assert progress.tokens == want_last.progress.tokens
        assert reporter.checkpoints == ["checkpoint-00000004-only", LAST]
        assert reporter.times_best_was_saved == (0 if rank else 1)

        torch.distributed.barrier()
        last = checkpoint.load(reporter.folder, LAST)
        assert last.progress == progress
        torch.testing.assert_close(last.weights, want_last.weights, rtol=0, atol=1e-6)
        torch.testing.assert_close(last.moments, want_last.moments, rtol=1e-3, atol=1e-5)


def check_gradients_that_are_not_finite(rank: int, world: int, model: Path, folder: Path) -> None:
    for stage in STAGES:
        engine = build(settings(model, stage), poison=math.nan)
        with pytest.raises(TrainingError, match=r"the gradient norm of step 0 is (nan|inf): lower"):
            train(settings(model, stage), engine, folder)


def check_all(
    rank: int, world: int, model: Path, folder: Path, want: dict[int, dict[str, float]]
) -> None:
    check_loops(rank, world, model, folder, want)
    check_gradients_that_are_not_finite(rank, world, model, folder / "broken")


def test_two_processes_under_every_engine_record_what_one_records(
    tiny_encoder: Path, tmp_path: Path
) -> None:
    run = settings(tiny_encoder)
    reporter, _ = train(run, build(run), tmp_path / "one")
    want = {step: comparable(values) for step, values in reporter.logged}
    assert want[1]["loss"] != pytest.approx(want[STEPS]["loss"], abs=0.1)
    run_on_ranks(check_all, 2, tmp_path, tiny_encoder, tmp_path, want)
