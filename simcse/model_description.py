"""`simcse.json`: what a model folder says about itself."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path
from typing import Literal

from pydantic import Field, JsonValue, ValidationError

from simcse.config import Head, Pooling, Settings
from simcse.errors import ModelError

DESCRIPTION = "simcse.json"
_LIBRARIES = ("torch", "transformers", "tokenizers", "safetensors")


class ModelDescription(Settings):
    """What `simcse.json` says of a model."""

    format: Literal[1] = 1
    """Version of this file's layout."""
    pooling: Pooling
    """How token states become one vector."""
    head: Head
    """Whether the dense layer over [CLS] is part of the vector."""
    whitened: bool = False
    """Whether an affine map, fitted to the vectors of some text, is the last part of the vector."""
    max_length: int = Field(ge=1)
    """Tokens a training sentence was cut to; not the limit in use."""
    dimension: int = Field(ge=1)
    """Width of the vector."""
    lineage: dict[str, JsonValue]
    """Where the model comes from: data fingerprint, source hash, seed, step."""
    scores: dict[str, float]
    """Scores by metric name."""
    versions: dict[str, str] = Field(
        default_factory=lambda: {library: version(library) for library in _LIBRARIES}
    )
    """Libraries that wrote the model."""


def read_description(folder: Path) -> ModelDescription | None:
    """Contents of `simcse.json`, None where there is none.

    Raises `ModelError` when it is not what this version writes.
    """
    path = folder / DESCRIPTION
    if not path.is_file():
        return None
    try:
        return ModelDescription.model_validate_json(path.read_bytes())
    except ValidationError as error:
        fault = error.errors(include_url=False)[0]
        field = ".".join(str(part) for part in fault["loc"]) or "it"
        raise ModelError(
            f"{path} cannot be used ({field}: {fault['msg']}): restore it, or remove it and name "
            "the pooling"
        ) from None
