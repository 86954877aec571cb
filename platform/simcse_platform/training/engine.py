"""What the training loop needs of an engine, and the engine that needs no library: DDP.

n: sentences, D: width.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Protocol, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from simcse.batch import Batch
from simcse.objective import ContrastiveTask, TaskOutput
from simcse.tokens import RaggedTokens

MOMENTS = ("exp_avg", "exp_avg_sq")


class Engine(Protocol):
    """Data-parallel training of a `ContrastiveTask`.

    An update is one call and one `backward` for each of its batches, then one `step`, on every
    rank.
    """

    task: ContrastiveTask

    def __call__(self, batch: Batch) -> TaskOutput:
        """The task's forward, in training mode."""

    def backward(self, loss: Tensor) -> None:
        """Add the gradient of the mean of `loss` over ranks to what is there."""

    def step(self, learning_rate: float) -> float:
        """Clip, update and clear; returns the gradient norm before clipping.

        One that is not finite means that nothing was updated.
        """

    def embed(self, tokens: RaggedTokens) -> Tensor:
        """Vectors `[n, D]` in evaluation mode, without gradient. Collective under ZeRO-3."""

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        """Each parameter whole, float32 on the CPU. Every rank must go through all of them."""

    def moments(self) -> Iterator[tuple[str, dict[str, Tensor]]]:
        """AdamW's moments of each parameter, as `weights`, after the first step."""

    def restore_moments(self, moments: Mapping[str, Mapping[str, Tensor]], step: int) -> None:
        """Continue AdamW after `step` steps; weights are loaded before the engine is built."""


class DdpEngine:
    """DistributedDataParallel, or the bare module where there is one process."""

    def __init__(
        self, task: ContrastiveTask, optimizer: Optimizer, *, max_gradient_norm: float
    ) -> None:
        self.task = task
        self._optimizer = optimizer
        self._max_gradient_norm = max_gradient_norm
        self._module: nn.Module = task
        if dist.is_initialized() and dist.get_world_size(task.group) > 1:
            self._module = DistributedDataParallel(task, process_group=task.group)

    def __call__(self, batch: Batch) -> TaskOutput:
        self._module.train()
        return cast(TaskOutput, self._module(batch))

    def backward(self, loss: Tensor) -> None:
        torch.autograd.backward(loss)

    def step(self, learning_rate: float) -> float:
        norm = nn.utils.clip_grad_norm_(
            self.task.parameters(), self._max_gradient_norm or float("inf")
        )
        if norm.isfinite():
            set_learning_rate(self._optimizer, learning_rate)
            self._optimizer.step()
        self._optimizer.zero_grad()
        return float(norm)

    @torch.no_grad()
    def embed(self, tokens: RaggedTokens) -> Tensor:
        self._module.eval()
        return cast(Tensor, self.task(tokens))

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        for name, parameter in self.task.named_parameters():
            yield name, _on_cpu(parameter)

    def moments(self) -> Iterator[tuple[str, dict[str, Tensor]]]:
        for name, parameter in self.task.named_parameters():
            state = self._optimizer.state[parameter]
            # There are none before the first update, which may have been left out.
            found = {key: state[key] if state else torch.zeros_like(parameter) for key in MOMENTS}
            yield name, {key: _on_cpu(moment) for key, moment in found.items()}

    def restore_moments(self, moments: Mapping[str, Mapping[str, Tensor]], step: int) -> None:
        for name, parameter in self.task.named_parameters():
            self._optimizer.state[parameter] = {
                "step": torch.tensor(float(step), device=parameter.device),
                **{key: value.to(parameter.device) for key, value in moments[name].items()},
            }


def _on_cpu(tensor: Tensor) -> Tensor:
    return tensor.detach().float().cpu()


def set_learning_rate(optimizer: Optimizer, rate: float) -> None:
    """`rate` for every parameter group."""
    for group in optimizer.param_groups:
        group["lr"] = rate


def rank_and_world() -> tuple[int, int]:
    """This process's rank and the number of ranks; (0, 1) without a process group."""
    if not dist.is_initialized():
        return 0, 1
    return dist.get_rank(), dist.get_world_size()
