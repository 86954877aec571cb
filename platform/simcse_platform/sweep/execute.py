"""A sweep from its settings to a record: what `run.execute` is for one run."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import yaml
from pydantic import JsonValue, TypeAdapter

from simcse.encoder import SentenceEncoder
from simcse.errors import UsageError
from simcse.evaluation import EvaluationSet
from simcse.figures import save_png
from simcse.model_card import SEEDS
from simcse.model_description import read_description
from simcse_platform import provenance
from simcse_platform.config import TrainRun, flatten, from_tree, shown, to_yaml
from simcse_platform.ingest.source import open_corpus
from simcse_platform.run import PREPARED_FOLDER, SETTINGS_FILE, SPOOL_FILE, corpus_record
from simcse_platform.run_figures import FIGURES_FOLDER
from simcse_platform.runtime import Resources
from simcse_platform.storage import RunFolder, scratch_folder
from simcse_platform.sweep.figures import sweep_figures
from simcse_platform.sweep.seeds import Repeated, over_seeds
from simcse_platform.sweep.space import Choice, Dimension, Range, Space
from simcse_platform.sweep.sweep import SearchPlan, TrialResult, run_trials, table
from simcse_platform.sweep.trial import TRACKING_PATIENCE_S, TrialSetup
from simcse_platform.tracking.location import tracking_uri
from simcse_platform.tracking.mlflow_model import log_model
from simcse_platform.tracking.mlflow_reader import read_run
from simcse_platform.tracking.mlflow_session import check_server
from simcse_platform.tracking.mlflow_tracker import log_files, run_of, start_run
from simcse_platform.tracking.tracked_run import TrackedRun
from simcse_platform.tracking.tracker import ended_with
from simcse_platform.training.worker import BEST

SWEEP_FILE = "sweep.yaml"
TRIALS_FILE = "trials.json"
SEEDS_FILE = "seeds.json"
_TRIALS = TypeAdapter(list[TrialResult])


@dataclass(frozen=True)
class FinishedSweep:
    """What a sweep leaves."""

    folder: RunFolder
    tracking_uri: str
    run_id: str
    """Of the MLflow run whose children are the trials."""
    results: Sequence[TrialResult]
    repeated: Sequence[Repeated]
    """The finished ones by their settings without the seed, the best first."""

    @property
    def best(self) -> TrialResult | None:
        """The best seed of the settings with the best mean; None when nothing finished."""
        return self.repeated[0].trials[0] if self.repeated else None


@dataclass(frozen=True, kw_only=True)
class RecordedSweep:
    """A sweep as its folder tells it."""

    base: TrainRun
    space: Space
    plan: SearchPlan
    results: Sequence[TrialResult]


def describe(base: TrainRun, space: Space, plan: SearchPlan) -> str:
    """Everything that decides which trials a sweep has and what they do, as YAML."""
    tree = {
        "search": {
            path: {k: list(v) if isinstance(v, tuple) else v for k, v in asdict(dimension).items()}
            for path, dimension in space.items()
        },
        "plan": {key: value for key, value in asdict(plan).items() if key != "concurrent"},
        "base": yaml.safe_load(to_yaml(shown(base))),
    }
    return yaml.safe_dump(tree, sort_keys=False)


def read(folder: RunFolder) -> RecordedSweep:
    """What `describe` and `table` said of a finished sweep.

    Raises `UsageError` when the files of the folder say something else.
    """
    try:
        tree = yaml.safe_load((folder.path / SWEEP_FILE).read_text(encoding="utf-8"))
        rows = json.loads((folder.path / TRIALS_FILE).read_text(encoding="utf-8"))
        return RecordedSweep(
            base=from_tree(tree["base"]),
            space={path: _dimension(fields) for path, fields in tree["search"].items()},
            plan=SearchPlan(**tree["plan"]),
            results=_TRIALS.validate_python(rows),
        )
    except (yaml.YAMLError, ValueError, LookupError, TypeError, AttributeError) as error:
        reason = " ".join(str(error).split())
        raise UsageError(
            f"sweep {folder.name} cannot be read from {SWEEP_FILE} and {TRIALS_FILE} in "
            f"{folder.path} ({reason}): bring them back, or repeat its command under another --name"
        ) from None


def _dimension(fields: Mapping[str, Any]) -> Dimension:
    return Choice(tuple(fields["values"])) if "values" in fields else Range(**fields)


def check_claim(folder: RunFolder, description: str) -> None:
    """See that the folder is free or that the sweep in it is this one. Raises `UsageError`."""
    kept = folder.path / SWEEP_FILE
    if kept.exists():
        if kept.read_bytes() != description.encode():
            raise UsageError(
                f"sweep {folder.name} was started with other settings, which {kept} lists: choose "
                "another --name, or repeat its command"
            )
    elif folder.path.exists() and any(folder.path.iterdir()):
        raise UsageError(f"{folder.path} exists and holds no sweep: choose another --name")


def execute(
    base: TrainRun,
    space: Space,
    plan: SearchPlan,
    folder: RunFolder,
    dev_sets: Sequence[EvaluationSet],
    *,
    resources: Resources,
    say: Callable[[str], None],
) -> FinishedSweep:
    """Run all trials, or those that are left, and record the sweep as their parent.

    Ray must be connected. Trials are selected by dev scores alone.
    """
    output = folder.path.parent
    uri = tracking_uri(base.tracking.uri, output, num_nodes=resources.nodes)
    check_server(uri)
    # Text that has to be prepared is prepared once, not by every trial.
    corpus = open_corpus(base.data, base.encoder, output / PREPARED_FOLDER, say)
    folder.write_text(SWEEP_FILE, describe(base, space, plan))
    spool = folder.path / SPOOL_FILE
    run_id = start_run(
        uri,
        base.tracking.experiment,
        folder.name,
        storage=folder.path,
        spool=spool,
        description=f"SimCSE sweep {folder.name} over {_extent(space, plan)}",
        tags={"source_hash": provenance.source_hash(), "sweep": plan.sampler},
        corpus=corpus_record(base, corpus),
    )
    tracker = TrackedRun(uri, run_id, spool).open()
    tracker.log_params(flatten(shown(base)))
    tracker.log_text(describe(base, space, plan), SWEEP_FILE)
    tracker.flush()
    setup = TrialSetup(
        base=base,
        space=space,
        sweep=folder,
        dev_sets=tuple(dev_sets),
        parent_run_id=run_id,
        suggested=plan.sampler == "optuna",
    )
    with ended_with(tracker):
        results = run_trials(setup, plan, resources, say=say)
        check_server(uri, patience_s=TRACKING_PATIENCE_S)
        for result in results:
            if result.status == "stopped early":
                _end_record(uri, output / result.name)
        rows = table(results)
        folder.write_text(TRIALS_FILE, json.dumps(rows, indent=1))
        tracker.log_table(flat(rows), TRIALS_FILE)
        repeated = over_seeds(results)
        if repeated:
            _keep_spread(uri, RunFolder(output / repeated[0].trials[0].name), repeated[0])
            # A step's metrics are recorded once, and a sweep that goes on may find a better trial.
            ended = sum(result.status != "failed" for result in results)
            tracker.log_metrics(_summary(repeated[0]), ended)
        tracker.flush()
        save_png(sweep_figures(results, space), folder.path / FIGURES_FOLDER)
        log_files(uri, run_id, folder.path / FIGURES_FOLDER)
    return FinishedSweep(folder, uri, run_id, results, repeated)


def _extent(space: Space, plan: SearchPlan) -> str:
    if plan.points:
        return f"{len(plan.points)} listed settings"
    return ", ".join(space) or "its seed"


def _summary(best: Repeated) -> dict[str, float]:
    """The best settings' dev score as metrics, over seeds where there are several."""
    spread = {key: value for key, value in asdict(best.score).items() if value is not None}
    named = {f"best_dev_score_{key}": value for key, value in spread.items()}
    return {"best_dev_score": best.score.mean, **(named if len(best.trials) > 1 else {})}


