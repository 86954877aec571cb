"""From a row of a comparison to its model and its numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pipelines.embedders import choose, load_folder
from pipelines.paper.measures import Bench, Measured, Outcome, of_path
from pipelines.paper.rows import Elsewhere, Row, Trained, Untrained
from pipelines.paper.runs import WHITENING_SENTENCES, PlannedRows, Scale
from pipelines.paper.texts import TrainingTexts
from simcse.evaluation import Embedder
from simcse.whitening import Whitening
from simcse_platform.config import TrainRun
from simcse_platform.run_figures import trajectory
from simcse_platform.sweep.execute import FinishedSweep
from simcse_platform.sweep.sweep import SEED, TrialResult
from simcse_platform.training.worker import BEST


@dataclass(frozen=True)
class TrainedModels:
    """The model of each row, trained or not, measured."""

    scale: Scale
    base: TrainRun
    texts: TrainingTexts
    named: Mapping[str, str]
    planned: PlannedRows
    finished: FinishedSweep
    output: Path
    tracking: str | None

    def outcome(self, row: Row, bench: Bench) -> Outcome:
        """What a row's models give, or why there is none."""
        if row.label in self.named:
            chosen = choose(
                self.named[row.label],
                None,
                pooling=None,
                output=self.output,
                tracking=self.tracking,
            )
            return Outcome(row=row, models=[bench.measure(chosen.embedder, row)])
        if isinstance(row.source, Elsewhere):
            return Outcome(row=row, note="not made here: name one by --model ROW=MODEL")
        if isinstance(row.source, Trained):
            return self._trained(row, bench)
        return Outcome(row=row, models=[bench.measure(self._untrained(row.source), row)])

    def _trained(self, row: Row, bench: Bench) -> Outcome:
        if row.label in self.planned.notes:
            return Outcome(row=row, note=self.planned.notes[row.label])
        point = self.planned.points[row.label]
        trials = [
            trial
            for trial in self.finished.results
            if {path: text for path, text in trial.assignments.items() if path != SEED} == point
        ]
        done = [trial for trial in trials if trial.status == "finished"]
        if not done:
            return Outcome(row=row, note=trials[0].reason)
        done.sort(key=lambda trial: -(trial.score or 0))
        return Outcome(row=row, models=[self._measured(trial, row, bench) for trial in done])

    def _measured(self, trial: TrialResult, row: Row, bench: Bench) -> Measured:
        assert trial.score is not None
        assert trial.run_id is not None
        if bench.shows_dev_alone:
            return of_path(
                bench.of_dev(trial.score), trajectory(self.finished.tracking_uri, trial.run_id)
            )
        return bench.measure(load_folder(self.output / trial.name / BEST), row)

    def _untrained(self, source: Untrained) -> Embedder:
        encoder = load_folder(self.base.encoder.model, pooling=source.pooling)
        if source.whitened:
            sentences = self.texts.sentences(WHITENING_SENTENCES[self.scale])
            encoder.whitening = Whitening.fit(encoder.encode(sentences)).layer()
        return encoder
