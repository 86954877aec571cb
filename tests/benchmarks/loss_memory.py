"""Memory and time of the loss alone, forward and backward, for a batch that fills a machine."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.measuring import Benchmark, Figures, Option, Options, Row, Runs, main
from simcse.config import ObjectiveConfig
from simcse.losses import gathered_contrastive_loss
from support.peak_memory import PeakMemory

OBJECTIVE = ObjectiveConfig()


def plain_loss(views_B3D: Tensor) -> Tensor:
    """The whole cosine matrix and `cross_entropy`, as most implementations have it."""
    anchor_BD, positive_BD, negative_BD = (F.normalize(x, dim=-1) for x in views_B3D.unbind(1))
    logits_BN = anchor_BD @ torch.cat([positive_BD, negative_BD]).T / OBJECTIVE.temperature
    return F.cross_entropy(logits_BN, torch.arange(len(views_B3D), device=views_B3D.device))


def our_loss(views_B3D: Tensor, *, tile: int | None) -> Tensor:
    """This project's loss in one process."""
    rows = len(views_B3D)
    return gathered_contrastive_loss(views_B3D, OBJECTIVE, global_rows=rows, tile=tile)[0]


def measure(loss_of: Callable[[Tensor], Tensor], options: Options) -> Figures:
    """Peak above the start, without the inputs, which are there, and without their gradients."""
    torch.manual_seed(0)
    # What a first call allocates for good, such as threads and their buffers, is not the loss's.
    loss_of(torch.randn(options.rows // 8, 3, options.width, requires_grad=True)).backward()
    views_B3D = torch.randn(options.rows, 3, options.width, requires_grad=True)
    with PeakMemory() as memory:
        start = time.perf_counter()
        loss = loss_of(views_B3D)
        loss.backward()
        seconds = time.perf_counter() - start
    assert views_B3D.grad is not None
    return {
        "peak_mb": memory.above_start_mb - views_B3D.grad.nbytes / 2**20,
        "seconds": seconds,
        "loss": float(loss.detach()),
    }


def side_of_tile(options: Options, *, tiled: bool) -> Figures:
    return measure(partial(our_loss, tile=options.tile if tiled else None), options)


def rows(runs: Runs, options: Options) -> list[Row]:
    def compare(name: str, theirs: str, text: str, at_most: float, unit: str) -> Row:
        ours = runs.median("tiled", name)
        return Row(text, ours, runs.median(theirs, name), at_most=at_most, unit=unit)

    loss = runs.median("tiled", "loss")
    return [
        compare("peak_mb", "plain", "tiled loss, peak, against plain PyTorch", 1 / 8, "MB"),
        compare("seconds", "plain", "tiled loss, time, against plain PyTorch", 1.5, "s"),
        compare("peak_mb", "full", "tiled loss, peak, against ours untiled", 1 / 8, "MB"),
        compare("seconds", "full", "tiled loss, time, against ours untiled", 1.5, "s"),
        Row("tiled loss from plain PyTorch's", abs(loss - runs.median("plain", "loss"))),
    ]


if __name__ == "__main__":
    main(
        Benchmark(
            name="loss_memory",
            text="Loss with one hard negative, one process, forward and backward",
            sides={
                "plain": partial(measure, plain_loss),
                "full": partial(side_of_tile, tiled=False),
                "tiled": partial(side_of_tile, tiled=True),
            },
            rows=rows,
            options={
                "rows": Option(8192, 1024, "rows of the batch"),
                "width": Option(768, 64, "width of a vector"),
                "tile": Option(1024, 128, "keys of a tile"),
            },
        )
    )
