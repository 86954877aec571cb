"""Logistic regression, many problems at a time: every regulariser on every choice of rows.

The problems share their features, so that a pass over the data is two matrix products for all of
them together. n: rows, m: rows of a block, D: features, E: features and bias, R: regularisers,
F: choices of rows, K: outputs (1 for two classes, else one a class).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from simcse.errors import ModelError

Features = NDArray[np.floating[Any]]
Labels = NDArray[np.intp]

_BLOCK = 2048
"""Rows whose outputs for all problems are held at a time; they then stay in the cache."""
_MAX_PASSES = 10_000


@dataclass(frozen=True, slots=True)
class Classifiers:
    """The models of one call of `fit`."""

    weights_DRFK: Tensor
    bias_RFK: Tensor

    def predict(self, features_nD: Features) -> Labels:
        """Classes `[n, R, F]`."""
        classes: list[Tensor] = []
        for features_mD in torch.from_numpy(features_nD).split(_BLOCK):
            outputs_mRFK = self.outputs(features_mD)
            one = outputs_mRFK.shape[-1] == 1
            classes.append(outputs_mRFK[..., 0] > 0 if one else outputs_mRFK.argmax(dim=-1))
        return torch.cat(classes).numpy().astype(np.intp)

    def outputs(self, features_mD: Tensor) -> Tensor:
        """Logits `[m, R, F, K]`."""
        products_mP = features_mD @ self.weights_DRFK.flatten(1)
        return products_mP.view(-1, *self.bias_RFK.shape) + self.bias_RFK


def fit(
    features_nD: Features,
    labels_n: Labels,
    rows_nF: NDArray[np.bool_],
    *,
    l2: Sequence[float],
    tolerance: float,
) -> Classifiers:
    """Models with the least mean cross-entropy + l2 / 2 |w|^2 over each choice of rows.

    Classes are 0, 1, ...; two of them have one weight vector and the bias is not penalised, so that
    these are scikit-learn's models with C = 1 / (rows chosen * l2). Passes end once no model's
    objective promises to fall by `tolerance` nats. Precision is that of the features.

    The Hessian is nowhere above 1/4 (two classes; 1/2 for more) of the second moment of the
    features, plus l2 (Boehning 1992). In the eigenbasis of that moment this bound is diagonal for
    every l2 at once, and preconditioning by it leaves little for Nesterov's accelerated gradient to
    do: no line search, and tens of passes. Momentum starts anew where it points uphill (O'Donoghue
    and Candes 2015).
    """
    data = _Data.of(torch.from_numpy(features_nD), labels_n, rows_nF)
    space = _PrincipalSpace.of(data.features_nD)
    bound_EF = data.curvature * space.moment_E[:, None] * len(labels_n) * data.shares_nF.amax(dim=0)
    penalty_DR = bound_EF.new_tensor(l2).expand(features_nD.shape[1], -1)
    penalty_ER11 = functional.pad(penalty_DR, (0, 0, 0, 1))[..., None, None]
    bound_ERF1 = bound_EF[:, None, :, None] + penalty_ER11

    weights_ERFK = ahead_ERFK = torch.zeros_like(bound_ERF1).repeat(1, 1, 1, data.outputs)
    momentum_RF1 = torch.ones_like(weights_ERFK[0, ..., :1])
    for _ in range(_MAX_PASSES):
        loss_ERFK = space.gradient(*data.gradient(space.models(ahead_ERFK)))
        gradient_ERFK = loss_ERFK + penalty_ER11 * ahead_ERFK
        descent_ERFK = gradient_ERFK / bound_ERF1
        step_ERFK = ahead_ERFK - descent_ERFK - weights_ERFK
        weights_ERFK = weights_ERFK + step_ERFK
        if bool((_dot(gradient_ERFK, descent_ERFK) < 2 * tolerance).all()):
            break
        momentum_RF1 = momentum_RF1.masked_fill(_dot(gradient_ERFK, step_ERFK) > 0, 1)
        next_RF1 = (1 + (1 + 4 * momentum_RF1**2).sqrt()) / 2
        ahead_ERFK = weights_ERFK + (momentum_RF1 - 1) / next_RF1 * step_ERFK
        momentum_RF1 = next_RF1
    else:
        raise ModelError(
            f"a classifier did not come to its optimum in {_MAX_PASSES} passes: the vectors' "
            "numbers are too large or too unequal, so scale them"
        )
    return space.models(weights_ERFK)


@dataclass(frozen=True, slots=True)
class _PrincipalSpace:
    """Weights along the eigenvectors of the features' second moment about their mean, and a bias.

    The inputs that such weights stand for are uncorrelated with each other and with the bias.
    """

    moment_E: Tensor
    """Second moment of the inputs, of which 1 is the bias's."""
    mean_D: Tensor
    basis_DD: Tensor

    @classmethod
    def of(cls, features_nD: Tensor) -> _PrincipalSpace:
        mean_D = features_nD.mean(dim=0)
        moment_DD = torch.zeros(2 * mean_D.shape, dtype=torch.float64)
        for features_mD in features_nD.split(_BLOCK):
            centred_mD = features_mD - mean_D
            moment_DD += centred_mD.T @ centred_mD / len(features_nD)
        moment_D, basis_DD = torch.linalg.eigh(moment_DD)
        # A bound must stay one in spite of rounding.
        rounding = torch.finfo(features_nD.dtype).eps * moment_D[-1]
        moment_E = torch.cat([moment_D.clamp(min=0) + rounding, torch.ones(1)])
        return cls(moment_E.to(mean_D), mean_D, basis_DD.to(mean_D))

    def models(self, weights_ERFK: Tensor) -> Classifiers:
        """The same models for features as they are."""
        weights_DRFK = torch.tensordot(self.basis_DD, weights_ERFK[:-1], dims=1)
        shift_RFK = torch.tensordot(self.mean_D, weights_DRFK, dims=1)
        return Classifiers(weights_DRFK, weights_ERFK[-1] - shift_RFK)

    def gradient(self, weights_DRFK: Tensor, bias_RFK: Tensor) -> Tensor:
        """Gradient `[E, R, F, K]` from that by the weights and the bias of `models`."""
        centred_DRFK = weights_DRFK - torch.tensordot(self.mean_D[:, None], bias_RFK[None], dims=1)
        return torch.cat([torch.tensordot(self.basis_DD.T, centred_DRFK, dims=1), bias_RFK[None]])


