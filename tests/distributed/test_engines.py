"""Five steps under DDP and ZeRO on two processes end at the weights of one process.

b: rows on a rank, B: rows on all ranks, V: vectors a row, D: width.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from simcse import gather
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

Case = tuple[str, int, str, str]
"""Variant, ZeRO stage, optimiser, clipping."""


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


class NoGradient(gather._GatherRows):
    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        """Only this rank's own slot, as an all-gather that passes no gradient leaves it."""
        first = sum(ctx.counts[: dist.get_rank()])
        return gradients[0][first : first + ctx.counts[dist.get_rank()]], None, None


def measure(rank: int, world: int, folder: Path, results: Path) -> None:
    """Every case in one process group; leaves `Case` to largest difference from one process."""
    differences: dict[Case, float] = {}
    for optimizer_name, clipping in product(OPTIMIZERS, CLIPPING):
        max_norm = CLIPPING[clipping]
        want = train_one_process(folder, optimizer_name, max_norm)
        for stage in STAGES:
            task = new_task(folder)
            engine = build(task, stage, optimizer_name, max_norm)
            if stage == 3:
                assert next(task.parameters()).numel() == 0, "ZeRO-3 must have partitioned it"
            got = train_engine(engine, rank, RATES[optimizer_name])
            case = ("ours", stage, optimizer_name, clipping)
            differences[case] = largest_difference(got, want)

    want = train_one_process(folder, "sgd", CLIPPING["off"])
    for stage in STAGES:
        engine = build(new_task(folder), stage, "sgd", CLIPPING["off"])
        got = train_engine(engine, rank, RATES["sgd"], loss_scale=1 / world)
        differences["scaled by 1 / W", stage, "sgd", "off"] = largest_difference(got, want)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gather, "_GatherRows", NoGradient)
        for stage in STAGES:
            engine = build(new_task(folder), stage, "sgd", CLIPPING["off"])
            got = train_engine(engine, rank, RATES["sgd"])
            case = ("gather without gradient", stage, "sgd", "off")
            differences[case] = largest_difference(got, want)
    torch.save(differences, results / f"{rank}.pt")


@pytest.fixture(scope="module")
def differences(
    tiny_encoder: Path, tmp_path_factory: pytest.TempPathFactory
) -> list[dict[Case, float]]:
    """What `measure` found on each of two ranks."""
    folder = tmp_path_factory.mktemp("engines")
    run_on_ranks(measure, 2, folder, tiny_encoder, folder)
    return [torch.load(folder / f"{rank}.pt") for rank in range(2)]


@pytest.mark.parametrize("clipping", CLIPPING)
@pytest.mark.parametrize("optimizer_name", OPTIMIZERS)
def test_the_reference_moves_its_parameters(
    tiny_encoder: Path, optimizer_name: str, clipping: str
) -> None:
    start = {name: p.detach().clone() for name, p in new_task(tiny_encoder).named_parameters()}
    moved = train_one_process(tiny_encoder, optimizer_name, CLIPPING[clipping])
    assert largest_difference(moved, start) > LEAST_MOVEMENT[optimizer_name]


@pytest.mark.parametrize("clipping", CLIPPING)
@pytest.mark.parametrize("optimizer_name", OPTIMIZERS)
@pytest.mark.parametrize("stage", STAGES)
def test_five_steps_equal_one_process(
    differences: list[dict[Case, float]], stage: int, optimizer_name: str, clipping: str
) -> None:
    for on_rank in differences:
        assert on_rank["ours", stage, optimizer_name, clipping] < 1e-6


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("variant", ["scaled by 1 / W", "gather without gradient"])
def test_a_known_wrong_variant_is_told_apart(
    differences: list[dict[Case, float]], variant: str, stage: int
) -> None:
    for on_rank in differences:
        assert on_rank[variant, stage, "sgd", "off"] > 1e-4
