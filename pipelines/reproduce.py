"""`simcse reproduce`: a table or figure of the paper on any encoder and text, beside its scores."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from pipelines import settings
from pipelines.console import JsonFile, say, write_json
from simcse.errors import UsageError

if TYPE_CHECKING:
    from pipelines.paper.rows import Comparison
    from pipelines.paper.runs import PlannedRows
    from simcse_platform.sweep.execute import FinishedSweep


def reproduce(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME",
            help="table1 to table8, tableB, tableD1, tableD2, tableE1, figure2, figure3, figureF, "
            "figureG or batch.",
        ),
    ],
    scale: Annotated[
        Literal["paper", "small"],
        typer.Option(
            help="paper: the paper's settings. small: 1,920 rows a model, for a machine without a "
            "GPU, on the demo's encoder and text where no others are named."
        ),
    ] = "paper",
    encoder: Annotated[
        str | None,
        typer.Option(metavar="MODEL", help="Folder or hub id; default: bert-base-uncased."),
    ] = None,
    corpus: settings.Corpus = None,
    nli: Annotated[
        list[str] | None,
        typer.Option(metavar="PATH", help="NLI pairs: label, premise, hypothesis."),
    ] = None,
    triplets: Annotated[
        list[str] | None,
        typer.Option(metavar="PATH", help="Or NLI triplets: anchor, positive, hard negative."),
    ] = None,
    paraphrases: Annotated[
        list[str] | None,
        typer.Option(metavar="PATH", help="Questions: label, question1, question2."),
    ] = None,
    captions: Annotated[
        list[str] | None, typer.Option(metavar="PATH", help="Captions: image, caption.")
    ] = None,
    models: Annotated[
        list[str] | None,
        typer.Option(
            "--model",
            metavar="ROW=MODEL",
            help="Model for a row that this project does not make, such as SBERT-base=FOLDER.",
        ),
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Runs a row, which differ in their seed.")] = 1,
    data: settings.Data = None,
    assignments: settings.Assignments = None,
    sweep: Annotated[
        str | None,
        typer.Option(
            "--name", metavar="NAME", help="Name of the sweep; an unfinished one of it goes on."
        ),
    ] = None,
    output: settings.Output = Path("runs"),
    tracking: settings.TrackingUri = None,
    address: settings.Address = None,
    json_file: JsonFile = None,
) -> None:
    """Train and measure the rows of a table or figure of the paper, and print both numbers.

    The same command goes on where an interrupted one stopped.
    """
    from pipelines.paper import results, rows, runs
    from pipelines.paper.measures import Bench, draw
    from pipelines.paper.models import TrainedModels
    from pipelines.paper.texts import GivenTexts, TrainingTexts
    from pipelines.train import load_dev_sets
    from simcse_platform import runtime
    from simcse_platform.run import PREPARED_FOLDER

    comparison = rows.find(name)
    named = _named_models(comparison, models or [])
    folder = settings.evaluation_data(data)
    base = runs.base_run(scale, encoder, corpus, folder, tracking, assignments or [])
    given = GivenTexts(
        sentences=base.run.data.corpus,
        nli=_absolute(nli),
        triplets=_absolute(triplets),
        paraphrases=_absolute(paraphrases),
        captions=_absolute(captions),
    )
    texts = TrainingTexts(given, base.run.encoder, output.resolve() / PREPARED_FOLDER, say)
    bench = Bench(
        comparison.measure,
        dev_sets=load_dev_sets(base.run),
        data=folder,
        captions=lambda: texts.captions(runs.CAPTIONS[scale]),
    )
    with runtime.connect(address):
        planned = runs.plan_rows(comparison, scale, base.run, texts, assignments or [])
        finished = _train(base, planned, seeds, name=sweep, output=output, address=address)
    models_of = TrainedModels(scale, base.run, texts, named, planned, finished, output, tracking)
    outcomes = [models_of.outcome(row, bench) for row in comparison.rows]
    result = results.result_of(comparison, scale, base.run, outcomes, bench)
    results.show(result)
    results.record(finished, result, draw(comparison, outcomes))
    write_json(json_file, result)


def _train(
    base: settings.Resolved,
    planned: PlannedRows,
    seeds: int,
    *,
    name: str | None,
    output: Path,
    address: str | None,
) -> FinishedSweep:
    from pipelines.tune import run_sweep
    from simcse_platform.sweep.sweep import SearchPlan

    points = {json.dumps(point): point for point in planned.points.values()}
    plan = SearchPlan(sampler="listed", points=tuple(points.values()), seeds=seeds)
    return run_sweep(base, {}, plan, name=name, output=output, address=address)


def _named_models(comparison: Comparison, models: Sequence[str]) -> dict[str, str]:
    """`--model` by row. Raises `UsageError` for a row that is not there."""
    labels = [row.label for row in comparison.rows]
    named = {}
    for text in models:
        label, equals, model = text.rpartition("=")
        if not (equals and model and label in labels):
            raise UsageError(
                f"--model {text!r} names no row of {comparison.name}: write ROW=MODEL, ROW being "
                f"one of {'; '.join(labels)}"
            )
        named[label] = settings.model_source(model)
    return named


def _absolute(paths: Sequence[str] | None) -> tuple[str, ...]:
    return tuple(settings.absolute(path) for path in paths or ())
