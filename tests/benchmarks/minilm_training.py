"""Training of MiniLM on tokens in memory: this project's step, and sentence-transformers'.

Both have the same encoder with mean pooling, the same rows in the same order, dropout, fp32
weights, temperature 0.05, and AdamW with linear decay and clipping at 1.
"""

from __future__ import annotations

import csv
import gzip
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow.parquet as pq
import torch
from numpy.typing import NDArray
from torch import nn

from benchmarks.measuring import (
    Benchmark,
    Figures,
    Option,
    Options,
    Row,
    Runs,
    Stepper,
    seconds_by_turns,
    seconds_of_each,
)
from pipelines.demo_data import minilm_folder
from simcse.batch import Batch
from simcse.config import EncoderConfig, MemoryConfig
from simcse.encoder import SentenceEncoder
from simcse.evaluation import Embedder, Pairs, STSSet, evaluate, load_sets
from simcse.evaluation.protocol import Progress
from simcse.objective import TaskOutput, build_task
from simcse.optim import build_optimizer, learning_rate
from simcse_platform.config import TrainRun
from simcse_platform.training.engine import DdpEngine

MAX_LENGTH = 32
BY_TURNS = "by-turns"
"""The side whose process takes steps of all others, one after another."""
Rows = Sequence[tuple[str, ...]]
"""Texts of each row: one for unsupervised training, or anchor, positive, hard negative."""


def training_options(batch: int) -> dict[str, Option]:
    """Sizes of a training benchmark."""
    return {
        "batch": Option(batch, 16, "rows of a batch"),
        "steps": Option(10, 2, "timed steps of a run"),
        "warm-up": Option(2, 1, "steps before them"),
    }


def data_folder() -> Path:
    """The folder of public data that the environment names."""
    folder = os.environ.get("SIMCSE_DATA")
    if not folder:
        raise SystemExit("SIMCSE_DATA names no folder with the public data sets")
    return Path(folder)


def read_triplets(count: int) -> Rows:
    """The first rows of the NLI file, which was shuffled when it was made."""
    with gzip.open(data_folder() / "nli" / "nli_triplets.csv.gz", "rt", encoding="utf-8") as file:
        rows = [tuple(row) for row in islice(csv.reader(file), 1, count + 1)]
    return _enough(rows, count)


def read_sentences(count: int) -> Rows:
    """The first Wikipedia sentences, likewise shuffled."""
    files = sorted((data_folder() / "wiki" / "parquet").glob("*.parquet"))
    texts = (text for file in files for text in pq.read_table(file)["text"].to_pylist())
    return _enough([(text,) for text in islice(texts, count)], count)


def minilm_run(
    batch_size: int, *, buckets: int = 8, memory: MemoryConfig | None = None
) -> TrainRun:
    """MiniLM with mean pooling, and the defaults of everything else."""
    return TrainRun(
        encoder=EncoderConfig(
            model=str(minilm_folder()),
            pooling="avg",
            head="none",
            max_length=MAX_LENGTH,
            length_buckets=buckets,
        ),
        memory=memory or MemoryConfig(),
        global_batch_size=batch_size,
    )


def make_engine(run: TrainRun, *, autocast_dtype: torch.dtype | None = None) -> DdpEngine:
    """The engine that a single worker of this run would have."""
    task = build_task(
        run.encoder,
        run.objective,
        run.views,
        seed=run.seed,
        memory=run.memory,
        autocast_dtype=autocast_dtype,
    )
    optimizer = build_optimizer(task, run.optim)
    return DdpEngine(task, optimizer, max_gradient_norm=run.optim.max_gradient_norm)


def ragged_batches(encoder: SentenceEncoder, rows: Rows, batch_size: int) -> list[Batch]:
    """The rows, tokenised, in batches of equal size."""
    return [
        Batch(
            epoch=0,
            step=step,
            global_rows=batch_size,
            row_ids_b=torch.arange(step * batch_size, (step + 1) * batch_size),
            columns=tuple(
                encoder.tokenize(column, MAX_LENGTH) for column in zip(*batch, strict=True)
            ),
        )
        for step, batch in enumerate(_batches(rows, batch_size))
    ]