def _keep_spread(uri: str, trial: RunFolder, best: Repeated) -> None:
    """The best model says what other seeds gave, in its folder and where it is logged."""
    if len(best.trials) < 2:
        return
    spread: dict[str, JsonValue] = {
        "count": len(best.trials),
        "scores": {name: asdict(found) for name, found in best.scores.items()},
    }
    text, kept = json.dumps(spread), trial.path / SEEDS_FILE
    if kept.exists() and kept.read_text(encoding="utf-8") == text:
        return
    folder = trial.path / BEST
    described = read_description(folder)
    assert described is not None
    with scratch_folder() as scratch:
        told = scratch / BEST
        SentenceEncoder.load(folder).save(
            told, lineage={**described.lineage, SEEDS: spread}, scores=described.scores
        )
        shutil.copy(folder / SETTINGS_FILE, told)
        trial.publish(told, BEST)
    if (run_id := run_of(trial.path)) is not None:
        log_model(uri, run_id, folder)
    # Last: whoever finds it takes for granted what comes before it.
    trial.write_text(SEEDS_FILE, text)


def _end_record(uri: str, storage: Path) -> None:
    """A trial that Tune stopped had no time to say so."""
    run_id = run_of(storage)
    if run_id is not None and read_run(uri, run_id).status == "RUNNING":
        TrackedRun(uri, run_id, storage / SPOOL_FILE).open().finish("KILLED")


def flat(rows: Sequence[dict[str, Any]]) -> list[dict[str, str | float]]:
    """A column for each setting that any trial has; nothing is an empty text."""
    settings = dict.fromkeys(path for row in rows for path in row["assignments"])
    cells = [
        {
            "name": row["name"],
            "status": row["status"],
            **{path: row["assignments"].get(path) for path in settings},
            "rows": row["rows"],
            "score": row["score"],
            "reason": row["reason"],
        }
        for row in rows
    ]
    return [{name: "" if cell is None else cell for name, cell in row.items()} for row in cells]
