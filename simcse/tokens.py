"""Ragged token batches: sentences of any length, end to end, without padding.

n: sentences, T: tokens of all sentences together, L: longest sentence.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class RaggedTokens:
    """Token ids of n sentences, special tokens included, laid end to end.

    Padding exists only inside the encoder, which pads each length bucket to its own longest row.
    """

    ids_T: Tensor
    """int64 `[T]`: the ids of sentence 0, then of sentence 1, and so on."""
    lengths_n: Tensor
    """int64 `[n]`: tokens in each sentence; they sum to T."""

    def __post_init__(self) -> None:
        if int(self.lengths_n.sum()) != len(self.ids_T):
            raise ValueError(
                f"lengths sum to {int(self.lengths_n.sum())}, but there are {len(self.ids_T)} ids"
            )

    def __len__(self) -> int:
        return len(self.lengths_n)

    @classmethod
    def from_lists(cls, sentences: Sequence[Sequence[int]]) -> RaggedTokens:
        """From one list of ids a sentence."""
        ids = [token for sentence in sentences for token in sentence]
        return cls(
            torch.tensor(ids, dtype=torch.int64),
            torch.tensor([len(sentence) for sentence in sentences], dtype=torch.int64),
        )

    @classmethod
    def concatenate(cls, parts: Sequence[RaggedTokens]) -> RaggedTokens:
        """The sentences of all parts, in order."""
        return cls(
            torch.cat([part.ids_T for part in parts]),
            torch.cat([part.lengths_n for part in parts]),
        )

    def select(self, index_m: Tensor) -> RaggedTokens:
        """The sentences at `index_m` (int64 `[m]`), in that order."""
        starts_n = self.lengths_n.cumsum(0) - self.lengths_n
        lengths_m = self.lengths_n[index_m]
        within_T = torch.arange(int(lengths_m.sum()), device=self.ids_T.device)
        within_T -= torch.repeat_interleave(lengths_m.cumsum(0) - lengths_m, lengths_m)
        position_T = torch.repeat_interleave(starts_n[index_m], lengths_m) + within_T
        return RaggedTokens(self.ids_T[position_T], lengths_m)

    def padded(self, pad_id: int) -> tuple[Tensor, Tensor]:
        """Ids and attention mask, both int64 `[n, L]`; L is the longest sentence here."""
        longest = int(self.lengths_n.max())
        mask_nL = torch.arange(longest, device=self.ids_T.device) < self.lengths_n[:, None]
        ids_nL = torch.full(mask_nL.shape, pad_id, dtype=torch.int64, device=self.ids_T.device)
        ids_nL[mask_nL] = self.ids_T
        return ids_nL, mask_nL.long()

    def hashes(self) -> Tensor:
        """int64 `[n]`: equal for sentences with the same ids, and in practice for no others."""
        ids_T = self.ids_T.cpu().numpy()
        parts = np.split(ids_T, self.lengths_n.cumsum(0).cpu().numpy()[:-1]) if len(self) else []
        digests = b"".join(
            hashlib.blake2b(part.tobytes(), digest_size=8).digest() for part in parts
        )
        return torch.from_numpy(np.frombuffer(digests, np.int64).copy())
