"""What a report tells: gathered from folders, the record and a scoring, and not rendered here."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pipelines import embedders, evaluate, evaluation_sets, settings
from simcse.errors import UsageError
from simcse.evaluation import Evaluation, LoadedSets, Mode
from simcse.evaluation.geometry import GeometryNumbers, describe, graded_pairs
from simcse.evaluation.neighbours import Example, nearest
from simcse.figures import History
from simcse.model_description import ModelDescription, read_description
from simcse_platform.config import TrainRun, load
from simcse_platform.errors import TrackingError
from simcse_platform.run import SETTINGS_FILE, SUMMARY_FILE
from simcse_platform.run_figures import ALIGNMENT, UNIFORMITY
from simcse_platform.storage import RunFolder
from simcse_platform.sweep import execute as sweeps
from simcse_platform.sweep.seeds import Repeated, over_seeds
from simcse_platform.tracking.champions import Standing, standing
from simcse_platform.tracking.location import tracking_uri
from simcse_platform.tracking.mlflow_reader import RecordedRun, metric_histories, read_run
from simcse_platform.tracking.mlflow_tracker import run_of
from simcse_platform.tracking.registry import fetch_model
from simcse_platform.training.worker import BEST

LOSS, GRADIENT_NORM, ROWS_PER_S = "loss", "gradient_norm", "rows_per_s"


@dataclass(frozen=True)
class Target:
    """What a report is about."""

    kind: Literal["run", "sweep", "model"]
    name: str
    """As the user wrote it."""
    folder: Path
    """Of the run, of the sweep, or of the model's files."""


@dataclass(frozen=True)
class Wanted:
    """What the options ask to be scored; None is for what the target says itself."""

    tasks: Sequence[str] | None = None
    data: Path | None = None
    tracking: str | None = None


@dataclass(frozen=True, kw_only=True)
class Scored:
    """A model on the sets that it was scored on for its report."""

    mode: Mode
    pooling: str | None
    evaluation: Evaluation
    missing: Mapping[str, str]
    data_sha256: Mapping[str, str]
    geometry: GeometryNumbers | None
    """Of the first set of graded pairs."""
    examples: Sequence[Example]


@dataclass(frozen=True, kw_only=True)
class Record:
    """What the tracking server has of a run; or why that is not known."""

    uri: str
    run_id: str | None
    run: RecordedRun | None = None
    histories: Mapping[str, History]
    unread: str = ""


@dataclass(frozen=True, kw_only=True)
class RunReport:
    folder: Path
    run: TrainRun
    summary: Mapping[str, Any]
    record: Record
    scored: Scored
    description: ModelDescription | None

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def geometry(self) -> GeometryNumbers | None:
        """Of the best model while training; runs from before that was kept are scored again."""
        kept: GeometryNumbers | None = self.summary["best"].get("geometry")
        return kept or self.scored.geometry


@dataclass(frozen=True, kw_only=True)
class ModelReport:
    name: str
    record: Record
    """Of the run that trained it, or was made to register it."""
    scored: Scored
    description: ModelDescription | None
    standing: Standing | None
    """None for a folder."""


@dataclass(frozen=True, kw_only=True)
class SweepReport:
    name: str
    sweep: sweeps.RecordedSweep
    repeated: Sequence[Repeated]
    record: Record
    best: RunReport | None
    """The run of the best trial, where there is one whose folder is still there."""


Report = RunReport | ModelReport | SweepReport


def find(target: str, output: Path, tracking: str | None) -> Target:
    """What a name stands for: a run or sweep, in `output` or by its path, or a model.

    Raises `UsageError` for what is none, or is not finished.
    """
    if target.startswith("models:/"):
        uri = tracking_uri(tracking, output)
        return Target("model", target, fetch_model(uri, target, output / ".models"))
    for folder in (output.expanduser() / target, Path(target).expanduser()):
        if (folder / sweeps.SWEEP_FILE).is_file():
            _check_finished("sweep", folder, sweeps.TRIALS_FILE)
            return Target("sweep", folder.name, folder.resolve())
        # The best model of a run has a copy of its settings.
        if (folder / SETTINGS_FILE).is_file() and not (folder / "config.json").exists():
            _check_finished("run", folder, SUMMARY_FILE)
            return Target("run", folder.name, folder.resolve())
    if not Path(target).expanduser().is_dir():
        raise UsageError(
            f"{target!r} is no run or sweep in {output}, no model folder and no "
            "models:/NAME@alias: check the name, or say by --output where runs are"
        )
    return Target("model", target, Path(target).expanduser().absolute())


