"""A run from its settings to a recorded model: the parts of the platform in their order."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from pydantic import JsonValue

from simcse.composition import check_composition, describe_columns
from simcse.errors import UsageError
from simcse.evaluation import EvaluationSet
from simcse.figures import save_png
from simcse.views import FOLLOWING, WORDNET, load_synonyms
from simcse_platform import provenance
from simcse_platform.config import TrainRun, flatten, load, shown, to_yaml
from simcse_platform.ingest.source import Corpus, open_corpus, text_columns
from simcse_platform.run_figures import FIGURES_FOLDER, run_figures
from simcse_platform.runtime import Resources
from simcse_platform.storage import RunFolder
from simcse_platform.tracking.location import tracking_uri
from simcse_platform.tracking.mlflow_model import log_model
from simcse_platform.tracking.mlflow_session import check_server
from simcse_platform.tracking.mlflow_tracker import CorpusRecord, log_files, start_run
from simcse_platform.tracking.spool import Spool
from simcse_platform.tracking.tracked_run import TrackedRun
from simcse_platform.tracking.tracker import ended_with
from simcse_platform.training import checkpoint
from simcse_platform.training.supervision import Show
from simcse_platform.training.trainer import Placement, fit, place, plan_steps, slow_precision
from simcse_platform.training.worker import BEST

SETTINGS_FILE = "run.yaml"
SUMMARY_FILE = "summary.json"
PREPARED_FOLDER = ".prepared"
CORPUS_FILE = "corpus.sha256"
SPOOL_FILE = "tracking.jsonl"
# What may differ between a run and its continuation: it changes where and how fast, not what.
_RECORDING = ("tracking.", "checkpoint.")
_PLACEMENT = ("scale.", "memory.")
_PATIENCE_AT_THE_END_S = 120.0
_BINDING_ANYWAY = "scale.precision"

Watch = Callable[[int], AbstractContextManager[Show]]
"""Makes the display of a run of so many steps; it is entered while the run trains."""


@dataclass(frozen=True)
class FinishedRun:
    """What a run leaves."""

    folder: RunFolder
    tracking_uri: str
    summary: Mapping[str, Any]
    """The figures of `WorkerResult.summary`."""


def identity(run: TrainRun) -> list[str]:
    """`path=value` of all that tells two runs apart: everything but how they are recorded."""
    return [
        f"{path}={value}"
        for path, value in sorted(flatten(run).items())
        if not path.startswith(_RECORDING)
    ]


def check_claim(folder: RunFolder, run: TrainRun, *, fresh: bool = False) -> None:
    """See that the folder is free, or that the run in it may go on with these settings.

    Raises `UsageError` naming the first setting that differs; `fresh` refuses any run that exists.
    """
    kept = folder.path / SETTINGS_FILE
    if not kept.exists():
        if folder.path.exists() and any(folder.path.iterdir()):
            raise UsageError(f"{folder.path} exists and holds no run: choose another --name")
        return
    if fresh:
        raise UsageError(
            f"run {folder.name} exists in {folder.path.parent}: choose another --name, or leave "
            "out --fresh to go on with it"
        )
    for before, now in zip(identity(load(kept)), identity(run), strict=True):
        binds = not now.startswith(_PLACEMENT) or now.startswith(_BINDING_ANYWAY)
        if binds and before != now:
            raise UsageError(
                f"run {folder.name} was started with {before}, not {now}: choose another --name, "
                f"or go on with --config {kept}"
            )


def check_settings(run: TrainRun) -> None:
    """See that objective, views, encoder and corpus go together, as far as headers tell.

    Raises `UsageError`, `DataError` or `ModelError` naming what does not.
    """
    if run.views.synonyms:
        load_synonyms(run.views.synonyms)
    columns, keep_order = text_columns(run.data)
    check_composition(run.encoder, run.objective, run.views, columns)
    if run.views.positive in FOLLOWING and not keep_order:
        raise UsageError(
            f"views.positive is {run.views.positive!r}, but the corpus does not keep the order of "
            "its documents: prepare it with `simcse prepare --keep-order`"
        )


def execute(
    run: TrainRun,
    folder: RunFolder,
    dev_sets: Sequence[EvaluationSet],
    *,
    resources: Resources,
    say: Callable[[str], None],
    watch: Watch,
    parent_run_id: str | None = None,
    patience_s: float = 0.0,
) -> FinishedRun:
    """Train `run` in `folder`, or go on with it, and record it; a finished one is left as it is.

    `parent_run_id` is the MLflow run of the sweep that it belongs to. A tracking server that does
    not answer, at the start or at the end, is waited for `patience_s` seconds, and at the end two
    minutes at least. Ray must be connected. Raises the project's errors; a run that was refused
    before it trained leaves its name free, and one that another process trains is refused.
    """
    output = folder.path.parent
    uri = tracking_uri(run.tracking.uri, output, num_nodes=resources.nodes)
    summary_file = folder.path / SUMMARY_FILE
    if summary_file.exists():
        say(f"run {folder.name} is finished: nothing to do")
        summary = json.loads(summary_file.read_text(encoding="utf-8"))
        # What a server that went away at the end did not get is sent now.
        TrackedRun(uri, summary["run_id"], folder.path / SPOOL_FILE).open().flush()
        return FinishedRun(folder, uri, summary)

    placement = place(run.scale, resources)
    if note := slow_precision(run.scale, placement):
        say(note)
    check_server(uri, patience_s=patience_s)
    corpus = open_corpus(run.data, run.encoder, output / PREPARED_FOLDER, say)
    say(f"corpus: {describe_columns(corpus.columns, run.objective.positives)}")
    planned = plan_steps(run, corpus).total_steps
    say(_extent(run, corpus, planned))
    with folder.owned():
        _bind_corpus(folder, corpus, run.views.synonyms)
        if (done := checkpoint.next_step(folder)) > 0:
            say(f"going on with run {folder.name} from step {done} of {planned}")
        kept = shown(run)
        folder.write_text(SETTINGS_FILE, to_yaml(kept))
        record = _start_record(uri, run, folder, corpus, parent_run_id)
        tracker = record.open()
        tracker.log_params(flatten(kept))
        tracker.log_text(to_yaml(kept), SETTINGS_FILE)
        tracker.flush()
        with ended_with(tracker):
            say(_start(run, placement, resources))
            with watch(planned) as show:
                result = fit(
                    run,
                    corpus,
                    dev_sets,
                    folder,
                    record,
                    placement=placement,
                    lineage=_lineage(kept, corpus, record.run_id),
                    show=show,
                )
            summary = result.summary(run_id=record.run_id, model=folder.path / BEST)
            # What was trained for hours does not fail over a server that starts anew.
            check_server(uri, patience_s=max(patience_s, _PATIENCE_AT_THE_END_S))
            tracker.log_table(score_rows(summary), "dev_scores.json")
            tracker.flush()
            drawn = run_figures(uri, record.run_id, summary)
            if drawn:
                save_png(drawn, folder.path / FIGURES_FOLDER)
                log_files(uri, record.run_id, folder.path / FIGURES_FOLDER)
            log_model(uri, record.run_id, folder.path / BEST)
        folder.write_text(SUMMARY_FILE, json.dumps(summary, indent=1))
    return FinishedRun(folder, uri, summary)


def score_rows(summary: Mapping[str, Any]) -> list[dict[str, str | float]]:
    """The dev scores of a summary as a table: before training, after it, and of the best model."""
    return [
        {
            "score": name,
            "before": summary["dev_before"][name],
            "after": after,
            "best": summary["best"]["scores"][name],
        }
        for name, after in summary["dev"].items()
    ]


def _extent(run: TrainRun, corpus: Corpus, steps: int) -> str:
    """How far the run goes, and what ends it."""
    rows = sum(corpus.rows)
    epochs = steps * run.global_batch_size / rows
    what = f"{rows} rows, {steps} steps of {run.global_batch_size}"
    if rows < run.global_batch_size:
        return (
            f"{what}: the corpus does not fill a batch, so a row has {rows - 1} negatives at most; "
            "lower global_batch_size, or give more text"
        )
    if epochs >= run.epochs:
        return f"{what}: {run.epochs} epoch(s)"
    return f"{what}: max_steps={run.max_steps} ends it after {epochs:.2f} of {run.epochs} epoch(s)"


def _start(run: TrainRun, placement: Placement, resources: Resources) -> str:
    """What is started: until the workers have loaded the encoder, nothing else is seen."""
    workers, threads = run.scale.num_workers, placement.threads_per_worker
    engine = f"ZeRO-{run.scale.zero_stage}" if run.scale.zero_stage else "DDP"
    line = f"starting {workers} worker(s) of {threads} thread(s), {engine}"
    if not placement.use_gpu and workers * threads > resources.cpus:
        line += f": more than the {resources.cpus:g} CPUs there are, which they share"
    return line


def _bind_corpus(folder: RunFolder, corpus: Corpus, synonyms: str | None) -> None:
    """A cursor means something in one corpus only, so a run goes on with the one it began with.

    A file of synonyms is part of it, since it decides the positives.
    Before its first loss is on record there is none: what failed over a bad file may go on without.
    """
    kept = folder.path / CORPUS_FILE
    content = corpus.fingerprint
    if synonyms and synonyms != WORDNET:
        content += " " + hashlib.sha256(Path(synonyms).read_bytes()).hexdigest()
    changed = kept.exists() and kept.read_text(encoding="utf-8") != content
    if changed and (checkpoint.next_step(folder) or _has_losses(folder)):
        raise UsageError(
            f"the corpus of run {folder.name} has changed since it began: choose another --name, "
            "or bring back the files it began with"
        )
    folder.write_text(CORPUS_FILE, content)


def _has_losses(folder: RunFolder) -> bool:
    return "loss" in Spool(folder.path / SPOOL_FILE).last_steps()


def corpus_record(run: TrainRun, corpus: Corpus) -> CorpusRecord:
    """The corpus of a run, or of all runs of a sweep, for its record."""
    return CorpusRecord(
        name=Path(run.data.corpus[0]).name,
        source=run.data.corpus[0],
        fingerprint=corpus.fingerprint,
        rows=sum(corpus.rows),
        columns=corpus.columns,
    )


def _start_record(
    uri: str, run: TrainRun, folder: RunFolder, corpus: Corpus, parent_run_id: str | None
) -> TrackedRun:
    spool = folder.path / SPOOL_FILE
    run_id = start_run(
        uri,
        run.tracking.experiment,
        folder.name,
        storage=folder.path,
        spool=spool,
        description=f"SimCSE run {folder.name} from {run.encoder.model}",
        tags={"source_hash": provenance.source_hash(), "encoder": run.encoder.model},
        parent_run_id=parent_run_id,
        corpus=corpus_record(run, corpus),
    )
    return TrackedRun(uri, run_id, spool)


def _lineage(run: TrainRun, corpus: Corpus, run_id: str) -> dict[str, JsonValue]:
    return {
        "run": run.model_dump(mode="json"),
        "mlflow_run_id": run_id,
        "data_sha256": corpus.fingerprint,
        "source_hash": provenance.source_hash(),
        "versions": cast(dict[str, JsonValue], provenance.versions()),
    }
