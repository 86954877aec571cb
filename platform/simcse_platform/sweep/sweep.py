"""A sweep by Ray Tune: its trials, which of them go on, and what became of each."""

from __future__ import annotations

import json
import logging
import math
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any, Literal

import numpy as np
from ray import tune
from ray.tune.experiment import Trial
from ray.tune.schedulers import AsyncHyperBandScheduler, FIFOScheduler, TrialScheduler
from ray.tune.search import Searcher

from simcse.errors import UsageError
from simcse_platform import run as recorded
from simcse_platform import runtime
from simcse_platform.config import TrainRun
from simcse_platform.runtime import Resources
from simcse_platform.sweep.concurrency import concurrency, share_cores
from simcse_platform.sweep.leftovers import Leftovers
from simcse_platform.sweep.space import Choice, Dimension, Space, grid
from simcse_platform.sweep.trial import POINT, ROWS, SCORE, TrialSetup, run_trial

Sampler = Literal["grid", "random", "optuna", "listed"]
TUNE_FOLDER = "tune"
SEED = "seed"
"""The setting that repeats a run."""
_DRIVER = {"CPU": 0.0, "memory": 1.0}
"""What a trial takes beside its workers: a byte, since Ray Tune refuses to take nothing, and any
share of a CPU would be missing where Ray Data needs a whole one."""
_TRIAL_ID = re.compile(r"run_trial_([0-9a-f]+(?:_\d{5})?)_\d+_")
"""In the name of a trial's folder; searches give ids without a number at the end."""
_REDUCTION = 3
"""Of the trials that come as far, one in so many goes on (ASHA; Li et al. 2020)."""


@dataclass(frozen=True, kw_only=True)
class SearchPlan:
    """How the points of a space are chosen and which trials may end early."""

    sampler: Sampler
    trials: int | None = None
    """Points that are drawn; None for a grid, which has as many as it has."""
    points: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Of the sampler `listed`, which takes these and no space: settings by what they are called."""
    seeds: int = 1
    """Runs at each point, with the base's seed and those that follow it."""
    seed: int = 0
    """Of the draws."""
    stops_early: bool = False
    """ASHA: a trial that is behind others at the same number of rows is stopped."""
    concurrent: int | None = None
    """Trials at a time; None takes as many as the cluster holds."""


@dataclass(frozen=True, kw_only=True)
class TrialResult:
    """What became of a trial."""

    name: str
    assignments: Mapping[str, str]
    status: Literal["finished", "stopped early", "failed"]
    reason: str = ""
    """Why it failed."""
    rows: int = 0
    score: float | None = None
    """Best mean dev score, or the last one of a trial that was stopped."""
    scores: Mapping[str, float] | None = None
    """Dev scores of the best step."""
    run_id: str | None = None

    def __post_init__(self) -> None:
        if self.status == "finished" and self.score is None:
            raise ValueError(f"trial {self.name} finished without a score")


def run_trials(
    setup: TrialSetup,
    plan: SearchPlan,
    resources: Resources,
    *,
    say: Callable[[str], None],
) -> list[TrialResult]:
    """All trials, each to its end; those that finished in an earlier start of the sweep do not run.

    Ray must be connected. A trial that fails is a result with its reason. `say` gets a line for
    every dev score and every end; it is pickled.
    """
    _quiet_tune()
    at_once = concurrency(setup.base, resources, plan.concurrent)
    setup = replace(setup, base=share_cores(setup.base, resources, at_once), at_once=at_once)
    trainable = tune.with_resources(tune.with_parameters(run_trial, setup=setup), _DRIVER)
    path = setup.sweep.path / TUNE_FOLDER
    points = None
    if plan.sampler != "optuna":
        points = list(_repeated(_points(setup.space, plan), setup.base.seed, plan.seeds))
    param_space = {} if points is None else {POINT: tune.grid_search(points)}
    total = (plan.trials or 1) if points is None else len(points)
    if _can_restore(path):
        # What failed may have failed for a reason that is gone.
        tuner = tune.Tuner.restore(
            str(path), trainable, param_space=param_space, resume_errored=True
        )
    else:
        tuner = tune.Tuner(
            trainable,
            param_space=param_space,
            tune_config=tune.TuneConfig(
                metric=SCORE,
                mode="max",
                num_samples=1 if points is not None else total,
                search_alg=_search(setup.space, plan),
                scheduler=_scheduler(setup.base, plan),
                max_concurrent_trials=at_once,
            ),
            run_config=tune.RunConfig(
                name=TUNE_FOLDER,
                storage_path=str(setup.sweep.path),
                verbose=0,
                callbacks=[_Narrator(say, plan.points, total), Leftovers(setup)],
            ),
        )
    results = tuner.fit()
    return [_result(setup, results[place]) for place in range(len(results))]


