"""Scoring of MiniLM on five STS sets, against sentence-transformers set by set."""

from __future__ import annotations

import time
from functools import partial
from typing import cast

import numpy as np
from scipy.stats import spearmanr

from benchmarks.measuring import Benchmark, Figures, Option, Options, Row, Runs, main
from benchmarks.minilm_training import data_folder, load_sentence_transformer, shorten
from pipelines.demo_data import minilm_folder
from simcse.encoder import SentenceEncoder
from simcse.evaluation import STSSet, evaluate, load_sets

TASKS = ("STS12", "STS13", "STS15", "STSBenchmark", "SICKRelatedness")
BATCH_SIZES = (16, 32, 64, 128)


def read_sets(options: Options) -> list[STSSet]:
    """The test splits, or their first pairs."""
    loaded = load_sets(TASKS, data=data_folder(), mode="test")
    return [shorten(cast(STSSet, evaluated), options.pairs) for evaluated in loaded.sets]


def score_ours(options: Options) -> Figures:
    """One evaluation of all sets, as `simcse evaluate` makes it."""
    encoder, sets = SentenceEncoder.load(minilm_folder()), read_sets(options)
    encoder.encode(["A first call."])
    start = time.perf_counter()
    scores = evaluate(encoder, sets).scores
    seconds = time.perf_counter() - start
    return {"seconds": seconds} | {name: found.headline for name, found in scores.items()}


def score_theirs(options: Options, *, batch_size: int) -> Figures:
    """`encode` of a set's sentences at a time, longest first as it sorts them itself."""
    model, sets = load_sentence_transformer(), read_sets(options)
    model.encode(["A first call."])
    scores = {}
    start = time.perf_counter()
    for evaluated in sets:
        parts = evaluated.subsets.values()
        first = [text for part in parts for text in part.first]
        second = [text for part in parts for text in part.second]
        vectors_nD = model.encode(first + second, batch_size=batch_size)
        cosine_n = model.similarity_pairwise(vectors_nD[: len(first)], vectors_nD[len(first) :])
        gold_n = np.concatenate([part.gold_n for part in parts])
        scores[evaluated.name] = 100 * float(spearmanr(cosine_n.numpy(), gold_n).statistic)
    return {"seconds": time.perf_counter() - start, **scores}


def rows(runs: Runs, options: Options) -> list[Row]:
    sides = [f"theirs-{size}" for size in BATCH_SIZES]
    best = min(sides, key=lambda side: runs.median(side, "seconds"))
    return [
        Row(
            f"sets a second, theirs at its best batch size ({best.partition('-')[2]})",
            len(TASKS) / runs.median("ours", "seconds"),
            len(TASKS) / runs.median(best, "seconds"),
            at_least=1.4,
            unit="/s",
        ),
        Row("seconds", runs.median("ours", "seconds"), runs.median(best, "seconds"), unit="s"),
        Row(
            "largest difference of a score",
            max(abs(runs.median("ours", task) - runs.median(best, task)) for task in TASKS),
            at_most=0.01,
        ),
        *(Row(f"Spearman of {t}", runs.median("ours", t), runs.median(best, t)) for t in TASKS),
    ]


if __name__ == "__main__":
    main(
        Benchmark(
            name="scoring",
            text="STS12, STS13, STS15, STS-B and SICK-R of MiniLM",
            sides={
                "ours": score_ours,
                **{f"theirs-{n}": partial(score_theirs, batch_size=n) for n in BATCH_SIZES},
            },
            rows=rows,
            options={"pairs": Option(10_000, 20, "pairs of a subset at most")},
        )
    )
