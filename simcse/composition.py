"""Whether objective, views and encoder go together with the columns of a corpus."""

from __future__ import annotations

from collections.abc import Sequence

from transformers import AutoConfig

from simcse.backbone import dropout_probabilities
from simcse.config import EncoderConfig, ObjectiveConfig, ViewsConfig
from simcse.errors import UsageError
from simcse.model_source import locate, readable


def check_composition(
    encoder: EncoderConfig, objective: ObjectiveConfig, views: ViewsConfig, columns: Sequence[str]
) -> None:
    """Raises `UsageError` for a setting that these columns leave without effect or meaning."""
    if len(columns) == 1:
        _check_one_column(encoder, objective, views)
        return
    if views.positive != "same_sentence" or views.fixed_dropout_mask:
        setting = "positive" if views.positive != "same_sentence" else "fixed_dropout_mask"
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
