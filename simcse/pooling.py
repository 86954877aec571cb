"""Token states to one vector a sentence (paper section 6.3; names of the original project).

m: sentences, L: padded length, D: width of the encoder.
"""

from __future__ import annotations

from typing import Self, get_args

import torch
from torch import Tensor, nn
from transformers.modeling_outputs import BaseModelOutput

from simcse.config import Pooling

POOLINGS: tuple[Pooling, ...] = get_args(Pooling)


def needs_all_layers(pooling: Pooling) -> bool:
    """Whether `pool` reads `hidden_states` beside `last_hidden_state`."""
    return pooling in ("avg_top2", "avg_first_last")


def pool(pooling: Pooling, output: BaseModelOutput, mask_mL: Tensor) -> Tensor:
    """Vectors `[m, D]`, at least float32, from the backbone's output and its attention mask."""
    last_mLD, layers = output.last_hidden_state, output.hidden_states or ()
    assert last_mLD is not None
    match pooling:
        case "cls" | "cls_before_pooler":
            return at_least_float32(last_mLD[:, 0])
        case "avg":
            states_mLD = at_least_float32(last_mLD)
        case "avg_top2":
            states_mLD = (at_least_float32(layers[-1]) + at_least_float32(layers[-2])) / 2
        case "avg_first_last":
            # Layer 0 is the embedding layer, which the original took by mistake at first.
            states_mLD = (at_least_float32(layers[1]) + at_least_float32(layers[-1])) / 2
    weight_mL1 = mask_mL[:, :, None].to(states_mLD.dtype)
    return (states_mLD * weight_mL1).sum(1) / weight_mL1.sum(1)


class DenseHead(nn.Module):
    """The dense tanh layer over [CLS], `[m, D]` to `[m, D]` (paper section 6.3)."""

    def __init__(self, dimension: int) -> None:
        super().__init__()
        self.dense = nn.utils.skip_init(nn.Linear, dimension, dimension)

    @classmethod
    def initialised(cls, dimension: int, *, standard_deviation: float, seed: int) -> Self:
        """Weights as BERT starts its own; a function of `seed`, and of no global generator."""
        head = cls(dimension)
        generator = torch.Generator().manual_seed(seed)
        nn.init.normal_(head.dense.weight, std=standard_deviation, generator=generator)
        nn.init.zeros_(head.dense.bias)
        return head

    def forward(self, pooled_mD: Tensor) -> Tensor:
        return torch.tanh(self.dense(pooled_mD))


def at_least_float32(states: Tensor) -> Tensor:
    """The states in float32, or in the better precision that they have."""
    return states.to(torch.promote_types(states.dtype, torch.float32))
