"""Measurements of training steps, brought together over ranks when they are read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.distributed as dist

from simcse.batch import Batch
from simcse.objective import TaskOutput
from simcse_platform.training.checkpoint import Progress
from simcse_platform.training.engine import rank_and_world


class Step(NamedTuple):
    """One batch and what came of it."""

    batch: Batch
    output: TaskOutput
    waited: float
    """Seconds until the batch was there, part of `seconds`."""
    seconds: float


class Meter:
    """Sums over steps on this rank."""

    def __init__(self, *, positives: int = 1) -> None:
        self._positives = positives
        self._clear()

    def _clear(self) -> None:
        self._steps = self._updates = self._global_rows = self._keys = 0
        self._norm = self._waited = self._seconds = 0.0
        self._outputs: list[TaskOutput] = []

    def add(self, steps: Sequence[Step], norm: float) -> None:
        """The batches of one update, whose gradient had this norm."""
        self._updates += 1
        self._norm += norm
        for step in steps:
            self._steps += 1
            self._global_rows += step.batch.global_rows
            self._keys += step.batch.global_rows * max(1, len(step.batch.columns) - 1)
            self._waited += step.waited
            self._seconds += step.seconds
            # Detached, or the graph of every step since the last read would stay in memory.
            self._outputs.append(step.output._replace(loss=step.output.loss.detach()))

    def read(self, progress: Progress) -> dict[str, float]:
        """Means since the last read, by name; their sums go to `progress`. Collective.

        Times are the mean over ranks, which wait for each other in every step anyway.
        """
        if not self._steps:
            return {}
        world = rank_and_world()[1]
        names = sorted(self._outputs[0].parts)
        sums = torch.tensor(
            [
                sum(float(output.loss) for output in self._outputs),
                sum(float(output.correct) for output in self._outputs),
                sum(float(output.squared_distance) for output in self._outputs),
                sum(output.tokens for output in self._outputs),
                sum(output.positions for output in self._outputs),
                self._waited,
                self._seconds,
                *(sum(float(output.parts[name]) for output in self._outputs) for name in names),
            ],
            dtype=torch.float64,
            device=self._outputs[0].loss.device,
        )
        if world > 1:
            dist.all_reduce(sums)
        loss, correct, squared_distance, tokens, positions, waited, seconds, *parts = sums.tolist()
        progress.rows += self._global_rows
        progress.tokens += int(tokens)
        progress.positions += int(positions)
        progress.seconds += seconds / world
        progress.stalled_seconds += waited / world
        measured = {
            "loss": loss / world / self._steps,
            "in_batch_accuracy": correct / self._global_rows,
            "alignment": squared_distance / self._global_rows,
            "gradient_norm": self._norm / self._updates,
            "negatives_per_anchor": self._keys / self._steps - self._positives,
            "rows_per_s": self._global_rows / (seconds / world),
            "tokens_per_s": tokens / (seconds / world),
            "padding_efficiency": tokens / positions,
            "data_stall_share": waited / seconds,
            **{name: part / world / self._steps for name, part in zip(names, parts, strict=True)},
        }
        self._clear()
        return measured
