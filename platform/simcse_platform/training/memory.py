"""Whether a worker's first step fits into memory, estimated before it is taken."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import psutil
import torch

from simcse.batch import Batch
from simcse.encoder import SentenceEncoder
from simcse.objective import ContrastiveTask
from simcse_platform.config import TrainRun
from simcse_platform.errors import TrainingError

_GIB = 2**30
_WIDTHS_A_POSITION = 14
_INTERMEDIATES_A_POSITION = 2
_SCORES_A_POSITION = 3
"""What a layer keeps of each position for its backward pass, in tensors of the encoder's width, of
its intermediate width and of attention scores (counted as in Korthikanti et al. 2022, section 4.1,
with dropout masks as the CPU keeps them)."""
_COPIES_OF_LOGITS = 4
"""Logits, what is left of them without own keys, and two more of their size on the way back."""
_CGROUPS = (
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current", "/sys/fs/cgroup/memory.stat"),
    (
        "/sys/fs/cgroup/memory/memory.limit_in_bytes",
        "/sys/fs/cgroup/memory/memory.usage_in_bytes",
        "/sys/fs/cgroup/memory/memory.stat",
    ),
)
"""Limit, use and what it consists of, in both versions of control groups."""
_CHUNKS_IN_MEMORY = 2
"""Of a cached encoder: one chunk, and what the allocator keeps of the one before."""


@dataclass(frozen=True)
class StepMemory:
    """Bytes that a step takes beside the weights, by what would make them fewer."""

    activations: int
    logits: int
    state: int
    """Gradients and AdamW's moments."""

    @property
    def total(self) -> int:
        return self.activations + self.logits + self.state


def step_memory(
    task: ContrastiveTask, batch: Batch, run: TrainRun, world: int, *, resumed: bool = False
) -> StepMemory:
    """An estimate of what a step on `batch` takes on this rank, beside what is there already.

    A run that is `resumed` has its moments.
    """
    calls = task.encoder_calls(batch)
    cached = run.memory.encoder_chunk is not None
    positions = [
        _CHUNKS_IN_MEMORY * max(call.positions) if cached else sum(call.positions) for call in calls
    ]
    if task.masked_language is not None:
        positions.append(positions[0])
    longest = max(int(call.tokens.lengths_n.max()) if len(call.tokens) else 1 for call in calls)
    bytes_each = 3 if run.scale.precision == "bf16" else 4
    activations = (
        (max(positions) if cached else sum(positions))
        * _elements_a_position(task.encoder, longest)
        * bytes_each
    )
    rows, keys = len(batch), batch.global_rows * max(1, len(batch.columns) - 1)
    vectors = (rows + keys) * task.encoder.dimension
    tile = min(run.memory.loss_tile or keys, keys)
    own_parameters = sum(_whole_size(parameter) for parameter in task.parameters())
    gradients = own_parameters // (world if run.scale.zero_stage >= 2 else 1)
    moments = 2 * own_parameters // (world if run.scale.zero_stage >= 1 else 1)
    if resumed:
        moments = 0
    return StepMemory(
        activations=activations,
        logits=4 * (_COPIES_OF_LOGITS * rows * tile + 3 * vectors),
        state=4 * (gradients + moments),
    )


def free_memory(device: torch.device) -> int:
    """Bytes that a worker on this device may still take, its share of those of the machine."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    free = psutil.virtual_memory().available
    free = min([free, *filter(None, map(_cgroup_free, _CGROUPS))])
    return int(free) // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))


def check_memory(
    task: ContrastiveTask, batch: Batch, run: TrainRun, world: int, *, resumed: bool = False
) -> None:
    """Raises `TrainingError` naming the setting to change when the first step will not fit."""
    need = step_memory(task, batch, run, world, resumed=resumed)
    free = free_memory(task.encoder.backbone.device)
    if need.total <= free:
        return
    advice = {
        "activations": "set memory.encoder_chunk (sentences whose activations exist at a time) "
        f"to {max(1, (run.memory.encoder_chunk or 128) // 4)}",
        "logits": "set memory.loss_tile (keys whose logits exist at a time) to "
        f"{max(1, (run.memory.loss_tile or 4096) // 4)}",
        "state": "shard the state by scale.zero_stage=2 over more workers, or take a smaller "
        "encoder",
    }
    left, ways_out = need.total, []
    for part in sorted(advice, key=lambda part: int(getattr(need, part)), reverse=True):
        if left > free:
            ways_out.append(advice[part])
            left -= int(getattr(need, part))
    raise TrainingError(
        f"a step needs about {need.total / _GIB:.1f} GiB on a worker (activations "
        f"{need.activations / _GIB:.1f}, logits {need.logits / _GIB:.1f}, gradients and optimiser "
        f"{need.state / _GIB:.1f}) and {free / _GIB:.1f} GiB are free: {', and '.join(ways_out)}"
    )


def _elements_a_position(encoder: SentenceEncoder, length: int) -> int:
    config = encoder.backbone.config
    width, layers, heads = config.hidden_size, config.num_hidden_layers, config.num_attention_heads
    # DistilBERT names it as nobody else does.
    intermediate = getattr(config, "intermediate_size", None) or getattr(
        config, "hidden_dim", 4 * width
    )
    a_layer = (
        _WIDTHS_A_POSITION * width
        + _INTERMEDIATES_A_POSITION * intermediate
        + _SCORES_A_POSITION * heads * length
    )
    return int(layers * a_layer)


def _whole_size(parameter: torch.nn.Parameter) -> int:
    # Under ZeRO-3 a parameter is empty while it is not in use.
    return int(getattr(parameter, "ds_numel", parameter.numel()))


def _cgroup_free(files: tuple[str, str, str]) -> int | None:
    """Bytes that are left of a container's limit; None where there is none.

    The page cache counts as used there, but makes way for whoever needs room.
    """
    limit, used, stat = map(Path, files)
    if not (limit.is_file() and used.is_file() and stat.is_file()):
        return None
    most = limit.read_text().strip()
    if not most.isdecimal():
        return None
    counts = dict(line.split(maxsplit=1) for line in stat.read_text().splitlines())
    cache = int(counts.get("active_file", 0)) + int(counts.get("inactive_file", 0))
    return max(1, int(most) - int(used.read_text()) + cache)
