"""The contrastive objective (Gao et al. 2021, equations 1, 4 and 5) and its options.

b: rows on this rank, B: rows of the global batch, P: positives a row, h: hard negatives a row,
C = P + h: keys a row, V = 1 + C: vectors a row, K = B C: keys, D: width.
"""

from __future__ import annotations

import math

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from simcse.config import ObjectiveConfig
from simcse.gather import gather_rows
from simcse.pooling import at_least_float32


def contrastive_losses(
    anchors_bD: Tensor,
    keys_KD: Tensor,
    own_bC: Tensor,
    objective: ObjectiveConfig,
    *,
    temperature: Tensor | None = None,
    masked_bK: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Cross-entropy of each anchor over all keys, `[b]`, and whether a positive of it won, `[b]`.

    `own_bC` (int64) has the indices of each row's own keys, its positives first. Of several
    positives each is told apart from everything but the others, and the row takes their mean. The
    row's own hard negatives weigh `hard_negative_alpha` (paper section 6.3). Keys in `masked_bK`
    (bool) are left out of a row. `temperature` takes the place of the objective's.
    """
    logits_bK = similarities(anchors_bD, keys_KD, objective)
    logits_bK = logits_bK / (objective.temperature if temperature is None else temperature)
    positives_bP, hard_bh = own_bC.tensor_split([objective.positives], dim=1)
    if objective.hard_negative_alpha != 1:
        log_alpha_bh = logits_bK.new_full(hard_bh.shape, math.log(objective.hard_negative_alpha))
        logits_bK = logits_bK.scatter_add(1, hard_bh, log_alpha_bh)
    if masked_bK is not None:
        logits_bK = logits_bK.masked_fill(masked_bK, -torch.inf)
    losses_bP = torch.stack(
        [
            F.cross_entropy(_without(logits_bK, others_bP), positive_b, reduction="none")
            for positive_b, others_bP in _each_and_others(positives_bP)
        ],
        dim=1,
    )
    won_b = (logits_bK.argmax(dim=1, keepdim=True) == positives_bP).any(dim=1)
    return losses_bP.mean(dim=1), won_b


def gathered_contrastive_loss(
    views_bVD: Tensor,
    objective: ObjectiveConfig,
    *,
    global_rows: int,
    temperature: Tensor | None = None,
    hashes_bV: Tensor | None = None,
    group: dist.ProcessGroup | None = None,
) -> tuple[Tensor, Tensor]:
    """This rank's part of the loss over the global batch, and how many of its rows were right.

    `views_bVD` holds anchor, positives and hard negatives of each row. Keys are the positives of
    all ranks, then all their hard negatives. The loss is L_r = (W / B) * (sum over own rows), so
    that the mean over ranks, which data-parallel engines take of gradients, is the mean over B.
    With `hashes_bV` (int64) of the texts behind the views, false negatives are left out.
    """
    keys_BCD, first = gather_rows(views_bVD[:, 1:], group)
    keys_KD = keys_BCD.transpose(0, 1).flatten(0, 1)
    rows, keys_a_row, device = len(views_bVD), keys_BCD.shape[1], views_bVD.device
    own_b = first + torch.arange(rows, device=device)
    own_bC = own_b[:, None] + len(keys_BCD) * torch.arange(keys_a_row, device=device)
    masked_bK = None
    if hashes_bV is not None:
        hashes_BV, _ = gather_rows(hashes_bV, group)
        masked_bK = false_negatives(hashes_bV, hashes_BV, own_bC, objective.positives)
    losses_b, won_b = contrastive_losses(
        views_bVD[:, 0], keys_KD, own_bC, objective, temperature=temperature, masked_bK=masked_bK
    )
    world = dist.get_world_size(group) if dist.is_initialized() else 1
    return losses_b.sum() * (world / global_rows), won_b.sum()


def false_negatives(hashes_bV: Tensor, hashes_BV: Tensor, own_bC: Tensor, positives: int) -> Tensor:
    """Keys that only pass for negatives, bool `[b, K]`; a row's own positives are never among them.

    A key is one when its text is the row's anchor or one of its positives, or when it is a positive
    of another row with the same anchor.
    """
    keys_K = hashes_BV[:, 1:].T.flatten()
    masked_bK = torch.zeros(len(hashes_bV), len(keys_K), dtype=torch.bool, device=keys_K.device)
    for text_b in hashes_bV[:, : 1 + positives].T:
        masked_bK |= text_b[:, None] == keys_K
    same_anchor_bB = hashes_bV[:, :1] == hashes_BV[:, 0]
    masked_bK[:, : positives * len(hashes_BV)] |= same_anchor_bB.repeat(1, positives)
    return masked_bK.scatter(1, own_bC[:, :positives], False)


def similarities(first_nD: Tensor, second_mD: Tensor, objective: ObjectiveConfig) -> Tensor:
    """Cosines or dot products `[n, m]` in float32 or better.

    In bf16, similarities near 1 / 0.05 lie 0.125 apart.
    """
    prepare = unit if objective.similarity == "cosine" else at_least_float32
    return prepare(first_nD) @ prepare(second_mD).T


def unit(vectors_nD: Tensor) -> Tensor:
    """Rows of length one, in float32 or better."""
    return F.normalize(at_least_float32(vectors_nD), dim=-1)


def _each_and_others(positives_bP: Tensor) -> list[tuple[Tensor, Tensor]]:
    places = range(positives_bP.shape[1])
    return [
        (positives_bP[:, place], positives_bP[:, [other for other in places if other != place]])
        for place in places
    ]


def _without(logits_bK: Tensor, others_bP: Tensor) -> Tensor:
    return logits_bK.scatter(1, others_bP, -torch.inf) if others_bP.shape[1] else logits_bK
