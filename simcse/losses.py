"""The contrastive objective (Gao et al. 2021, equations 1, 4 and 5).

b: rows on this rank, B: rows of the global batch, h: hard negatives a row, V = 2 + h: vectors a
row, K = B (1 + h): keys, D: width.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from simcse.gather import gather_rows


def contrastive_losses(
    anchors_bD: Tensor, keys_KD: Tensor, positive_b: Tensor, *, temperature: float
) -> tuple[Tensor, Tensor]:
    """Cross-entropy of each anchor over all keys, `[b]`, and whether its positive won, `[b]`.

    Similarity is the cosine over the temperature; `positive_b` (int64) is each row's own key. Both
    sides are normalised in float32 or better: in bf16, similarities near 1 / 0.05 lie 0.125 apart.
    """
    logits_bK = unit(anchors_bD) @ unit(keys_KD).T / temperature
    losses_b = F.cross_entropy(logits_bK, positive_b, reduction="none")
    return losses_b, logits_bK.argmax(dim=1) == positive_b


def gathered_contrastive_loss(
    views_bVD: Tensor,
    *,
    temperature: float,
    global_rows: int,
    group: dist.ProcessGroup | None = None,
) -> tuple[Tensor, Tensor]:
    """This rank's part of the loss over the global batch, and how many of its rows were right.

    `views_bVD` holds anchor, positive and h hard negatives of each row. Keys are the positives of
    all ranks, then all their hard negatives. The loss is L_r = (W / B) * (sum over own rows), so
    that the mean over ranks, which data-parallel engines take of gradients, is the mean over B.
    """
    keys_BKD, first = gather_rows(views_bVD[:, 1:], group)
    keys_KD = keys_BKD.transpose(0, 1).flatten(0, 1)
    positive_b = first + torch.arange(len(views_bVD), device=views_bVD.device)
    losses_b, correct_b = contrastive_losses(
        views_bVD[:, 0], keys_KD, positive_b, temperature=temperature
    )
    world = dist.get_world_size(group) if dist.is_initialized() else 1
    return losses_b.sum() * (world / global_rows), correct_b.sum()


def unit(vectors_nD: Tensor) -> Tensor:
    """Rows of length one, in float32 or better."""
    return F.normalize(vectors_nD.to(torch.promote_types(vectors_nD.dtype, torch.float32)), dim=-1)
