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
from simcse.config import (
    HIGHEST_SCALE,
    EncoderConfig,
    MemoryConfig,
    ObjectiveConfig,
    ViewsConfig,
)
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


class EncoderCall(NamedTuple):
    """One forward of an encoder over several views of the rows."""

    encoder: SentenceEncoder
    tokens: RaggedTokens
    """Of all sentences of the first view, then of the second, and so on."""
    views: int
    chunks: int | None
    """As `SentenceEncoder.forward` takes them."""

    @property
    def positions(self) -> list[int]:
        return self.encoder.positions(self.tokens, self.chunks)


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
        memory: MemoryConfig | None = None,
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
        self.memory = memory or MemoryConfig()
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
        calls = self.encoder_calls(inputs)
        with self._autocast():
            views_bVD = torch.cat([self._encode(call) for call in calls], dim=1)
        temperature = self._temperature()
        loss, correct = gathered_contrastive_loss(
            views_bVD,
            self.objective,
            global_rows=inputs.global_rows,
            temperature=temperature,
            hashes_bV=self._hashes(_views(inputs)) if self.objective.mask_false_negatives else None,
            tile=self.memory.loss_tile,
            group=self.group,
        )
        parts: dict[str, Tensor] = {}
        if temperature is not None:
            parts["temperature"] = temperature.detach()[0]
        if self.masked_language is not None:
            masked = self._masked(self.masked_language, inputs)
            chunks = self._recomputed_chunks(inputs, len(inputs.columns))
            calls.append(EncoderCall(self.encoder, masked.tokens, len(inputs.columns), chunks))
            with self._autocast():
                term = self.masked_language(
                    self.encoder, masked, self.group, recomputed_chunks=chunks
                )
            loss = loss + self.objective.masked_language_weight * term
            parts["masked_language_loss"] = term.detach()
        anchor_bD, positive_bD = unit(views_bVD[:, 0].detach()), unit(views_bVD[:, 1].detach())
        return TaskOutput(
            loss,
            correct,
            (anchor_bD - positive_bD).square().sum(),
            tokens=sum(len(call.tokens.ids_T) for call in calls),
            positions=sum(sum(call.positions) for call in calls),
            parts=parts,
        )

    def encoder_calls(self, inputs: Batch) -> list[EncoderCall]:
        """Which encoder gets which views of a batch's rows, in the order of the views."""
        columns = _views(inputs)

        def call(encoder: SentenceEncoder, columns: Sequence[RaggedTokens]) -> EncoderCall:
            tokens = RaggedTokens.concatenate(columns)
            chunks = self._recomputed_chunks(inputs, len(columns))
            return EncoderCall(encoder, tokens, len(columns), chunks)

        if self.key_encoder is not None:
            return [call(self.encoder, columns[:1]), call(self.key_encoder, columns[1:])]
        if self.views.fixed_dropout_mask:
            return [call(self.encoder, columns[:1]), call(self.encoder, columns[1:])]
        return [call(self.encoder, columns)]

    def _recomputed_chunks(self, inputs: Batch, views: int) -> int | None:
        """Into how many chunks a cached encoder cuts these views: on all ranks as many.

        A rank's own rows do not matter, because under ZeRO-3 all make the same calls.
        """
        if self.memory.encoder_chunk is None:
            return None
        world = dist.get_world_size(self.group) if dist.is_initialized() else 1
        most_rows = -(-inputs.global_rows // world)
        chunks = -(-most_rows * views // self.memory.encoder_chunk)
        return max(self.encoder.length_buckets, chunks)

    def _encode(self, call: EncoderCall) -> Tensor:
        """Vectors `[b, views, D]`."""
        device = call.encoder.backbone.device
        devices = [device] if device.type == "cuda" else []
        # Put back afterwards, the generators give the next call the same dropout mask.
        with torch.random.fork_rng(devices=devices, enabled=self.views.fixed_dropout_mask):
            vectors_nD: Tensor = call.encoder(call.tokens, recomputed_chunks=call.chunks)
        views_VbD: Tensor = vectors_nD.unflatten(0, (call.views, -1))
        return views_VbD.transpose(0, 1)

    def _masked(self, term: MaskedLanguageTerm, inputs: Batch) -> MaskedTokens:
        """Corrupted copies of all columns for the masked-language-model term."""
        return MaskedTokens.concatenate(
            [
                term.mask(column, epoch=inputs.epoch, row_ids_n=inputs.row_ids_b, view=view)
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


def _views(inputs: Batch) -> tuple[RaggedTokens, ...]:
    """A sentence alone is encoded twice: dropout makes the two views (section 3)."""
    return inputs.columns * 2 if len(inputs.columns) == 1 else inputs.columns


def build_task(
    encoder: EncoderConfig,
    objective: ObjectiveConfig,
    views: ViewsConfig,
    *,
    seed: int,
    memory: MemoryConfig | None = None,
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
        memory=memory,
        autocast_dtype=autocast_dtype,
    )
