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
    MODEL_FOR_MASKED_LM_MAPPING,
    AutoConfig,
    AutoModel,
    AutoModelForMaskedLM,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)
from transformers.utils import logging as transformers_logging

from simcse import original_project
from simcse.dropout import draw_faster
from simcse.errors import ModelError
from simcse.model_source import readable

_NO_LIMIT = 1 << 20
_NOT_ENCODER = ("classifier", "seq_classif", "qa", "summary", "pooler")
"""What dropout settings of task heads begin with."""
_LANGUAGE_HEADS = (
    ("cls",),
    ("lm_head",),
    ("predictions",),
    ("head", "decoder"),
    ("vocab_transform", "activation", "vocab_layer_norm", "vocab_projector"),
)
"""Modules that make logits of the last layer's states, in the order in which they are applied: in
BERT; in RoBERTa, XLM-R and MPNet; in ALBERT; in ModernBERT; in DistilBERT."""


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
    backbone, missing = _load(AutoModel, folder, _encoder_config(folder, dropout))
    _refuse_random(folder, {name for name in missing if not name.startswith("pooler.")})
    dense = _dense_pooler(backbone)
    pooler = None if dense is None or missing else {f"dense.{k}": v for k, v in dense.items()}
    if takes_pooler(backbone):
        backbone.register_module("pooler", None)
    return Checkpoint(backbone, pooler)


def load_masked_language_model(
    folder: Path, *, dropout: float | None = None
) -> tuple[PreTrainedModel, nn.Module]:
    """The backbone as `load_checkpoint` gives it, and the head that predicts hidden tokens.

    The head maps states `[k, D]` to logits `[k, vocabulary]`; where the checkpoint ties the two, it
    shares the backbone's word embeddings. Raises `ModelError` as `load_checkpoint` does, and when
    the head's weights are missing or its parts are not known.
    """
    config = _encoder_config(folder, dropout)
    if type(config) not in MODEL_FOR_MASKED_LM_MAPPING:
        raise ModelError(
            f"a {config.model_type} model such as {folder} has no masked-language head: train "
            "without the masked-language term"
        )
    model, missing = _load(AutoModelForMaskedLM, folder, config)
    backbone, prefix = model.base_model, f"{model.base_model_prefix}."
    assert isinstance(backbone, PreTrainedModel)
    _refuse_random(folder, {k.removeprefix(prefix) for k in missing if k.startswith(prefix)})
    if missing:
        raise ModelError(
            f"the weights in model folder {folder} lack {min(missing)} of the masked-language "
            "head, which would be random: name a checkpoint that has the head, or train without "
            "the masked-language term"
        )
    parts = {name.partition(".")[0] for name, _ in model.named_parameters()} - {prefix[:-1]}
    for names in _LANGUAGE_HEADS:
        if parts <= set(names) and all(hasattr(model, name) for name in names):
            return backbone, nn.Sequential(*(getattr(model, name) for name in names))
    raise ModelError(
        f"the masked-language head of a {config.model_type} model ({', '.join(sorted(parts))}) is "
        "not known: name an encoder of another kind, or train without the masked-language term"
    )


def takes_pooler(backbone: PreTrainedModel) -> bool:
    """Whether this architecture can be built with and without a pooler."""
    return "add_pooling_layer" in inspect.signature(type(backbone).__init__).parameters


def read_config(folder: Path) -> PreTrainedConfig:
    """The configuration of the transformer in `folder`."""
    with readable(folder):
        config: PreTrainedConfig = AutoConfig.from_pretrained(folder)
    return config


def untrained_backbone(folder: Path) -> PreTrainedModel:
    """The architecture in `folder` without its weights, which takes no memory."""
    with torch.device("meta"):
        backbone: PreTrainedModel = AutoModel.from_config(read_config(folder))
    return backbone


def has_dense_pooler(backbone: PreTrainedModel) -> bool:
    """Whether this architecture has `pooler.dense`, the layer behind `pooler_output`."""
    with torch.device("meta"):
        twin = type(backbone)(backbone.config)
    return _dense_pooler(twin) is not None


def dropout_probabilities(config: PreTrainedConfig) -> dict[str, float]:
    """The dropout settings of the encoder itself, attention included, by their name in `config`."""
    return {
        name: float(value)
        for name, value in config.to_dict().items()
        if ("dropout" in name or name.endswith("pdrop"))
        and isinstance(value, int | float)
        and not name.startswith(_NOT_ENCODER)
    }


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


def _encoder_config(folder: Path, dropout: float | None) -> PreTrainedConfig:
    config = read_config(folder)
    if config.is_encoder_decoder:
        raise ModelError(
            f"model folder {folder} holds an encoder-decoder ({config.model_type}): name an "
            "encoder such as BERT or RoBERTa"
        )
    if dropout is not None:
        _set_dropout(config, dropout)
    return config


def _load(
    auto_class: type[AutoModel | AutoModelForMaskedLM], folder: Path, config: PreTrainedConfig
) -> tuple[PreTrainedModel, set[str]]:
    """A float32 model, and the names of its weights that are random because `folder` lacks them."""
    with readable(folder), quiet_transformers(), torch.random.fork_rng(devices=[]):
        model, report = auto_class.from_pretrained(
            folder,
            config=config,
            dtype=torch.float32,
            key_mapping=original_project.renamed_weights(config),
            output_loading_info=True,
            ignore_mismatched_sizes=True,
        )
    draw_faster(model)
    return model, {*report["missing_keys"], *(name for name, *_ in report["mismatched_keys"])}


def _refuse_random(folder: Path, missing: set[str]) -> None:
    if missing:
        raise ModelError(
            f"the weights in model folder {folder} lack {min(missing)} and {len(missing) - 1} "
            "others in the shape of config.json, which would be random: name a complete checkpoint"
        )


def _set_dropout(config: PreTrainedConfig, dropout: float) -> None:
    names = dropout_probabilities(config)
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