def gather(target: Target, wanted: Wanted, output: Path) -> Report:
    """Everything that the page of a target shows; its model is scored for it."""
    match target.kind:
        case "run":
            return _run(target.folder, wanted)
        case "sweep":
            return _sweep(target.folder, wanted)
        case "model":
            return _model(target, wanted, output)


def _run(folder: Path, wanted: Wanted) -> RunReport:
    run, summary = load(folder / SETTINGS_FILE), _summary(folder / SUMMARY_FILE)
    data = wanted.data or (Path(run.dev.data) if run.dev.data else None)
    loaded, mode = _sets(wanted, run.dev.tasks, "dev", data)
    names = [LOSS, GRADIENT_NORM, ROWS_PER_S, UNIFORMITY, ALIGNMENT, *summary["dev"]]
    uri = tracking_uri(wanted.tracking or run.tracking.uri, folder.parent)
    return RunReport(
        folder=folder,
        run=run,
        summary=summary,
        record=_record(uri, summary["run_id"], names),
        scored=_score(folder / BEST, loaded, mode),
        description=read_description(folder / BEST),
    )


def _model(target: Target, wanted: Wanted, output: Path) -> ModelReport:
    loaded, mode = _sets(wanted, ("sts",), "test", wanted.data)
    uri = tracking_uri(wanted.tracking, output)
    stands = standing(uri, target.name) if target.name.startswith("models:/") else None
    return ModelReport(
        name=target.name,
        record=Record(uri=uri, run_id=stands.run_id if stands else None, histories={}),
        scored=_score(target.folder, loaded, mode),
        description=read_description(target.folder),
        standing=stands,
    )


def _sweep(folder: Path, wanted: Wanted) -> SweepReport:
    sweep = sweeps.read(RunFolder(folder))
    repeated = over_seeds(sweep.results)
    best = folder.parent / repeated[0].trials[0].name if repeated else None
    uri = tracking_uri(wanted.tracking or sweep.base.tracking.uri, folder.parent)
    return SweepReport(
        name=folder.name,
        sweep=sweep,
        repeated=repeated,
        record=Record(uri=uri, run_id=run_of(folder), histories={}),
        best=_run(best, wanted) if best and (best / SUMMARY_FILE).is_file() else None,
    )


def _check_finished(what: str, folder: Path, last: str) -> None:
    if not (folder / last).is_file():
        raise UsageError(
            f"{what} {folder.name} in {folder.parent} is not finished: repeat its command, which "
            "goes on with it, and report then"
        )


def _summary(path: Path) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        _ = found["run_id"], found["dev"], found["best"]["scores"]
    except (ValueError, LookupError, TypeError):
        raise UsageError(
            f"{path} is damaged: report on the model folder {path.parent / BEST} instead"
        ) from None
    return found


def _sets(
    wanted: Wanted, tasks: Sequence[str], mode: Mode, data: Path | None
) -> tuple[LoadedSets, Mode]:
    """Sets that the options name are test sets, as the literature's scores are."""
    chosen, mode = (tasks, mode) if wanted.tasks is None else (wanted.tasks, "test")
    return evaluation_sets.load(chosen, data=settings.evaluation_data(data), mode=mode), mode


def _score(folder: Path, loaded: LoadedSets, mode: Mode) -> Scored:
    encoder = embedders.load_folder(folder)
    evaluation = evaluate.score(encoder, loaded.sets, label="report")
    vectors, pairs = evaluation.vectors, graded_pairs(loaded.sets)
    return Scored(
        mode=mode,
        pooling=encoder.pooling,
        evaluation=evaluation,
        missing=loaded.missing,
        data_sha256=loaded.sha256,
        geometry=None if pairs is None or vectors is None else describe(pairs, vectors),
        examples=[] if vectors is None else nearest(vectors),
    )


def _record(uri: str, run_id: str, names: Sequence[str]) -> Record:
    try:
        run = read_run(uri, run_id)
        return Record(
            uri=uri, run_id=run_id, run=run, histories=metric_histories(uri, run_id, names)
        )
    except TrackingError as error:
        return Record(uri=uri, run_id=run_id, histories={}, unread=str(error))
