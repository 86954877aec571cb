"""The rows of every rank, with a gradient that is exact.

b: rows on this rank, B: rows on all ranks, m: rows on the rank that has most, W: ranks.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


def gather_rows(rows_b: Tensor, group: dist.ProcessGroup | None = None) -> tuple[Tensor, int]:
    """The rows of all ranks in rank order, `[B, ...]`, and the index of this rank's first row.

    Ranks may hold different numbers of rows, or none. The backward sums, for each row, the
    gradients that all ranks have for it. If every rank r then takes the loss
    L_r = (W / B) * (sum over its own rows), the mean over ranks of the parameter gradients, which
    DDP and ZeRO compute, is the gradient of one process that holds all B rows.

    Without a process group the rows are already all there are.
    """
    if not dist.is_initialized() or dist.get_world_size(group) == 1:
        return rows_b, 0
    counts_W = torch.empty(dist.get_world_size(group), dtype=torch.int64, device=rows_b.device)
    own = torch.tensor([len(rows_b)], dtype=torch.int64, device=rows_b.device)
    dist.all_gather_single(counts_W, own, group=group)
    counts = counts_W.tolist()
    rows_B: Tensor = _GatherRows.apply(rows_b, counts, group)  # type: ignore[no-untyped-call]
    return rows_B, sum(counts[: dist.get_rank(group)])


class _GatherRows(torch.autograd.Function):
    """All-gather of padded rows; its backward is the reduce-scatter (SUM) of their gradients."""

    @staticmethod
    def forward(
        ctx: Any, rows_b: Tensor, counts: list[int], group: dist.ProcessGroup | None
    ) -> Tensor:
        ctx.counts, ctx.group = counts, group
        most, world = max(counts), len(counts)
        padded_m = rows_b.new_zeros(most, *rows_b.shape[1:])
        padded_m[: len(rows_b)] = rows_b
        gathered_Wm = rows_b.new_empty(world * most, *rows_b.shape[1:])
        dist.all_gather_single(gathered_Wm, padded_m, group=group)
        blocks = gathered_Wm.split(most) if most else [gathered_Wm] * world
        return torch.cat([block[:count] for block, count in zip(blocks, counts, strict=True)])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        gradient_B, counts, most = gradients[0], ctx.counts, max(ctx.counts)
        padded_Wm = gradient_B.new_zeros(len(counts), most, *gradient_B.shape[1:])
        for block, rows in zip(padded_Wm, gradient_B.split(counts), strict=True):
            block[: len(rows)] = rows
        own_m = gradient_B.new_empty(most, *gradient_B.shape[1:])
        dist.reduce_scatter_single(own_m, padded_Wm.flatten(0, 1), group=ctx.group)
        return own_m[: counts[dist.get_rank(ctx.group)]], None, None
