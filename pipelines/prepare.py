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
        typer.Argument(
            metavar="SOURCE...",
            help="Files (txt, csv, tsv, jsonl, each also gz or zst; parquet, arrow), folders, "
            "globs, datasets saved by save_to_disk, or hf://OWNER/NAME with :SPLIT or /FILES, and "
            "@REVISION before it if need be.",
        ),
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
        typer.Option(
            metavar="NAMES",
            help="Columns to read, separated by commas, in the order anchor, positive, hard "
            "negatives, or that of --build; default: all text columns.",
        ),
    ] = None,
    build: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Make rows of labelled ones: nli-entailment, nli-neutral, nli-contradiction, "
            "nli-all, nli-triplets or nli-triplets-neutral (of label, premise, hypothesis), "
            "paraphrases (of label, question1, question2), captions (of image, caption).",
        ),
    ] = None,
    split_sentences: Annotated[
        bool,
        typer.Option(
            "--split-sentences",
            help="Texts are articles, such as those of a Wikipedia dump, in the column text: split "
            "them into sentences.",
        ),
    ] = False,
    language: Annotated[
        str, typer.Option(metavar="CODE", help="Language of --split-sentences, such as en.")
    ] = "en",
    min_words: Annotated[
        int, typer.Option(min=0, help="Drop rows with a text of fewer words.")
    ] = 0,
    max_words: Annotated[
        int | None, typer.Option(min=1, help="Drop rows with a text of more words.")
    ] = None,
    keep_order: Annotated[
        bool,
        typer.Option(
            "--keep-order",
            help="Keep sentences in document order, repetitions too, for the views next sentence "
            "and next three sentences. A document ends with its file or article, and in a txt file "
            "with an empty line.",
        ),
    ] = False,
    dedupe_corpus: Annotated[
        bool,
        typer.Option(
            "--dedupe-corpus",
            help="Drop repetitions over the whole corpus, not only within a shard; reads it twice.",
        ),
    ] = False,
    sample: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="Take N rows at random; reads the corpus twice."),
    ] = None,
    sample_each: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="Take N rows of every SOURCE at random."),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of the sample.")] = 0,
    max_bad_share: Annotated[
        float, typer.Option(min=0, max=1, help="Share of unusable rows above which it fails.")
    ] = 0.01,
    address: settings.Address = None,
    json_file: JsonFile = None,
) -> None:
    """Clean and tokenise text into parquet shards with a manifest.

    One column is for unsupervised training, two are pairs, each further one is a hard negative.
    """
    from simcse_platform.ingest.cleaning import RowOptions
    from simcse_platform.ingest.prepare import list_counts
    from simcse_platform.ingest.prepare import prepare as prepare_dataset

    options = RowOptions(
        build=build,
        split_language=language if split_sentences else None,
        min_words=min_words,
        max_words=max_words,
        keep_order=keep_order,
        dedupe_corpus=dedupe_corpus,
        sample=sample,
        sample_each=sample_each,
        seed=seed,
    )
    with progress_bar("prepare: rows") as show:
        tokenised = 0

        def add(rows: int) -> None:
            nonlocal tokenised
            tokenised += rows
            show(tokenised)

        result = prepare_dataset(
            [settings.absolute(source) for source in sources],
            output,
            tokenizer_model=settings.model_source(model),
            max_length=max_length,
            columns=settings.names(columns) if columns else None,
            options=options,
            max_bad_share=max_bad_share,
            progress=add,
            address=address,
        )
    manifest = result.manifest
    if not result.created:
        say(f"{result.folder} is prepared already: nothing to do")
    overlap = manifest.lexical_overlap
    say(
        f"{manifest.rows} rows in {len(manifest.shards)} shards in {result.folder}; dropped: "
        f"{list_counts(manifest.dropped)}; unusable: {list_counts(manifest.quarantined)}; cut to "
        f"{manifest.max_length} tokens: {manifest.cut}"
        + ("" if overlap is None else f"; lexical overlap of anchor and positive: {overlap:.1%}")
    )
    write_json(
        json_file,
        {
            "folder": str(result.folder),
            "created": result.created,
            **manifest.model_dump(mode="json"),
        },
    )
