"""How the rows of a comparison are trained: each as its difference from one base run."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pipelines import demo_data, recipes, settings
from pipelines.paper.rows import Comparison, Trained
from pipelines.paper.texts import TrainingTexts, size_note
from pipelines.train import check_corpus
from simcse.errors import SimcseError, UsageError
from simcse_platform.config import TrainRun, flatten, override
from simcse_platform.run import check_settings

Scale = Literal["paper", "small"]

SMALL_ROWS = 2048
"""That a model is shown at the scale `small`."""
_SMALL_BATCH = 64
WHITENING_SENTENCES: Mapping[Scale, int] = {"paper": 100_000, "small": 2_000}
CAPTIONS: Mapping[Scale, int] = {"paper": 150_000, "small": 2_000}
"""That are searched: the paper has 150,000 (table 8)."""
_RECIPES = {"unsupervised": "unsup_bert_base", "supervised": "sup_bert_base"}
_OF_A_RECIPE = ("encoder.head", "optim.", "global_batch_size", "epochs", "max_steps")
"""Settings in which the recipes differ; corpus, encoder and sets are the user's."""


@dataclass(frozen=True)
class PlannedRows:
    """What is trained."""

    base: TrainRun
    """The first run, which the others are described by their difference from."""
    points: Mapping[str, Mapping[str, str]]
    """That difference by the row's label."""
    notes: Mapping[str, str]
    """Why a row cannot be trained."""
    sizes: Mapping[str, str]
    """How large a trained row's text is, where it was prepared for it."""


def user_run(
    comparison: Comparison,
    scale: Scale,
    encoder: str | None,
    corpus: Sequence[str] | None,
    data: Path | None,
    tracking: str | None,
    assignments: Sequence[str],
) -> TrainRun:
    """Encoder, text, sets and settings as the user has them, on the unsupervised recipe.

    Raises `UsageError` for a setting in which the rows differ, and without sentences where rows are
    trained on them.
    """
    trained = [row.source for row in comparison.rows if isinstance(row.source, Trained)]
    compared = _compared(trained)
    for path in map(_path, assignments):
        if path in compared:
            raise UsageError(f"{path} is what {comparison.name} compares: leave it out of --set")
        if path == "data.corpus":
            raise UsageError("data.corpus differs between rows: name sentences by --corpus")
    if scale == "small":
        encoder = encoder or str(demo_data.minilm_folder())
        corpus = corpus or [str(demo_data.sentences_path())]
    named = [] if encoder is None else [f"encoder.model={json.dumps(encoder)}"]
    resolved = settings.resolve(
        _RECIPES["unsupervised"],
        None,
        corpus,
        data,
        tracking,
        [*_scaled(scale, _SMALL_BATCH), *named, *assignments],
    )
    if any(source.text == "sentences" for source in trained):
        check_corpus(resolved.run)
    return resolved.run


def plan_rows(
    comparison: Comparison,
    scale: Scale,
    user: TrainRun,
    texts: TrainingTexts,
    assignments: Sequence[str],
    *,
    leave_out: Collection[str] = (),
) -> PlannedRows:
    """The run of every row whose text is at hand, but for those that are left out by label.

    Raises `UsageError` when no row can be trained and none does without.
    """
    runs: dict[str, TrainRun] = {}
    notes: dict[str, str] = {}
    sizes: dict[str, str] = {}
    sample = texts.sample_size()
    for row in comparison.rows:
        if not isinstance(row.source, Trained) or row.label in leave_out:
            continue
        try:
            corpus = texts.settings(row.source, sample)
            run = _run(row.source, scale, user, assignments, corpus)
            check_settings(run)
        except SimcseError as error:
            notes[row.label] = str(error)
        else:
            runs[row.label] = run
            sizes[row.label] = size_note(row.source.text, run.data)
    untrained = any(
        row.label in leave_out or not isinstance(row.source, Trained) for row in comparison.rows
    )
    if not runs and notes and not untrained:
        reasons = "; ".join(dict.fromkeys(notes.values()))
        raise UsageError(f"no row of {comparison.name} can be trained: {reasons}")
    base = next(iter(runs.values()), user)
    start = flatten(base)
    points = {
        label: {path: text for path, text in flatten(run).items() if text != start[path]}
        for label, run in runs.items()
    }
    return PlannedRows(base, points, notes, sizes)


def _run(
    source: Trained,
    scale: Scale,
    user: TrainRun,
    assignments: Sequence[str],
    corpus: Sequence[str],
) -> TrainRun:
    """A row's recipe, what the row changes, its scale, then the user's settings and its text."""
    recipe = flatten(recipes.find(_RECIPES[source.recipe]))
    own = [f"{path}={text}" for path, text in recipe.items() if path.startswith(_OF_A_RECIPE)]
    batches = [text for text in source.settings if _path(text) == "global_batch_size"]
    batch = int(batches[0].partition("=")[2]) if batches else _SMALL_BATCH
    # As they were resolved, since a path in them is relative to where the command was given.
    resolved = flatten(user)
    last = [f"{path}={resolved[path]}" for path in map(_path, assignments)]
    return override(user, [*own, *source.settings, *_scaled(scale, batch), *last, *corpus])


def _scaled(scale: Scale, batch: int) -> list[str]:
    """What a scale does to a run whose global batch would be `batch`."""
    if scale == "paper":
        return []
    steps = SMALL_ROWS // batch
    return [f"global_batch_size={batch}", f"max_steps={steps}", "epochs=1", "dev.every=10"]


def _compared(trained: Sequence[Trained]) -> set[str]:
    """Settings in which rows differ; what all of them set alike is the user's to change."""
    tables = [dict(text.split("=", 1) for text in source.settings) for source in trained]
    paths = {path for table in tables for path in table}
    return {path for path in paths if len({table.get(path) for table in tables}) > 1}


def _path(assignment: str) -> str:
    return assignment.partition("=")[0].strip()
