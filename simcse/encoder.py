"""The sentence encoder: ragged tokens in, one vector a sentence out.

n: sentences of a call, m: sentences of one chunk, L: longest sentence of a chunk, D: width.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import JsonValue
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from simcse import original_project
from simcse.backbone import length_limit, load_checkpoint, read_config, untrained_backbone
from simcse.config import EncoderConfig, Head, Pooling
from simcse.errors import ModelError, UsageError
from simcse.heap import give_back_freed_memory
from simcse.model_card import read_licence
from simcse.model_description import ModelDescription, read_description
from simcse.model_folder import read_head, write_model_folder
from simcse.model_source import locate
from simcse.pooling import POOLINGS, DenseHead, needs_all_layers, pool
from simcse.recompute import recomputed
from simcse.sentence_transformers_files import read_pooling, read_whitening
from simcse.tokenizer import load_tokenizer, tokenize
from simcse.tokens import RaggedTokens
from simcse.whitening import whitening_layer
from simcse.words import EmbeddedTokens

_POSITIONS_BETWEEN_TIDYING = 1024
"""Of a cached encoder on the CPU: the less, the less its peak grows with the batch."""
_POSITIONS_LEFT_UNTIDIED = 16 * _POSITIONS_BETWEEN_TIDYING
"""A batch of no more leaves few holes, and is not worth the time."""


class SentenceEncoder(nn.Module):
    """A transformer, the pooling of its token states, and the dense layer over [CLS].

    Parameters are named `backbone.*` and `head.*`; the backbone has no pooler of its own.
    """

    def __init__(
        self,
        backbone: PreTrainedModel,
        tokenizer: PreTrainedTokenizerFast,
        *,
        pooling: Pooling,
        head_kind: Head = "none",
        head: DenseHead | None = None,
        whitening: nn.Linear | None = None,
        max_length: int | None = None,
        length_buckets: int = 1,
        licence: str = "unknown",
    ) -> None:
        super().__init__()
        self.backbone = backbone
        self.head = head
        self.whitening = whitening
        """Baseline of the literature: an affine map of the vector, fitted after training."""
        self.tokenizer = tokenizer
        self.pooling: Pooling = pooling
        self.head_kind: Head = head_kind
        self.model_limit = length_limit(backbone, tokenizer)
        """Tokens the model can read in one sentence, special tokens included."""
        self.max_length = max_length or self.model_limit
        """Tokens a training sentence is cut to."""
        self.length_buckets = length_buckets
        self.licence = licence

    @classmethod
    def from_config(
        cls, config: EncoderConfig, *, seed: int, backbone: PreTrainedModel | None = None
    ) -> Self:
        """For training: the head is that of an earlier SimCSE training, or new from `seed`.

        Folders that `save` wrote hold such a head, and so do checkpoints and models of the original
        project. A whitening is left behind. `backbone` is one that was loaded from the same folder
        already. Raises `ModelError` for a model that cannot be loaded, `UsageError` for settings
        that it cannot have.
        """
        folder = check_config(config)
        backbone = backbone or load_checkpoint(folder, dropout=config.dropout).backbone
        head = None
        if config.head != "none":
            trained = _trained_head(config.model, folder)
            head = trained or DenseHead.initialised(
                backbone.config.hidden_size,
                standard_deviation=backbone.config.initializer_range,
                seed=seed,
            )
        return cls(
            backbone,
            load_tokenizer(folder),
            pooling=config.pooling,
            head_kind=config.head,
            head=head,
            max_length=config.max_length,
            length_buckets=config.length_buckets,
            licence=read_licence(folder),
        ).train()

    @classmethod
    def load(cls, model: str | Path, *, pooling: Pooling | None = None) -> Self:
        """For use, in evaluation mode; `pooling` None is what the model says.

        It says so in `simcse.json`, else in sentence-transformers' files, else by a name as the
        original project gives (`original_project.pooling_by_name`). Raises `ModelError` when it
        does not, and when [CLS] pooling wants a pooler that is not there.
        """
        folder = locate(model)
        saved = read_description(folder)
        chosen = pooling or (saved.pooling if saved else _foreign_pooling(model, folder))
        backbone, pooler = load_checkpoint(folder)
        head_kind: Head = "none"
        weights: Mapping[str, Tensor] | None = None
        if chosen == "cls" and saved and saved.pooling == "cls":
            head_kind = saved.head
            weights = read_head(folder, saved.head) if saved.head != "none" else None
        elif chosen == "cls":
            if pooler is None:
                raise ModelError(
                    f"{model} has no weights pooler.dense, which pooling cls applies: choose "
                    "cls_before_pooler for the state of [CLS] itself"
                )
            head_kind, weights = "always", pooler
        # Another pooling gives other vectors, to which it was not fitted.
        whitened = saved is not None and saved.whitened and saved.pooling == chosen
        return cls(
            backbone,
            load_tokenizer(folder),
            pooling=chosen,
            head_kind=head_kind,
            head=_head_from(weights) if weights else None,
            whitening=whitening_layer(read_whitening(folder)) if whitened else None,
            max_length=saved.max_length if saved else None,
            licence=read_licence(folder),
        ).eval()

    @property
    def dimension(self) -> int:
        """Width D of a vector."""
        if self.whitening is not None:
            return self.whitening.out_features
        return int(self.backbone.config.hidden_size)

    def forward(self, tokens: RaggedTokens, *, recomputed_chunks: int | None = None) -> Tensor:
        """Vectors `[n, D]` in at least float32.

        The sentences, by length, are cut into `length_buckets` chunks of equal count, each padded
        to its own longest sentence; or into `recomputed_chunks`, if that is given, whose
        activations are not kept but computed again in the backward pass, under the same dropout
        masks. n may be 0: the backbone runs once a chunk whatever n is, because ZeRO-3 gathers
        weights in every call and all ranks must make the same calls.
        Tokens best stay on the CPU; a chunk moves to the encoder's device when its turn comes.
        """
        chunks, again = self.chunks(tokens, recomputed_chunks), recomputed_chunks is not None
        words, device = self.embed_words(tokens), self.backbone.device
        tidied = _tidied(_positions(tokens, chunks)) if again and device.type == "cpu" else ()
        vectors_nD = torch.cat(
            [
                recomputed(
                    partial(self._encode, words.select(rows_m), tidy=number in tidied),
                    enabled=again,
                    device=device,
                    random=True,
                )
                for number, rows_m in enumerate(chunks)
            ]
        )
        return vectors_nD[torch.argsort(torch.cat(chunks)).to(vectors_nD.device)]

    def embed_words(self, tokens: RaggedTokens) -> EmbeddedTokens:
        """The tokens with their word embeddings, to be encoded in chunks of any choice."""
        pad_id = self.tokenizer.pad_token_id
        # Any id does where the tokenizer has no padding token: the mask hides it.
        return EmbeddedTokens.look_up(
            self.backbone.get_input_embeddings(), tokens, 0 if pad_id is None else int(pad_id)
        )

    def token_states(self, words: EmbeddedTokens) -> Tensor:
        """States of the last layer for every token of one chunk, `[T, D]`; T may be 0."""
        words_mLE, mask_mL = words.padded()
        output = self.backbone(inputs_embeds=words_mLE, attention_mask=mask_mL)
        states_TD: Tensor = output.last_hidden_state[mask_mL.bool()]
        return states_TD[: len(words.tokens.ids_T)]

    def chunks(self, tokens: RaggedTokens, count: int | None = None) -> list[Tensor]:
        """Which sentences are encoded together: equal parts of what is sorted, longest first.

        `count` None is `length_buckets`; some parts are empty where there are few sentences.
        """
        count = count or self.length_buckets
        edges = [len(tokens) * i // count for i in range(count + 1)]
        # Longest first: memory that one chunk gives back is large enough for the next, whereas the
        # C library finds no use for many pieces that are all a little too small.
        order_n = torch.argsort(tokens.lengths_n, descending=True, stable=True)
        return [order_n[start:stop] for start, stop in pairwise(edges)]

    def positions(self, tokens: RaggedTokens, count: int | None = None) -> list[int]:
        """Positions that the backbone computes for each chunk of these tokens, padding included."""
        return _positions(tokens, self.chunks(tokens, count))

    def tokenize(self, sentences: Sequence[str], max_length: int | None = None) -> RaggedTokens:
        """Tokens of each sentence, cut to `max_length`; None is the model's own limit."""
        limit = self.model_limit if max_length is None else max_length
        return RaggedTokens.from_lists(tokenize(self.tokenizer, sentences, limit).ids)

    @torch.inference_mode()
    def encode(
        self,
        sentences: Sequence[str],
        *,
        batch_size: int = 64,
        max_length: int | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> NDArray[np.float32]:
        """Vectors `[n, D]` in input order, without dropout, not normalised.

        Sentences are cut to `max_length` tokens; None is the model's own limit. Longest first, so
        that memory that does not suffice shows at once. `progress` gets the number of sentences
        done.
        """
        tokens = self.tokenize(sentences, max_length)
        order_n = torch.argsort(tokens.lengths_n, descending=True, stable=True)
        vectors_nD = torch.empty(len(tokens), self.dimension)
        was_training = self.training
        self.eval()
        try:
            for start in range(0, len(tokens), batch_size):
                rows_m = order_n[start : start + batch_size]
                vectors_nD[rows_m] = (
                    self._encode(self.embed_words(tokens.select(rows_m))).float().cpu()
                )
                if progress:
                    progress(start + len(rows_m))
        finally:
            self.train(was_training)
        return vectors_nD.numpy()

    def save(
        self,
        folder: Path,
        *,
        state_dict: Mapping[str, Tensor] | None = None,
        lineage: Mapping[str, JsonValue] | None = None,
        scores: Mapping[str, float] | None = None,
    ) -> None:
        """A model folder that this class, transformers and sentence-transformers load.

        `state_dict` holds all parameters by this module's names when its own are sharded. The
        folder appears complete or not at all; one that `save` wrote before is replaced.
        """
        state = dict(self.state_dict()) | dict(state_dict or {})
        if state_dict is not None and (
            absent := [name for name, _ in self.named_parameters() if name not in state_dict]
        ):
            raise ValueError(f"state_dict lacks {absent[0]} and {len(absent) - 1} others")

        def part(prefix: str) -> dict[str, Tensor]:
            return {k.removeprefix(prefix): v for k, v in state.items() if k.startswith(prefix)}

        write_model_folder(
            folder,
            backbone=self.backbone,
            tokenizer=self.tokenizer,
            weights=part("backbone."),
            head=part("head."),
            whitening=part("whitening."),
            model_limit=self.model_limit,
            licence=self.licence,
            description=ModelDescription(
                pooling=self.pooling,
                head=self.head_kind,
                whitened=self.whitening is not None,
                max_length=self.max_length,
                dimension=self.dimension,
                lineage=dict(lineage or {}),
                scores=dict(scores or {}),
            ),
        )

    def _encode(self, words: EmbeddedTokens, *, tidy: bool = False) -> Tensor:
        """Vectors `[m, D]` of one chunk, attached to the graph even where m is 0."""
        if tidy:
            give_back_freed_memory()
        words_mLE, mask_mL = words.padded()
        output = self.backbone(
            inputs_embeds=words_mLE,
            attention_mask=mask_mL,
            output_hidden_states=needs_all_layers(self.pooling),
        )
        # Reduced precision ends here: the head is cheap, and its error would enter every logit.
        with torch.autocast(mask_mL.device.type, enabled=False):
            vectors_mD = pool(self.pooling, output, mask_mL)
            if self.head is not None and (self.training or self.head_kind == "always"):
                vectors_mD = self.head(vectors_mD)
            if self.whitening is not None:
                vectors_mD = self.whitening(vectors_mD)
        return vectors_mD[: len(words)]


def _positions(tokens: RaggedTokens, chunks: Sequence[Tensor]) -> list[int]:
    # The first sentence of a chunk is its longest; no sentences become one position of padding.
    return [
        len(rows_m) * int(tokens.lengths_n[rows_m[0]]) if len(rows_m) else 1 for rows_m in chunks
    ]


def _tidied(positions: Iterable[int]) -> set[int]:
    """Numbers of the chunks before which freed memory is given back: every so many positions."""
    passed = [total // _POSITIONS_BETWEEN_TIDYING for total in accumulate(positions)]
    if passed[-1] * _POSITIONS_BETWEEN_TIDYING < _POSITIONS_LEFT_UNTIDIED:
        return set()
    return {number for number, (before, now) in enumerate(pairwise([0, *passed])) if now > before}


def check_config(config: EncoderConfig) -> Path:
    """Folder of the model, once all that can be seen without its weights is right.

    Raises `ModelError` for a model that is not there, `UsageError` for a length it cannot read.
    """
    folder = locate(config.model)
    limit = length_limit(untrained_backbone(folder), load_tokenizer(folder))
    if config.max_length > limit:
        raise UsageError(
            f"encoder.max_length is {config.max_length}, but {config.model} reads at most {limit} "
            "tokens: lower it"
        )
    return folder


def _foreign_pooling(model: str | Path, folder: Path) -> Pooling:
    found = read_pooling(folder) or original_project.pooling_by_name(model)
    if found is None and original_project.is_training_checkpoint(read_config(folder)):
        raise ModelError(
            f"{model} is a training checkpoint of the original SimCSE, which does not say whether "
            "its dense layer is part of the vector: choose pooling cls for a supervised model, "
            "cls_before_pooler for an unsupervised one"
        )
    if found is None:
        raise ModelError(
            f"{model} does not say how its token states are pooled: choose a pooling, one of "
            f"{', '.join(POOLINGS)}"
        )
    return found


def _trained_head(model: str, folder: Path) -> DenseHead | None:
    """The head that SimCSE's training left in a folder, ours or the original project's."""
    saved = read_description(folder)
    if saved is not None:
        return None if saved.head == "none" else _head_from(read_head(folder, saved.head))
    if not original_project.is_trained(model, read_config(folder)):
        return None
    pooler = load_checkpoint(folder).pooler
    return _head_from(pooler) if pooler else None


def _head_from(weights: Mapping[str, Tensor]) -> DenseHead:
    head = DenseHead(len(weights["dense.bias"]))
    head.load_state_dict(weights)
    return head
