"""Models and checkpoints of the original project (princeton-nlp/SimCSE), told by names and keys.

Its training code saves a `BertForCL` or `RobertaForCL`: the transformer below `bert.` or
`roberta.`, the dense layer over [CLS] as `mlp.dense`. What it publishes is a plain BERT or RoBERTa
with that layer as `pooler.dense`. Neither says whether the layer is part of the vector: its own
tool guesses that from "unsup" in the name.
"""

from __future__ import annotations

import re
from pathlib import Path

from transformers import PreTrainedConfig

from simcse.config import Pooling

_SUPERVISION = re.compile(r"(?<![a-z])(un)?sup(?![a-z])")


def is_training_checkpoint(config: PreTrainedConfig) -> bool:
    """Whether the original's training code saved the model that has this configuration."""
    return any(name.endswith("ForCL") for name in config.architectures or ())


def is_trained(model: str | Path, config: PreTrainedConfig) -> bool:
    """Whether a model's dense layer over [CLS] is SimCSE's, not that of BERT's pre-training."""
    return is_training_checkpoint(config) or pooling_by_name(model) is not None


def renamed_weights(config: PreTrainedConfig) -> dict[str, str] | None:
    """Patterns of the weights' names in such a checkpoint, with the names transformers has."""
    return {r"^mlp\.dense\.": "pooler.dense."} if is_training_checkpoint(config) else None


def pooling_by_name(model: str | Path) -> Pooling | None:
    """The pooling of a model named as the original names its own, None for any other name.

    The last part of a path or hub id must hold "simcse" and the word "sup" or "unsup", as in
    `princeton-nlp/unsup-simcse-bert-base-uncased` and `result/my-sup-simcse-roberta-large`:
    supervised models keep the dense layer, unsupervised ones drop it (paper section 6.3).
    """
    name = Path(model).expanduser().absolute().name.lower()
    supervision = _SUPERVISION.search(name)
    if supervision is None or "simcse" not in name:
        return None
    return "cls_before_pooler" if supervision[1] else "cls"
