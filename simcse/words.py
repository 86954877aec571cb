"""Words looked up once for all the chunks in which their sentences are encoded.

n: sentences, m: those of one chunk, T: tokens, L: longest sentence of a chunk, U: distinct tokens,
V: vocabulary, E: width of word embeddings.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from simcse.tokens import RaggedTokens


@dataclass(frozen=True, slots=True)
class EmbeddedTokens:
    """Sentences whose distinct tokens have their word embeddings.

    A look-up in the whole table for each chunk would give as many gradients of its size `[V, E]`,
    to be cleared and summed; these are of size `[U, E]`.
    """

    tokens: RaggedTokens
    """What stands for an id is its row in `words_UE`."""
    words_UE: Tensor
    pad: int
    """Row of the word that stands for padding."""

    @classmethod
    def look_up(cls, table: nn.Module, tokens: RaggedTokens, pad_id: int) -> Self:
        """One call of `table` (ids to embeddings), whatever n is."""
        ids_U, row_T = torch.unique(
            torch.cat([tokens.ids_T, tokens.ids_T.new_tensor([pad_id])]), return_inverse=True
        )
        device = next(table.parameters()).device
        return cls(
            RaggedTokens(row_T[:-1], tokens.lengths_n), table(ids_U.to(device)), int(row_T[-1])
        )

    def __len__(self) -> int:
        return len(self.tokens)

    def select(self, index_m: Tensor) -> Self:
        """The sentences at `index_m` (int64 `[m]`), in that order."""
        return replace(self, tokens=self.tokens.select(index_m))

    def padded(self) -> tuple[Tensor, Tensor]:
        """Embeddings `[m, L, E]` and mask `[m, L]` on the device of the words.

        No sentences become one of padding.
        """
        sentences = self.tokens if len(self) else RaggedTokens.from_lists([[self.pad]])
        rows_mL, mask_mL = (part.to(self.words_UE.device) for part in sentences.padded(self.pad))
        return F.embedding(rows_mL, self.words_UE), mask_mL
