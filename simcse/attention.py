"""Attention whose dropout is drawn as fast as that of the other layers.

m: sentences of a chunk, h: heads, L: longest sentence of a chunk, E: width of a head.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from simcse.dropout import FastDropout

_NAME = "sdpa_fast_dropout"
"""Under which transformers finds `_attention`; it is not written into a model's config.json."""


def drop_faster_in_attention(backbone: PreTrainedModel) -> None:
    """Put this attention in place of torch's, in architectures that let theirs be chosen."""
    if backbone.config._attn_implementation == "sdpa" and backbone._can_set_attn_implementation():
        AttentionInterface.register(_NAME, _attention)
        AttentionMaskInterface.register(_NAME, sdpa_mask)
        backbone.set_attn_implementation(_NAME)


def _attention(
    module: nn.Module,
    query_mhLE: Tensor,
    key_mhLE: Tensor,
    value_mhLE: Tensor,
    mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """As transformers' attention functions take and return it, `[m, L, h, E]`.

    On a CPU, torch has no attention in one piece that drops: it takes the same products as here,
    and draws one mask element at a time. Everything else is left to torch.
    """
    causal = options.get("is_causal", getattr(module, "is_causal", True))
    if (
        dropout == 0
        or query_mhLE.device.type != "cpu"
        or (mask is None and causal)
        or options.get("position_bias") is not None
        or len({states.shape[1] for states in (query_mhLE, key_mhLE, value_mhLE)}) > 1
    ):
        return sdpa_attention_forward(
            module,
            query_mhLE,
            key_mhLE,
            value_mhLE,
            mask,
            dropout=dropout,
            scaling=scaling,
            **options,
        )
    scale = query_mhLE.shape[-1] ** -0.5 if scaling is None else scaling
    logits_mhLL = (query_mhLE * scale) @ key_mhLE.transpose(-2, -1)
    if mask is not None and mask.dtype == torch.bool:
        # Not infinite: of a sentence that is padding alone, the weights stay numbers.
        logits_mhLL = logits_mhLL.masked_fill(~mask, torch.finfo(logits_mhLL.dtype).min)
    elif mask is not None:
        logits_mhLL = logits_mhLL + mask
    weights_mhLL = FastDropout(dropout)(logits_mhLL.softmax(dim=-1))
    return (weights_mhLL @ value_mhLE).transpose(1, 2).contiguous(), None
