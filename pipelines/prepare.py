"""`simcse prepare`: raw text to a cleaned, tokenised dataset with a manifest."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pipelines import settings
from pipelines.console import JsonFile, progress_bar, say, write_json


def prepare(
    sources: Annotated[
        list[str],
        typer.Argument(metavar="SOURCE...", help="Files (txt, csv, parquet), folders or globs."),
    ],
    output: Annotated[
        Path, typer.Option(metavar="DIR", help="Folder of the prepared dataset; made whole or not.")
    ],
    model: Annotated[
        str, typer.Option(metavar="MODEL", help="Folder or hub id whose tokenizer is used.")
    ],
    max_length: Annotated[
        int, typer.Option(min=3, help="Tokens a sentence is cut to, special tokens included.")
    ] = 32,
    columns: Annotated[
        str | None,
        typer.Option(metavar="NAMES", help="Text columns, separated by commas; default: all."),
    ] = None,
    max_bad_share: Annotated[
        float, typer.Option(min=0, max=1, help="Share of unusable rows above which it fails.")
    ] = 0.01,
    address: settings.Address = None,
    json_file: JsonFile = None,
) -> None:
    """Clean and tokenise text into parquet shards with a manifest.

    One column is for unsupervised training, two are pairs, each further one is a hard negative.
    """
    from simcse_platform import runtime
    from simcse_platform.ingest.prepare import list_counts
    from simcse_platform.ingest.prepare import prepare as prepare_dataset

    with runtime.connect(address), progress_bar("prepare: rows") as show:
        read = 0

        def add(rows: int) -> None:
            nonlocal read
            read += rows
            show(read)

        result = prepare_dataset(
            [settings.absolute(source) for source in sources],
            output,
            tokenizer_model=settings.model_source(model),
            max_length=max_length,
            columns=settings.names(columns) if columns else None,
            max_bad_share=max_bad_share,
            progress=add,
        )
    manifest = result.manifest
    if not result.created:
        say(f"{result.folder} is prepared already: nothing to do")
    say(
        f"{manifest.rows} rows in {len(manifest.shards)} shards in {result.folder}; dropped: "
        f"{list_counts(manifest.dropped)}; unusable: {list_counts(manifest.quarantined)}; cut to "
        f"{manifest.max_length} tokens: {manifest.cut}"
    )
    write_json(
        json_file,
        {
            "folder": str(result.folder),
            "created": result.created,
            **manifest.model_dump(mode="json"),
        },
    )
