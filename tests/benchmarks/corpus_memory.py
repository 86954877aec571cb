"""Resident memory of every process while a large corpus streams through the whole loop."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks import platform_run
from benchmarks.measuring import Benchmark, Figures, Option, Options, Row, Runs, main
from benchmarks.process_memory import MemorySampler, Sample
from simcse.config import EncoderConfig
from simcse_platform.config import (
    CheckpointConfig,
    DataConfig,
    DevConfig,
    ScaleConfig,
    TrackingConfig,
    TrainRun,
)
from support.tiny import WORDS, save_tiny_encoder

FILES = 20
ROWS_PER_GROUP = 4096
BATCH = 256
OBJECT_STORE_BYTES = 150_000_000
SHARE_OF_A_READING = 0.05
"""Share of the run whose samples make one reading, by their median."""


def write_inputs(options: Options) -> None:
    """Raw parquet of random words, and an encoder of one layer, 16 wide."""
    words = np.array(WORDS.split())
    random = np.random.default_rng(0)
    (options.scratch / "corpus").mkdir()
    rows = -(-options.rows // FILES)
    for number in range(FILES):
        lengths = random.integers(5, 25, rows)
        drawn = np.split(random.choice(words, lengths.sum()), lengths.cumsum()[:-1])
        pq.write_table(
            pa.table({"text": [" ".join(sentence) for sentence in drawn]}),
            options.scratch / "corpus" / f"{number:02d}.parquet",
            compression="zstd",
            row_group_size=ROWS_PER_GROUP,
        )
    save_tiny_encoder(
        options.scratch / "encoder", hidden_size=16, num_hidden_layers=1, intermediate_size=32
    )


def train(options: Options) -> Figures:
    """One epoch in one worker; how much each process grew from 20 % to the end of the steps."""
    run = TrainRun(
        encoder=EncoderConfig(
            model=str(options.scratch / "encoder"), max_length=32, length_buckets=2
        ),
        data=DataConfig(corpus=(str(options.scratch / "corpus"),)),
        dev=DevConfig(tasks=()),
        scale=ScaleConfig(threads_per_worker=1),
        checkpoint=CheckpointConfig(every=1000),
        tracking=TrackingConfig(log_every=options.log_every),
        global_batch_size=BATCH,
    )
    with MemorySampler() as sampler:
        summary, records = platform_run.train(
            run, options.scratch, object_store_bytes=OBJECT_STORE_BYTES
        )
    steps = summary["steps"]
    start = next(record.at_s for record in records if record.step >= 0.2 * steps)
    end = next(record.at_s for record in records if record.step >= steps)
    processes = growth(sampler.samples, start, end)
    return {
        "rows": summary["rows"],
        "steps": steps,
        "seconds_of_steps": summary["rows"] / summary["rows_per_s"],
        "data_stall_share": summary["data_stall_share"],
        "largest_growth_mb": max(process["resident_mb"] for process in processes),
        "largest_own_growth_mb": max(process["own_mb"] for process in processes),
        "own_growth_of_all_mb": sum(process["own_mb"] for process in processes),
        "processes": processes,
    }


def growth(samples: Sequence[Sample], start: float, end: float) -> list[Figures]:
    """Of each process that was there all the time: median at the end less median at the start."""
    width = SHARE_OF_A_READING * (end - start) / 0.8
    found = []
    for pid in {sample.pid for sample in samples}:
        own = [sample for sample in samples if sample.pid == pid]
        early = [sample for sample in own if start <= sample.seconds <= start + width]
        late = [sample for sample in own if end - width <= sample.seconds <= end]
        if early and late:
            found.append(
                {
                    "name": late[-1].name,
                    "resident_mb": _median_growth(early, late, "resident_mb"),
                    "own_mb": _median_growth(early, late, "own_mb"),
                    "resident_at_end_mb": late[-1].resident_mb,
                }
            )
    return found


def rows(runs: Runs, options: Options) -> list[Row]:
    return [
        Row(
            "largest growth of a process between 20 % and 100 %",
            runs.median("train", "largest_growth_mb"),
            at_most=50,
            unit="MB",
        ),
        Row(
            "the same without shared pages",
            runs.median("train", "largest_own_growth_mb"),
            unit="MB",
        ),
        Row(
            "all processes together, without shared pages",
            runs.median("train", "own_growth_of_all_mb"),
            unit="MB",
        ),
        Row("rows", runs.median("train", "rows")),
        Row("seconds of the steps", runs.median("train", "seconds_of_steps"), unit="s"),
    ]


def _median_growth(early: Sequence[Sample], late: Sequence[Sample], name: str) -> float:
    before, after = (median(getattr(s, name) for s in samples) for samples in (early, late))
    return float(after - before)


if __name__ == "__main__":
    main(
        Benchmark(
            name="corpus_memory",
            text="A corpus of raw parquet through the whole loop, 150 MB of object store",
            sides={"train": train},
            rows=rows,
            options={
                "rows": Option(1_000_000, 20_000, "rows of the corpus"),
                "log-every": Option(20, 2, "steps between two records"),
            },
            prepare=write_inputs,
        )
    )
