"""The masked-language-model term (paper appendix D; Devlin et al. 2019).

n: sentences, T: their tokens, k: tokens to predict, D: width, M: tokens to predict on all ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple, Self

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedTokenizerFast

from simcse.encoder import SentenceEncoder
from simcse.errors import ModelError
from simcse.pooling import at_least_float32
from simcse.positional import uniforms
from simcse.tokens import RaggedTokens

# Of the tokens to predict 80 % are hidden, 10 % replaced by any token, 10 % left as they are.
_HIDDEN, _REPLACED = 0.8, 0.9
_CHOICE, _TREATMENT, _REPLACEMENT = range(3)


class MaskedTokens(NamedTuple):
    """A corrupted copy of sentences and what was there before."""

    tokens: RaggedTokens
    places_k: Tensor
    """int64 `[k]`: where among all T tokens something is to be predicted."""
    targets_k: Tensor
    """int64 `[k]`: the ids that were there."""

    @classmethod
    def concatenate(cls, parts: Sequence[Self]) -> Self:
        """The sentences of all parts, in order."""
        sizes = [len(part.tokens.ids_T) for part in parts]
        firsts = accumulate(sizes[:-1], initial=0)
        return cls(
            RaggedTokens.concatenate([part.tokens for part in parts]),
            torch.cat([part.places_k + first for part, first in zip(parts, firsts, strict=True)]),
            torch.cat([part.targets_k for part in parts]),
        )


def mask_id(tokenizer: PreTrainedTokenizerFast) -> int:
    """Id of the mask token. Raises `ModelError` when the tokenizer has none."""
    if tokenizer.mask_token_id is None:
        raise ModelError(
            f"the tokenizer of {tokenizer.name_or_path} has no mask token, so that nothing can be "
            "hidden: name a checkpoint that has one"
        )
    return int(tokenizer.mask_token_id)


class MaskedLanguageTerm(nn.Module):
    """Cross-entropy of hidden tokens under the masked-language head of a checkpoint."""

    def __init__(
        self, head: nn.Module, tokenizer: PreTrainedTokenizerFast, *, rate: float, seed: int
    ) -> None:
        super().__init__()
        self.head = head
        self._mask_id = mask_id(tokenizer)
        self._vocabulary = len(tokenizer)
        self._special = np.asarray(tokenizer.all_special_ids)
        self._rate = rate
        self._seed = seed

    def forward(
        self, encoder: SentenceEncoder, masked: MaskedTokens, group: dist.ProcessGroup | None
    ) -> Tensor:
        """(W / M) * (sum over this rank's k tokens): its mean over ranks is the mean over all M."""
        states_kD = encoder.token_states(masked.tokens)[masked.places_k]
        device = states_kD.device
        with torch.autocast(device.type, enabled=False):
            logits_kV = self.head(at_least_float32(states_kD))
            total = F.cross_entropy(logits_kV, masked.targets_k.to(device), reduction="sum")
        world, count = 1, torch.tensor(len(masked.places_k), device=device)
        if dist.is_initialized():
            world = dist.get_world_size(group)
            dist.all_reduce(count, group=group)
        return total * world / count.clamp(min=1)

    def mask(
        self, tokens: RaggedTokens, *, epoch: int, row_ids_n: Tensor, view: int
    ) -> MaskedTokens:
        """The sentences of one column, corrupted as a function of seed, epoch, row and view.

        Each token but the special ones is to be predicted with probability `rate`.
        """
        lengths_n = tokens.lengths_n
        starts_n = lengths_n.cumsum(0) - lengths_n
        rows_T = torch.repeat_interleave(row_ids_n, lengths_n).numpy()
        place_T = (torch.arange(len(tokens.ids_T)) - starts_n.repeat_interleave(lengths_n)).numpy()

        def draw(what: int) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
            return uniforms(self._seed, epoch, view, what, rows_T, place_T)

        ids_T = tokens.ids_T.numpy()
        chosen_T = (draw(_CHOICE) < self._rate) & ~np.isin(ids_T, self._special)
        treatment_T = draw(_TREATMENT)
        replacement_T = (draw(_REPLACEMENT) * self._vocabulary).astype(np.int64)
        corrupted_T = np.where(treatment_T < _REPLACED, replacement_T, ids_T)
        corrupted_T = np.where(treatment_T < _HIDDEN, self._mask_id, corrupted_T)
        places_k = np.flatnonzero(chosen_T)
        return MaskedTokens(
            RaggedTokens(torch.from_numpy(np.where(chosen_T, corrupted_T, ids_T)), lengths_n),
            torch.from_numpy(places_k),
            torch.from_numpy(ids_T[places_k]),
        )
