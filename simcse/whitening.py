"""Whitening of sentence vectors (Su et al. 2021, BERT-whitening; a baseline of paper table 5).

n: sentences, D: width of the encoder, k: dimensions kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from simcse.errors import DataError

# Not those of `simcse.metrics`, whose scipy a model in use would then need.
Vectors = NDArray[np.floating[Any]]
Float64 = NDArray[np.float64]

_LEAST_SHARE = 1e-9
"""Variance, as a share of the largest, below which a direction holds rounding: scaled to 1 it would
be off by more than a millionth, as float64 has 2e-16."""
_BLOCK = 8192
"""Vectors held in float64 at a time."""


@dataclass(frozen=True, slots=True)
class Whitening:
    """The map (x - mean) kernel, after which the vectors it was fitted to have covariance 1."""

    mean_D: Float64
    kernel_Dk: Float64
    """Principal directions, the widest first, each over the root of its variance."""

    @classmethod
    def fit(cls, vectors_nD: Vectors, dimensions: int | None = None) -> Self:
        """The whitening of these vectors, in float64, onto their `dimensions` widest directions.

        None is all in which they spread: one fewer than D for the states of a layer that ends in a
        LayerNorm, because that takes out their mean. The covariance is the mean over n, as in the
        paper. Raises `DataError` for fewer vectors than D, and when they spread in fewer directions
        than asked for.
        """
        count, width = vectors_nD.shape
        if dimensions is not None and not 1 <= dimensions <= width:
            raise ValueError(f"dimensions must be 1 to {width}, got {dimensions}")
        if count < width:
            raise DataError(
                f"{count} sentences are too few for vectors of {width} numbers: whitening needs "
                f"at least {width}, and better ten times as many"
            )
        mean_D = vectors_nD.mean(axis=0, dtype=np.float64)
        covariance_DD = np.zeros((width, width))
        for start in range(0, count, _BLOCK):
            centred_mD = vectors_nD[start : start + _BLOCK] - mean_D
            covariance_DD += centred_mD.T @ centred_mD / count
        variance_D, direction_DD = np.linalg.eigh(covariance_DD)
        # eigh sorts by rising variance.
        variance_D, direction_DD = variance_D[::-1], direction_DD[:, ::-1]
        spread = int((variance_D > _LEAST_SHARE * variance_D[0]).sum())
        kept = spread if dimensions is None else dimensions
        if spread < kept:
            raise DataError(
                f"the vectors of {count} sentences spread in only {spread} of {width} directions: "
                f"keep at most {spread} dimensions"
            )
        return cls(mean_D, direction_DD[:, :kept] / np.sqrt(variance_D[:kept]))

    def __call__(self, vectors_nD: Vectors) -> Float64:
        """Whitened vectors `[n, k]`."""
        whitened_nk: Float64 = (vectors_nD - self.mean_D) @ self.kernel_Dk
        return whitened_nk

    def layer(self) -> nn.Linear:
        """The same map as a float32 layer that is not trained."""
        weight_kD = torch.from_numpy(self.kernel_Dk.T).float()
        bias_k = torch.from_numpy(-self.mean_D @ self.kernel_Dk).float()
        return whitening_layer({"weight": weight_kD.contiguous(), "bias": bias_k})


def whitening_layer(weights: Mapping[str, Tensor]) -> nn.Linear:
    """The layer with this `weight` `[k, D]` and `bias` `[k]`."""
    kept, width = weights["weight"].shape
    layer: nn.Linear = nn.utils.skip_init(nn.Linear, width, kept)
    layer.load_state_dict(weights)
    layer.requires_grad_(False)
    return layer
