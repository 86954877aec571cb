"""A checkpoint taken under one engine and world size goes on under another."""

from __future__ import annotations

from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from simcse.batch import Batch
from simcse.config import EncoderConfig, ObjectiveConfig, OptimConfig
from simcse.encoder import SentenceEncoder
from simcse.objective import ContrastiveTask
from simcse.optim import build_optimizer
from simcse.tokens import RaggedTokens
from simcse_platform.config import ScaleConfig, TrainRun
from simcse_platform.storage import RunFolder
from simcse_platform.training import checkpoint
from simcse_platform.training.checkpoint import Progress
from simcse_platform.training.engine import DdpEngine, Engine
from simcse_platform.training.zero import ZeroEngine
from support.ranks import run_on_ranks

ROWS = 6
STEPS = 3
SAVED = {1: (1,), 2: (0, 2, 3)}
"""Stages that a checkpoint is saved under, by the number of ranks."""
CASES = [
    ((2, 2), (2, 2)),
    ((2, 2), (1, 3)),
    ((0, 2), (3, 2)),
    ((3, 2), (0, 1)),
    ((1, 1), (1, 2)),
]
"""Stage and ranks that a checkpoint is saved under, and those that it goes on under."""
# A rate at which a wrong moment shows, and an eps that keeps rounding from becoming steps.
OPTIM = OptimConfig(learning_rate=1e-3, weight_decay=0.01, eps=1e-3)


def run_settings(folder: Path) -> TrainRun:
    return TrainRun(encoder=EncoderConfig(model=str(folder), dropout=0.0), optim=OPTIM)


def new_task(folder: Path) -> ContrastiveTask:
    encoder = SentenceEncoder.from_config(run_settings(folder).encoder, seed=1)
    return ContrastiveTask(encoder, ObjectiveConfig())


def new_engine(task: ContrastiveTask, stage: int) -> Engine:
    optimizer = build_optimizer(task, OPTIM)
    if stage == 0:
        return DdpEngine(task, optimizer, max_gradient_norm=1.0)
    scale = ScaleConfig.model_validate({"zero_stage": stage, "persistence_threshold": 0})
    return ZeroEngine(task, optimizer, scale, max_gradient_norm=1.0)


def batch(step: int, rank: int, world: int) -> Batch:
    generator = torch.Generator().manual_seed(step)
    sentences = [
        torch.randint(
            5, 90, (int(torch.randint(3, 9, (), generator=generator)),), generator=generator
        )
        for _ in range(2 * ROWS)
    ]
    own = range(ROWS * rank // world, ROWS * (rank + 1) // world)
    columns = tuple(
        RaggedTokens.from_lists([sentences[part * ROWS + row].tolist() for row in own])
        for part in range(2)
    )
    return Batch(0, step, ROWS, torch.tensor(list(own)), columns)


def take_steps(engine: Engine, first: int, rank: int, world: int) -> None:
    for step in range(first, first + STEPS):
        output = engine(batch(step, rank, world))
        engine.backward(output.loss)
        engine.step(OPTIM.learning_rate)


def save_after_three_steps(
    rank: int, world: int, model: Path, runs: Path, stages: tuple[int, ...]
) -> None:
    """A checkpoint under each stage, and the weights three steps later."""
    for stage in stages:
        folder = run_folder(runs, stage, world)
        engine = new_engine(new_task(model), stage)
        take_steps(engine, 0, rank, world)
        path = folder / checkpoint.checkpoint_name(STEPS, "first")
        path.mkdir(parents=True, exist_ok=True)
        checkpoint.save(engine, path, progress=Progress(step=STEPS), run=run_settings(model))
        take_steps(engine, STEPS, rank, world)
        weights = dict(engine.weights())
        if rank == 0:
            torch.save(weights, folder / "uninterrupted.pt")


def go_on_and_compare(rank: int, world: int, model: Path, folder: Path, stage: int) -> None:
    name = checkpoint.newest(RunFolder(folder))
    assert name is not None
    loaded = checkpoint.load(RunFolder(folder), name)
    task = new_task(model)
    checkpoint.load_weights(task, loaded.weights)
    engine = new_engine(task, stage)
    engine.restore_moments(loaded.moments, loaded.progress.updates(1))
    for parameter, moments in engine.moments():
        torch.testing.assert_close(moments, loaded.moments[parameter])
    take_steps(engine, STEPS, rank, world)
    want: dict[str, Tensor] = torch.load(folder / "uninterrupted.pt")
    for parameter, weight in engine.weights():
        case = f"{folder.name} under stage {stage} on {world}: {parameter}"
        torch.testing.assert_close(weight, want[parameter], rtol=0, atol=1e-6, msg=case)


def run_folder(runs: Path, stage: int, world: int) -> Path:
    return runs / f"stage-{stage}-on-{world}"


def go_on_in_all_cases(rank: int, world: int, model: Path, runs: Path) -> None:
    for (stage, saved_on), (then, loaded_on) in CASES:
        if loaded_on == world:
            go_on_and_compare(rank, world, model, run_folder(runs, stage, saved_on), then)


def save_then_go_on(rank: int, world: int, model: Path, runs: Path) -> None:
    save_after_three_steps(rank, world, model, runs, SAVED[world])
    dist.barrier()
    go_on_in_all_cases(rank, world, model, runs)


def test_a_checkpoint_goes_on_under_another_engine_and_world_size(
    tiny_encoder: Path, tmp_path: Path
) -> None:
    run_on_ranks(save_after_three_steps, 1, tmp_path, tiny_encoder, tmp_path, SAVED[1])
    run_on_ranks(save_then_go_on, 2, tmp_path, tiny_encoder, tmp_path)
    run_on_ranks(go_on_in_all_cases, 3, tmp_path, tiny_encoder, tmp_path)
    # DDP on one rank needs no process group.
    go_on_in_all_cases(0, 1, tiny_encoder, tmp_path)
