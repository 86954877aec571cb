"""A whole model folder, written at once; and the heads that only our folders hold.

`simcse.json` describes the model to us, `modules.json` and the folders it names to
sentence-transformers; `model.safetensors` is a plain checkpoint of the architecture.
"""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from simcse.backbone import has_dense_pooler, quiet_transformers, takes_pooler
from simcse.config import Head
from simcse.errors import UsageError
from simcse.model_card import model_card
from simcse.model_description import DESCRIPTION, ModelDescription
from simcse.model_source import readable
from simcse.sentence_transformers_files import read_dense, write_modules
from simcse.tokenizer import save_tokenizer

_TRAINING_HEAD = "training_head.safetensors"


def read_head(folder: Path, kind: Head) -> dict[str, Tensor]:
    """`dense.weight` and `dense.bias` of the head that a folder of ours holds."""
    if kind == "always":
        return read_dense(folder)
    with readable(folder):
        return load_file(folder / _TRAINING_HEAD)


def write_model_folder(
    folder: Path,
    *,
    description: ModelDescription,
    backbone: PreTrainedModel,
    weights: Mapping[str, Tensor],
    head: Mapping[str, Tensor],
    whitening: Mapping[str, Tensor],
    tokenizer: PreTrainedTokenizerFast,
    model_limit: int,
    licence: str,
) -> None:
    """All files of a model, complete or not at all; a model of ours in `folder` is replaced.

    `weights` are the backbone's, `head` is `dense.weight` and `dense.bias` or empty, `whitening` is
    `weight` and `bias` or empty. Raises `UsageError` when `folder` holds anything else.
    """
    applied = head if description.head == "always" else {}
    # transformers applies a pooler of its own to [CLS]: there the head is a plain checkpoint's.
    pooler = (
        {f"pooler.{name}": tensor for name, tensor in applied.items()}
        if applied and has_dense_pooler(backbone)
        else {}
    )
    with _appearing(folder) as staged:
        with quiet_transformers():
            backbone.save_pretrained(staged, state_dict={**weights, **pooler})
        save_tokenizer(tokenizer, staged)
        if description.head == "training":
            save_file(dict(head), staged / _TRAINING_HEAD)
        write_modules(
            staged,
            pooling=description.pooling,
            width=backbone.config.hidden_size,
            layers=backbone.config.num_hidden_layers,
            head=applied,
            whitening=whitening,
            model_limit=model_limit,
            without_pooler=takes_pooler(backbone) and not pooler,
        )
        (staged / DESCRIPTION).write_text(description.model_dump_json(indent=2) + "\n")
        (staged / "README.md").write_text(
            model_card(description, licence=licence, pooler_output=bool(pooler and not whitening)),
            encoding="utf-8",
        )


@contextmanager
def _appearing(folder: Path) -> Iterator[Path]:
    """A hidden sibling to write into, which takes the place of `folder` when all went well."""
    ours_or_empty = (folder / DESCRIPTION).is_file() or (
        folder.is_dir() and not any(folder.iterdir())
    )
    if folder.exists() and not ours_or_empty:
        raise UsageError(
            f"{folder} exists and is no model that simcse wrote: name another folder for the model"
        )
    folder.parent.mkdir(parents=True, exist_ok=True)
    unique = f".{folder.name}.{uuid.uuid4().hex[:8]}"
    staged, replaced = folder.with_name(f"{unique}.partial"), folder.with_name(f"{unique}.replaced")
    staged.mkdir()
    try:
        yield staged
        # A folder cannot be renamed over a full one, so the old model steps aside first.
        if folder.exists():
            folder.rename(replaced)
        staged.rename(folder)
    finally:
        shutil.rmtree(staged, ignore_errors=True)
    shutil.rmtree(replaced, ignore_errors=True)
