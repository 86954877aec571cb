"""`simcse evaluate`: a model's scores on the STS sets, as the literature reports them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from pipelines import settings
from pipelines.console import JsonFile, progress_bar, say, write_json

if TYPE_CHECKING:
    from simcse.config import Pooling
    from simcse.encoder import SentenceEncoder
    from simcse.evaluation import EvaluationSet, Scores

ModelArgument = Annotated[
    str, typer.Argument(metavar="MODEL", help="Folder, hub id, or models:/NAME@alias.")
]
Tasks = Annotated[
    str, typer.Option(metavar="NAMES", help="`sts`, or names of sets separated by commas.")
]


def evaluate(
    model: ModelArgument,
    pooling: Annotated[
        Literal["cls", "cls_before_pooler", "avg", "avg_top2", "avg_first_last"] | None,
        typer.Option(help="How token states become one vector; default: as the folder says."),
    ] = None,
    tasks: Tasks = "sts",
    mode: Annotated[
        Literal["test", "dev"], typer.Option(help="The split; dev has STS-B and SICK-R only.")
    ] = "test",
    data: settings.Data = None,
    output: settings.Output = Path("runs"),
    tracking: settings.TrackingUri = None,
    json_file: JsonFile = None,
) -> None:
    """Score a model on sentence similarity: Spearman and Pearson x 100 in SentEval's settings."""
    from pipelines import evaluation_sets
    from simcse.evaluation import evaluation_report, render_table

    # The data first: a wrong path is found before a model is loaded.
    loaded = evaluation_sets.load(
        settings.names(tasks), data=settings.evaluation_data(data), mode=mode
    )
    encoder = load_model(model, pooling=pooling, output=output, tracking=tracking)
    results = score(encoder, loaded.sets, label="evaluate")
    report = evaluation_report(model, mode, encoder.pooling, results, loaded.missing, loaded.sha256)
    say(render_table(results, loaded.missing))
    write_json(json_file, dict(report))


def load_model(
    model: str, *, pooling: Pooling | None = None, output: Path, tracking: str | None
) -> SentenceEncoder:
    """The encoder in a folder, on the hub or in the registry, on a GPU if there is one."""
    folder: str | Path = model
    if model.startswith("models:/"):
        from simcse_platform.tracking.location import tracking_uri
        from simcse_platform.tracking.registry import fetch_model

        folder = fetch_model(tracking_uri(tracking, output), model, output / ".models")
    return load_folder(folder, pooling=pooling)


def load_folder(folder: str | Path, *, pooling: Pooling | None = None) -> SentenceEncoder:
    """The encoder in a folder or on the hub, on a GPU if there is one."""
    import torch

    from simcse.encoder import SentenceEncoder

    encoder = SentenceEncoder.load(folder, pooling=pooling)
    return encoder.to("cuda") if torch.cuda.is_available() else encoder


def score(
    encoder: SentenceEncoder, sets: Sequence[EvaluationSet], *, label: str
) -> dict[str, Scores]:
    """Scores by the name of the set, with progress over the sentences."""
    from simcse.evaluation import distinct_sentences
    from simcse.evaluation import evaluate as score_sets

    if not sets:
        return {}
    with progress_bar(f"{label}: sentences", len(distinct_sentences(sets))) as show:
        return score_sets(encoder, sets, progress=lambda done: show(done))
