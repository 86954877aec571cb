"""The task: one module whose one forward is everything a step computes.

b: rows on this rank, V: vectors a row, D: width.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn

from simcse.batch import Batch
from simcse.config import ObjectiveConfig
from simcse.encoder import SentenceEncoder
from simcse.losses import gathered_contrastive_loss, unit
from simcse.tokens import RaggedTokens


class TaskOutput(NamedTuple):
    """A step's loss and the sums that its measurements are made from, all on this rank.

    A tuple, because ZeRO-3 looks for tensors in what a module returns.
    """

    loss: Tensor
    """L_r of `gathered_contrastive_loss`; the mean over ranks is the loss of the global batch."""
    correct: Tensor
    """Rows whose own positive was the most similar key."""
    squared_distance: Tensor
    """Sum over rows of the squared distance of anchor and positive (alignment, section 7)."""
    tokens: int
    """Tokens encoded, special tokens included."""
    positions: int
    """Positions computed for them, padding included."""


class ContrastiveTask(nn.Module):
    """Encoder and objective as one module, because DDP and ZeRO want one forward a step.

    Called with a `Batch` it returns a `TaskOutput`; called with `RaggedTokens` it returns their
    vectors `[n, D]`, so that evaluation also passes through the module that an engine has wrapped.
    """

    def __init__(
        self,
        encoder: SentenceEncoder,
        objective: ObjectiveConfig,
        *,
        autocast_dtype: torch.dtype | None = None,
        group: dist.ProcessGroup | None = None,
    ) -> None:
        super().__init__()
        self.encoder = encoder
        self.objective = objective
        self.autocast_dtype = autocast_dtype
        self.group = group

    def forward(self, inputs: Batch | RaggedTokens) -> TaskOutput | Tensor:
        if isinstance(inputs, RaggedTokens):
            # Without autocast: scores while training are those of the saved model.
            vectors_nD: Tensor = self.encoder(inputs)
            return vectors_nD
        columns = inputs.columns
        # A sentence alone is encoded twice: dropout makes the two views (section 3).
        views = columns * 2 if len(columns) == 1 else columns
        tokens = RaggedTokens.concatenate(views)
        with self._autocast():
            vectors_nD = self.encoder(tokens)
        views_bVD = vectors_nD.unflatten(0, (len(views), len(inputs))).transpose(0, 1)
        loss, correct = gathered_contrastive_loss(
            views_bVD,
            temperature=self.objective.temperature,
            global_rows=inputs.global_rows,
            group=self.group,
        )
        anchor_bD, positive_bD = unit(views_bVD[:, 0].detach()), unit(views_bVD[:, 1].detach())
        return TaskOutput(
            loss,
            correct,
            (anchor_bD - positive_bD).square().sum(),
            tokens=len(tokens.ids_T),
            positions=self.encoder.padded_positions(tokens),
        )

    def _autocast(self) -> torch.autocast:
        device, dtype = self.encoder.backbone.device, self.autocast_dtype
        return torch.autocast(device.type, dtype=dtype, enabled=dtype is not None)
