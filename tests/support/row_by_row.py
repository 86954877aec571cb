"""The loss with all its options in plain loops, to compare the fast one with.

b: rows, V = 1 + P + h: vectors a row, D: width.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from simcse.config import ObjectiveConfig


def row_by_row_loss(
    views_bVD: Tensor,
    objective: ObjectiveConfig,
    hashes_bV: Tensor | None,
    *,
    scale: Tensor | float = 1.0,
) -> Tensor:
    """Mean over rows, and over a row's positives, of minus the log of the positive's share.

    `scale` multiplies similarities beside the objective's temperature.
    """

    def exponent(i: int, j: int, view: int) -> Tensor:
        return _exponent(views_bVD, i, j, view, objective, scale)

    total = torch.zeros((), dtype=views_bVD.dtype)
    for i in range(len(views_bVD)):
        for own in range(1, 1 + objective.positives):
            numerator = exponent(i, i, own)
            denominator = numerator
            for j in range(len(views_bVD)):
                for view in range(1, views_bVD.shape[1]):
                    if i == j and view <= objective.positives:
                        continue
                    if hashes_bV is not None and _is_false(hashes_bV, i, j, view, objective):
                        continue
                    denominator = denominator + exponent(i, j, view)
            total = total - torch.log(numerator / denominator) / objective.positives
    return total / len(views_bVD)


def _exponent(
    views_bVD: Tensor,
    i: int,
    j: int,
    view: int,
    objective: ObjectiveConfig,
    scale: Tensor | float,
) -> Tensor:
    anchor_D, key_D = views_bVD[i, 0], views_bVD[j, view]
    similarity = (anchor_D * key_D).sum()
    if objective.similarity == "cosine":
        lengths = anchor_D.square().sum().sqrt() * key_D.square().sum().sqrt()
        similarity = similarity / lengths
    own_hard_negative = i == j and view > objective.positives
    weight = math.log(objective.hard_negative_alpha) if own_hard_negative else 0.0
    return torch.exp(similarity * scale / objective.temperature + weight)


def _is_false(hashes_bV: Tensor, i: int, j: int, view: int, objective: ObjectiveConfig) -> bool:
    own_texts = hashes_bV[i, : 1 + objective.positives].tolist()
    repeats_own_text = hashes_bV[j, view].item() in own_texts
    is_positive = view <= objective.positives
    same_anchor = i != j and bool(hashes_bV[j, 0] == hashes_bV[i, 0])
    return repeats_own_text or (is_positive and same_anchor)