def _can_restore(path: Path) -> bool:
    """Whether Tune kept the state of the trials; from one that is cut off it would start anew."""
    for state in sorted(path.glob("experiment_state-*.json"), reverse=True):
        try:
            json.loads(state.read_text(encoding="utf-8"))
        except ValueError:
            state.unlink()
        else:
            return bool(tune.Tuner.can_restore(str(path)))
    return False


class _Narrator(tune.Callback):
    """Says how trials go on."""

    def __init__(
        self,
        say: Callable[[str], None],
        points: Mapping[str, Mapping[str, str]],
        total: int,
    ) -> None:
        self._say = say
        self._total = total
        self._names = {_key(point): name for name, point in points.items()}

    def on_trial_result(
        self, iteration: int, trials: list[Trial], trial: Trial, result: dict[str, Any], **info: Any
    ) -> None:
        self._say(f"{self._name(trial)}: {result[ROWS]} rows, dev score {result[SCORE]:.2f}")

    def on_trial_complete(
        self, iteration: int, trials: list[Trial], trial: Trial, **info: Any
    ) -> None:
        self._say(f"{self._name(trial)}: ended, {self._ended(trials, trial)}")

    def on_trial_error(
        self, iteration: int, trials: list[Trial], trial: Trial, **info: Any
    ) -> None:
        self._say(f"{self._name(trial)}: failed, {self._ended(trials, trial)}")

    def _ended(self, trials: Sequence[Trial], last: Trial) -> str:
        # Tune marks a trial as finished after it says so, and makes trials as they are due.
        ended = sum(trial is last or trial.is_finished() for trial in trials)
        return f"{ended} of {self._total} trials so far"

    def _name(self, trial: Trial) -> str:
        point = dict(trial.config.get(POINT) or {})
        seed = {SEED: point.pop(SEED)} if self._names and SEED in point else {}
        name = self._names.get(_key(point))
        shown = [name] if name is not None else []
        settings = seed if name is not None else point | seed
        return ", ".join([*shown, *(f"{path}={value}" for path, value in settings.items())])


def _key(point: Mapping[str, Any]) -> str:
    return json.dumps(point, sort_keys=True)


def _quiet_tune() -> None:
    """Tune as it is used here."""
    # Otherwise it draws boxes, whatever it is told.
    os.environ.setdefault("RAY_AIR_NEW_OUTPUT", "0")
    # Otherwise Ctrl-C ends it as if all trials had ended.
    os.environ.setdefault("TUNE_DISABLE_SIGINT_HANDLER", "1")
    # It prints the traceback of every trial that fails; the reason is in our table.
    logging.getLogger("ray.tune").setLevel(logging.CRITICAL)


def draw(space: Space, trials: int, seed: int) -> list[dict[str, str]]:
    """So many different points, as text; a function of the seed.

    Raises `UsageError` when the space has fewer.
    """
    random, found = np.random.default_rng(seed), dict[str, dict[str, str]]()
    for _ in range(100 * trials):
        point = {path: _drawn(dimension, random) for path, dimension in space.items()}
        found.setdefault(json.dumps(point), point)
        if len(found) == trials:
            return list(found.values())
    raise UsageError(
        f"--trials is {trials}, but the space has about {len(found)} points: lower it, or leave it "
        "out for all of them"
    )


