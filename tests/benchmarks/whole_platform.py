"""The price of the platform: a run through Ray Data, Ray Train and MLflow, and a bare loop."""

from __future__ import annotations

from functools import partial

import torch
from torch import nn

from benchmarks.measuring import (
    Benchmark,
    Figures,
    Option,
    Options,
    Row,
    Runs,
    main,
    seconds_of_each,
)
from benchmarks.minilm_training import MAX_LENGTH, data_folder
from benchmarks.platform_run import train
from pipelines.demo_data import minilm_folder
from simcse.batch import Batch
from simcse.config import EncoderConfig
from simcse.objective import build_task
from simcse.optim import build_optimizer, learning_rate
from simcse_platform import runtime
from simcse_platform.config import (
    DataConfig,
    DevConfig,
    ScaleConfig,
    TrackingConfig,
    TrainRun,
)
from simcse_platform.ingest.prepare import prepare
from simcse_platform.ingest.source import open_corpus
from simcse_platform.training.trainer import plan_steps
from support.training import planned_batches

BATCH = 64
CORPUS = "corpus"
OBJECT_STORE_BYTES = 300_000_000


def prepare_corpus(options: Options) -> None:
    """Wikipedia sentences, tokenised, for all sides."""
    with runtime.connect(num_cpus=2, object_store_memory=OBJECT_STORE_BYTES):
        prepare(
            [data_folder() / "wiki" / "parquet"],
            options.scratch / CORPUS,
            tokenizer_model=str(minilm_folder()),
            max_length=MAX_LENGTH,
        )


def make_run(options: Options, *, workers: int = 1, cores_left: int = 0) -> TrainRun:
    """The unsupervised recipe on MiniLM, without dev sets, which no side scores."""
    threads = max(1, (options.threads - cores_left) // workers)
    return TrainRun(
        encoder=EncoderConfig(model=str(minilm_folder()), max_length=MAX_LENGTH),
        data=DataConfig(corpus=(str(options.scratch / CORPUS),)),
        dev=DevConfig(tasks=()),
        scale=ScaleConfig(num_workers=workers, threads_per_worker=threads),
        tracking=TrackingConfig(log_every=options.warm_up),
        global_batch_size=BATCH,
        max_steps=options.steps + options.warm_up,
    )


def run_bare(options: Options, *, cores_left: int = 0) -> Figures:
    """The same encoder code on the same batches, in memory, in a loop of plain PyTorch."""
    run = make_run(options, cores_left=cores_left)
    torch.set_num_threads(max(1, options.threads - cores_left))
    task = build_task(run.encoder, run.objective, run.views, seed=run.seed).train()
    optimizer = build_optimizer(task, run.optim)
    corpus = open_corpus(run.data, run.encoder, options.scratch, lambda line: None)
    batches = list(planned_batches(plan_steps(run, corpus)))

    def step(batch: Batch) -> None:
        task(batch).loss.backward()
        nn.utils.clip_grad_norm_(task.parameters(), run.optim.max_gradient_norm)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(batch.step, len(batches), run.optim)
        optimizer.step()
        optimizer.zero_grad()

    torch.manual_seed(run.seed)
    seconds = seconds_of_each(step, batches, warm_up=options.warm_up)
    return {"rows_per_s": BATCH * len(seconds) / sum(seconds), "seconds": seconds}


def run_platform(options: Options, *, workers: int = 1, cores_left: int = 0) -> Figures:
    """What `simcse train` does from a prepared corpus to a model in MLflow.

    Speed is that of the steps after the first record, as the worker measures it: waiting for data
    counts, starting Ray does not. By the clock, what lies between steps counts too: records, and
    what MLflow takes of them.
    """
    run = make_run(options, workers=workers, cores_left=cores_left)
    summary, records = train(run, options.scratch, object_store_bytes=OBJECT_STORE_BYTES)
    before = [0, *(record.step for record in records)]
    timed = [
        (record.measured, BATCH * (record.step - first) / record.measured["rows_per_s"])
        for first, record in zip(before, records, strict=False)
        if first >= options.warm_up
    ]
    seconds = sum(taken for _, taken in timed)
    start = next(record for record in records if record.step >= options.warm_up)
    by_the_clock = records[-1].at_s - start.at_s
    return {
        "rows_per_s_by_the_clock": BATCH * (records[-1].step - start.step) / by_the_clock,
        "rows_per_s": BATCH * (run.max_steps - options.warm_up) / seconds,
        "data_stall_share": sum(r["data_stall_share"] * taken for r, taken in timed) / seconds,
        "rows_per_s_with_start": summary["rows_per_s"],
        "data_stall_share_with_start": summary["data_stall_share"],
        "peak_rss_mb": summary["peak_rss_mb"],
        "records": [record._asdict() for record in records],
    }


def rows(runs: Runs, options: Options) -> list[Row]:
    def speed(side: str) -> float:
        return runs.median(side, "rows_per_s")

    return [
        Row(
            f"whole platform, 1 worker x {options.threads} threads, against a bare loop",
            speed("one-worker"),
            speed("bare"),
            at_least=0.95,
            unit="rows/s",
        ),
        Row(
            "the same with one thread less if there are two, which leaves a core to Ray",
            speed("one-worker-core-left"),
            speed("bare-core-left"),
            at_least=0.95,
            unit="rows/s",
        ),
        Row(
            "1 worker by the clock, records included, against a bare loop",
            runs.median("one-worker", "rows_per_s_by_the_clock"),
            speed("bare"),
            unit="rows/s",
        ),
        Row(
            "2 workers against 1, as many threads in all",
            speed("two-workers"),
            speed("one-worker"),
            at_least=0.95,
            unit="rows/s",
        ),
        *(
            Row(
                f"data stall share, {side}",
                runs.median(side, "data_stall_share"),
                at_most=0.02,
            )
            for side in ("one-worker", "two-workers")
        ),
        *(
            Row(
                f"data stall share with the wait for the first batch, {side}",
                runs.median(side, "data_stall_share_with_start"),
            )
            for side in ("one-worker", "two-workers")
        ),
    ]


if __name__ == "__main__":
    main(
        Benchmark(
            name="whole_platform",
            text=f"Wikipedia sentences, batch {BATCH}, MiniLM: through the platform, and bare",
            sides={
                "bare": run_bare,
                "one-worker": run_platform,
                "two-workers": partial(run_platform, workers=2),
                "bare-core-left": partial(run_bare, cores_left=1),
                "one-worker-core-left": partial(run_platform, cores_left=1),
            },
            rows=rows,
            options={
                "steps": Option(60, 4, "timed steps of a run"),
                "warm-up": Option(10, 2, "steps before them, and steps between two records"),
            },
            prepare=prepare_corpus,
        )
    )
