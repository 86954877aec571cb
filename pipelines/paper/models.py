"""From a row of a comparison to its models and their numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pipelines.embedders import choose, load_folder
from pipelines.paper.measures import Bench, Finding, Outcome, of_path
from pipelines.paper.rows import Elsewhere, Row, Trained, Untrained
from pipelines.paper.runs import WHITENING_SENTENCES, PlannedRows, Scale
from pipelines.paper.texts import TrainingTexts
from simcse.errors import SimcseError
from simcse.evaluation import Embedder
from simcse.whitening import Whitening
from simcse_platform.run_figures import trajectory
from simcse_platform.score_cache import ScoreCache
from simcse_platform.sweep.execute import FinishedSweep
from simcse_platform.sweep.sweep import SEED, TrialResult
from simcse_platform.sweep.trial import TRACKING_PATIENCE_S
from simcse_platform.tracking.mlflow_session import check_server
from simcse_platform.training.worker import BEST

_KEPT_SCORES = ".scores"


@dataclass(frozen=True)
class RowModels:
    """The models of every row, trained or not, measured on a bench."""

    scale: Scale
    texts: TrainingTexts
    named: Mapping[str, str]
    """The user's models by row."""
    planned: PlannedRows
    finished: FinishedSweep | None
    """None when nothing had to be trained."""
    bench: Bench
    output: Path
    tracking: str | None

    def outcome(self, row: Row) -> Outcome:
        """What a row's models give, or why there is none: one row's error ends no other row."""
        try:
            return self._outcome(row)
        except SimcseError as error:
            return Outcome(row=row, failure=str(error))

    def _outcome(self, row: Row) -> Outcome:
        if row.label in self.named:
            return Outcome(row=row, found=[self.bench.measure(self.load(row.label), row)])
        if isinstance(row.source, Elsewhere):
            return Outcome(row=row, note="not made here: name one by --model ROW=MODEL")
        if isinstance(row.source, Untrained):
            return self._untrained(row, row.source)
        return self._trained(row, row.source)

    def load(self, label: str) -> Embedder:
        """The model that the user named for a row."""
        chosen = choose(
            self.named[label], None, pooling=None, output=self.output, tracking=self.tracking
        )
        return chosen.embedder

    def _untrained(self, row: Row, source: Untrained) -> Outcome:
        encoder = load_folder(self.planned.base.encoder.model, pooling=source.pooling)
        note = ""
        if source.whitened:
            sentences, of_nli = self.texts.whitening(WHITENING_SENTENCES[self.scale])
            encoder.whitening = Whitening.fit(encoder.encode(sentences)).layer()
            note = "" if of_nli else "whitened on the corpus, for want of NLI sentences"
        return Outcome(row=row, found=[self.bench.measure(encoder, row)], note=note)

    def _trained(self, row: Row, source: Trained) -> Outcome:
        if row.label in self.planned.notes:
            return Outcome(row=row, note=self.planned.notes[row.label])
        assert self.finished is not None
        point = self.planned.points[row.label]
        trials = [
            trial
            for trial in self.finished.results
            if {path: text for path, text in trial.assignments.items() if path != SEED} == point
        ]
        done = [trial for trial in trials if trial.status == "finished"]
        failure = next((trial.reason for trial in trials if trial.status == "failed"), "")
        if failure and done:
            failure = f"{len(trials) - len(done)} of {len(trials)} seeds: {failure}"
        done.sort(key=lambda trial: -(trial.score or 0))
        return Outcome(
            row=row,
            found=[self._found(trial, row) for trial in done],
            note=self.planned.sizes[row.label],
            failure=failure,
            runs=[trial.name for trial in trials],
        )

    def _found(self, trial: TrialResult, row: Row) -> Finding:
        assert self.finished is not None
        assert trial.score is not None
        assert trial.run_id is not None
        dev = self.bench.of_dev(trial.score)
        match self.bench.kind:
            case "dev":
                return Finding(dev)
            case "path":
                check_server(self.finished.tracking_uri, patience_s=TRACKING_PATIENCE_S)
                return of_path(dev, trajectory(self.finished.tracking_uri, trial.run_id))
        folder = self.finished.folder.path.parent
        model = folder / trial.name / BEST
        if self.bench.kind == "neighbours":
            return self.bench.measure(load_folder(model), row)
        kept = ScoreCache(
            folder / _KEPT_SCORES,
            model=model,
            sets=self.bench.sets,
            data_sha256=self.bench.data_sha256,
        )
        if (known := kept.read()) is not None:
            return self.bench.read(known, row)
        scores = self.bench.score(load_folder(model), row)
        kept.write(scores)
        return self.bench.read(scores, row)
