"""Every option of the objective at once, under every engine, against one process.

b: rows on a rank, B: rows on all ranks.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from simcse.batch import Batch
from simcse.config import EncoderConfig, MemoryConfig, ObjectiveConfig, ViewsConfig
from simcse.objective import ContrastiveTask, build_task
from simcse.tokens import RaggedTokens
from simcse_platform.config import ScaleConfig, TrainRun
from simcse_platform.storage import RunFolder
from simcse_platform.training import checkpoint
from simcse_platform.training.checkpoint import Progress
from simcse_platform.training.engine import DdpEngine, Engine
from simcse_platform.training.zero import ZeroEngine
from support.architectures import save_masked_language_model
from support.ranks import run_on_ranks

STEPS = 2
GLOBAL_ROWS = 7
ROWS = ((5, 2), (0, 7))
"""Of each rank, step by step."""
RATE = 1e-2
STAGES = (0, 1, 2, 3)
Case = tuple[str, int, str]
"""Options, ZeRO stage, what is computed again."""
MEMORY = {
    "nothing again": MemoryConfig(),
    "cached": MemoryConfig(encoder_chunk=4),
    "tiled": MemoryConfig(loss_tile=3),
    "cached and tiled": MemoryConfig(encoder_chunk=4, loss_tile=3),
}
OPTIONS: dict[str, tuple[int, ObjectiveConfig, ViewsConfig]] = {
    "everything": (
        4,
        ObjectiveConfig(
            positives=2,
            hard_negative_alpha=0.5,
            learnable_temperature=True,
            mask_false_negatives=True,
            masked_language_weight=0.5,
            masked_language_rate=0.4,
        ),
        ViewsConfig(encoders=2),
    ),
    "masked language alone": (
        1,
        ObjectiveConfig(masked_language_weight=2.0, masked_language_rate=0.4),
        ViewsConfig(allow_equal_views=True),
    ),
}
"""Columns of the batches and the settings."""
CASES: list[Case] = [
    *product(["everything"], STAGES, MEMORY),
    *product(["masked language alone"], STAGES, ["nothing again", "cached and tiled"]),
]


def new_task(
    folder: Path,
    objective: ObjectiveConfig,
    views: ViewsConfig,
    memory: MemoryConfig | None = None,
) -> ContrastiveTask:
    config = EncoderConfig(model=str(folder), dropout=0.0, length_buckets=2)
    return build_task(config, objective, views, seed=1, memory=memory)


def own_rows(step: int, rank: int, columns: int) -> Batch:
    first = sum(ROWS[step][:rank])
    return rows_of(step, columns, first, first + ROWS[step][rank])


def rows_of(step: int, columns: int, first: int, stop: int) -> Batch:
    """A rank's rows of one global batch, with sentences that come up again in other rows."""
    generator = torch.Generator().manual_seed(step)
    lengths = torch.randint(4, 12, (5,), generator=generator).tolist()
    stock = [torch.randint(5, 90, (n,), generator=generator).tolist() for n in lengths]
    chosen = torch.randint(0, 5, (columns, GLOBAL_ROWS), generator=generator).tolist()
    return Batch(
        epoch=0,
        step=step,
        global_rows=GLOBAL_ROWS,
        row_ids_b=torch.arange(first, stop) + step * GLOBAL_ROWS,
        columns=tuple(
            RaggedTokens.from_lists([stock[text] for text in column[first:stop]])
            for column in chosen
        ),
    )


def train_one_process(folder: Path, options: str) -> dict[str, Tensor]:
    columns, objective, views = OPTIONS[options]
    task = new_task(folder, objective, views).train()
    optimizer = torch.optim.SGD(task.parameters(), RATE)
    for step in range(STEPS):
        optimizer.zero_grad()
        task(rows_of(step, columns, 0, GLOBAL_ROWS)).loss.backward()
        torch.nn.utils.clip_grad_norm_(task.parameters(), 2.0)
        optimizer.step()
    return {name: parameter.detach() for name, parameter in task.named_parameters()}


def sgd(task: ContrastiveTask) -> torch.optim.Optimizer:
    return torch.optim.SGD(task.parameters(), RATE)


def adamw(task: ContrastiveTask) -> torch.optim.Optimizer:
    return torch.optim.AdamW(task.parameters(), RATE, eps=1e-3)


