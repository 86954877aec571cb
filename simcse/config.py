"""Settings of the algorithm: what is trained, by which objective, with which optimiser."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

Pooling = Literal["cls", "cls_before_pooler", "avg", "avg_top2", "avg_first_last"]
Head = Literal["none", "training", "always"]


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
    BERT, the paper's table D.2 optimum)."""
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
    """The contrastive loss (paper equations 1, 4 and 5)."""

    temperature: float = Field(default=0.05, gt=0)
    """Softmax temperature on cosine similarity; the paper's value for every published model."""


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
