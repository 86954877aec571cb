"""Sentences a second from raw parquet to tokenised shards, against `datasets`."""

from __future__ import annotations

import os
import shutil
import time
from collections import Counter
from collections.abc import Iterator
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.measuring import Benchmark, Figures, Option, Options, Row, Runs, main
from benchmarks.minilm_training import data_folder
from pipelines.demo_data import minilm_folder

FILES = 8
MAX_LENGTH = 32
ROWS_PER_GROUP = 4096


def write_corpus(options: Options) -> None:
    """So many different sentences: those of Wikipedia, again and again with other rare words."""
    sentences = _sentences(options.rows)
    rows_per_file = -(-options.rows // FILES)
    for number in range(FILES):
        texts = pa.array(list(islice(sentences, rows_per_file)), pa.string())
        pq.write_table(
            pa.table({"text": texts}),
            options.scratch / f"corpus-{number}.parquet",
            compression="zstd",
            row_group_size=ROWS_PER_GROUP,
        )


def prepare_ours(options: Options) -> Figures:
    """`simcse prepare` on a cluster that is up: read, cleaned, tokenised, written."""
    from simcse_platform import runtime
    from simcse_platform.ingest.prepare import prepare

    output = options.scratch / f"prepared-{time.time_ns()}"
    with runtime.connect(num_cpus=options.threads, object_store_memory=500_000_000):
        start = time.perf_counter()
        result = prepare(
            _files(options.scratch),
            output,
            tokenizer_model=str(minilm_folder()),
            max_length=MAX_LENGTH,
        )
        seconds = time.perf_counter() - start
    return _figures(seconds, result.manifest.rows, output)


def map_theirs(options: Options) -> Figures:
    """`map`, then the Arrow table written; making its Arrow cache of the files is not counted.

    Its own `to_parquet` knows no compression but snappy, so pyarrow writes what it mapped.
    """
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    import datasets

    from simcse.tokenizer import load_tokenizer

    datasets.disable_progress_bars()
    tokenizer = load_tokenizer(minilm_folder())
    output = options.scratch / f"mapped-{time.time_ns()}"
    start = time.perf_counter()
    loaded = datasets.load_dataset(
        "parquet",
        data_files=[str(file) for file in _files(options.scratch)],
        split="train",
        cache_dir=str(output / "cache"),
    )
    load_seconds = time.perf_counter() - start

    def tokenise(batch: dict[str, list[str]]) -> dict[str, Any]:
        found = tokenizer(
            batch["text"],
            truncation=True,
            max_length=MAX_LENGTH,
            return_attention_mask=False,
            return_token_type_ids=False,
        )
        return {"text_tokens": found["input_ids"]}

    features = datasets.Features(
        {"text": datasets.Value("string"), "text_tokens": datasets.List(datasets.Value("int32"))}
    )
    start = time.perf_counter()
    mapped = loaded.map(tokenise, batched=True, num_proc=options.threads, features=features)
    pq.write_table(mapped.data.table, output / "tokens.parquet", compression="zstd")
    seconds = time.perf_counter() - start
    return _figures(seconds, len(mapped), output) | {"load_seconds": load_seconds}


def rows(runs: Runs, options: Options) -> list[Row]:
    def compare(name: str, text: str, unit: str, goal: float | None = None) -> Row:
        ours, theirs = runs.median("ours", name), runs.median("theirs", name)
        return Row(text, ours, theirs, at_least=goal, unit=unit)

    return [
        compare("rows_per_s", "sentences to shards", "rows/s", 1.2),
        compare("rows", "rows written", ""),
        compare("output_mb", "parquet written", "MB"),
    ]


def _sentences(count: int) -> Iterator[str]:
    files = sorted((data_folder() / "wiki" / "parquet").glob("*.parquet"))
    texts = [text for file in files for text in pq.read_table(file)["text"].to_pylist()]
    met = Counter(word for text in texts for word in text.split())
    for number, text in enumerate(islice(cycle(texts), count)):
        turn = number // len(texts)
        if turn:
            # New words come as often as in the first turn, whoever remembers words.
            words = [word if met[word] > 1 else word + "q" * turn for word in text.split()]
            text = f"{' '.join(words)} {turn}"
        yield text


def _files(scratch: Path) -> list[Path]:
    return sorted(scratch.glob("corpus-*.parquet"))


def _figures(seconds: float, rows: int, output: Path) -> Figures:
    """And the output is gone."""
    size = sum(file.stat().st_size for file in output.glob("*.parquet"))
    shutil.rmtree(output)
    return {
        "rows_per_s": rows / seconds,
        "rows": rows,
        "output_mb": size / 2**20,
        "seconds": seconds,
    }


if __name__ == "__main__":
    main(
        Benchmark(
            name="tokenise",
            text="Wikipedia sentences to tokenised parquet, text beside the ids, zstd",
            sides={"ours": prepare_ours, "theirs": map_theirs},
            rows=rows,
            options={"rows": Option(1_400_000, 5000, "sentences")},
            prepare=write_corpus,
        )
    )
