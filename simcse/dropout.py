"""Dropout as `torch.nn.Dropout` has it, drawn faster on a CPU."""

from __future__ import annotations

from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def draw_faster(module: nn.Module) -> None:
    """Put `FastDropout` in place of every `nn.Dropout` inside.

    What an attention function drops by a number of its own is for `simcse.attention`.
    """
    for parent in module.modules():
        for name, child in parent.named_children():
            if type(child) is nn.Dropout:
                setattr(parent, name, FastDropout(child.p).train(child.training))


class FastDropout(nn.Dropout):
    """Four elements for each 64 random bits, where torch draws a double for one.

    Dropout is the only noise of unsupervised SimCSE, and on CPUs without Intel's library it is
    torch's slowest operation of a step but for matrix products. Masks come from torch's generator
    and are the same on all CPUs; the probability is exact to 1/65,536.
    """

    def forward(self, states: Tensor) -> Tensor:
        if not (self.training and 0 < self.p < 1 and states.device.type == "cpu"):
            return F.dropout(states, self.p, self.training)
        return cast(Tensor, _Dropped.apply(states, self.p))  # type: ignore[no-untyped-call]


class _Dropped(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, states: Tensor, probability: float) -> Tensor:
        words = torch.empty(-(-states.numel() // 4), dtype=torch.int64)
        # The whole range: 64 random bits.
        bits = words.random_(-(2**63), None).view(torch.int16)[: states.numel()]
        kept = bits.view(states.shape) >= round(probability * 2**16) - 2**15
        ctx.save_for_backward(kept)
        ctx.scale = 1 / (1 - probability)
        return torch.where(kept, states * ctx.scale, 0)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (kept,) = ctx.saved_tensors
        return torch.where(kept, gradient * ctx.scale, 0), None
