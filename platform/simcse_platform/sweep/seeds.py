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
    """Trials that differ in their seed alone, of which some finished."""

    assignments: Mapping[str, str]
    """Without the seed."""
    trials: tuple[TrialResult, ...]
    """Those that finished, the best first."""
    begun: int
    """All of them."""
    score: Spread
    """Of the mean dev score, which is what is selected by."""
    scores: Mapping[str, Spread]
    """Of each dev score."""

    @property
    def count(self) -> str:
        """How many seeds the figures are of, and of how many where some did not finish."""
        finished = len(self.trials)
        return str(finished) if finished == self.begun else f"{finished} of {self.begun}"


def over_seeds(results: Sequence[TrialResult]) -> list[Repeated]:
    """Trials by their settings without the seed, the best mean first.

    Settings of which a seed did not finish come last: the mean of those that did is no match for
    that of all.
    """

    def settings(result: TrialResult) -> list[tuple[str, str]]:
        return sorted((k, v) for k, v in result.assignments.items() if k != SEED)

    found = []
    for key, group in groupby(sorted(results, key=settings), key=settings):
        begun = list(group)
        finished = [trial for trial in begun if trial.status == "finished"]
        if not finished:
            continue
        trials = sorted(finished, key=lambda trial: -_known(trial.score))
        names = trials[0].scores or {}
        found.append(
            Repeated(
                assignments=dict(key),
                trials=tuple(trials),
                begun=len(begun),
                score=Spread.of([_known(trial.score) for trial in trials]),
                scores={n: Spread.of([(t.scores or {})[n] for t in trials]) for n in names},
            )
        )
    return sorted(found, key=lambda one: (len(one.trials) < one.begun, -one.score.mean))


def _known(score: float | None) -> float:
    assert score is not None
    return score
