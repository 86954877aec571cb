"""What one rank trains on in one step. b: rows on this rank."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from simcse.tokens import RaggedTokens


@dataclass(frozen=True, slots=True)
class Batch:
    """This rank's rows of one global batch; b may be zero.

    `columns` holds one `RaggedTokens` of b sentences a text column: one column is unsupervised
    (the sentence is encoded twice); two or more are the anchor, its positives (one, unless the
    objective says otherwise) and hard negatives (paper sections 3 and 4).
    """

    epoch: int
    step: int
    """Steps of the whole run before this one, counted over epochs."""
    global_rows: int
    """B: rows of the global batch, over all ranks."""
    row_ids_b: Tensor
    """int64 `[b]`: position of each row in the corpus."""
    columns: tuple[RaggedTokens, ...]

    def __len__(self) -> int:
        return len(self.row_ids_b)
