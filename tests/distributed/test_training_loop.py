"""The training loop on two processes records what it records on one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch import Tensor

from simcse.batch import Batch
from simcse.objective import TaskOutput
from simcse.optim import build_optimizer
from simcse_platform.config import TrainRun
from simcse_platform.errors import TrainingError
from simcse_platform.storage import RunFolder
from simcse_platform.training import checkpoint, loop
from simcse_platform.training.checkpoint import Progress
from simcse_platform.training.dev import DevEvaluation
from simcse_platform.training.engine import Engine, rank_and_world, set_learning_rate
from simcse_platform.training.engines import build_engine
from support.ranks import run_on_ranks
from support.training import TIMES, Recorder, make_batches, make_task

STEPS = 6
LAST = "checkpoint-00000006-only"
STAGES = (0, 1, 2, 3)
Weights = dict[str, Tensor]


def settings(folder: Path, stage: int = 0, *, every: int = 4, **optim: int) -> TrainRun:
    return TrainRun.model_validate(
        {
            "encoder": {"model": str(folder), "dropout": 0.0, "length_buckets": 2},
            "optim": {"learning_rate": 1e-3, "weight_decay": 0.01, "eps": 1e-3, **optim},
            "scale": {"zero_stage": stage, "persistence_threshold": 0},
            "checkpoint": {"every": every},
            "dev": {"every": 4},
            "tracking": {"log_every": 1},
            "global_batch_size": 7,
        }
    )


def build(run: TrainRun, poison: float = 0.0) -> Engine:
    task = make_task(run)
    with torch.no_grad():
        task.encoder.backbone.get_parameter("encoder.layer.1.output.dense.bias")[3] += poison
    return build_engine(task, run)


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
        run = settings(model, stage, max_skipped_updates=1)
        with pytest.raises(
            TrainingError, match=r"the gradient of step 1 is not finite, for the 2\. "
        ):
            train(run, build(run, poison=math.nan), folder)


class PoisonedLoss:
    """An engine one of whose losses is not a number, on one rank."""

    def __init__(self, engine: Engine, *, call: int) -> None:
        self._engine = engine
        self._calls_left = call

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def __call__(self, batch: Batch) -> TaskOutput:
        return self._engine(batch)

    def backward(self, loss: Tensor) -> None:
        hit = self._calls_left == 0 and rank_and_world()[0] == 0
        self._calls_left -= 1
        self._engine.backward(loss * math.nan if hit else loss)


def accumulating_settings(model: Path, stage: int = 0) -> TrainRun:
    """Updates of four batches and of the two that are left."""
    return settings(model, stage, accumulated_batches=4)


def check_accumulation(rank: int, world: int, model: Path, folder: Path, want: Weights) -> None:
    for stage in STAGES:
        run = accumulating_settings(model, stage)
        engine = build(run)
        _, progress = train(run, engine, folder / f"accumulate-{stage}")
        assert progress.skipped_updates == 0
        got = dict(engine.weights())
        assert got.keys() == want.keys()
        for name, weight in got.items():
            torch.testing.assert_close(weight, want[name], rtol=0, atol=1e-6, msg=f"{stage} {name}")


def check_skipping(rank: int, world: int, model: Path, folder: Path, want: Weights) -> None:
    for stage in STAGES:
        run = settings(model, stage)
        engine = build(run)
        poisoned = cast(Engine, PoisonedLoss(engine, call=2))
        _, progress = train(run, poisoned, folder / f"skip-{stage}")
        assert (progress.step, progress.skipped_updates) == (STEPS, 1)
        assert progress.rows == 7 * (STEPS - 1)
        got = dict(engine.weights())
        for name, weight in got.items():
            torch.testing.assert_close(weight, want[name], rtol=0, atol=1e-6, msg=f"{stage} {name}")


def check_a_first_update_that_is_skipped(
    rank: int, world: int, model: Path, folder: Path, want: Weights
) -> None:
    """A checkpoint has no moments yet, and the run goes on from it all the same."""
    for stage in STAGES:
        run = settings(model, stage, every=1)
        poisoned = cast(Engine, PoisonedLoss(build(run), call=0))
        _, progress = train(run, poisoned, folder / f"first-{stage}")
        assert (progress.step, progress.skipped_updates) == (STEPS, 1)
        for name, weight in poisoned.weights():
            torch.testing.assert_close(weight, want[name], rtol=0, atol=1e-6, msg=f"{stage} {name}")


def plain_updates(
    run: TrainRun, groups: Sequence[Sequence[int]], rates: Sequence[float]
) -> Weights:
    """One process, plain torch: an update by the mean loss of each group of global batches."""
    task = make_task(run).train()
    optimizer = build_optimizer(task, run.optim)
    batches = list(make_batches(run, range(STEPS), columns=3))
    for group, rate in zip(groups, rates, strict=True):
        loss = torch.stack([task(batches[step]).loss for step in group]).mean()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(task.parameters(), 1.0)
        set_learning_rate(optimizer, rate)
        optimizer.step()
    return {name: parameter.detach() for name, parameter in task.named_parameters()}


def check_all(
    rank: int, world: int, model: Path, folder: Path, want: dict[int, dict[str, float]]
) -> None:
    check_loops(rank, world, model, folder, want)
    check_gradients_that_are_not_finite(rank, world, model, folder / "broken")


def check_updates(rank: int, world: int, model: Path, folder: Path, *want: Weights) -> None:
    accumulated, skipped, first_skipped = want
    check_accumulation(rank, world, model, folder, accumulated)
    check_skipping(rank, world, model, folder, skipped)
    check_a_first_update_that_is_skipped(rank, world, model, folder, first_skipped)


def test_updates_of_several_batches_and_skipped_ones_under_every_engine(
    tiny_encoder: Path, tmp_path: Path
) -> None:
    run = accumulating_settings(tiny_encoder)
    accumulated = plain_updates(run, [range(4), range(4, 6)], rates=[1e-3, 5e-4])
    rates = [1e-3 * (STEPS - step) / STEPS for step in (0, 1, 3, 4, 5)]
    skipped = plain_updates(settings(tiny_encoder), [[0], [1], [3], [4], [5]], rates)
    rates = [1e-3 * (STEPS - step) / STEPS for step in range(1, STEPS)]
    first = plain_updates(settings(tiny_encoder), [[1], [2], [3], [4], [5]], rates)
    run_on_ranks(check_updates, 2, tmp_path, tiny_encoder, tmp_path, accumulated, skipped, first)


def test_two_processes_under_every_engine_record_what_one_records(
    tiny_encoder: Path, tmp_path: Path
) -> None:
    run = settings(tiny_encoder)
    reporter, _ = train(run, build(run), tmp_path / "one")
    want = {step: comparable(values) for step, values in reporter.logged}
    assert want[1]["loss"] != pytest.approx(want[STEPS]["loss"], abs=0.1)
    run_on_ranks(check_all, 2, tmp_path, tiny_encoder, tmp_path, want)
