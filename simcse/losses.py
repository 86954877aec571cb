"""The contrastive objective (Gao et al. 2021, equations 1, 4 and 5) and its options.

b: rows on this rank, B: rows of the global batch, P: positives a row, C: keys a row (its positives,
then its hard negatives), V = 1 + C: vectors a row, N: keys of a tile, D: width.
"""

from __future__ import annotations

import math
from functools import partial
from itertools import count
from typing import NamedTuple

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from simcse.config import ObjectiveConfig
from simcse.gather import gather_rows
from simcse.pooling import at_least_float32
from simcse.recompute import recomputed


class TextHashes(NamedTuple):
    """Of the texts behind the vectors; equal for equal texts."""

    own_bV: Tensor
    """int64 `[b, V]`: of this rank's rows."""
    all_BV: Tensor
    """int64 `[B, V]`: of all rows."""


def contrastive_losses(
    anchors_bD: Tensor,
    keys_BCD: Tensor,
    own_b: Tensor,
    objective: ObjectiveConfig,
    *,
    temperature: Tensor | None = None,
    hashes: TextHashes | None = None,
    tile: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Cross-entropy of each anchor over all keys, `[b]`, and whether a positive of it won, `[b]`.

    `own_b` (int64) says which of the B rows an anchor's own keys are in. Of several positives each
    is told apart from everything but the others, and the row takes their mean. The row's own hard
    negatives weigh `hard_negative_alpha` (paper section 6.3). With `hashes`, false negatives are
    left out. `temperature` takes the place of the objective's.

    With `tile`, the logits of no more than that many keys exist at a time, and the backward pass
    computes them again: memory b x tile instead of b x B C, for one matrix product more.
    """
    anchors_bD = _comparable(anchors_bD, objective)
    anchors_bD = anchors_bD / (objective.temperature if temperature is None else temperature)
    size = tile or max(1, len(keys_BCD))
    found_CT = [
        [
            recomputed(
                partial(_compare, anchors_bD, keys_ND, objective, column, start, own_b, hashes),
                enabled=tile is not None,
                device=anchors_bD.device,
            )
            for start, keys_ND in zip(count(step=size), keys_BD.split(size), strict=False)
        ]
        for column, keys_BD in enumerate(keys_BCD.unbind(1))
    ]
    # A row's own key lies in one tile of a column and is at the floor in the others.
    logits_bP = torch.stack(
        [
            torch.stack([part.own_b for part in parts_T]).amax(0)
            for parts_T in found_CT[: objective.positives]
        ],
        dim=1,
    )
    parts = [part for parts_T in found_CT for part in parts_T]
    log_sum_b = torch.stack([part.log_sum_b for part in parts]).logsumexp(0)
    largest_b = torch.stack([part.largest_b for part in parts]).amax(0)
    # Not logaddexp less the logit, in which a small loss is lost.
    losses_bP = F.softplus(log_sum_b[:, None] - logits_bP, threshold=40)
    return losses_bP.mean(dim=1), logits_bP.detach().amax(1) > largest_b


def gathered_contrastive_loss(
    views_bVD: Tensor,
    objective: ObjectiveConfig,
    *,
    global_rows: int,
    temperature: Tensor | None = None,
    hashes_bV: Tensor | None = None,
    tile: int | None = None,
    group: dist.ProcessGroup | None = None,
) -> tuple[Tensor, Tensor]:
    """This rank's part of the loss over the global batch, and how many of its rows were right.

    `views_bVD` holds anchor, positives and hard negatives of each row. Keys are the positives of
    all ranks, then all their hard negatives. The loss is L_r = (W / B) * (sum over own rows), so
    that the mean over ranks, which data-parallel engines take of gradients, is the mean over B.
    `hashes_bV` (int64) are of the texts behind the views; see `contrastive_losses`.
    """
    anchors_b1D, keys_bCD = views_bVD.tensor_split([1], dim=1)
    keys_BCD, first = gather_rows(keys_bCD, group)
    own_b = first + torch.arange(len(views_bVD), device=views_bVD.device)
    hashes = None
    if hashes_bV is not None:
        hashes = TextHashes(hashes_bV, gather_rows(hashes_bV, group)[0])
    losses_b, won_b = contrastive_losses(
        anchors_b1D[:, 0],
        keys_BCD,
        own_b,
        objective,
        temperature=temperature,
        hashes=hashes,
        tile=tile,
    )
    world = dist.get_world_size(group) if dist.is_initialized() else 1
    return losses_b.sum() * (world / global_rows), won_b.sum()


def unit(vectors_nD: Tensor) -> Tensor:
    """Rows of length one, in float32 or better."""
    return F.normalize(at_least_float32(vectors_nD), dim=-1)


class _Comparison(NamedTuple):
    """The anchors against one tile of keys; what is not there is at the floor."""

    log_sum_b: Tensor
    """Logarithm of the summed exponentials of a row's negatives."""
    own_b: Tensor
    """Logit of the row's own key."""
    largest_b: Tensor
    """Largest logit of a negative, without gradient."""


def _compare(
    anchors_bD: Tensor,
    keys_ND: Tensor,
    objective: ObjectiveConfig,
    column: int,
    start: int,
    own_b: Tensor,
    hashes: TextHashes | None,
) -> _Comparison:
    """Against the keys of rows `start` on in one column; anchors come divided by temperature."""
    logits_bN = anchors_bD @ _comparable(keys_ND, objective).T
    # Not minus infinity, which a row without negatives would turn into NaN in the backward pass.
    floor = torch.finfo(logits_bN.dtype).min / 2
    own_logit_b = logits_bN.new_full(own_b.shape, floor)
    is_positive = column < objective.positives
    if is_positive or objective.hard_negative_alpha != 1:
        (rows_m,) = ((own_b >= start) & (own_b < start + len(keys_ND))).nonzero(as_tuple=True)
        own_m = (rows_m, own_b[rows_m] - start)
        own_logit_b = own_logit_b.index_put((rows_m,), logits_bN[own_m])
        weighed_b = own_logit_b + math.log(objective.hard_negative_alpha)
        logits_bN = logits_bN.index_put_(
            own_m, logits_bN.new_tensor(floor) if is_positive else weighed_b[rows_m]
        )
    if hashes is not None:
        rows = slice(start, start + len(keys_ND))
        masked_bN = _false_negatives(hashes, rows, column, objective.positives)
        logits_bN = logits_bN.masked_fill(masked_bN, floor)
    return _Comparison(logits_bN.logsumexp(1), own_logit_b, logits_bN.detach().amax(1))


def _false_negatives(hashes: TextHashes, rows: slice, column: int, positives: int) -> Tensor:
    """Keys of a tile that only pass for negatives, bool `[b, N]`.

    A key is one when its text is the row's anchor or one of its positives, or when it is a positive
    of another row with the same anchor. A row's own positives are no negatives in any case.
    """
    keys_N = hashes.all_BV[rows, 1 + column]
    masked_bN = torch.zeros(len(hashes.own_bV), len(keys_N), dtype=torch.bool, device=keys_N.device)
    for text_b in hashes.own_bV[:, : 1 + positives].T:
        masked_bN |= text_b[:, None] == keys_N
    if column < positives:
        masked_bN |= hashes.own_bV[:, :1] == hashes.all_BV[rows, 0]
    return masked_bN


def _comparable(vectors_nD: Tensor, objective: ObjectiveConfig) -> Tensor:
    """Vectors whose inner products are similarities, in float32 or better.

    In bf16, similarities near 1 / 0.05 lie 0.125 apart.
    """
    return unit(vectors_nD) if objective.similarity == "cosine" else at_least_float32(vectors_nD)
