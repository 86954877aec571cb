"""The cached encoder: its price in time, and memory that does not grow with the batch."""

from __future__ import annotations

from functools import partial

from benchmarks.measuring import (
    Benchmark,
    Figures,
    Option,
    Options,
    Row,
    Runs,
    Stepper,
    main,
    seconds_by_turns,
)
from benchmarks.minilm_training import (
    make_engine,
    minilm_run,
    ragged_batches,
    read_triplets,
    take_step,
    training_options,
)
from simcse.config import MemoryConfig
from support.peak_memory import PeakMemory

TILE = 1024
DEFAULT_BUCKETS = 8


def chunks(options: Options) -> int:
    """Of the cached encoder for the three sentences of each row."""
    return int(-(-options.batch * 3 // options.chunk))


def time_steps(options: Options) -> Figures:
    """Seconds of a step, direct and cached, by turns."""
    cached = MemoryConfig(encoder_chunk=options.chunk)
    sides = {
        "direct": stepper(options, DEFAULT_BUCKETS, MemoryConfig()),
        "direct-in-chunks": stepper(options, chunks(options), MemoryConfig()),
        "cached": stepper(options, DEFAULT_BUCKETS, cached),
    }
    return seconds_by_turns(sides, warm_up=options.warm_up)


def stepper(options: Options, buckets: int, memory: MemoryConfig) -> Stepper:
    """Steps of the batch."""
    run = minilm_run(options.batch, buckets=buckets, memory=memory)
    engine = make_engine(run)
    rows = read_triplets(options.batch * (options.warm_up + options.steps))
    batches = ragged_batches(engine.task.encoder, rows, options.batch)
    return Stepper(partial(take_step, engine, run=run, steps=len(batches)), batches)


def measure_memory(options: Options, *, large: bool) -> Figures:
    """Peak of a step of a cached encoder and a tiled loss, once AdamW has its moments."""
    batch_size = options.large_batch if large else options.batch
    run = minilm_run(batch_size, memory=MemoryConfig(encoder_chunk=options.chunk, loss_tile=TILE))
    engine = make_engine(run)
    rows = read_triplets(batch_size)
    (first,) = ragged_batches(engine.task.encoder, rows[: options.chunk], options.chunk)
    take_step(engine, first, run=run, steps=2)
    (batch,) = ragged_batches(engine.task.encoder, rows, batch_size)
    with PeakMemory() as memory:
        take_step(engine, batch, run=run, steps=2)
    return {"peak_mb": memory.peak_mb, "above_start_mb": memory.above_start_mb}


def rows(runs: Runs, options: Options) -> list[Row]:
    def step(side: str) -> float:
        return runs.median("steps", f"{side}_s")

    return [
        Row(
            f"cached step against direct in the default {DEFAULT_BUCKETS} buckets",
            step("cached"),
            step("direct"),
            at_most=1.4,
            unit="s",
        ),
        Row(
            f"cached step against direct in as many chunks ({chunks(options)})",
            step("cached"),
            step("direct-in-chunks"),
            at_most=1.4,
            unit="s",
        ),
        Row(
            f"cached, tiled: peak, batch {options.large_batch} against {options.batch}",
            runs.median("memory-large", "peak_mb"),
            runs.median("memory", "peak_mb"),
            at_most=1.1,
            unit="MB",
        ),
        Row(
            "the same above the start of the step",
            runs.median("memory-large", "above_start_mb"),
            runs.median("memory", "above_start_mb"),
            unit="MB",
        ),
    ]


if __name__ == "__main__":
    main(
        Benchmark(
            name="cached",
            text="NLI triplets, MiniLM with mean pooling: cached encoder, one step",
            sides={
                "steps": time_steps,
                "memory": partial(measure_memory, large=False),
                "memory-large": partial(measure_memory, large=True),
            },
            rows=rows,
            options={
                **training_options(128),
                "chunk": Option(32, 8, "sentences of a chunk"),
                "large-batch": Option(4096, 64, "rows of the large batch"),
            },
        )
    )
