"""`simcse train`: a run from its settings to a best model and a record of how it came about."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pipelines import settings
from pipelines.console import JsonFile, progress_bar, say, write_json
from simcse.errors import UsageError

if TYPE_CHECKING:
    from pydantic import JsonValue

    from simcse.evaluation import EvaluationSet
    from simcse_platform.config import TrainRun
    from simcse_platform.storage import RunFolder

SETTINGS_FILE = "run.yaml"
SUMMARY_FILE = "summary.json"
# What may differ between a run and its continuation: none of it changes what is computed.
_FREE_SECTIONS = ("scale.", "tracking.", "checkpoint.")


def train(
    recipe: settings.Recipe = None,
    config: settings.Config = None,
    corpus: settings.Corpus = None,
    data: settings.Data = None,
    assignments: settings.Assignments = None,
    name: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Name of the run; an unfinished run of it goes on."),
    ] = None,
    fresh: Annotated[bool, typer.Option(help="Refuse to go on with a run that exists.")] = False,
    output: settings.Output = Path("runs"),
    tracking: settings.TrackingUri = None,
    address: settings.Address = None,
    dry_run: Annotated[bool, typer.Option(help="Print the resolved run and stop.")] = False,
    json_file: JsonFile = None,
) -> None:
    """Train a sentence encoder.

    The same command goes on where an interrupted one stopped.
    """
    from simcse_platform.config import to_yaml

    resolved = settings.resolve(recipe, config, corpus, data, tracking, assignments)
    if dry_run:
        say(to_yaml(resolved.run).rstrip())
        return
    trained = execute(
        resolved.run,
        name=name or default_name(resolved),
        output=output,
        fresh=fresh,
        address=address,
    )
    write_json(json_file, trained.summary)


@dataclass(frozen=True)
class Trained:
    """A finished run."""

    folder: RunFolder
    tracking_uri: str
    summary: Mapping[str, Any]
    """The JSON result of `simcse train`."""

    @property
    def model(self) -> Path:
        """Folder of the best model."""
        return Path(self.summary["best"]["model"])


def execute(
    run: TrainRun,
    *,
    name: str,
    output: Path,
    fresh: bool = False,
    address: str | None = None,
) -> Trained:
    """Train `run` under `name` in `output`, or go on with it, and record it.

    Ray is connected for the time of the call, if it is not already.
    """
    from pipelines import evaluation_sets
    from simcse.model_source import locate
    from simcse_platform import runtime
    from simcse_platform.storage import RunFolder, check_writable

    if not run.data.corpus:
        raise UsageError("there is nothing to train on: give --corpus PATH or set data.corpus")
    folder = RunFolder.of(str(output), name)
    check_claim(folder, run, fresh=fresh)
    locate(run.encoder.model)
    dev = evaluation_sets.load_all(
        run.dev.tasks,
        data=Path(run.dev.data) if run.dev.data else None,
        mode="dev",
        purpose="dev.tasks names it",
    )
    check_writable(folder.path.parent)
    with runtime.connect(address) as resources:
        return _train_and_record(run, folder, dev.sets, num_nodes=resources.nodes)


def default_name(resolved: settings.Resolved) -> str:
    """A name made from the settings, so that only the same command goes on with a run."""
    digest = hashlib.sha256("\n".join(_binding_settings(resolved.run)).encode())
    return f"{resolved.origin}-{digest.hexdigest()[:8]}"


def check_claim(folder: RunFolder, run: TrainRun, *, fresh: bool) -> None:
    """See that the name is free, or that its run may go on with these settings."""
    from simcse_platform.config import load

    kept = folder.path / SETTINGS_FILE
    if kept.exists():
        if fresh:
            raise UsageError(
                f"run {folder.name} exists in {folder.path.parent}: choose another --name, or "
                "leave out --fresh to go on with it"
            )
        before, now = _binding_settings(load(kept)), _binding_settings(run)
        if changed := [(old, new) for old, new in zip(before, now, strict=True) if old != new]:
            old, new = changed[0]
            raise UsageError(
                f"run {folder.name} was started with {old}, not {new}: choose another --name, or "
                f"go on with --config {kept}"
            )
    elif folder.path.exists() and any(folder.path.iterdir()):
        raise UsageError(f"{folder.path} exists and holds no run: choose another --name")


def _binding_settings(run: TrainRun) -> list[str]:
    from simcse_platform.config import flatten

    return [
        f"{path}={value}"
        for path, value in sorted(flatten(run).items())
        if not path.startswith(_FREE_SECTIONS)
    ]


def _train_and_record(
    run: TrainRun, folder: RunFolder, dev_sets: Sequence[EvaluationSet], *, num_nodes: int
) -> Trained:
    import json

    from simcse_platform import provenance
    from simcse_platform.config import flatten, to_yaml
    from simcse_platform.ingest.source import open_corpus
    from simcse_platform.tracking.location import tracking_uri
    from simcse_platform.tracking.mlflow_model import log_model
    from simcse_platform.tracking.mlflow_tracker import (
        CorpusRecord,
        MlflowTracker,
        check_server,
        start_run,
    )
    from simcse_platform.training.trainer import fit, plan_steps

    output = folder.path.parent
    uri = tracking_uri(run.tracking.uri, output, num_nodes=num_nodes)
    summary_file = folder.path / SUMMARY_FILE
    if summary_file.exists():
        say(f"run {folder.name} is finished: nothing to do")
        summary = json.loads(summary_file.read_text(encoding="utf-8"))
        return Trained(folder, uri, summary)

    check_server(uri)
    corpus = open_corpus(run.data, run.encoder, output / ".prepared", say)
    # Only now: a run that was refused leaves its name free for the corrected command.
    folder.write_text(SETTINGS_FILE, to_yaml(run))
    spool = folder.path / "tracking.jsonl"
    run_id = start_run(
        uri,
        run.tracking.experiment,
        folder.name,
        storage=folder.path,
        spool=spool,
        description=f"SimCSE run {folder.name} from {run.encoder.model}",
        tags={"source_hash": provenance.source_hash(), "encoder": run.encoder.model},
        corpus=CorpusRecord(
            name=Path(run.data.corpus[0]).name,
            source=run.data.corpus[0],
            fingerprint=corpus.fingerprint,
            rows=sum(corpus.rows),
            columns=corpus.columns,
        ),
    )
    tracker = MlflowTracker(uri, run_id, spool)
    tracker.log_params(flatten(run))
    tracker.log_text(to_yaml(run), SETTINGS_FILE)
    tracker.flush()
    lineage: dict[str, JsonValue] = {
        "run": run.model_dump(mode="json"),
        "mlflow_run_id": run_id,
        "data_sha256": corpus.fingerprint,
        "source_hash": provenance.source_hash(),
        "versions": dict(provenance.versions()),
    }
    total = plan_steps(run, corpus).total_steps
    try:
        with progress_bar(f"train {folder.name}", total) as show:
            result = fit(
                run,
                corpus,
                dev_sets,
                folder,
                tracker,
                lineage=lineage,
                show=lambda step, measured: show(step, _note(measured)),
            )
    except BaseException:
        tracker.finish("FAILED")
        raise
    summary = result.summary(run_id=run_id, model=folder.path / "best")
    tracker.log_table(_score_rows(summary), "dev_scores.json")
    tracker.flush()
    log_model(uri, run_id, folder.path / "best")
    tracker.finish("FINISHED")
    folder.write_text(SUMMARY_FILE, json.dumps(summary, indent=1))
    _say_result(summary)
    return Trained(folder, uri, summary)


def _note(measured: Mapping[str, float]) -> str:
    if "loss" in measured:
        return f"loss {measured['loss']:.4f}  {measured['rows_per_s']:.1f} rows/s"
    return "  ".join(f"{name} {value:.2f}" for name, value in measured.items())


def _score_rows(summary: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [
        {
            "score": name,
            "before": summary["dev_before"].get(name),
            "after": value,
            "best": summary["best"]["scores"].get(name),
        }
        for name, value in summary["dev"].items()
    ]


def _say_result(summary: Mapping[str, Any]) -> None:
    for row in _score_rows(summary):
        say(f"{row['score']}: {row['before']:.2f} before, {row['best']:.2f} at best")
    say(
        f"{summary['steps']} steps, {summary['rows_per_s']:.1f} rows/s, "
        f"{summary['tokens_per_s']:.0f} tokens/s, padding efficiency "
        f"{summary['padding_efficiency']:.0%}, waiting for data {summary['data_stall_share']:.1%}"
    )
    say(f"best model: {summary['best']['model']}")
