"""Dropout drawn faster on a CPU, in layers of its own and inside attention.

m: sentences of a chunk, h: heads, L: longest sentence of a chunk, E: width of a head.
"""

from __future__ import annotations

from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

ATTENTION = "sdpa_fast_dropout"
"""The name by which transformers finds `attention`."""


def draw_faster(model: PreTrainedModel) -> None:
    """Let the layers and the attention of a model draw their dropout masks by `FastDropout`.

    Architectures that do not let their attention be chosen keep it.
    """
    for parent in model.modules():
        for name, child in parent.named_children():
            if type(child) is nn.Dropout:
                setattr(parent, name, FastDropout(child.p).train(child.training))
    if model.config._attn_implementation == "sdpa" and model._can_set_attn_implementation():
        model.set_attn_implementation(ATTENTION)


class FastDropout(nn.Dropout):
    """Four elements for each 64 random bits, where torch draws a double for one.

    Dropout is the only noise of unsupervised SimCSE, and on CPUs without Intel's library it is
    torch's slowest operation of a step but for matrix products. Masks come from torch's generator
    and are the same on all CPUs; the probability is exact to 1/65,536.
    """

    def forward(self, states: Tensor) -> Tensor:
        return _drop(states, self.p) if self.training else states


def attention(
    module: nn.Module,
    query_mhLE: Tensor,
    key_mhLE: Tensor,
    value_mhLE: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """As transformers' attention functions take and return it, `[m, L, h, E]`.

    On a CPU, torch has no attention in one piece that drops: it takes the same products as here.
    """
    causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    if (
        dropout == 0
        or query_mhLE.device.type != "cpu"
        or (causal and attention_mask is None)
        or not _is_plain(query_mhLE, key_mhLE, attention_mask, options)
    ):
        return sdpa_attention_forward(
            module,
            query_mhLE,
            key_mhLE,
            value_mhLE,
            attention_mask,
            dropout=dropout,
            scaling=scaling,
            is_causal=is_causal,
            **options,
        )
    scale = query_mhLE.shape[-1] ** -0.5 if scaling is None else scaling
    logits_mhLL = (query_mhLE * scale) @ key_mhLE.transpose(-2, -1)
    if attention_mask is not None and attention_mask.dtype == torch.bool:
        # Not infinite: where everything is masked, as in padding, weights stay numbers.
        least = torch.finfo(logits_mhLL.dtype).min
        logits_mhLL = logits_mhLL.masked_fill(~attention_mask, least)
    elif attention_mask is not None:
        logits_mhLL = logits_mhLL + attention_mask
    weights_mhLL = _drop(logits_mhLL.softmax(dim=-1), dropout)
    return (weights_mhLL @ value_mhLE).transpose(1, 2).contiguous(), None


# At import, because a model that is unpickled in another process looks for the name there.
AttentionInterface.register(ATTENTION, attention)
AttentionMaskInterface.register(ATTENTION, sdpa_mask)


def _is_plain(
    query_mhLE: Tensor, key_mhLE: Tensor, mask: Tensor | None, options: dict[str, Any]
) -> bool:
    """Whether nothing is asked for but a mask: no grouped heads, position bias or soft cap."""
    return (
        query_mhLE.shape[1] == key_mhLE.shape[1]
        and (mask is None or mask.dtype == torch.bool or mask.is_floating_point())
        and options.get("position_bias") is None
        and options.get("softcap") is None
    )


def _drop(states: Tensor, probability: float) -> Tensor:
    if not (0 < probability < 1 and states.device.type == "cpu"):
        return F.dropout(states, probability)
    return cast(Tensor, _Dropped.apply(states, probability))  # type: ignore[no-untyped-call]


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
