"""The masked-language-model term (paper appendix D; Devlin et al. 2019).

n: sentences, m: those of a chunk, T: their tokens, k: tokens to predict, D: width, M: tokens to
predict on all ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
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
from simcse.recompute import recomputed
from simcse.tokens import RaggedTokens
from simcse.words import EmbeddedTokens

# Of the tokens to predict 80 % are hidden, 10 % replaced by any token, 10 % left as they are.
_HIDDEN, _REPLACED = 0.8, 0.9
_CHOICE, _TREATMENT, _REPLACEMENT = range(3)

NO_TARGET = -100
"""Stands in for an id where nothing is to be predicted."""


class MaskedTokens(NamedTuple):
    """A corrupted copy of sentences and what was there before."""

    tokens: RaggedTokens
    targets: RaggedTokens
    """The id that was there where it is to be predicted, `NO_TARGET` elsewhere."""

    @classmethod
    def concatenate(cls, parts: Sequence[Self]) -> Self:
        """The sentences of all parts, in order."""
        return cls(*map(RaggedTokens.concatenate, zip(*parts, strict=True)))


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
        self,
        encoder: SentenceEncoder,
        masked: MaskedTokens,
        group: dist.ProcessGroup | None,
        *,
        recomputed_chunks: int | None = None,
    ) -> Tensor:
        """(W / M) * (sum over this rank's k tokens): its mean over ranks is the mean over all M.

        `recomputed_chunks` is as in the encoder's `forward`; logits are not kept either.
        """
        again, words = recomputed_chunks is not None, encoder.embed_words(masked.tokens)
        sums = [
            recomputed(
                partial(
                    self._chunk_sum, encoder, words.select(rows_m), masked.targets.select(rows_m)
                ),
                enabled=again,
                device=encoder.backbone.device,
                random=True,
            )
            for rows_m in encoder.chunks(masked.tokens, recomputed_chunks)
        ]
        total = torch.stack(sums).sum()
        world, count = 1, (masked.targets.ids_T != NO_TARGET).sum().to(total.device)
        if dist.is_initialized():
            world = dist.get_world_size(group)
            dist.all_reduce(count, group=group)
        return total * world / count.clamp(min=1)

    def _chunk_sum(
        self, encoder: SentenceEncoder, words: EmbeddedTokens, targets: RaggedTokens
    ) -> Tensor:
        states_TD = encoder.token_states(words)
        targets_T = targets.ids_T.to(states_TD.device)
        chosen_T = targets_T != NO_TARGET
        with torch.autocast(states_TD.device.type, enabled=False):
            logits_kV = self.head(at_least_float32(states_TD[chosen_T]))
            return F.cross_entropy(logits_kV, targets_T[chosen_T], reduction="sum")

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
        return MaskedTokens(
            RaggedTokens(torch.from_numpy(np.where(chosen_T, corrupted_T, ids_T)), lengths_n),
            RaggedTokens(torch.from_numpy(np.where(chosen_T, ids_T, NO_TARGET)), lengths_n),
        )
