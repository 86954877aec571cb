"""What MLflow's pages say of a model. All of it comes from the model's folder."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from simcse.encoder import SentenceEncoder
from simcse.model_description import read_description
from simcse_platform.config import flatten_tree

_MAX_CORPUS = 200


@dataclass(frozen=True, kw_only=True)
class ModelFacts:
    """What is known of a model; of one that was not trained here, what its vectors are."""

    text: str
    """Markdown for whoever finds it in the registry."""
    tags: Mapping[str, str]
    """What versions are searched by: encoder, pooling, corpus, step, scores."""
    params: Mapping[str, str]
    """Settings of the run that trained it, by dotted path."""
    scores: Mapping[str, float]
    """Dev scores, as the run named them."""
    step: int
    """Of the run that trained it."""

    @classmethod
    def of(cls, folder: Path) -> ModelFacts:
        """Raises `ModelError` for a folder that does not load."""
        encoder = SentenceEncoder.load(folder)
        saved = read_description(folder)
        lineage = saved.lineage if saved else {}
        settings = lineage.get("run")
        params = flatten_tree(settings) if isinstance(settings, Mapping) else {}
        scores = saved.scores if saved else {}
        step = lineage.get("step")
        facts = {
            "encoder": params.get("encoder.model"),
            "seed": params.get("seed"),
            "corpus_sha256": lineage.get("data_sha256"),
            "source_hash": lineage.get("source_hash"),
            "training_run": lineage.get("mlflow_run_id"),
            "step": step,
            "pooling": encoder.pooling,
            "dimension": encoder.dimension,
            **{name: f"{score:.2f}" for name, score in scores.items()},
        }
        tags = {name: str(fact) for name, fact in facts.items() if fact is not None}
        return cls(
            text=_text(tags, params, scores),
            tags=tags,
            params=params,
            scores=scores,
            step=step if isinstance(step, int) else 0,
        )


def _text(tags: Mapping[str, str], params: Mapping[str, str], scores: Mapping[str, float]) -> str:
    lines = [
        f"Sentence encoder: a sentence becomes {tags['dimension']} numbers, by the pooling "
        f"`{tags['pooling']}`. Compare them by cosine."
    ]
    if "encoder" in tags:
        corpus = ", ".join(json.loads(params.get("data.corpus", "[]")))[:_MAX_CORPUS]
        lines.append(
            f"Trained by SimCSE from `{tags['encoder']}` on `{corpus}` up to step "
            f"{tags.get('step', '?')}, in run `{tags.get('training_run', '?')}`."
        )
    if scores:
        named = ", ".join(f"`{name}` {score:.2f}" for name, score in scores.items())
        lines.append(f"Scores x 100: {named}.")
    return "\n\n".join(lines)
