"""Tokens replaced by what a masked language model would write there (paper table 1, "MLM").

n: sentences, m: sentences of a chunk, T: their tokens, k: tokens replaced, V: vocabulary.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from simcse.backbone import load_masked_language_model
from simcse.encoder import SentenceEncoder
from simcse.masked_language import mask_id
from simcse.model_source import locate
from simcse.positional import uniforms
from simcse.tokenizer import load_tokenizer
from simcse.tokens import RaggedTokens
from simcse.views import POSITIVE

_SENTENCES_AT_ONCE = 256


class TokenSubstitution:
    """A masked language model that offers another token for some of a sentence's."""

    def __init__(self, model: str | Path) -> None:
        folder = locate(model)
        backbone, self._head = load_masked_language_model(folder)
        tokenizer = load_tokenizer(folder)
        self._encoder = SentenceEncoder(backbone, tokenizer, pooling="cls").eval()
        self._head.eval()
        self._mask_id = mask_id(tokenizer)
        self._special = torch.tensor(tokenizer.all_special_ids)

    @torch.inference_mode()
    def substitute(
        self, tokens: RaggedTokens, *, rate: float, seed: int, epoch: int, row_ids_n: Tensor
    ) -> RaggedTokens:
        """The sentences with rate x their tokens, at least one, replaced by the likeliest others.

        All of a sentence's are hidden at once; special tokens are neither replaced nor put in.
        """
        order_n = torch.argsort(tokens.lengths_n, stable=True)
        substituted = []
        for rows_m in order_n.split(_SENTENCES_AT_ONCE):
            chunk = tokens.select(rows_m)
            chosen = []
            for row, places in zip(row_ids_n[rows_m].tolist(), self._ordinary(chunk), strict=True):
                count = min(len(places), max(1, round(rate * len(places))))
                order = np.argsort(uniforms(seed, epoch, POSITIVE, row, np.arange(len(places))))
                chosen.append(places[torch.from_numpy(order[:count])])
            substituted.append(self._fill(chunk, torch.cat(chosen)))
        return RaggedTokens.concatenate(substituted).select(torch.argsort(order_n))

    def _ordinary(self, tokens: RaggedTokens) -> list[Tensor]:
        """For each sentence the places of its tokens that are not special, among all T."""
        places = torch.arange(len(tokens.ids_T)).split(tokens.lengths_n.tolist())
        return [place[~torch.isin(tokens.ids_T[place], self._special)] for place in places]

    def _fill(self, tokens: RaggedTokens, places_k: Tensor) -> RaggedTokens:
        """The tokens at these places replaced by the likeliest that were not there."""
        hidden = RaggedTokens(tokens.ids_T.index_fill(0, places_k, self._mask_id), tokens.lengths_n)
        words = self._encoder.embed_words(hidden)
        logits_kV = self._head(self._encoder.token_states(words)[places_k])
        logits_kV[:, self._special] = -torch.inf
        logits_kV.scatter_(1, tokens.ids_T[places_k, None], -torch.inf)
        filled_T = tokens.ids_T.index_copy(0, places_k, logits_kV.argmax(dim=1))
        return RaggedTokens(filled_T, tokens.lengths_n)
