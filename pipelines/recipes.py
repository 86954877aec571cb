"""Runs by name.

A recipe is a function; its docstring says where it comes from, what score to expect and what it
costs. The corpus is the user's to give, but for the demo's.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable

from simcse.config import EncoderConfig, OptimConfig
from simcse.errors import UsageError
from simcse_platform.config import (
    CheckpointConfig,
    DataConfig,
    DevConfig,
    ScaleConfig,
    TrackingConfig,
    TrainRun,
)


def unsup_bert_base() -> TrainRun:
    """Unsupervised SimCSE of bert-base-uncased on sentences (paper table 5 and appendix A).

    Expect an STS average of about 75: 76.25 is published, and 50 seeds had a mean of 75.11 (73.16
    to 76.70). One epoch of a million Wikipedia sentences is below one hour on one RTX 3090.
    """
    return TrainRun(
        encoder=EncoderConfig(model="bert-base-uncased", pooling="cls", head="training"),
        optim=OptimConfig(learning_rate=3e-5),
        global_batch_size=64,
        epochs=1,
    )


def unsup_roberta_large() -> TrainRun:
    """Unsupervised SimCSE of roberta-large on sentences (paper table 5 and appendix A).

    Expect an STS average of 78.90 as published; 50 seeds had a mean of 76.71 (75.64 to 77.69).
    """
    return TrainRun(
        encoder=EncoderConfig(model="roberta-large", pooling="cls", head="training"),
        optim=OptimConfig(learning_rate=3e-5),
        global_batch_size=512,
        epochs=1,
    )


def sup_bert_base() -> TrainRun:
    """Supervised SimCSE of bert-base-uncased on NLI triplets (paper table 5 and appendix A).

    The corpus has three columns: premise, entailed hypothesis, contradiction. Expect an STS average
    of 81.57. Three epochs of 275,601 triplets; the original used four GPUs with 128 rows each.
    """
    return TrainRun(
        encoder=EncoderConfig(model="bert-base-uncased", pooling="cls", head="always"),
        optim=OptimConfig(learning_rate=5e-5),
        global_batch_size=512,
        epochs=3,
    )


def demo() -> TrainRun:
    """all-MiniLM-L6-v2 by its [CLS] state on 35,000 Wikipedia sentences, without a GPU.

    The encoder was trained with mean pooling, so its [CLS] has something to learn: STS-B dev rises
    from 79.7 to about 84 in 50 steps, some three minutes on two cores.
    """
    from pipelines import demo_data

    return TrainRun(
        encoder=EncoderConfig(model=str(demo_data.minilm_folder()), pooling="cls", head="training"),
        data=DataConfig(corpus=(str(demo_data.sentences_path()),)),
        optim=OptimConfig(learning_rate=3e-5),
        dev=DevConfig(every=25),
        scale=ScaleConfig(num_workers=2, zero_stage=2),
        checkpoint=CheckpointConfig(every=25),
        tracking=TrackingConfig(log_every=5),
        global_batch_size=64,
        max_steps=50,
    )


RECIPES: dict[str, Callable[[], TrainRun]] = {
    recipe.__name__: recipe
    for recipe in (unsup_bert_base, unsup_roberta_large, sup_bert_base, demo)
}


def find(name: str) -> TrainRun:
    """The recipe of that name. Raises `UsageError` naming the ones there are."""
    if name not in RECIPES:
        near = difflib.get_close_matches(name, RECIPES, n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        raise UsageError(f"there is no recipe {name!r}: {hint}There are {', '.join(RECIPES)}")
    return RECIPES[name]()