def take_step(engine: DdpEngine, batch: Batch, *, run: TrainRun, steps: int) -> TaskOutput:
    """One step of the training loop."""
    output = engine(batch)
    engine.backward(output.loss)
    engine.step(learning_rate(batch.step, steps, run.optim))
    return output._replace(loss=output.loss.detach())


@dataclass(frozen=True)
class Trainable(Stepper):
    """One side of a comparison of training."""

    describe: Callable[[], Figures]
    """Of the model after its steps."""


def train(trainable: Trainable, options: Options) -> Figures:
    """Speed of one side's step, and what became of its model."""
    seconds = seconds_of_each(trainable.step, trainable.inputs, warm_up=options.warm_up)
    speed = {"rows_per_s": options.batch * len(seconds) / sum(seconds), "seconds": seconds}
    return speed | trainable.describe()


def ours(rows: Rows, options: Options, *, bf16: bool) -> Trainable:
    """This project's step."""
    run = minilm_run(options.batch)
    engine = make_engine(run, autocast_dtype=torch.bfloat16 if bf16 else None)
    batches = ragged_batches(engine.task.encoder, rows, options.batch)
    outputs: list[TaskOutput] = []

    def describe() -> Figures:
        tokens, positions = (sum(getattr(o, n) for o in outputs) for n in ("tokens", "positions"))
        return {
            "dev_stsb_spearman": dev_score(engine.task.encoder, options),
            "padding_efficiency": tokens / positions,
            "last_loss": float(outputs[-1].loss),
        }

    return Trainable(
        lambda batch: outputs.append(take_step(engine, batch, run=run, steps=len(batches))),
        batches,
        describe,
    )


def theirs(rows: Rows, options: Options, *, bf16: bool) -> Trainable:
    """A step of sentence-transformers' model and MultipleNegativesRankingLoss in a plain loop.

    Its trainer needs the package accelerate, which the project does not install. The loop does what
    that trainer does in a step (fused AdamW, clipping, autocast around the loss) and leaves out
    what else it does, so it is no slower. Features are collated beforehand, as the trainer
    collates them: each column padded to its longest sentence.
    """
    from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss

    optim = minilm_run(options.batch).optim
    model = load_sentence_transformer()
    full_length, model.max_seq_length = model.max_seq_length, MAX_LENGTH
    model.train()
    loss_of = MultipleNegativesRankingLoss(model, scale=20.0)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=optim.learning_rate, weight_decay=0.0, fused=True
    )
    batches = _batches(rows, options.batch)
    collated = []
    for batch in batches:
        columns = [list(column) for column in zip(*batch, strict=True)]
        # A sentence alone is given twice, as sentence-transformers' own SimCSE example does.
        columns = columns * 2 if len(columns) == 1 else columns
        collated.append([model.preprocess(column) for column in columns])
    labels = torch.zeros(0)
    losses: list[float] = []

    def step(features: list[dict[str, Any]]) -> None:
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(len(losses), len(batches), optim)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=bf16):
            # The model writes into the features it gets.
            loss = loss_of([dict(column) for column in features], labels)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), optim.max_gradient_norm)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))

    def describe() -> Figures:
        model.max_seq_length = full_length
        masks = [column["attention_mask"] for features in collated for column in features]
        return {
            "dev_stsb_spearman": dev_score(SentenceTransformerEmbedder(model), options),
            "padding_efficiency": sum(int(m.sum()) for m in masks) / sum(m.numel() for m in masks),
            "last_loss": losses[-1],
        }

    return Trainable(step, collated, describe)


def load_sentence_transformer() -> Any:
    """MiniLM as sentence-transformers loads it, but without the pooler that nobody reads."""
    from sentence_transformers import SentenceTransformer

    return SentenceTransformer(
        str(minilm_folder()),
        device="cpu",
        model_kwargs={"add_pooling_layer": False, "dtype": torch.float32},
    )


class SentenceTransformerEmbedder:
    """A model of sentence-transformers as this project's evaluation sees it."""

    def __init__(self, model: Any) -> None:
        self._model = model

    def encode(
        self, sentences: Sequence[str], *, progress: Progress | None = None
    ) -> NDArray[np.float32]:
        return cast(NDArray[np.float32], self._model.encode(list(sentences)))


