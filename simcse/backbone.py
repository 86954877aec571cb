"""The transformer of a checkpoint, complete and silent, apart from its pooler."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn
from transformers import (
    AutoConfig,
    AutoModel,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)
from transformers.utils import logging as transformers_logging

from simcse.errors import ModelError
from simcse.model_source import readable

_NO_LIMIT = 1 << 20
_TASK_HEADS = ("classifier", "seq_classif", "qa", "summary")


class Checkpoint(NamedTuple):
    """What a model folder holds."""

    backbone: PreTrainedModel
    """Without a pooler; float32."""
    pooler: dict[str, Tensor] | None
    """`dense.weight` and `dense.bias` of the tanh layer over [CLS], where the folder has them."""


def load_checkpoint(folder: Path, *, dropout: float | None = None) -> Checkpoint:
    """The weights in `folder`; `dropout` replaces every dropout probability of the encoder.

    Raises `ModelError` when a file is unreadable, a weight other than the pooler's is missing (it
    would be random), or the model is no encoder.
    """
    with readable(folder):
        config = AutoConfig.from_pretrained(folder)
    if config.is_encoder_decoder:
        raise ModelError(
            f"model folder {folder} holds an encoder-decoder ({config.model_type}): name an "
            "encoder such as BERT or RoBERTa"
        )
    if dropout is not None:
        _set_dropout(config, dropout)
    with readable(folder), quiet_transformers(), torch.random.fork_rng(devices=[]):
        backbone, report = AutoModel.from_pretrained(
            folder,
            config=config,
            dtype=torch.float32,
            output_loading_info=True,
            ignore_mismatched_sizes=True,
        )
    missing = {*report["missing_keys"], *(name for name, *_ in report["mismatched_keys"])}
    if fatal := sorted(name for name in missing if not name.startswith("pooler.")):
        raise ModelError(
            f"the weights in model folder {folder} lack {fatal[0]} and {len(fatal) - 1} others "
            "in the shape of config.json, which would be random: name a complete checkpoint"
        )
    dense = _dense_pooler(backbone)
    pooler = None if dense is None or missing else {f"dense.{k}": v for k, v in dense.items()}
    if takes_pooler(backbone):
        backbone.pooler = None
    return Checkpoint(backbone, pooler)


def takes_pooler(backbone: PreTrainedModel) -> bool:
    """Whether this architecture can be built with and without a pooler."""
    return "add_pooling_layer" in inspect.signature(type(backbone).__init__).parameters


def untrained_backbone(folder: Path) -> PreTrainedModel:
    """The architecture in `folder` without its weights, which takes no memory."""
    with readable(folder):
        config = AutoConfig.from_pretrained(folder)
    with torch.device("meta"):
        backbone: PreTrainedModel = AutoModel.from_config(config)
    return backbone


def has_dense_pooler(backbone: PreTrainedModel) -> bool:
    """Whether this architecture has `pooler.dense`, the layer behind `pooler_output`."""
    with torch.device("meta"):
        twin = type(backbone)(backbone.config)
    return _dense_pooler(twin) is not None


def length_limit(backbone: PreTrainedModel, tokenizer: PreTrainedTokenizerFast) -> int:
    """Tokens the model can read: its position embeddings, and no more than its tokenizer says."""
    limit = min(int(tokenizer.model_max_length), _NO_LIMIT)
    positions = getattr(backbone.config, "max_position_embeddings", None)
    return min(limit, positions - _first_position(backbone)) if positions else limit


def _first_position(backbone: PreTrainedModel) -> int:
    """Position of the first token: RoBERTa and its like count from behind the padding index."""
    for name, module in backbone.named_modules():
        if name.endswith("position_embeddings") and isinstance(module, nn.Embedding):
            return 0 if module.padding_idx is None else module.padding_idx + 1
    return 0


def _dense_pooler(backbone: PreTrainedModel) -> dict[str, Tensor] | None:
    dense = getattr(getattr(backbone, "pooler", None), "dense", None)
    return dict(dense.state_dict()) if isinstance(dense, nn.Linear) else None


def _set_dropout(config: PreTrainedConfig, dropout: float) -> None:
    names = [
        name
        for name, value in config.to_dict().items()
        if ("dropout" in name or name.endswith("pdrop"))
        and isinstance(value, int | float)
        and not name.startswith(_TASK_HEADS)
    ]
    if not names:
        raise ModelError(
            f"encoder.dropout is {dropout}, but a {config.model_type} model has no dropout "
            "setting: leave it null"
        )
    for name in names:
        setattr(config, name, dropout)


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """Neither progress bars nor the report on weights, which `load_checkpoint` judges itself."""
    logger = logging.getLogger("transformers.modeling_utils")
    bars = transformers_logging.is_progress_bar_enabled()
    logger.addFilter(_is_no_load_report)
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        logger.removeFilter(_is_no_load_report)
        if bars:
            transformers_logging.enable_progress_bar()


def _is_no_load_report(record: logging.LogRecord) -> bool:
    return "LOAD REPORT" not in record.getMessage()
