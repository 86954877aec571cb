"""Runs by name.

A recipe is a function; its docstring says what it trains, what score to expect and what it costs.
There is one for each published model of the original, with the hyperparameters of the paper's
appendix A; the scores are averages over the seven STS sets. The corpus is the user's to give, but
for the demo's.
"""

from __future__ import annotations

from collections.abc import Callable

from pipelines.names import look_up
from simcse.config import EncoderConfig, OptimConfig
from simcse_platform.config import (
    CheckpointConfig,
    DataConfig,
    DevConfig,
    ScaleConfig,
    TrackingConfig,
    TrainRun,
)

_STEPS_BETWEEN_EVALUATIONS = 250
"""As the paper's appendix A has it; the original's scripts say 125."""


def unsup_bert_base() -> TrainRun:
    """Unsupervised SimCSE of bert-base-uncased on sentences.

    Expect an STS average of about 75: 76.25 is published, and 50 seeds had a mean of 75.11 (73.16
    to 76.70). One epoch of a million Wikipedia sentences is below one hour on one RTX 3090.
    """
    return _unsupervised("bert-base-uncased", learning_rate=3e-5, rows=64)


def unsup_bert_large() -> TrainRun:
    """Unsupervised SimCSE of bert-large-uncased on sentences.

    Expect an STS average of about 75: 78.41 is published, and 50 seeds had a mean of 74.95 (70.31
    to 77.28).
    """
    return _unsupervised("bert-large-uncased", learning_rate=1e-5, rows=64)


def unsup_roberta_base() -> TrainRun:
    """Unsupervised SimCSE of roberta-base on sentences.

    Expect an STS average of about 75: 76.57 is published, and 50 seeds had a mean of 74.60 (74.17
    to 75.14).
    """
    return _unsupervised("roberta-base", learning_rate=1e-5, rows=512)


def unsup_roberta_large() -> TrainRun:
    """Unsupervised SimCSE of roberta-large on sentences.

    Expect an STS average of about 77: 78.90 is published, and 50 seeds had a mean of 76.71 (75.64
    to 77.69).
    """
    return _unsupervised("roberta-large", learning_rate=3e-5, rows=512)


def sup_bert_base() -> TrainRun:
    """Supervised SimCSE of bert-base-uncased on NLI triplets; 81.57 is the published STS average.

    Three epochs of 275,601 triplets; the original used four GPUs with 128 rows each.
    """
    return _supervised("bert-base-uncased", learning_rate=5e-5)


def sup_bert_large() -> TrainRun:
    """Supervised SimCSE of bert-large-uncased on NLI triplets; 82.21 is the published average."""
    return _supervised("bert-large-uncased", learning_rate=1e-5)


def sup_roberta_base() -> TrainRun:
    """Supervised SimCSE of roberta-base on NLI triplets; 82.52 is the published STS average."""
    return _supervised("roberta-base", learning_rate=5e-5)


def sup_roberta_large() -> TrainRun:
    """Supervised SimCSE of roberta-large on NLI triplets; 83.76 is the published STS average."""
    return _supervised("roberta-large", learning_rate=1e-5)


def demo() -> TrainRun:
    """all-MiniLM-L6-v2 by its [CLS] state on Wikipedia sentences, without a GPU.

    50 steps of 64 of 35,000 sentences; `max_steps=null` goes through all of a corpus.

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
    for recipe in (
        unsup_bert_base,
        unsup_bert_large,
        unsup_roberta_base,
        unsup_roberta_large,
        sup_bert_base,
        sup_bert_large,
        sup_roberta_base,
        sup_roberta_large,
        demo,
    )
}


def find(name: str) -> TrainRun:
    """The recipe of that name. Raises `UsageError` naming the ones there are."""
    return look_up("recipe", name, RECIPES)()


def _unsupervised(model: str, *, learning_rate: float, rows: int) -> TrainRun:
    """Sentences twice through the encoder; the head is for training only (paper appendix A)."""
    return TrainRun(
        encoder=EncoderConfig(model=model, pooling="cls", head="training"),
        optim=OptimConfig(learning_rate=learning_rate),
        dev=DevConfig(every=_STEPS_BETWEEN_EVALUATIONS),
        global_batch_size=rows,
        epochs=1,
    )


def _supervised(model: str, *, learning_rate: float) -> TrainRun:
    """Premise, entailed hypothesis and contradiction; the head is kept (paper appendix A)."""
    return TrainRun(
        encoder=EncoderConfig(model=model, pooling="cls", head="always"),
        optim=OptimConfig(learning_rate=learning_rate),
        dev=DevConfig(every=_STEPS_BETWEEN_EVALUATIONS),
        global_batch_size=512,
        epochs=3,
    )