@dataclass(frozen=True, slots=True)
class _Data:
    features_nD: Tensor
    targets_nK: Tensor
    shares_nF: Tensor
    """Weight of each row in the mean over a choice of rows."""

    @classmethod
    def of(cls, features_nD: Tensor, labels_n: Labels, rows_nF: NDArray[np.bool_]) -> _Data:
        chosen_nF = torch.from_numpy(rows_nF)
        targets_nK = functional.one_hot(torch.from_numpy(labels_n)).to(features_nD)
        if targets_nK.shape[1] == 2:
            targets_nK = targets_nK[:, 1:]
        return cls(features_nD, targets_nK, chosen_nF.to(features_nD) / chosen_nF.sum(dim=0))

    @property
    def outputs(self) -> int:
        return self.targets_nK.shape[1]

    @property
    def curvature(self) -> float:
        """Largest second derivative of a row's cross-entropy by its outputs."""
        return 1 / 4 if self.outputs == 1 else 1 / 2

    def gradient(self, models: Classifiers) -> tuple[Tensor, Tensor]:
        """Of the mean cross-entropy over each choice of rows, by weights and by bias."""
        weights_DP = torch.zeros_like(models.weights_DRFK.flatten(1))
        bias_RFK = torch.zeros_like(models.bias_RFK)
        blocks = (
            part.split(_BLOCK) for part in (self.features_nD, self.targets_nK, self.shares_nF)
        )
        for features_mD, targets_mK, shares_mF in zip(*blocks, strict=True):
            outputs_mRFK = models.outputs(features_mD)
            if self.outputs == 1:
                errors_mRFK = outputs_mRFK.sigmoid_()
            else:
                errors_mRFK = outputs_mRFK.softmax(dim=-1)
            errors_mRFK -= targets_mK[:, None, None]
            errors_mRFK *= shares_mF[:, None, :, None]
            weights_DP.addmm_(features_mD.T, errors_mRFK.flatten(1))
            bias_RFK += errors_mRFK.sum(dim=0)
        return weights_DP.reshape(models.weights_DRFK.shape), bias_RFK


def _dot(first_ERFK: Tensor, second_ERFK: Tensor) -> Tensor:
    """Inner products of each problem, `[R, F, 1]`."""
    return (first_ERFK * second_ERFK).sum(dim=(0, 3))[..., None]
