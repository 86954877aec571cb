"""Five steps under DDP and ZeRO on two processes end at the weights of one process.

b: rows on a rank, B: rows on all ranks, V: vectors a row, D: width.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from simcse.batch import Batch
from simcse.config import EncoderConfig, ObjectiveConfig
from simcse.encoder import SentenceEncoder
from simcse.objective import ContrastiveTask
from simcse.tokens import RaggedTokens
from simcse_platform.config import ScaleConfig
from simcse_platform.training.engine import DdpEngine, Engine
from simcse_platform.training.zero import ZeroEngine
from support.ranks import run_on_ranks

STEPS = 5
GLOBAL_ROWS = 7
ROWS = (4, 3)
TEMPERATURE = 0.05
STAGES = (0, 1, 2, 3)
RATES = {"sgd": 2e-2, "adamw": 1e-3}
OPTIMIZERS: dict[str, Callable[[nn.Module], torch.optim.Optimizer]] = {
    "sgd": lambda module: torch.optim.SGD(module.parameters(), RATES["sgd"]),
    # At eps 1e-8 AdamW turns the rounding of gradients that are zero into whole steps.
    "adamw": lambda module: torch.optim.AdamW(module.parameters(), RATES["adamw"], eps=1e-3),
}
LEAST_MOVEMENT = {"sgd": 1e-2, "adamw": 2e-3}
CLIPPING = {"off": 0.0, "active": 2.0}


def new_task(folder: Path) -> ContrastiveTask:
    config = EncoderConfig(model=str(folder), dropout=0.0, length_buckets=3)
    return ContrastiveTask(
        SentenceEncoder.from_config(config, seed=1), ObjectiveConfig(temperature=TEMPERATURE)
    )


def triplets(step: int) -> tuple[list[list[int]], ...]:
    """Anchors, positives and hard negatives of one global batch, as token ids."""
    generator = torch.Generator().manual_seed(step)

    def sentence() -> list[int]:
        length = int(torch.randint(3, 12, (), generator=generator))
        return torch.randint(5, 90, (length,), generator=generator).tolist()

    return tuple([sentence() for _ in range(GLOBAL_ROWS)] for _ in range(3))


def rows_of(step: int, first: int, stop: int) -> Batch:
    columns = tuple(RaggedTokens.from_lists(column[first:stop]) for column in triplets(step))
    return Batch(0, step, GLOBAL_ROWS, torch.arange(first, stop), columns)


def train_one_process(folder: Path, optimizer_name: str, max_norm: float) -> dict[str, Tensor]:
    """The same five steps written out with plain torch: one process, the whole batch."""
    task = new_task(folder).train()
    optimizer = OPTIMIZERS[optimizer_name](task)
    for step in range(STEPS):
        views_VBD = [
            F.normalize(task.encoder(RaggedTokens.from_lists(column)), dim=-1)
            for column in triplets(step)
        ]
        logits = views_VBD[0] @ torch.cat(views_VBD[1:]).T / TEMPERATURE
        loss = F.cross_entropy(logits, torch.arange(GLOBAL_ROWS))
        optimizer.zero_grad()
        loss.backward()
        if max_norm:
            nn.utils.clip_grad_norm_(task.parameters(), max_norm)
        optimizer.step()
    return {name: parameter.detach() for name, parameter in task.named_parameters()}


def build(task: ContrastiveTask, stage: int, optimizer_name: str, max_norm: float) -> Engine:
    optimizer = OPTIMIZERS[optimizer_name](task)
    if stage == 0:
        return DdpEngine(task, optimizer, max_gradient_norm=max_norm)
    scale = ScaleConfig.model_validate({"zero_stage": stage, "persistence_threshold": 0})
    return ZeroEngine(task, optimizer, scale, max_gradient_norm=max_norm)


def train_engine(
    engine: Engine, rank: int, rate: float, loss_scale: float = 1.0
) -> dict[str, Tensor]:
    first = sum(ROWS[:rank])
    for step in range(STEPS):
        output = engine(rows_of(step, first, first + ROWS[rank]))
        engine.backward(output.loss * loss_scale)
        engine.step(rate)
    return dict(engine.weights())


def largest_difference(got: dict[str, Tensor], want: dict[str, Tensor]) -> float:
    assert got.keys() == want.keys()
    return max((got[name] - want[name]).abs().max().item() for name in want)


def check_engines(rank: int, world: int, folder: Path) -> None:
    start = {name: p.detach().clone() for name, p in new_task(folder).named_parameters()}
    for optimizer_name, clipping in product(OPTIMIZERS, CLIPPING):
        max_norm = CLIPPING[clipping]
        want = train_one_process(folder, optimizer_name, max_norm)
        assert largest_difference(want, start) > LEAST_MOVEMENT[optimizer_name]
        for stage in STAGES:
            task = new_task(folder)
            engine = build(task, stage, optimizer_name, max_norm)
            if stage == 3:
                assert next(task.parameters()).numel() == 0, "ZeRO-3 must have partitioned it"
            got = train_engine(engine, rank, RATES[optimizer_name])
            difference = largest_difference(got, want)
            assert difference < 1e-6, (stage, optimizer_name, clipping, difference)


def test_five_steps_equal_one_process(tiny_encoder: Path, tmp_path: Path) -> None:
    run_on_ranks(check_engines, 2, tmp_path, tiny_encoder)


def check_scaled_loss(rank: int, world: int, folder: Path) -> None:
    want = train_one_process(folder, "sgd", 0.0)
    for stage in STAGES:
        engine = build(new_task(folder), stage, "sgd", 0.0)
        got = train_engine(engine, rank, RATES["sgd"], loss_scale=1 / world)
        assert largest_difference(got, want) > 1e-4, stage


def test_a_loss_scaled_by_one_over_world_size_is_told_apart(
    tiny_encoder: Path, tmp_path: Path
) -> None:
    run_on_ranks(check_scaled_loss, 2, tmp_path, tiny_encoder)


def check_gather_without_gradient(rank: int, world: int, folder: Path) -> None:
    want = train_one_process(folder, "sgd", 0.0)
    for stage in STAGES:
        engine = build(new_task(folder), stage, "sgd", 0.0)
        got = train_engine(engine, rank, RATES["sgd"])
        assert largest_difference(got, want) > 1e-4, stage


def test_a_gather_without_gradient_is_told_apart(
    tiny_encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from simcse import gather

    class NoGradient(gather._GatherRows):
        @staticmethod
        def backward(ctx, *gradients):  # type: ignore[no-untyped-def]
            """Only this rank's own slot, as an all-gather that passes no gradient leaves it."""
            import torch.distributed as dist

            first = sum(ctx.counts[: dist.get_rank()])
            return gradients[0][first : first + ctx.counts[dist.get_rank()]], None, None

    # Children are forked, so they see the patched module.
    monkeypatch.setattr(gather, "_GatherRows", NoGradient)
    run_on_ranks(check_gather_without_gradient, 2, tmp_path, tiny_encoder)
