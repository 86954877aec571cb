"""The training loop. It sees an engine, batches and a reporter, and runs without Ray in a test."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from pydantic import JsonValue
from torch import Tensor

from simcse.batch import Batch
from simcse.config import OptimConfig
from simcse.errors import ModelError
from simcse.optim import learning_rate
from simcse.tokens import RaggedTokens
from simcse_platform.config import TrainRun, shown
from simcse_platform.errors import TrainingError
from simcse_platform.storage import scratch_folder, written
from simcse_platform.training import checkpoint
from simcse_platform.training.checkpoint import Best, Progress
from simcse_platform.training.dev import DevEvaluation, DevScores
from simcse_platform.training.engine import Engine, rank_and_world
from simcse_platform.training.memory import check_memory
from simcse_platform.training.meter import Meter, Step

DEV_SCORE = "dev_score"
"""Name of the mean dev score, by which models and trials are chosen, among the measurements."""
SCORED = "dev.json"
"""In the folder of the best model: a `Best`."""


class Reporter(Protocol):
    """Where a loop's results go."""

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Record measurements; called on rank 0."""

    def save_checkpoint(self, name: str, folder: Path) -> None:
        """Keep this rank's files of checkpoint `name`; called on every rank at once."""

    def save_best(self, folder: Path) -> None:
        """Keep the best model so far; called on rank 0."""


def train(
    engine: Engine,
    batches: Iterator[Batch],
    dev: DevEvaluation,
    reporter: Reporter,
    run: TrainRun,
    *,
    total_steps: int,
    progress: Progress,
    published: Best | None = None,
    attempt: str,
    lineage: Mapping[str, JsonValue],
) -> Progress:
    """Train from `progress.step` to `total_steps`, or until the dev score stops rising.

    `batches` starts at step `progress.step`. Dropout is seeded by position, (seed, step, rank), so
    a run continued from a checkpoint is the run that was never stopped. `published` is what an
    attempt before this one has kept as the best model; a worse one does not take its place.
    Raises `TrainingError` when the first step would not fit into memory, gradients are no longer
    finite or the encoder has collapsed.
    """
    keeper = _Keeper(engine, dev, reporter, run, attempt, lineage, published)
    meter = Meter(positives=run.objective.positives)
    updates = _Updates(engine, run.optim, total_steps, progress)
    (rank, world), first_step = rank_and_world(), progress.step
    together: list[Step] = []
    if dev and progress.step == 0:
        progress.dev_before = keeper.evaluate(progress)
    while progress.step < total_steps and not keeper.out_of_patience(progress):
        start = time.perf_counter()
        batch = next(batches)
        waited = time.perf_counter() - start
        if batch.step == first_step:
            check_memory(engine.task, batch, run, world, resumed=first_step > 0)

        torch.manual_seed(_position_seed(run.seed, batch.step, rank))
        output = engine(batch)
        norm = updates.add(batch.step, output.loss)
        progress.step += 1
        seconds = time.perf_counter() - start
        together.append(Step(batch, output, waited, seconds))
        if norm is not None:
            # Batches whose update was left out have taught nothing and are not counted.
            if math.isfinite(norm):
                meter.add(together, norm)
            together = []

        ends = progress.step == total_steps
        if dev and (ends or progress.step % run.dev.every == 0):
            progress.dev = keeper.evaluate(progress)
            ends = ends or keeper.out_of_patience(progress)
        saves = ends or progress.step % run.checkpoint.every == 0
        # A checkpoint holds the sums up to its step, so reading them there makes a record too.
        if saves or progress.step % run.tracking.log_every == 0:
            measured = meter.read(progress)
            keeper.log(progress, {**measured, "learning_rate": updates.learning_rate})
        if saves:
            keeper.save_checkpoint(progress)
    if not progress.updates(run.optim.accumulated_batches):
        raise TrainingError(
            f"none of {progress.step} steps had a finite gradient: lower optim.learning_rate or "
            "raise objective.temperature"
        )
    if not dev:
        keeper.refuse_divergence(progress)
        keeper.save_best(progress)
    progress.best = keeper.published or progress.best
    return progress


