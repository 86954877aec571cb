"""`simcse evaluate`: a model's scores on the literature's sets, as the literature reports them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from pipelines import embedders, settings
from pipelines.console import JsonFile, may_be_written, progress_bar, say, write_json, write_text
from simcse.errors import SimcseError, UsageError

if TYPE_CHECKING:
    from simcse.evaluation import Embedder, Evaluation, EvaluationSet

_LATENCY_SENTENCES = 100
"""Of all lengths, from the sets that are compared."""

ModelArgument = Annotated[
    str, typer.Argument(metavar="MODEL", help="Folder, hub id, or models:/NAME@alias.")
]
Tasks = Annotated[
    str,
    typer.Option(
        metavar="NAMES",
        help="sts, transfer, full, names of sets and paths of .tsv files, separated by commas.",
    ),
]


def evaluate(
    model: Annotated[
        str | None,
        typer.Argument(
            metavar="MODEL",
            help="Folder, hub id, models:/NAME@alias, or a .txt or .vec file of word vectors.",
        ),
    ] = None,
    embedder: Annotated[
        str | None,
        typer.Option(
            metavar="MODULE:ATTRIBUTE",
            help="Instead of MODEL, any object with encode(list of sentences), or a class or "
            "function that makes one.",
        ),
    ] = None,
    pooling: settings.PoolingOption = None,
    tasks: Tasks = "sts",
    mode: Annotated[
        Literal["test", "dev", "fasttest"],
        typer.Option(help="dev scores dev splits; fasttest is test with quicker transfer tasks."),
    ] = "test",
    data: settings.Data = None,
    output: settings.Output = Path("runs"),
    tracking: settings.TrackingUri = None,
    json_file: JsonFile = None,
    markdown: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", callback=may_be_written, help="Write the tables to this file as well."
        ),
    ] = None,
) -> None:
    """Score a model in SentEval's settings: Spearman on STS, accuracy on transfer tasks, x 100."""
    from pipelines import evaluation_sets
    from simcse.evaluation import evaluation_report, render_markdown, render_tables
    from simcse.word_vectors import WordVectorAverage

    if (
        markdown is not None
        and json_file is not None
        and markdown.absolute() == json_file.absolute()
    ):
        raise UsageError(f"--json and --markdown both name {markdown}: name two files")
    # The data first: a wrong path is found before a model is loaded.
    loaded = evaluation_sets.load(
        settings.names(tasks), data=settings.evaluation_data(data), mode=mode
    )
    chosen = embedders.choose(model, embedder, pooling=pooling, output=output, tracking=tracking)
    evaluation = score(chosen.embedder, loaded.sets, label="evaluate")
    say(render_tables(evaluation.scores, loaded.missing, mode))
    if isinstance(chosen.embedder, WordVectorAverage):
        say(
            f"{chosen.embedder.unknown_words} of {chosen.embedder.words} words have no vector and "
            "were left out"
        )
    report = evaluation_report(
        chosen.name, mode, chosen.pooling, evaluation, loaded.missing, loaded.sha256
    )
    write_json(json_file, dict(report))
    if markdown is not None and evaluation.scores:
        pooled = f", pooling {chosen.pooling}" if chosen.pooling else ""
        title = f"{chosen.name}, {mode}{pooled}"
        text = render_markdown(title, evaluation.scores, loaded.missing, mode)
        write_text(markdown, text, option="--markdown")
    if not evaluation.scores:
        raise SimcseError("nothing was scored, since every set is missing: name others, or --data")


def score(embedder: Embedder, sets: Sequence[EvaluationSet], *, label: str) -> Evaluation:
    """Scores of sets, with progress over the sentences."""
    from simcse.evaluation import Evaluation, distinct_sentences
    from simcse.evaluation import evaluate as score_sets

    if not sets:
        return Evaluation({}, {})
    with progress_bar(f"{label}: sentences", len(distinct_sentences(sets))) as show:
        return score_sets(embedder, sets, progress=lambda done: show(done))


def latency_ms(embedder: Embedder, sets: Sequence[EvaluationSet]) -> float:
    """Milliseconds that a sentence takes when it comes alone, as requests do: the median."""
    from simcse.evaluation import distinct_sentences

    sentences = distinct_sentences(sets)
    chosen = sentences[:: max(1, len(sentences) // _LATENCY_SENTENCES)][:_LATENCY_SENTENCES]
    embedder.encode(chosen[:1])

    def seconds(sentence: str) -> float:
        start = time.perf_counter()
        embedder.encode([sentence])
        return time.perf_counter() - start

    return 1000 * median(map(seconds, chosen))
