"""`simcse search`: the sentences of a file that mean most nearly what a query says."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pipelines import embedders, settings
from pipelines.console import JsonFile, progress_bar, say, write_json
from pipelines.evaluate import ModelArgument
from simcse.errors import UsageError


def search(
    model: ModelArgument,
    sentences: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Text to search in, txt or gz, one sentence a line."),
    ] = None,
    index: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Keep the index in this folder, or use the one there."),
    ] = None,
    query: Annotated[
        list[str] | None, typer.Option(metavar="TEXT", help="What to find; may be repeated.")
    ] = None,
    queries: Annotated[
        Path | None, typer.Option(metavar="FILE", help="What to find, one query a line.")
    ] = None,
    top_k: Annotated[int, typer.Option(min=1, help="Sentences to show of each query.")] = 5,
    threshold: Annotated[
        float, typer.Option(min=-1, max=1, help="Lowest cosine of a sentence that is shown.")
    ] = 0.6,
    pooling: settings.PoolingOption = None,
    output: settings.Output = Path("runs"),
    tracking: settings.TrackingUri = None,
    json_file: JsonFile = None,
) -> None:
    """Find sentences by meaning, exactly, in a file of any size.

    The index of the file may be kept, and then needs neither the file nor the time again.
    """
    if sentences is None and index is None:
        raise UsageError("there is nothing to search in: give --sentences FILE or --index DIR")
    if not query and queries is None and index is None:
        raise UsageError("there is nothing to find: give --query TEXT or --queries FILE")
    if blank := [text for text in query or () if not text.strip()]:
        raise UsageError(f"--query {blank[0]!r} says nothing: give it words")
    from simcse.index_source import SentenceFile
    from simcse.tool import SimCSE

    # The texts first: a wrong path or line is found before a model is loaded.
    wanted = [*(query or ()), *(SentenceFile(queries) if queries else ())]
    source = SentenceFile(sentences) if sentences else None
    tool = SimCSE(embedders.load_model(model, pooling=pooling, output=output, tracking=tracking))
    if source is not None:
        with progress_bar("search: sentences", len(source)) as show:
            tool.build_index(source, index_path=index, progress=lambda done: show(done))
    elif index is not None:
        tool.open_index(index)
    count = len(tool.index or ())
    if index is not None:
        say(f"{count} sentences are in the index {index}")
    results = tool.search(wanted, top_k=top_k, threshold=threshold) if wanted else []
    found = list(zip(wanted, results, strict=True))
    for text, hits in found:
        say(text)
        for sentence, cosine in hits:
            say(f"  {cosine:.4f}  {sentence}")
        if not hits:
            say(f"  nothing at {threshold} or above")
    write_json(
        json_file,
        {
            "model": model,
            "sentences": count,
            "queries": [
                {"query": text, "hits": [{"sentence": s, "cosine": c} for s, c in hits]}
                for text, hits in found
            ],
        },
    )