class _Updates:
    """Optimiser updates, each by the mean gradient of `accumulated_batches` global batches.

    The last of a run may be of fewer. The learning rate is that of the update, not of the batch.
    """

    def __init__(
        self, engine: Engine, config: OptimConfig, total_steps: int, progress: Progress
    ) -> None:
        self._engine = engine
        self._config = config
        self._total_steps = total_steps
        self._progress = progress
        self.learning_rate = config.learning_rate
        """Of the update that was made last."""

    def add(self, step: int, loss: Tensor) -> float | None:
        """Add a batch's gradient, and update if it is the last of its update.

        Returns the gradient's norm before clipping if it was; one that is not finite means that the
        update was skipped. Raises `TrainingError` after more of those in a row than are allowed.
        """
        size = self._config.accumulated_batches
        number, place = divmod(step, size)
        batches = min(size, self._total_steps - number * size)
        self._engine.backward(loss / batches)
        if place + 1 < batches:
            return None
        total_updates = -(-self._total_steps // size)
        self.learning_rate = learning_rate(number, total_updates, self._config)
        norm = self._engine.step(self.learning_rate)
        done = self._progress
        if math.isfinite(norm):
            done.skipped_in_a_row = 0
            return norm
        done.skipped_updates += 1
        done.skipped_in_a_row += 1
        if done.skipped_in_a_row > self._config.max_skipped_updates:
            raise TrainingError(
                f"the gradient of step {step} is not finite, for the {done.skipped_in_a_row}. "
                "update in a row: lower optim.learning_rate or raise objective.temperature"
                f"{_what_is_kept(done.best)}"
            )
        return norm


@dataclass
class _Keeper:
    """What happens between steps: scoring, keeping the best model, checkpoints."""

    engine: Engine
    dev: DevEvaluation
    reporter: Reporter
    run: TrainRun
    attempt: str
    lineage: Mapping[str, JsonValue]
    published: Best | None
    """The best model that is kept. After a restart it may be of a step that is yet to come again,
    whose score is then not always the same: on a GPU, or by another number of workers."""

    def log(self, progress: Progress, values: Mapping[str, float]) -> None:
        if rank_and_world()[0] == 0:
            with written(f"the record of step {progress.step}"):
                self.reporter.log(progress.step, values)

    def evaluate(self, progress: Progress) -> dict[str, float]:
        """Score the dev sets, and keep the model if none before was better. Collective."""
        try:
            found = self.dev.score(self.engine)
        except ModelError as error:
            raise self._diverged(progress) from error
        self.log(progress, {**found.headlines, **found.geometry, DEV_SCORE: found.mean})
        self._refuse_collapse(progress, found)
        gains = progress.best is None or found.mean > progress.best.score
        progress.evaluations_without_gain = 0 if gains else progress.evaluations_without_gain + 1
        publishes = self.published is None or found.mean > self.published.score
        if gains or publishes:
            scored = Best(
                step=progress.step,
                score=found.mean,
                scores=found.headlines,
                geometry=self.dev.geometry(),
            )
            progress.best = scored if gains else progress.best
            self.published = scored if publishes else self.published
        if publishes:
            self.save_best(progress)
        return found.headlines

    def refuse_divergence(self, progress: Progress) -> None:
        """Raises `TrainingError` where vectors are not finite, which no dev set has shown."""
        if not self.engine.embed(RaggedTokens.from_lists([[0]])).isfinite().all():
            raise self._diverged(progress)

    def _diverged(self, progress: Progress) -> TrainingError:
        return TrainingError(
            f"the encoder has diverged by step {progress.step} (its vectors are not finite): "
            "lower optim.learning_rate or raise objective.temperature"
            f"{_what_is_kept(self.published)}"
        )

    def _refuse_collapse(self, progress: Progress, found: DevScores) -> None:
        if progress.step == 0:
            # An encoder that has not been trained yet may well lie beyond.
            return
        lowest, highest = self.run.dev.lowest_score, self.run.dev.highest_uniformity
        if lowest is not None and found.mean < lowest:
            what = f"its dev score is {found.mean:.2f}, below dev.lowest_score={lowest:g}"
        elif highest is not None and found.uniformity > highest:
            what = f"uniformity is {found.uniformity:.4g}, above dev.highest_uniformity={highest:g}"
        else:
            return
        raise TrainingError(
            f"the encoder has collapsed at step {progress.step}: {what}; lower "
            "optim.learning_rate, or see whether objective and data fit"
            f"{_what_is_kept(self.published)}"
        )

    def out_of_patience(self, progress: Progress) -> bool:
        patience = self.run.dev.patience
        return patience is not None and progress.evaluations_without_gain >= patience

    def save_best(self, progress: Progress) -> None:
        """Hand the whole model to the reporter. Collective, since ZeRO gathers the weights."""
        first = rank_and_world()[0] == 0
        weights = {name: weight for name, weight in self.engine.weights() if first}
        if not first:
            return
        with written("the best model"), scratch_folder() as scratch:
            folder = scratch / "model"
            self.engine.task.encoder.save(
                folder,
                state_dict={
                    name.removeprefix("encoder."): weight
                    for name, weight in weights.items()
                    if name.startswith("encoder.")
                },
                lineage={**self.lineage, "step": progress.step},
                scores=self.published.scores if self.published else {},
            )
            if self.published:
                (folder / SCORED).write_text(self.published.model_dump_json(), encoding="utf-8")
            self.reporter.save_best(folder)

    def save_checkpoint(self, progress: Progress) -> None:
        """Hand this rank's part of a checkpoint to the reporter. Collective."""
        with written("a checkpoint"), scratch_folder() as scratch:
            checkpoint.save(self.engine, scratch, progress=progress, run=shown(self.run))
            name = checkpoint.checkpoint_name(progress.step, self.attempt)
            self.reporter.save_checkpoint(name, scratch)


def _what_is_kept(best: Best | None) -> str:
    return f"; the best model, of step {best.step}, is kept" if best else ""


def _position_seed(seed: int, step: int, rank: int) -> int:
    """A generator seed that is a function of position alone and differs between positions."""
    return int(np.random.SeedSequence((seed, step, rank)).generate_state(1, np.uint64)[0] >> 1)
