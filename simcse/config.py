"""Settings of the algorithm: what is trained, on which views, by which objective and optimiser."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

Pooling = Literal["cls", "cls_before_pooler", "avg", "avg_top2", "avg_first_last"]
Head = Literal["none", "training", "always"]
PositiveView = Literal[
    "same_sentence",
    "word_deletion",
    "delete_one_word",
    "crop",
    "synonyms",
    "masked_language",
    "next_sentence",
    "next_three_sentences",
]

_WITH_RATE = ("word_deletion", "crop", "masked_language")

HIGHEST_SCALE = 100.0
"""Largest 1 / temperature that a learnable temperature may reach (Radford et al. 2021, 2.5)."""


class Settings(BaseModel):
    """Base of every settings model: immutable; unknown keys and infinite numbers are errors."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True
    )


class EncoderConfig(Settings):
    """The sentence encoder (paper section 6.3: pooling; appendix A: length)."""

    model: str
    """Folder of a Hugging Face model, or its hub id."""
    pooling: Pooling = "cls"
    """How token states become one vector; the names are those of the original project."""
    head: Head = "training"
    """The dense tanh layer over [CLS]: `training` drops it at evaluation (the paper's choice for
    unsupervised runs), `always` keeps it (supervised runs), `none` has none."""
    max_length: int = Field(default=32, ge=3)
    """Tokens a training sentence is cut to, special tokens included (appendix A). Evaluation uses
    the model's own limit."""
    dropout: float | None = Field(default=None, ge=0, lt=1)
    """Dropout probability of the encoder, attention included; null keeps the checkpoint's (0.1 in
    BERT, the paper's table 3 optimum)."""
    length_buckets: int = Field(default=8, ge=1)
    """Chunks, sorted by length, that one forward is cut into, so that little of it is padding. The
    number is the same on every rank."""

    @model_validator(mode="after")
    def _head_needs_cls(self) -> Self:
        if self.head != "none" and self.pooling != "cls":
            raise ValueError(
                f"encoder.head is {self.head!r} but encoder.pooling is {self.pooling!r}: the head "
                "sits on [CLS], so set encoder.pooling=cls or encoder.head=none"
            )
        return self


class ObjectiveConfig(Settings):
    """The contrastive loss (paper equations 1, 4 and 5) and its options."""

    temperature: float = Field(default=0.05, gt=0)
    """Softmax temperature on similarity; the paper's value for every published model."""
    similarity: Literal["cosine", "dot"] = "cosine"
    """Cosine, or the dot product of vectors as they are (paper appendix D)."""
    learnable_temperature: bool = False
    """Train 1 / temperature too, on a log scale, without weight decay and never above 100."""
    positives: int = Field(default=1, ge=1)
    """Columns after the anchor that are positives; the ones after them are hard negatives."""
    hard_negative_alpha: float = Field(default=1.0, gt=0)
    """Weight of a row's own hard negatives in the denominator (paper section 6.3, table 7)."""
    mask_false_negatives: bool = False
    """Leave out keys of other rows that repeat a row's anchor or positive, and positives of other
    rows with the same anchor, over all workers. Texts are equal when the encoder reads the same
    tokens, those within `encoder.max_length`."""
    masked_language_weight: float = Field(default=0.0, ge=0)
    """Weight of the masked-language-model term (paper appendix D: 0.1); 0 is without."""
    masked_language_rate: float = Field(default=0.15, gt=0, lt=1)
    """Share of tokens that the masked-language-model term predicts."""

    @model_validator(mode="after")
    def _options_compose(self) -> Self:
        if self.masked_language_rate != 0.15 and not self.masked_language_weight:
            raise ValueError(
                f"objective.masked_language_rate is {self.masked_language_rate:g}, but "
                "objective.masked_language_weight is 0, so that nothing is predicted: set both, or "
                "neither"
            )
        if self.learnable_temperature and self.temperature < 1 / HIGHEST_SCALE:
            raise ValueError(
                f"objective.temperature is {self.temperature:g}, but a learnable one starts at "
                f"{1 / HIGHEST_SCALE:g} or above: raise it, or set "
                "objective.learnable_temperature=false"
            )
        return self


