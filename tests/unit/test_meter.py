"""Measurements of steps, worked out by hand."""

from __future__ import annotations

import weakref
from typing import Any

import pytest
import torch
from torch import Tensor

from simcse.batch import Batch
from simcse.objective import TaskOutput
from simcse.tokens import RaggedTokens
from simcse_platform.training.checkpoint import Progress
from simcse_platform.training.meter import Meter, Step


def step(meter: Meter, *, rows: int, columns: int, output: TaskOutput) -> None:
    column = RaggedTokens.from_lists([[1]] * rows)
    batch = Batch(0, 0, rows, torch.arange(rows), (column,) * columns)
    meter.add([Step(batch, output, 0.5, 2.0)], float(rows))


def output(
    loss: float, correct: int, distance: float, tokens: int, positions: int, **parts: float
) -> TaskOutput:
    return TaskOutput(
        torch.tensor(loss),
        torch.tensor(correct),
        torch.tensor(distance),
        tokens,
        positions,
        {name: torch.tensor(part) for name, part in parts.items()},
    )


def test_means_are_over_steps_for_losses_and_over_rows_for_rows() -> None:
    meter, progress = Meter(), Progress()
    step(meter, rows=6, columns=2, output=output(1.0, 3, 3.0, 60, 80))
    step(meter, rows=2, columns=2, output=output(2.0, 1, 1.0, 20, 20))
    assert meter.read(progress) == pytest.approx(
        {
            "loss": 1.5,
            "in_batch_accuracy": 0.5,
            "alignment": 0.5,
            "gradient_norm": 4.0,
            "negatives_per_anchor": 3.0,
            "rows_per_s": 2.0,
            "tokens_per_s": 20.0,
            "padding_efficiency": 0.8,
            "data_stall_share": 0.25,
        }
    )


def test_sums_are_kept_in_progress_over_reads() -> None:
    meter, progress = Meter(), Progress()
    for _ in range(3):
        step(meter, rows=6, columns=1, output=output(1.0, 3, 3.0, 60, 80))
        meter.read(progress)
    assert (progress.rows, progress.tokens, progress.positions) == (18, 180, 240)
    assert (progress.seconds, progress.stalled_seconds) == (6.0, 1.5)


def test_a_read_starts_anew_and_without_steps_gives_nothing() -> None:
    meter, progress = Meter(), Progress()
    step(meter, rows=6, columns=1, output=output(9.0, 0, 3.0, 60, 80))
    meter.read(progress)
    assert meter.read(progress) == {}
    step(meter, rows=4, columns=1, output=output(1.0, 4, 3.0, 60, 80))
    measured = meter.read(progress)
    assert (measured["loss"], measured["in_batch_accuracy"]) == (1.0, 1.0)


@pytest.mark.parametrize(("columns", "negatives"), [(1, 7), (2, 7), (3, 15), (4, 23)])
def test_hard_negatives_count_as_negatives_of_every_anchor(columns: int, negatives: int) -> None:
    meter = Meter()
    step(meter, rows=8, columns=columns, output=output(1.0, 3, 3.0, 60, 80))
    assert meter.read(Progress())["negatives_per_anchor"] == negatives


def test_the_graph_of_a_step_is_let_go() -> None:
    class Square(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            alive.add(ctx)
            return x * x

    alive: weakref.WeakSet[Any] = weakref.WeakSet()
    meter = Meter()
    loss = Square.apply(torch.tensor(3.0, requires_grad=True))
    step(meter, rows=2, columns=1, output=output(1.0, 1, 1.0, 2, 2)._replace(loss=loss))
    assert len(alive) == 1
    del loss
    assert len(alive) == 0
    assert meter.read(Progress())["loss"] == 9.0


def test_what_options_add_is_the_mean_over_steps() -> None:
    meter = Meter(positives=2)
    step(meter, rows=4, columns=4, output=output(1.0, 3, 3.0, 60, 80, temperature=0.05))
    step(meter, rows=4, columns=4, output=output(1.0, 3, 3.0, 60, 80, temperature=0.03))
    measured = meter.read(Progress())
    assert measured["temperature"] == pytest.approx(0.04)
    # Of 12 keys two are the anchor's own positives.
    assert measured["negatives_per_anchor"] == 10
