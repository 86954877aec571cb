"""How the rows of a comparison are trained: each as its difference from one base run."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pipelines import demo_data, recipes, settings
from pipelines.paper.rows import Comparison, Trained
from pipelines.paper.texts import TrainingTexts
from pipelines.train import check_corpus
from simcse.errors import SimcseError, UsageError
from simcse_platform.config import TrainRun, flatten, from_tree, override
from simcse_platform.run import check_settings

Scale = Literal["paper", "small"]

_SMALL_ROWS, _SMALL_BATCH = 1920, 64
WHITENING_SENTENCES: Mapping[Scale, int] = {"paper": 100_000, "small": 2_000}
CAPTIONS: Mapping[Scale, int] = {"paper": 150_000, "small": 2_000}
"""That are searched: the paper has 150,000 (table 8)."""


@dataclass(frozen=True)
class PlannedRows:
    """What is trained."""

    points: Mapping[str, Mapping[str, str]]
    """How the run of a row differs from the base, by the row's label."""
    notes: Mapping[str, str]
    """Why a row cannot be trained."""


def base_run(
    scale: Scale,
    encoder: str | None,
    corpus: Sequence[str] | None,
    data: Path | None,
    tracking: str | None,
    assignments: Sequence[str],
) -> settings.Resolved:
    """The unsupervised run that every other one is described by its difference from."""
    if scale == "small":
        encoder = encoder or str(demo_data.minilm_folder())
        corpus = corpus or [str(demo_data.sentences_path())]
    if encoder is not None:
        assignments = [f"encoder.model={json.dumps(encoder)}", *assignments]
    resolved = settings.resolve(
        "unsup_bert_base",
        None,
        corpus,
        data,
        tracking,
        [*_scaled(scale, _SMALL_BATCH), *assignments],
    )
    check_corpus(resolved.run)
    return resolved


def _scaled(scale: Scale, batch: int) -> list[str]:
    """What a scale does to a run whose global batch would be `batch`."""
    if scale == "paper":
        return []
    steps = max(1, _SMALL_ROWS // batch)
    return [f"global_batch_size={batch}", f"max_steps={steps}", "epochs=1", "dev.every=10"]


def plan_rows(
    comparison: Comparison,
    scale: Scale,
    base: TrainRun,
    texts: TrainingTexts,
    assignments: Sequence[str],
) -> PlannedRows:
    """The run of every row whose text is at hand, as its difference from the base."""
    smallest = texts.smallest(row.source for row in comparison.rows)
    points, notes = {}, {}
    start = flatten(base)
    for row in comparison.rows:
        if not isinstance(row.source, Trained):
            continue
        try:
            corpus = texts.settings(row.source, smallest)
            run = _run(row.source, scale, base, [*corpus, *assignments])
            check_settings(run)
        except SimcseError as error:
            notes[row.label] = str(error)
            continue
        points[row.label] = {k: text for k, text in flatten(run).items() if text != start[k]}
    if not points:
        reasons = "; ".join(dict.fromkeys(notes.values()))
        raise UsageError(f"no row of {comparison.name} can be trained: {reasons}")
    return PlannedRows(points, notes)


def _run(source: Trained, scale: Scale, base: TrainRun, last: Sequence[str]) -> TrainRun:
    """The run of a row: its recipe on the base's encoder and sets, then what the row changes."""
    recipe = recipes.find("unsup_bert_base" if source.recipe == "unsupervised" else "sup_bert_base")
    tree = base.model_dump(mode="json")
    own = recipe.model_dump(mode="json")
    tree["encoder"]["head"] = own["encoder"]["head"]
    for key in ("optim", "global_batch_size", "epochs", "max_steps"):
        tree[key] = own[key]
    run = override(from_tree(tree), source.settings)
    chosen = any(text.startswith("global_batch_size=") for text in source.settings)
    batch = run.global_batch_size if chosen else _SMALL_BATCH
    return override(run, [*_scaled(scale, batch), *last])
