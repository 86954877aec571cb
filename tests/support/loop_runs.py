"""The training loop in one process: short settings, scripted dev scores, no Ray."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from simcse.batch import Batch
from simcse_platform.config import TrainRun
from simcse_platform.training import loop
from simcse_platform.training.checkpoint import Best, Progress
from simcse_platform.training.dev import DevScores
from simcse_platform.training.engine import DdpEngine
from support.training import Recorder, ddp_engine, make_batches, make_task


def settings(model: Path, *, dropout: float | None = None, **sections: Any) -> TrainRun:
    """Batches of 8, everything logged; one section a keyword, as in a file."""
    return TrainRun.model_validate(
        {
            "encoder": {"model": str(model), "dropout": dropout, "length_buckets": 3},
            "optim": {"learning_rate": 1e-3},
            "tracking": {"log_every": 1},
            "global_batch_size": 8,
            **sections,
        }
    )


class ScriptedDev:
    """Dev scores set beforehand, in place of a `DevEvaluation`; none means no dev set."""

    def __init__(self, scores: Sequence[float] = ()) -> None:
        self._scores = list(scores)
        self._any = bool(scores)

    def __bool__(self) -> bool:
        return self._any

    def score(self, engine: object) -> DevScores:
        return DevScores({"dev_scripted": self._scores.pop(0)}, {"dev_uniformity": -1.0})

    def geometry(self) -> None:
        """These scores have no vectors."""


def train(
    run: TrainRun,
    reporter: Recorder,
    *,
    total_steps: int,
    engine: DdpEngine | None = None,
    progress: Progress | None = None,
    dev: Any = None,
    columns: int = 2,
    batches: Iterator[Batch] | None = None,
    published: Best | None = None,
) -> Progress:
    progress = progress or Progress()
    return loop.train(
        engine or ddp_engine(make_task(run), run),
        batches or make_batches(run, range(progress.step, total_steps), columns=columns),
        dev or ScriptedDev(),
        reporter,
        run,
        total_steps=total_steps,
        progress=progress,
        published=published,
        attempt="first",
        lineage={"corpus": "tiny"},
    )