def dev_score(embedder: Embedder, options: Options) -> float:
    """Spearman x 100 on STS-B dev."""
    loaded = load_sets(["STSBenchmark"], data=data_folder(), mode="dev")
    shortened = shorten(cast(STSSet, loaded.sets[0]), options.dev_pairs)
    return evaluate(embedder, [shortened]).scores["STSBenchmark"].headline


def shorten(evaluated: STSSet, pairs: int) -> STSSet:
    """The set with no more than the first `pairs` of each subset."""
    subsets = {
        name: Pairs(part.first[:pairs], part.second[:pairs], part.gold_n[:pairs])
        for name, part in evaluated.subsets.items()
    }
    return replace(evaluated, subsets=subsets)


def compare_training(
    name: str, what: str, read: Callable[[int], Rows], *, batch: int, fp32: float, bf16: float
) -> Benchmark:
    """Both implementations in fp32, and under bf16 autocast where the processor multiplies bf16.

    The goals are ratios to their fp32.
    """
    kinds = {"ours": partial(ours, bf16=False), "theirs": partial(theirs, bf16=False)}
    if with_bf16 := multiplies_bf16():
        kinds |= {"ours-bf16": partial(ours, bf16=True), "theirs-bf16": partial(theirs, bf16=True)}

    def trainable(kind: str, options: Options) -> Trainable:
        rows = read(options.batch * (options.warm_up + options.steps))
        return kinds[kind](rows, options)

    def side(options: Options, *, kind: str) -> Figures:
        return train(trainable(kind, options), options)

    def turns(options: Options) -> Figures:
        together = {kind: trainable(kind, options) for kind in kinds}
        return seconds_by_turns(together, warm_up=options.warm_up)

    return Benchmark(
        name=name,
        text=f"{what}, batch {batch}, length {MAX_LENGTH}, MiniLM with mean pooling, one step"
        + ("" if with_bf16 else "; bf16 left out, for which this processor has no instructions"),
        sides={
            **{kind: partial(side, kind=kind) for kind in kinds},
            BY_TURNS: turns,
        },
        rows=lambda runs, options: _rows(runs, what, fp32=fp32, bf16=bf16 if with_bf16 else None),
        options={
            **training_options(batch),
            "dev-pairs": Option(1500, 30, "pairs of STS-B dev that are scored"),
        },
    )


def multiplies_bf16() -> bool:
    """Whether this machine's processor has instructions for it, without which nobody wants it."""
    capabilities = torch.cpu.get_capabilities()
    return bool(capabilities.get("avx512_bf16") or capabilities.get("amx_bf16"))


def _rows(runs: Runs, what: str, *, fp32: float, bf16: float | None) -> list[Row]:
    def speed(text: str, ours: str, theirs: str, goal: float | None = None) -> list[Row]:
        def rate(side: str) -> float:
            return runs.median(side, "rows_per_s")

        def steps(side: str) -> float:
            return 1 / runs.median(BY_TURNS, f"{side}_s")

        return [
            Row(f"{what}, {text}", rate(ours), rate(theirs), goal, unit="rows/s"),
            Row(f"{what}, {text}, by turns", steps(ours), steps(theirs), goal, unit="steps/s"),
        ]

    def score(side: str) -> float:
        return runs.median(side, "dev_stsb_spearman")

    def padding(side: str) -> float:
        return runs.median(side, "padding_efficiency")

    rows = [
        *speed("fp32", "ours", "theirs", fp32),
        Row("share of positions that are tokens", padding("ours"), padding("theirs")),
        Row("STS-B dev after equal rows, fp32", score("ours"), score("theirs")),
    ]
    if bf16 is None:
        return rows
    return [
        *rows,
        *speed("bf16 against fp32", "ours-bf16", "theirs", bf16),
        *speed("both bf16", "ours-bf16", "theirs-bf16"),
        Row("STS-B dev after equal rows, bf16", score("ours-bf16"), score("theirs-bf16")),
        Row(
            "STS-B dev, our bf16 from their fp32",
            abs(score("ours-bf16") - score("theirs")),
            at_most=0.3,
        ),
    ]


def _batches(rows: Rows, batch_size: int) -> list[Rows]:
    return [rows[i : i + batch_size] for i in range(0, len(rows), batch_size)]


def _enough(rows: Rows, count: int) -> Rows:
    if len(rows) < count:
        raise SystemExit(f"{count} rows are wanted, but there are {len(rows)}: take fewer steps")
    return rows
