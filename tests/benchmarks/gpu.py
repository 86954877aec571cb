"""One GPU card: exactness of the four combinations, throughput and peak memory.

Run by `gpu.sh`; with `--device cpu --tiny` the same code runs anywhere in a minute.
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from itertools import product
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel
from transformers import BertConfig, BertModel

from benchmarks.loss_memory import our_loss
from benchmarks.measuring import Figures, Options, Row, add_common_options, say, show, write
from simcse.batch import Batch
from simcse.config import MemoryConfig, ObjectiveConfig, OptimConfig
from simcse.encoder import SentenceEncoder
from simcse.gather import _GatherRows
from simcse.objective import ContrastiveTask
from simcse.optim import build_optimizer
from simcse.pooling import DenseHead
from simcse.tokens import RaggedTokens
from simcse_platform.training.engine import DdpEngine
from support.tiny import tiny_tokenizer

TOLERANCES = {"fp32": 1e-4, "bf16": 5e-3}
"""Largest difference of a gradient, as a share of the largest gradient. The chunks are the same in
all combinations, so the products are too; what differs is the order in which sums are taken."""
DTYPES = {"fp32": None, "bf16": torch.bfloat16}
CHUNKS = 6
MIN_LENGTH, MAX_LENGTH = 6, 32
VOCABULARY = 30522


class Measured(NamedTuple):
    """Lines of the table, and the raw figures behind them."""

    rows: list[Row]
    run: Figures


class Size(NamedTuple):
    """How large the encoder and the batches are."""

    layers: int
    width: int
    batches: tuple[int, ...]
    cached_batches: tuple[int, ...]
    exactness_batch: int
    loss_batch: int


BERT_BASE = Size(12, 768, (64, 128, 256, 512, 1024), (64, 256, 1024, 4096), 64, 8192)
TINY = Size(2, 64, (8, 16), (8, 64), 16, 256)


def make_task(
    size: Size,
    device: torch.device,
    *,
    precision: str,
    memory: MemoryConfig,
    dropout: float = 0.1,
    buckets: int = 8,
) -> ContrastiveTask:
    """An encoder of random weights, the same ones each time, with its head."""
    torch.manual_seed(0)
    backbone = BertModel(
        BertConfig(
            vocab_size=VOCABULARY,
            hidden_size=size.width,
            num_hidden_layers=size.layers,
            num_attention_heads=size.width // 64 or 1,
            intermediate_size=4 * size.width,
            hidden_dropout_prob=dropout,
            attention_probs_dropout_prob=dropout,
        ),
        add_pooling_layer=False,
    )
    encoder = SentenceEncoder(
        backbone,
        tiny_tokenizer(),
        pooling="cls",
        head_kind="training",
        head=DenseHead.initialised(size.width, standard_deviation=0.02, seed=0),
        max_length=MAX_LENGTH,
        length_buckets=buckets,
    )
    return (
        ContrastiveTask(encoder, ObjectiveConfig(), memory=memory, autocast_dtype=DTYPES[precision])
        .to(device)
        .train()
    )


def random_batch(rows: int, *, columns: int, step: int = 0) -> Batch:
    """Rows of random tokens, as long as Wikipedia sentences that are cut at 32."""
    generator = torch.Generator().manual_seed(step)
    found = []
    for _ in range(columns):
        lengths_n = torch.randint(MIN_LENGTH, 2 * MAX_LENGTH, (rows,), generator=generator)
        lengths_n = lengths_n.clamp(max=MAX_LENGTH)
        ids_T = torch.randint(999, VOCABULARY, (int(lengths_n.sum()),), generator=generator)
        found.append(RaggedTokens(ids_T, lengths_n))
    return Batch(0, step, rows, torch.arange(rows), tuple(found))


def combinations(size: Size) -> dict[str, MemoryConfig]:
    """Encoder direct or cached, loss full or tiled; chunks are as many in all."""
    chunk, tile = 3 * size.exactness_batch // CHUNKS, size.exactness_batch // 3
    return {
        "direct, full": MemoryConfig(),
        "direct, tiled": MemoryConfig(loss_tile=tile),
        "cached, full": MemoryConfig(encoder_chunk=chunk),
        "cached, tiled": MemoryConfig(encoder_chunk=chunk, loss_tile=tile),
    }


def exactness(size: Size, device: torch.device) -> Iterator[Measured]:
    """Loss and gradient of the four combinations against the first, with and without dropout."""
    for precision, dropout in product(DTYPES, (0.0, 0.1)):
        wanted: Tensor | None = None
        for name, memory in combinations(size).items():
            loss, gradient = _gradient(size, device, precision, memory, dropout)
            wanted = gradient if wanted is None else wanted
            difference = float((gradient - wanted).abs().max() / wanted.abs().max())
            text = f"gradient of {name} from direct, full; {precision}, dropout {dropout:g}"
            row = Row(text, difference, at_most=TOLERANCES[precision])
            yield Measured(
                [] if gradient is wanted else [row],
                {
                    "what": "exactness",
                    "precision": precision,
                    "dropout": dropout,
                    "combination": name,
                    "loss": loss,
                    "gradient_difference": difference,
                },
            )


def gathering(size: Size, device: torch.device) -> Iterator[Measured]:
    """The gather's collectives and DDP in a process group of one, against going without."""
    rows_nD = torch.randn(5, size.width, device=device, requires_grad=True)
    gathered_nD = _GatherRows.apply(rows_nD, [5], None)  # type: ignore[no-untyped-call]
    weight_nD = torch.randn_like(rows_nD)
    (gathered_nD * weight_nD).sum().backward()
    assert rows_nD.grad is not None
    there = float((gathered_nD.detach() - rows_nD.detach()).abs().max())
    back = float((rows_nD.grad - weight_nD).abs().max())

    alone = _gradient(size, device, "fp32", MemoryConfig(), 0.0)[1]
    wrapped = _gradient(size, device, "fp32", combinations(size)["cached, tiled"], 0.0, ddp=True)[1]
    difference = float((wrapped - alone).abs().max() / alone.abs().max())
    rows = [
        Row(f"gather over {dist.get_backend()}, forward", there, at_most=0.0),
        Row(f"gather over {dist.get_backend()}, backward", back, at_most=0.0),
        Row("gradient under DDP, cached, tiled", difference, at_most=TOLERANCES["fp32"]),
    ]
    yield Measured(rows, {"what": "gather", "forward": there, "backward": back, "ddp": difference})


