"""Whether objective, views and encoder go together with the columns of a corpus."""

from __future__ import annotations

from collections.abc import Sequence

from transformers import AutoConfig

from simcse.backbone import dropout_probabilities, load_masked_language_model
from simcse.config import EncoderConfig, ObjectiveConfig, ViewsConfig
from simcse.errors import ModelError, UsageError
from simcse.masked_language import mask_id
from simcse.model_source import locate, readable
from simcse.tokenizer import load_tokenizer


def check_composition(
    encoder: EncoderConfig, objective: ObjectiveConfig, views: ViewsConfig, columns: Sequence[str]
) -> None:
    """Raises `UsageError` for a setting that these columns leave without effect or meaning.

    And `ModelError` for a checkpoint without the masked-language head that a setting needs.
    """
    if objective.masked_language_weight:
        _check_masked_language(encoder, "objective.masked_language_weight=0")
    if views.positive == "masked_language":
        _check_masked_language(encoder, "another views.positive")
    if len(columns) == 1:
        _check_one_column(encoder, objective, views)
        return
    defaults = ViewsConfig()
    for setting in ("positive", "fixed_dropout_mask", "allow_equal_views"):
        if getattr(views, setting) == getattr(defaults, setting):
            continue
        raise UsageError(
            f"views.{setting} is for a corpus of one column, and this one has {_listed(columns)}: "
            f"choose one by data.columns, or leave views.{setting} as it is"
        )
    if len(columns) < 1 + objective.positives:
        raise UsageError(
            f"objective.positives is {objective.positives}, but beside the anchor the corpus has "
            f"{_listed(columns[1:])}: lower it, or name more columns by data.columns"
        )
    if objective.hard_negative_alpha != 1 and len(columns) == 1 + objective.positives:
        raise UsageError(
            f"objective.hard_negative_alpha is {objective.hard_negative_alpha:g}, but the corpus "
            f"has no hard negatives, only {_listed(columns)}: set it to 1, or name a column of "
            "them by data.columns"
        )


def describe_columns(columns: Sequence[str], positives: int) -> str:
    """What each column is to the objective, in words."""
    if len(columns) == 1:
        return f"sentences {columns[0]!r}"
    kinds = [("anchor", columns[:1]), ("positive", columns[1 : 1 + positives])]
    kinds += [("hard negative", columns[1 + positives :])]
    return ", ".join(f"{kind} {_listed(names)}" for kind, names in kinds if names)


def _check_masked_language(encoder: EncoderConfig, otherwise: str) -> None:
    """Raises `ModelError` for a checkpoint that cannot predict masked tokens."""
    try:
        load_masked_language_model(locate(encoder.model))
        mask_id(load_tokenizer(encoder.model))
    except ModelError as error:
        raise ModelError(f"{error}; or set {otherwise}") from error


def _check_one_column(
    encoder: EncoderConfig, objective: ObjectiveConfig, views: ViewsConfig
) -> None:
    if objective.positives > 1 or objective.hard_negative_alpha != 1:
        setting = "positives" if objective.positives > 1 else "hard_negative_alpha"
        raise UsageError(
            f"objective.{setting} is {getattr(objective, setting):g}, but the corpus has one "
            "column, whose sentences are their own positives and have no hard negatives: set it to "
            "1, or name more columns by data.columns"
        )
    equal_views = views.positive == "same_sentence" and views.encoders == 1
    if not equal_views or views.fixed_dropout_mask or views.allow_equal_views:
        return
    if encoder.dropout is None:
        folder = locate(encoder.model)
        with readable(folder):
            probabilities = [*dropout_probabilities(AutoConfig.from_pretrained(folder)).values()]
    else:
        probabilities = [encoder.dropout]
    if not any(probabilities):
        where = "encoder.dropout is 0" if encoder.dropout == 0 else f"{encoder.model} has none"
        raise UsageError(
            f"without dropout ({where}) a sentence encoded twice gives the same vector twice: set "
            "encoder.dropout=0.1, or views.allow_equal_views=true to train on it all the same"
        )


def _listed(columns: Sequence[str]) -> str:
    return " and ".join(map(repr, columns))
