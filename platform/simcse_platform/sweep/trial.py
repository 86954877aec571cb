"""One trial: what Ray Tune calls in an actor of its own, which there drives a training run."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from ray import tune

from simcse.evaluation import EvaluationSet
from simcse_platform import run as recorded
from simcse_platform import runtime
from simcse_platform.config import TrainRun
from simcse_platform.storage import RunFolder
from simcse_platform.sweep.concurrency import permit
from simcse_platform.sweep.space import Range, Space, as_text, trial_name, trial_run
from simcse_platform.training.loop import DEV_SCORE
from simcse_platform.training.supervision import Show

logger = logging.getLogger(__name__)

ROWS, SCORE, POINT = "rows", "score", "point"
"""What a trial reports: rows seen and the mean dev score then; and where its point of the space
lies in what Tune gives it."""

TRACKING_PATIENCE_S = 600.0
"""Seconds that a tracking server may be away before a trial fails for it: a run of its own would be
started again, but Tune keeps a trial that failed."""


@dataclass(frozen=True)
class TrialSetup:
    """What every trial of a sweep knows."""

    base: TrainRun
    space: Space
    sweep: RunFolder
    dev_sets: Sequence[EvaluationSet]
    parent_run_id: str
    suggested: bool
    """Whether points come one after another from a search that may repeat itself."""
    at_once: int = 1
    """Trials that may run at a time."""

    def assignments(self, point: Mapping[str, Any]) -> dict[str, str]:
        """A point of the space as `--set` has it."""
        found = {}
        for path, value in point.items():
            dimension = self.space.get(path)
            found[path] = as_text(dimension, value) if isinstance(dimension, Range) else str(value)
        return found

    def folder(self, assignments: Mapping[str, str], trial_id: str) -> RunFolder:
        """Of the run of a trial, beside that of the sweep."""
        name = trial_name(self.sweep.name, assignments)
        name = f"{name}-{trial_id}" if self.suggested else name
        return RunFolder(self.sweep.path.parent / name)


def run_trial(config: Mapping[str, Any], setup: TrialSetup) -> None:
    """Train at one point of the space, or go on there, and report each dev score to Tune."""
    assignments = setup.assignments(config[POINT])
    run = trial_run(setup.base, assignments)
    folder = setup.folder(assignments, tune.get_context().get_trial_id())
    recorded.check_claim(folder, run)

    @contextmanager
    def watch(total_steps: int) -> Iterator[Show]:
        def show(step: int, measured: Mapping[str, float]) -> None:
            # Of the last step only when all is saved: what Tune hears of, it may stop.
            if DEV_SCORE in measured and step < total_steps:
                report(step * run.global_batch_size, measured[DEV_SCORE])

        yield show

    with permit(setup.sweep.name, setup.at_once):
        finished = recorded.execute(
            run,
            folder,
            setup.dev_sets,
            resources=runtime.cluster_resources(),
            say=logger.info,
            watch=watch,
            parent_run_id=setup.parent_run_id,
            patience_s=TRACKING_PATIENCE_S,
        )
    best = finished.summary["best"]["scores"]
    report(finished.summary["rows"], sum(best.values()) / len(best))


def report(rows: int, score: float) -> None:
    """To Tune, whose schedulers compare trials at the same number of rows."""
    tune.report({ROWS: rows, SCORE: score})
