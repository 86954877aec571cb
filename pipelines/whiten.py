"""`simcse whiten`: BERT-whitening, a baseline that needs no training, saved with its model."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Annotated

import typer
from pydantic import JsonValue

from pipelines import embedders, settings
from pipelines.console import JsonFile, progress_bar, say, write_json
from simcse.errors import DataError, UsageError


def whiten(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="Folder or hub id.")],
    text: Annotated[
        Path, typer.Option(metavar="FILE", help="Text to fit to, txt or gz, one sentence a line.")
    ],
    output: Annotated[Path, typer.Option(metavar="DIR", help="Folder of the whitened model.")],
    pooling: settings.PoolingOption = None,
    dimensions: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="K",
            help="Keep the K widest directions; default: all in which the text varies.",
        ),
    ] = None,
    json_file: JsonFile = None,
) -> None:
    """Give a model's vectors mean 0 and covariance 1 on a text, and save it with that.

    Each sentence of the text counts once; a whitening that the model has already is replaced.
    """
    from simcse.index_source import SentenceFile
    from simcse.model_description import read_description
    from simcse.model_source import locate
    from simcse.whitening import Whitening

    sentences = list(dict.fromkeys(SentenceFile(text)))
    encoder = embedders.load_folder(model, pooling=pooling)
    encoder.whitening = None
    width = encoder.dimension
    if dimensions is not None and dimensions > width:
        raise UsageError(f"--dimensions is {dimensions}, but the vectors have {width}: lower it")
    with progress_bar("whiten: sentences", len(sentences)) as show:
        vectors_nD = encoder.encode(sentences, progress=lambda done: show(done))
    try:
        encoder.whitening = Whitening.fit(vectors_nD, dimensions).layer()
    except DataError as error:
        raise DataError(f"{text}: {error}") from None
    fitted: dict[str, JsonValue] = {
        "model": model,
        "text": text.name,
        "text_sha256": hashlib.sha256("\n".join(sentences).encode()).hexdigest(),
        "sentences": len(sentences),
        "dimensions": encoder.dimension,
    }
    saved = read_description(locate(model))
    encoder.save(output, lineage={**(saved.lineage if saved else {}), "whitening": fitted})
    say(
        f"whitened on {len(sentences)} sentences of {text}, {width} to {encoder.dimension} "
        f"dimensions: {output}"
    )
    write_json(json_file, {**fitted, "pooling": encoder.pooling, "output": str(output)})
