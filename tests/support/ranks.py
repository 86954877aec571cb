"""Real processes with a real gloo process group, for tests of what is distributed."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def run_on_ranks(check: Callable[..., None], world: int, folder: Path, *args: Any) -> None:
    """`check(rank, world, *args)` in `world` forked processes; any failure fails the caller."""
    rendezvous = folder / f"rendezvous-{world}"
    mp.start_processes(
        _one_rank, (check, world, rendezvous, args), nprocs=world, start_method="fork"
    )


def _one_rank(
    rank: int, check: Callable[..., None], world: int, rendezvous: Path, args: tuple[Any, ...]
) -> None:
    torch.set_num_threads(1)
    # DeepSpeed wants these even where the process group exists already.
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world)}
    dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=world)
    try:
        check(rank, world, *args)
    finally:
        dist.destroy_process_group()