class ViewsConfig(Settings):
    """Where the positive of a sentence comes from when the corpus has one column (section 3)."""

    positive: PositiveView = "same_sentence"
    """The sentence again, under another dropout mask; or one of the paper's other views: altered
    text (table 1), or the sentences that follow (table 2; needs `prepare --keep-order`, and takes
    the sentence itself where a document ends)."""
    rate: float = Field(default=0.1, gt=0, lt=1)
    """Share of words deleted or cropped, or of tokens substituted."""
    synonyms: str | None = None
    """`wordnet`, or a file of lines `word<TAB>synonym<TAB>...`, for the positive `synonyms`."""
    encoders: Literal[1, 2] = 1
    """2 encodes positives and hard negatives by an encoder of their own (table 2); the one of the
    anchors is kept."""
    fixed_dropout_mask: bool = False
    """Both views under the same dropout mask, which makes them equal (table 3, "fixed 0.1")."""
    allow_equal_views: bool = False
    """Train on a sentence twice although no dropout tells the two apart (table 3, p = 0)."""

    @model_validator(mode="after")
    def _options_compose(self) -> Self:
        if (self.positive == "synonyms") != (self.synonyms is not None):
            raise ValueError(
                f"views.positive is {self.positive!r} and views.synonyms is {self.synonyms!r}: one "
                "needs the other, so set views.positive=synonyms and views.synonyms=wordnet or a "
                "file, or neither"
            )
        if self.rate != 0.1 and self.positive not in _WITH_RATE:
            raise ValueError(
                f"views.rate is {self.rate:g}, but views.positive={self.positive} has no rate: "
                f"leave it at 0.1, or choose {', '.join(_WITH_RATE)}"
            )
        if self.allow_equal_views and (self.positive != "same_sentence" or self.fixed_dropout_mask):
            raise ValueError(
                "views.allow_equal_views is for views.positive=same_sentence without "
                "views.fixed_dropout_mask, since no others are refused: leave it out"
            )
        if self.fixed_dropout_mask and (self.positive != "same_sentence" or self.encoders == 2):
            raise ValueError(
                "views.fixed_dropout_mask makes two views of one sentence equal: it needs "
                "views.positive=same_sentence and views.encoders=1"
            )
        return self


class MemoryConfig(Settings):
    """What the backward pass computes again so that it need not be kept; results stay the same.

    Batches are then limited by patience, not by memory.
    """

    encoder_chunk: int | None = Field(default=None, ge=1)
    """Sentences whose activations exist at a time (a *cached* encoder, after GradCache), for one
    forward pass more; null keeps those of all of a worker's rows. The dropout masks are others,
    since sentences meet other sentences."""
    loss_tile: int | None = Field(default=None, ge=1)
    """Keys whose logits exist at a time (a *tiled* loss), for one matrix product more;
    null keeps the logits of a worker's rows and all keys. It pays beyond some thousand rows."""


class OptimConfig(Settings):
    """AdamW with linear decay to zero, as the original trains (appendix A)."""

    learning_rate: float = Field(default=3e-5, gt=0)
    """Peak learning rate."""
    weight_decay: float = Field(default=0.0, ge=0)
    """Decoupled weight decay of matrices; biases and normalisation weights have none."""
    beta1: float = Field(default=0.9, ge=0, lt=1)
    """Decay of AdamW's first moment."""
    beta2: float = Field(default=0.999, ge=0, lt=1)
    """Decay of AdamW's second moment."""
    eps: float = Field(default=1e-8, gt=0)
    """Added to the root of AdamW's second moment."""
    warmup_share: float = Field(default=0.0, ge=0, lt=1)
    """Share of all steps over which the learning rate rises linearly from zero."""
    max_gradient_norm: float = Field(default=1.0, ge=0)
    """Global gradient norm above which gradients are scaled down; 0 turns clipping off."""
    accumulated_batches: int = Field(default=1, ge=1)
    """Global batches whose mean gradient is one update; they share no negatives. For more negatives
    raise the batch, and bound the memory by `memory.encoder_chunk`."""
    max_skipped_updates: int = Field(default=3, ge=0)
    """Updates in a row that may be skipped because their gradient is not finite; one more stops the
    run."""