def build(
    task: ContrastiveTask,
    stage: int,
    make_optimizer: Callable[[ContrastiveTask], torch.optim.Optimizer] = sgd,
) -> Engine:
    optimizer = make_optimizer(task)
    if stage == 0:
        return DdpEngine(task, optimizer, max_gradient_norm=2.0)
    scale = ScaleConfig.model_validate({"zero_stage": stage, "persistence_threshold": 0})
    return ZeroEngine(task, optimizer, scale, max_gradient_norm=2.0)


def measure(rank: int, world: int, folder: Path, results: Path) -> None:
    """Largest difference from one process, by `Case`, in one process group."""
    found: dict[Case, float] = {}
    for options, stage, memory in CASES:
        columns, objective, views = OPTIONS[options]
        want = torch.load(results / f"{options}.pt")
        engine = build(new_task(folder, objective, views, MEMORY[memory]), stage)
        for step in range(STEPS):
            output = engine(own_rows(step, rank, columns))
            engine.backward(output.loss)
            engine.step(RATE)
        got = dict(engine.weights())
        assert got.keys() == want.keys()
        found[options, stage, memory] = max((got[n] - want[n]).abs().max().item() for n in want)
    torch.save(found, results / f"{rank}.pt")


@pytest.fixture(scope="module")
def differences(tmp_path_factory: pytest.TempPathFactory) -> list[dict[Case, float]]:
    """What `measure` found on each of two ranks."""
    folder = tmp_path_factory.mktemp("options")
    model = save_masked_language_model(folder / "bert", "bert")
    for options in OPTIONS:
        torch.save(train_one_process(model, options), folder / f"{options}.pt")
    run_on_ranks(measure, 2, folder, model, folder)
    return [torch.load(folder / f"{rank}.pt") for rank in range(2)]


@pytest.mark.parametrize("options", OPTIONS)
def test_the_reference_moves_every_kind_of_parameter(tmp_path: Path, options: str) -> None:
    _, objective, views = OPTIONS[options]
    model = save_masked_language_model(tmp_path / "bert", "bert")
    start = dict(new_task(model, objective, views).named_parameters())
    moved = train_one_process(model, options)
    for part in {name.partition(".")[0] for name in start}:
        names = [name for name in start if name.startswith(part)]
        assert max((moved[n] - start[n]).abs().max().item() for n in names) > 1e-4, part


@pytest.mark.parametrize("case", CASES, ids=str)
def test_options_under_an_engine_equal_one_process(
    differences: list[dict[Case, float]], case: Case
) -> None:
    for on_rank in differences:
        assert on_rank[case] < 1e-6


def check_continues(rank: int, world: int, model: Path, run: Path) -> None:
    """From a checkpoint of ZeRO-2 the next step is the same under DDP and ZeRO-3."""
    columns, objective, views = OPTIONS["everything"]
    settings = TrainRun(encoder=EncoderConfig(model=str(model)), objective=objective, views=views)

    def take_step(engine: Engine, number: int) -> None:
        engine.backward(engine(own_rows(number, rank, columns)).loss)
        engine.step(RATE)

    engine = build(new_task(model, objective, views), 2, adamw)
    take_step(engine, 0)
    name = checkpoint.checkpoint_name(1, "a")
    checkpoint.save(engine, run / name, progress=Progress(step=1), run=settings)
    take_step(engine, 1)
    want = dict(engine.weights())
    dist.barrier()
    for stage in (0, 3):
        loaded = checkpoint.load(RunFolder(run), name)
        task = new_task(model, objective, views)
        checkpoint.load_weights(task, loaded.weights)
        continued = build(task, stage, adamw)
        continued.restore_moments(loaded.moments, 1)
        take_step(continued, 1)
        for parameter, weight in continued.weights():
            torch.testing.assert_close(weight, want[parameter], rtol=0, atol=1e-6)


def test_a_checkpoint_with_every_option_goes_on_under_another_engine(tmp_path: Path) -> None:
    model = save_masked_language_model(tmp_path / "bert", "bert")
    (tmp_path / checkpoint.checkpoint_name(1, "a")).mkdir()
    run_on_ranks(check_continues, 2, tmp_path, model, tmp_path)
