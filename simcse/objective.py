"""The task: one module whose one forward is everything a step computes.

b: rows on this rank, V: vectors a row, D: width.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn

from simcse.backbone import load_masked_language_model
from simcse.batch import Batch
from simcse.config import HIGHEST_SCALE, EncoderConfig, ObjectiveConfig, ViewsConfig
from simcse.encoder import SentenceEncoder
from simcse.losses import gathered_contrastive_loss, unit
from simcse.masked_language import MaskedLanguageTerm, MaskedTokens
from simcse.model_source import locate
from simcse.tokens import RaggedTokens
from simcse.views import is_altered_text


class TaskOutput(NamedTuple):
    """A step's loss and the sums that its measurements are made from, all on this rank.

    A tuple, because ZeRO-3 looks for tensors in what a module returns.
    """

    loss: Tensor
    """The mean over ranks is the loss of the global batch."""
    correct: Tensor
    """Rows for which a positive of theirs had the largest logit."""
    squared_distance: Tensor
    """Sum over rows of the squared distance of anchor and first positive (alignment, section 7)."""
    tokens: int
    """Tokens encoded, special tokens included."""
    positions: int
    """Positions computed for them, padding included."""
    parts: dict[str, Tensor]
    """What the options add, by name; the mean over ranks is that of the global batch."""


class ContrastiveTask(nn.Module):
    """Encoder and objective as one module, because DDP and ZeRO want one forward a step.

    Called with a `Batch` it returns a `TaskOutput`; called with `RaggedTokens` it returns their
    vectors `[n, D]`, so that evaluation also passes through the module that an engine has wrapped.
    """

    def __init__(
        self,
        encoder: SentenceEncoder,
        objective: ObjectiveConfig,
        views: ViewsConfig | None = None,
        *,
        key_encoder: SentenceEncoder | None = None,
        masked_language: MaskedLanguageTerm | None = None,
        autocast_dtype: torch.dtype | None = None,
        group: dist.ProcessGroup | None = None,
    ) -> None:
        super().__init__()
        self.encoder = encoder
        self.key_encoder = key_encoder
        """Encodes positives and hard negatives where they have an encoder of their own."""
        self.masked_language = masked_language
        self.objective = objective
        self.views = views or ViewsConfig()
        self.autocast_dtype = autocast_dtype
        self.group = group
        self.log_scale: nn.Parameter | None = None
        """Log of 1 / temperature where that is trained, `[1]`."""
        if objective.learnable_temperature:
            self.log_scale = nn.Parameter(torch.tensor([-math.log(objective.temperature)]))

    def forward(self, inputs: Batch | RaggedTokens) -> TaskOutput | Tensor:
        if isinstance(inputs, RaggedTokens):
            # Without autocast: scores while training are those of the saved model.
            vectors_nD: Tensor = self.encoder(inputs)
            return vectors_nD
        # A sentence alone is encoded twice: dropout makes the two views (section 3).
        columns = inputs.columns * 2 if len(inputs.columns) == 1 else inputs.columns
        calls = self._encoder_calls(columns)
        masked = self._masked(inputs)
        with self._autocast():
            views_bVD = torch.cat([self._encode(*call) for call in calls], dim=1)
        temperature = self._temperature()
        loss, correct = gathered_contrastive_loss(
            views_bVD,
            self.objective,
            global_rows=inputs.global_rows,
            temperature=temperature,
            hashes_bV=self._hashes(columns) if self.objective.mask_false_negatives else None,
            group=self.group,
        )
        parts: dict[str, Tensor] = {}
        if temperature is not None:
            parts["temperature"] = temperature.detach()[0]
        if self.masked_language is not None and masked is not None:
            with self._autocast():
                term = self.masked_language(self.encoder, masked, self.group)
            loss = loss + self.objective.masked_language_weight * term
            parts["masked_language_loss"] = term.detach()
        anchor_bD, positive_bD = unit(views_bVD[:, 0].detach()), unit(views_bVD[:, 1].detach())
        encoded = [RaggedTokens.concatenate(part) for _, part in calls]
        encoded += [masked.tokens] if masked else []
        return TaskOutput(
            loss,
            correct,
            (anchor_bD - positive_bD).square().sum(),
            tokens=sum(len(tokens.ids_T) for tokens in encoded),
            positions=sum(self.encoder.padded_positions(tokens) for tokens in encoded),
            parts=parts,
        )

    def _encoder_calls(
        self, columns: Sequence[RaggedTokens]
    ) -> list[tuple[SentenceEncoder, Sequence[RaggedTokens]]]:
        """Which encoder gets which views, in the order of the views."""
        if self.key_encoder is not None:
            return [(self.encoder, columns[:1]), (self.key_encoder, columns[1:])]
        if self.views.fixed_dropout_mask:
            return [(self.encoder, columns[:1]), (self.encoder, columns[1:])]
        return [(self.encoder, columns)]

    def _encode(self, encoder: SentenceEncoder, columns: Sequence[RaggedTokens]) -> Tensor:
        """Vectors `[b, len(columns), D]`."""
        devices = [encoder.backbone.device] if encoder.backbone.device.type == "cuda" else []
        # Put back afterwards, the generators give the next call the same dropout mask.
        with torch.random.fork_rng(devices=devices, enabled=self.views.fixed_dropout_mask):
            vectors_nD: Tensor = encoder(RaggedTokens.concatenate(columns))
        views_VbD: Tensor = vectors_nD.unflatten(0, (len(columns), len(columns[0])))
        return views_VbD.transpose(0, 1)

    def _masked(self, inputs: Batch) -> MaskedTokens | None:
        """Corrupted copies of all columns for the masked-language-model term."""
        if self.masked_language is None:
            return None
        return MaskedTokens.concatenate(
            [
                self.masked_language.mask(
                    column, epoch=inputs.epoch, row_ids_n=inputs.row_ids_b, view=view
                )
                for view, column in enumerate(inputs.columns)
            ]
        )

    def _hashes(self, columns: Sequence[RaggedTokens]) -> Tensor:
        """int64 `[b, V]` of the texts behind the views: of altered text, what it was before."""
        if is_altered_text(self.views.positive):
            columns = [columns[0]] * len(columns)
        hashes_bV = torch.stack([column.hashes() for column in columns], dim=1)
        return hashes_bV.to(self.encoder.backbone.device)

    def _temperature(self) -> Tensor | None:
        if self.log_scale is None:
            return None
        # The gradient passes the clamp by: one that is cut off there leaves no way back into the
        # range, and one that is cut on one side only would not be the same on any number of ranks.
        beyond = (self.log_scale - math.log(HIGHEST_SCALE)).clamp(min=0).detach()
        return (beyond - self.log_scale).exp()

    def _autocast(self) -> torch.autocast:
        device, dtype = self.encoder.backbone.device, self.autocast_dtype
        return torch.autocast(device.type, dtype=dtype, enabled=dtype is not None)


def build_task(
    encoder: EncoderConfig,
    objective: ObjectiveConfig,
    views: ViewsConfig,
    *,
    seed: int,
    autocast_dtype: torch.dtype | None = None,
) -> ContrastiveTask:
    """The task of these settings, on the CPU, from the checkpoint that `encoder` names.

    Raises `ModelError` for a checkpoint that lacks what the settings need.
    """
    backbone, term = None, None
    if objective.masked_language_weight:
        backbone, head = load_masked_language_model(locate(encoder.model), dropout=encoder.dropout)
    anchor_encoder = SentenceEncoder.from_config(encoder, seed=seed, backbone=backbone)
    if objective.masked_language_weight:
        rate = objective.masked_language_rate
        term = MaskedLanguageTerm(head, anchor_encoder.tokenizer, rate=rate, seed=seed)
    return ContrastiveTask(
        anchor_encoder,
        objective,
        views,
        key_encoder=(
            SentenceEncoder.from_config(encoder, seed=seed + 1) if views.encoders == 2 else None
        ),
        masked_language=term,
        autocast_dtype=autocast_dtype,
    )
