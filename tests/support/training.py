"""The training loop without Ray: batches that are a function of the step, and a reporter."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch

from simcse.batch import Batch
from simcse.objective import ContrastiveTask, build_task
from simcse.optim import build_optimizer
from simcse.tokens import RaggedTokens
from simcse_platform.config import TrainRun
from simcse_platform.ingest.plan import rank_rows
from simcse_platform.ingest.window import NO_STEP, WindowPlan, to_batch
from simcse_platform.storage import RunFolder
from simcse_platform.training.engine import DdpEngine, rank_and_world
from simcse_platform.training.engines import build_engine
from simcse_platform.training.memory import step_memory
from support.peak_memory import PeakMemory

TIMES = {"rows_per_s", "tokens_per_s", "data_stall_share"}
"""Measurements that differ between equal runs."""


def make_task(run: TrainRun) -> ContrastiveTask:
    return build_task(run.encoder, run.objective, run.views, seed=run.seed)


def ddp_engine(task: ContrastiveTask, run: TrainRun) -> DdpEngine:
    norm = run.optim.max_gradient_norm
    return DdpEngine(task, build_optimizer(task, run.optim), max_gradient_norm=norm)


def make_batches(
    run: TrainRun, steps: range, *, columns: int, rank: int = 0, world: int = 1
) -> Iterator[Batch]:
    """A rank's share of the global batches of these steps, of random tokens."""
    rows = run.global_batch_size
    own = range(*rank_rows(rows, rank, world))
    for step in steps:
        generator = torch.Generator().manual_seed(step)
        lengths = torch.randint(3, 12, (columns, rows), generator=generator)
        ids = torch.randint(5, 90, (columns, rows, 12), generator=generator)
        yield Batch(
            epoch=0,
            step=step,
            global_rows=rows,
            row_ids_b=torch.tensor(own) + step * rows,
            columns=tuple(
                RaggedTokens.from_lists([ids[c, row, : lengths[c, row]].tolist() for row in own])
                for c in range(columns)
            ),
        )


def planned_batches(plan: WindowPlan) -> Iterator[Batch]:
    """This rank's slices of all windows of a run, read without Ray."""
    rank, world = rank_and_world()
    for number in range(plan.order.window_of(plan.total_steps - 1) + 1):
        table = plan.read(number, world)
        for i in range(len(table)):
            row = {name: table[name][i] for name in table.column_names}
            if row["rank"].as_py() == rank and row["step"].as_py() != NO_STEP:
                yield to_batch(row, plan.num_columns)


class Recorder:
    """A `Reporter` that keeps everything: files in a run folder, the rest in lists."""

    def __init__(self, folder: Path) -> None:
        self.folder = RunFolder(folder)
        self.logged: list[tuple[int, dict[str, float]]] = []
        self.checkpoints: list[str] = []
        self.times_best_was_saved = 0

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self.logged.append((step, dict(values)))

    def save_checkpoint(self, name: str, folder: Path) -> None:
        self.checkpoints.append(name)
        shutil.copytree(folder, self.folder.path / name, dirs_exist_ok=True)

    def save_best(self, folder: Path) -> None:
        self.times_best_was_saved += 1
        self.folder.publish(folder, "best")

    def series(self, name: str) -> dict[int, float]:
        """The values of one measurement by step."""
        return {step: values[name] for step, values in self.logged if name in values}


def estimated_and_measured(run: TrainRun) -> tuple[float, float]:
    """Bytes that one step of three columns is said to take, and how far memory grows in it."""
    task = build_task(run.encoder, run.objective, run.views, seed=1, memory=run.memory)
    engine = build_engine(task, run)
    [batch] = make_batches(run, range(1), columns=3)
    estimate = step_memory(task, batch, run, world=1).total
    with PeakMemory() as peak:
        engine.backward(engine(batch).loss)
        engine.step(1e-5)
    return estimate, 2**20 * peak.above_start_mb