def _drawn(dimension: Dimension, random: np.random.Generator) -> Any:
    if isinstance(dimension, Choice):
        return str(random.choice(dimension.values))
    low, high = dimension.low, dimension.high
    match dimension.kind:
        case "uniform":
            return float(random.uniform(low, high))
        case "loguniform":
            return float(np.exp(random.uniform(np.log(low), np.log(high))))
        case "integer":
            return int(random.integers(int(low), int(high), endpoint=True))


def _points(space: Space, plan: SearchPlan) -> Iterable[Mapping[str, Any]]:
    if plan.sampler == "listed":
        return plan.points.values()
    if plan.sampler == "grid":
        return grid(space)
    return draw(space, plan.trials or 1, plan.seed)


def _repeated(
    points: Iterable[Mapping[str, Any]], first_seed: int, seeds: int
) -> Iterator[Mapping[str, Any]]:
    if seeds == 1:
        yield from points
        return
    for point, repeat in product(points, range(seeds)):
        yield {**point, SEED: str(first_seed + repeat)}


def _search(space: Space, plan: SearchPlan) -> Searcher | None:
    if plan.sampler != "optuna":
        # Tune's own, which goes through the points as they stand.
        return None
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    from ray.tune.search.optuna import OptunaSearch

    def distribution(dimension: Dimension) -> Any:
        if isinstance(dimension, Choice):
            return optuna.distributions.CategoricalDistribution(dimension.values)
        if dimension.kind == "integer":
            return optuna.distributions.IntDistribution(int(dimension.low), int(dimension.high))
        return optuna.distributions.FloatDistribution(
            dimension.low, dimension.high, log=dimension.kind == "loguniform"
        )

    return OptunaSearch(
        {f"{POINT}/{path}": distribution(dimension) for path, dimension in space.items()},
        metric=SCORE,
        mode="max",
        sampler=optuna.samplers.TPESampler(seed=plan.seed),
    )


def _scheduler(base: TrainRun, plan: SearchPlan) -> TrialScheduler:
    if not plan.stops_early:
        return FIFOScheduler()
    every = base.dev.every * base.global_batch_size
    return AsyncHyperBandScheduler(
        time_attr=ROWS,
        max_t=2**62,
        grace_period=every,
        reduction_factor=_REDUCTION,
    )


def _result(setup: TrialSetup, result: tune.Result) -> TrialResult:
    assignments = setup.assignments((result.config or {})[POINT])
    metrics = result.metrics or {}
    folder = setup.folder(assignments, _trial_id(result))
    summary_file = folder.path / recorded.SUMMARY_FILE
    if summary_file.exists():
        summary = json.loads(summary_file.read_text(encoding="utf-8"))
        scores = summary["best"]["scores"]
        return TrialResult(
            name=folder.name,
            assignments=assignments,
            status="finished",
            rows=summary["rows"],
            score=sum(scores.values()) / len(scores),
            scores=scores,
            run_id=summary["run_id"],
        )
    if result.error is not None:
        known = runtime.cause(result.error)
        lines = str(known or result.error).strip().splitlines()
        return TrialResult(
            name=folder.name,
            assignments=assignments,
            status="failed",
            reason=lines[-1] if lines else type(result.error).__name__,
        )
    return TrialResult(
        name=folder.name,
        assignments=assignments,
        status="stopped early",
        rows=int(metrics.get(ROWS, 0)),
        score=metrics.get(SCORE),
    )


def _trial_id(result: tune.Result) -> str:
    """As Tune puts it into the name of the trial's folder, which a failed one has too."""
    match = _TRIAL_ID.match(Path(result.path or "").name)
    assert match is not None, result.path
    return match[1]


def in_order(results: Sequence[TrialResult]) -> list[TrialResult]:
    """The best first, those without a score last."""

    def place(result: TrialResult) -> tuple[float, str]:
        return math.inf if result.score is None else -result.score, result.name

    return sorted(results, key=place)


def table(results: Sequence[TrialResult]) -> list[dict[str, Any]]:
    """A row a trial, in order, for JSON and for a tracker."""
    return [asdict(result) for result in in_order(results)]
