"""What repeated seeds say: one seed of the original varies by points (Gao et al. 2021, table B)."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from simcse_platform.sweep.sweep import SEED, TrialResult


@dataclass(frozen=True, kw_only=True)
class Spread:
    """Of one score over seeds."""

    mean: float
    deviation: float | None
    """Sample standard deviation; None for one seed."""
    minimum: float
    maximum: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Of at least one value."""
        return cls(
            mean=statistics.fmean(values),
            deviation=statistics.stdev(values) if len(values) > 1 else None,
            minimum=min(values),
            maximum=max(values),
        )


@dataclass(frozen=True, kw_only=True)
class Repeated:
    """Finished trials that differ in their seed alone."""

    assignments: Mapping[str, str]
    """Without the seed."""
    trials: tuple[TrialResult, ...]
    """The best first."""
    score: Spread
    """Of the mean dev score, which is what is selected by."""
    scores: Mapping[str, Spread]
    """Of each dev score."""


def over_seeds(results: Sequence[TrialResult]) -> list[Repeated]:
    """Finished trials by their settings without the seed, the best mean first."""

    def settings(result: TrialResult) -> list[tuple[str, str]]:
        return sorted((k, v) for k, v in result.assignments.items() if k != SEED)

    finished = [result for result in results if result.status == "finished"]
    found = []
    for key, group in groupby(sorted(finished, key=settings), key=settings):
        trials = sorted(group, key=lambda trial: -_known(trial.score))
        names = trials[0].scores or {}
        found.append(
            Repeated(
                assignments=dict(key),
                trials=tuple(trials),
                score=Spread.of([_known(trial.score) for trial in trials]),
                scores={n: Spread.of([(t.scores or {})[n] for t in trials]) for n in names},
            )
        )
    return sorted(found, key=lambda repeated: -repeated.score.mean)


def _known(score: float | None) -> float:
    assert score is not None
    return score
