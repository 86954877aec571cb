"""`simcse reproduce`: a table or figure of the paper on any encoder and text, beside its scores."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from pipelines import settings
from pipelines.console import JsonFile, say, write_json
from simcse.errors import SimcseError, UsageError

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
            help="paper: the paper's settings. small: 2,048 rows a model, for a machine without a "
            "GPU, on the demo's encoder and text where no others are named."
        ),
    ] = "paper",
    encoder: Annotated[
        str | None,
        typer.Option(metavar="MODEL", help="Folder or hub id; default: bert-base-uncased."),
    ] = None,
    corpus: settings.Corpus = None,
    documents: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PATH", help="Sentences in the order of their documents, for next sentences."
        ),
    ] = None,
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
            "--name",
            metavar="NAME",
            help="Name of the sweep and its folder; an unfinished one of it goes on.",
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
    from pipelines.paper.models import RowModels
    from pipelines.paper.texts import GivenTexts, TrainingTexts
    from pipelines.train import check_output, load_dev_sets
    from simcse.encoder import check_config
    from simcse_platform import runtime
    from simcse_platform.run import PREPARED_FOLDER

    chosen, output = assignments or [], output.expanduser().absolute()
    comparison = rows.find(name)
    named = _named_models(comparison, models or [])
    folder = settings.evaluation_data(data)
    user = runs.user_run(comparison, scale, encoder, corpus, folder, tracking, chosen)
    given = GivenTexts(
        documents=_absolute(documents),
        nli=_absolute(nli),
        triplets=_absolute(triplets),
        paraphrases=_absolute(paraphrases),
        captions=_absolute(captions),
    )
    texts = TrainingTexts(user.data, given, user.encoder, output / PREPARED_FOLDER, say)
    bench = Bench(
        comparison.measure,
        dev_sets=load_dev_sets(user),
        data=folder,
        captions=lambda: texts.captions(runs.CAPTIONS[scale]),
    )
    check_config(user.encoder)
    check_output(output)
    with runtime.connect(address):
        planned = runs.plan_rows(comparison, scale, user, texts, chosen, leave_out=named)
        made = RowModels(scale, texts, named, planned, None, bench, output, tracking)
        for label in named:
            # What cannot be loaded is found before hours of training.
            made.load(label)
        finished = _train(name, planned, seeds, sweep, output, address)
        kept = (
            results.folder_without_sweep(output, sweep or f"reproduce-{name}")
            if finished is None
            else finished.folder
        )
        made = replace(made, finished=finished)
        outcomes = [made.outcome(row) for row in comparison.rows]
    result = results.result_of(comparison, scale, user, chosen, given, outcomes, bench)
    results.show(result)
    write_json(json_file, result)
    results.record(kept, result, draw(comparison, outcomes), finished)
    if failed := [outcome.row.label for outcome in outcomes if outcome.failure]:
        raise SimcseError(f"{len(failed)} row(s) failed, the lines above say why: {failed[0]}, ...")


def _train(
    name: str,
    planned: PlannedRows,
    seeds: int,
    sweep: str | None,
    output: Path,
    address: str | None,
) -> FinishedSweep | None:
    """All rows that differ, as one sweep."""
    from pipelines.tune import run_sweep
    from simcse_platform.sweep.sweep import SearchPlan

    if not planned.points:
        return None
    labels: dict[str, list[str]] = {}
    for label, point in planned.points.items():
        labels.setdefault(json.dumps(point), []).append(label)
    points = {" / ".join(rows): json.loads(point) for point, rows in labels.items()}
    plan = SearchPlan(sampler="listed", points=points, seeds=seeds)
    base = settings.Resolved(planned.base, f"reproduce-{name}")
    return run_sweep(base, {}, plan, name=sweep, output=output, address=address)


def _named_models(comparison: Comparison, models: Sequence[str]) -> dict[str, str]:
    """`--model` by row. Raises `UsageError` for a row that is not there."""
    labels = [row.label for row in comparison.rows]
    named = {}
    for text in models:
        # Labels and paths may hold an equals sign themselves.
        fitting = [label for label in labels if text.startswith(f"{label}=")]
        label = max(fitting, key=len, default=None)
        if label is None or text == f"{label}=":
            raise UsageError(
                f"--model {text!r} names no row of {comparison.name}: write ROW=MODEL, ROW being "
                f"one of {'; '.join(labels)}"
            )
        named[label] = settings.model_source(text[len(label) + 1 :])
    return named


def _absolute(paths: Sequence[str] | None) -> tuple[str, ...]:
    return tuple(settings.absolute(path) for path in paths or ())
