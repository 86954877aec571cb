"""A model folder as sentence-transformers describes it: `modules.json` and the folders it names."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from simcse.config import Pooling
from simcse.errors import ModelError
from simcse.model_source import readable
from simcse.pooling import needs_all_layers

_DENSE = "2_Dense"
_WHITENING = "whitening"


def read_pooling(folder: Path) -> Pooling | None:
    """The pooling that `modules.json` describes, None where there is none.

    Raises `ModelError` for modules and modes that the five poolings cannot express. A final
    Normalize module is passed over: vectors are compared by cosine.
    """
    path = folder / "modules.json"
    if not path.is_file():
        return None
    pooling: Pooling | None = None
    for module in _read_json(path):
        kind = module["type"].rpartition(".")[2]
        if kind == "Pooling":
            config = _read_json(folder / module["path"] / "config.json")
            modes = _pooling_modes(config)
            match modes:
                case ["mean"]:
                    pooling = "avg"
                case ["cls"]:
                    pooling = "cls_before_pooler"
                case _:
                    raise ModelError(
                        f"{path} pools by {'+'.join(modes)}, which is none of ours: choose a "
                        "pooling"
                    )
        elif kind not in ("Transformer", "Normalize"):
            raise ModelError(
                f"{path} has a {kind} module, which this encoder cannot apply: choose a pooling "
                "to leave it out"
            )
    return pooling


def read_dense(folder: Path) -> dict[str, Tensor]:
    """`dense.weight` and `dense.bias` of the head that `write_modules` wrote."""
    return _read_linear(folder / _DENSE, "dense.")


def read_whitening(folder: Path) -> dict[str, Tensor]:
    """`weight` and `bias` of the whitening that `write_modules` wrote."""
    return _read_linear(folder / _WHITENING, "")


def write_modules(
    folder: Path,
    *,
    pooling: Pooling,
    width: int,
    layers: int,
    head: Mapping[str, Tensor],
    whitening: Mapping[str, Tensor],
    model_limit: int,
    without_pooler: bool,
) -> None:
    """The folder as sentence-transformers reads it, in the names that all its versions know.

    `width` is that of token states, `layers` the number of transformer layers. `head` is
    `dense.weight` and `dense.bias`, `whitening` is `weight` and `bias`; they are empty where the
    vector has none. `without_pooler` keeps transformers from making up a pooler
    that the weights do not hold, and from warning of it.
    """
    paths = {"": "Transformer"}
    transformer: dict[str, Any] = {"max_seq_length": model_limit, "do_lower_case": False}
    if without_pooler:
        transformer["model_args"] = {"add_pooling_layer": False}
    if needs_all_layers(pooling):
        transformer["config_args"] = {"output_hidden_states": True}
        path = "1_WeightedLayerPooling"
        paths[path] = "WeightedLayerPooling"
        _write_json(
            folder / path / "config.json",
            {"word_embedding_dimension": width, "layer_start": 0, "num_hidden_layers": layers},
        )
        # Layer 0 is the embedding layer, as in `pool`.
        layer_weights = torch.zeros(layers + 1)
        layer_weights[[layers - 1 if pooling == "avg_top2" else 1, layers]] = 1.0
        save_file({"layer_weights": layer_weights}, folder / path / "model.safetensors")
    _write_json(folder / "sentence_bert_config.json", transformer)

    path = f"{len(paths)}_Pooling"
    paths[path] = "Pooling"
    by_cls = pooling in ("cls", "cls_before_pooler")
    _write_json(
        folder / path / "config.json",
        {
            "word_embedding_dimension": width,
            "pooling_mode_cls_token": by_cls,
            "pooling_mode_mean_tokens": not by_cls,
            "pooling_mode_max_tokens": False,
            "pooling_mode_mean_sqrt_len_tokens": False,
        },
    )
    if head:
        paths[_DENSE] = "Dense"
        _write_linear(folder / _DENSE, head, "dense.", activation="activation.Tanh")
    if whitening:
        paths[_WHITENING] = "Dense"
        _write_linear(folder / _WHITENING, whitening, "", activation="linear.Identity")
    _write_json(
        folder / "modules.json",
        [
            {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
            for i, (path, kind) in enumerate(paths.items())
        ],
    )


def _pooling_modes(config: Mapping[str, Any]) -> list[str]:
    """Modes in either spelling: `pooling_mode: "mean"`, or a flag for each mode."""
    modes = config.get("pooling_mode", [])
    if modes:
        return [modes] if isinstance(modes, str) else list(modes)
    prefix = "pooling_mode_"
    return [
        name.removeprefix(prefix).removesuffix("_tokens").removesuffix("_token")
        for name, value in config.items()
        if name.startswith(prefix) and value
    ]


def _read_linear(path: Path, prefix: str) -> dict[str, Tensor]:
    with readable(path.parent):
        linear = load_file(path / "model.safetensors")
    return {name.replace("linear.", prefix): tensor for name, tensor in linear.items()}


def _write_linear(
    path: Path, weights: Mapping[str, Tensor], prefix: str, *, activation: str
) -> None:
    """A Dense module; the weights' names are `prefix` and `weight` or `bias`."""
    out_features, in_features = weights[f"{prefix}weight"].shape
    _write_json(
        path / "config.json",
        {
            "in_features": in_features,
            "out_features": out_features,
            "bias": True,
            "activation_function": f"torch.nn.modules.{activation}",
        },
    )
    linear = {f"linear.{name.removeprefix(prefix)}": tensor for name, tensor in weights.items()}
    save_file(linear, path / "model.safetensors")


def _read_json(path: Path) -> Any:
    with readable(path.parent):
        return json.loads(path.read_bytes())


def _write_json(path: Path, content: Any) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