def speed_and_memory(size: Size, device: torch.device, seconds: float) -> Iterator[Measured]:
    """Rows a second and peak memory of unsupervised steps, AdamW included."""
    cached = MemoryConfig(encoder_chunk=128, loss_tile=1024)
    settings = [("direct", MemoryConfig(), batch) for batch in size.batches]
    settings += [("cached, tiled", cached, batch) for batch in size.cached_batches]
    for precision, (name, memory, batch) in product(DTYPES, settings):
        text = f"{name}, {precision}, batch {batch}"
        rows = []
        try:
            figures = _time_steps(size, device, precision, memory, batch, seconds)
        except torch.OutOfMemoryError:
            say(f"{text}: does not fit")
            figures = {"does_not_fit": True}
        else:
            rows.append(Row(f"{text}: speed", figures["rows_per_s"], unit="rows/s"))
            if device.type == "cuda":
                rows.append(Row(f"{text}: peak memory", figures["peak_mb"], unit="MB"))
        setting = {"what": "speed", "memory": name, "precision": precision, "batch": batch}
        yield Measured(rows, setting | figures)
        if device.type == "cuda":
            torch.cuda.empty_cache()


def loss_memory(size: Size, device: torch.device) -> Iterator[Measured]:
    """Peak memory of the loss alone, above its inputs and their gradients."""
    peaks = {}
    for name, tile in (("full", None), ("tiled", max(1, size.loss_batch // 8))):
        views_B3D = torch.randn(size.loss_batch, 3, size.width, device=device, requires_grad=True)
        start = _memory_mb(device, reset=True)
        our_loss(views_B3D, tile=tile).backward()
        assert views_B3D.grad is not None
        peaks[name] = _peak_mb(device) - start - views_B3D.grad.nbytes / 2**20
    text = f"tiled loss, peak, B = {size.loss_batch}, D = {size.width}, one hard negative"
    row = Row(text, peaks["tiled"], peaks["full"], at_most=1 / 8, unit="MB")
    yield Measured([row] if device.type == "cuda" else [], {"what": "loss_memory", **peaks})


def _gradient(
    size: Size,
    device: torch.device,
    precision: str,
    memory: MemoryConfig,
    dropout: float,
    *,
    ddp: bool = False,
) -> tuple[float, Tensor]:
    """Loss and all gradients, end to end, of a batch with one hard negative."""
    task = make_task(
        size,
        device,
        precision=precision,
        memory=memory,
        dropout=dropout,
        buckets=CHUNKS,
    )
    module = DistributedDataParallel(task) if ddp else task
    torch.manual_seed(1)
    loss = module(random_batch(size.exactness_batch, columns=3)).loss
    loss.backward()
    gradients = [p.grad.flatten() for p in task.parameters() if p.grad is not None]
    return float(loss.detach()), torch.cat(gradients)


def _time_steps(
    size: Size,
    device: torch.device,
    precision: str,
    memory: MemoryConfig,
    batch_size: int,
    seconds: float,
) -> Figures:
    """Steps until `seconds` are over, at least three, after two that warm up."""
    optim = OptimConfig()
    task = make_task(size, device, precision=precision, memory=memory)
    engine = DdpEngine(
        task, build_optimizer(task, optim), max_gradient_norm=optim.max_gradient_norm
    )
    batches = [random_batch(batch_size, columns=1, step=step) for step in range(4)]
    taken: list[float] = []
    _memory_mb(device, reset=True)
    while len(taken) < 5 or sum(taken[2:]) < seconds:
        start = time.perf_counter()
        engine.backward(engine(batches[len(taken) % len(batches)]).loss)
        # Reads the gradient norm, and so waits for the device.
        engine.step(optim.learning_rate)
        _wait(device)
        taken.append(time.perf_counter() - start)
    return {
        "rows_per_s": batch_size * len(taken[2:]) / sum(taken[2:]),
        "peak_mb": _peak_mb(device),
        "seconds": taken[2:],
    }


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _memory_mb(device: torch.device, *, reset: bool = False) -> float:
    """Allocated now; `reset` starts the peak anew. On the CPU nobody counts."""
    if device.type != "cuda":
        return 0.0
    if reset:
        torch.cuda.reset_peak_memory_stats(device)
    return torch.cuda.memory_allocated(device) / 2**20


def _peak_mb(device: torch.device) -> float:
    return torch.cuda.max_memory_allocated(device) / 2**20 if device.type == "cuda" else 0.0


@contextmanager
def _group_of_one(device: torch.device) -> Iterator[None]:
    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group(
            "nccl" if device.type == "cuda" else "gloo",
            init_method=f"file://{folder}/rendezvous",
            rank=0,
            world_size=1,
        )
        try:
            yield
        finally:
            dist.destroy_process_group()


def _parse() -> Options:
    parser = argparse.ArgumentParser(prog="gpu.sh", description="Exactness, speed and memory.")
    add_common_options(parser)
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument(
        "--seconds", type=float, default=4.0, help="time for each of the 18 settings of speed"
    )
    return parser.parse_args()


def main() -> None:
    """All parts in turn; what was measured is written also when a part fails or time is over.

    Exits with 1 when a goal is missed.
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    options = _parse()
    device, size = torch.device(options.device), TINY if options.tiny else BERT_BASE
    # "highest" is the default: products in fp32 are fp32, not TF32.
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.allow_tf32 = False
    options.card = torch.cuda.get_device_name(device) if device.type == "cuda" else "none"
    rows: list[Row] = []
    runs: list[Figures] = []
    start = time.perf_counter()
    parts = (exactness, loss_memory, partial(speed_and_memory, seconds=options.seconds), gathering)
    try:
        with _group_of_one(device):
            for part in parts:
                for found in part(size, device):
                    rows.extend(found.rows)
                    runs.append(found.run)
                say(f"gpu: {runs[-1]['what']} done after {time.perf_counter() - start:.0f} s")
    finally:
        show(f"{size.layers} layers x {size.width} on {options.card}", rows)
        write("gpu", rows, runs, options)
    if missed := [row.what for row in rows if row.reached == "no"]:
        sys.exit(f"not reached: {'; '.join(missed)}")


if __name__ == "__main__":
    main()
