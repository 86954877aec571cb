"""Where the files of a model are: a folder, or the local copy of a hub model."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from pickle import UnpicklingError

import huggingface_hub
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError

from simcse.errors import ModelError

_HUB_ID = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?")
_SMALL_FILES = ["*.json", "*.txt", "*.model", "README.md"]
_WEIGHTS = ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin*")
_TOKENIZER = ("tokenizer.json", "vocab.txt", "vocab.json", "*.model")


def locate(model: str | Path) -> Path:
    """Folder with the configuration, weights and tokenizer of `model`, a folder or a hub id.

    Raises `ModelError` when there is neither, or when one of the three is not in the folder.
    """
    folder = Path(model).expanduser()
    if not folder.is_dir():
        if not _HUB_ID.fullmatch(str(model)):
            raise ModelError(f"there is no model folder {model}: check the path")
        folder = _download(str(model))
    for what, patterns in (
        ("config.json", ("config.json",)),
        ("weights (model.safetensors)", _WEIGHTS),
        ("tokenizer (tokenizer.json)", _TOKENIZER),
    ):
        if not any(any(folder.glob(pattern)) for pattern in patterns):
            raise ModelError(
                f"model folder {model} has no {what}: copy it there, or name a complete "
                "Hugging Face model folder"
            )
    return folder


@contextmanager
def readable(folder: Path) -> Iterator[None]:
    """Turns what the libraries raise over unreadable files of a model into `ModelError`."""
    try:
        yield
    except UnpicklingError:
        raise ModelError(
            f"model folder {folder} has a .bin file that holds more than tensors, and to load it "
            "could run its author's code: save the tensors as model.safetensors"
        ) from None
    except (OSError, ValueError, RuntimeError, SafetensorError, StrictDataclassError) as error:
        reason = " ".join(str(error).split())
        raise ModelError(
            f"model folder {folder} cannot be read, so copy it anew: {reason}"
        ) from error


def _download(model: str) -> Path:
    try:
        folder = Path(
            huggingface_hub.snapshot_download(
                model, allow_patterns=[*_SMALL_FILES, "*.safetensors"]
            )
        )
        if not any(folder.glob("model*.safetensors")):
            huggingface_hub.snapshot_download(model, allow_patterns=["pytorch_model*.bin"])
    except (OSError, ValueError) as error:
        raise ModelError(
            f"{model} is no folder here and could not be had from the hub "
            f"({type(error).__name__}): check the name, or download it where there is a network "
            "and name its folder"
        ) from error
    return folder
