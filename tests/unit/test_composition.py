"""Settings that go together with a corpus's columns, and those that are refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from transformers import AutoConfig

from simcse.composition import check_composition, describe_columns
from simcse.config import EncoderConfig, ObjectiveConfig, ViewsConfig
from simcse.errors import ModelError, UsageError
from simcse_platform.config import TrainRun, from_tree, override
from support.architectures import save_masked_language_model
from support.tiny import save_tiny_encoder


def check(
    folder: Path,
    columns: tuple[str, ...],
    *,
    dropout: float | None = None,
    objective: dict[str, object] | None = None,
    views: dict[str, object] | None = None,
) -> None:
    check_composition(
        EncoderConfig(model=str(folder), dropout=dropout),
        ObjectiveConfig.model_validate(objective or {}),
        ViewsConfig.model_validate(views or {}),
        columns,
    )


ONE, PAIR, TRIPLET = ("text",), ("first", "second"), ("first", "second", "third")


@pytest.mark.parametrize(
    ("columns", "objective", "views"),
    [
        (ONE, {}, {}),
        (ONE, {"mask_false_negatives": True}, {"encoders": 2}),
        (ONE, {}, {"fixed_dropout_mask": True}),
        (ONE, {}, {"positive": "crop"}),
        (PAIR, {}, {}),
        (PAIR, {"learnable_temperature": True, "similarity": "dot"}, {"encoders": 2}),
        (TRIPLET, {"hard_negative_alpha": 0.5}, {}),
        (TRIPLET, {"positives": 2}, {}),
    ],
)
def test_settings_that_compose_pass(
    tiny_encoder: Path,
    columns: tuple[str, ...],
    objective: dict[str, object],
    views: dict[str, object],
) -> None:
    check(tiny_encoder, columns, objective=objective, views=views)


@pytest.mark.parametrize(
    ("columns", "objective", "views", "message"),
    [
        (ONE, {"positives": 2}, {}, r"objective\.positives is 2, but the corpus has one column"),
        (ONE, {"hard_negative_alpha": 0.5}, {}, r"hard_negative_alpha is 0\.5, but the corpus has"),
        (
            PAIR,
            {},
            {"positive": "crop"},
            r"views\.positive is for a corpus of one column, and this ",
        ),
        (PAIR, {}, {"allow_equal_views": True}, r"views\.allow_equal_views is for a corpus of one"),
        (
            PAIR,
            {},
            {"fixed_dropout_mask": True},
            r"views\.fixed_dropout_mask is for a corpus of one",
        ),
        (
            PAIR,
            {"positives": 2},
            {},
            r"positives is 2, but beside the anchor the corpus has 'second'",
        ),
        (PAIR, {"hard_negative_alpha": 2}, {}, r"has no hard negatives, only 'first' and 'second'"),
        (TRIPLET, {"positives": 2, "hard_negative_alpha": 2}, {}, r"has no hard negatives, only"),
    ],
)
def test_settings_without_effect_or_meaning_are_refused(
    tiny_encoder: Path,
    columns: tuple[str, ...],
    objective: dict[str, object],
    views: dict[str, object],
    message: str,
) -> None:
    with pytest.raises(UsageError, match=message):
        check(tiny_encoder, columns, objective=objective, views=views)


def test_a_sentence_twice_without_dropout_is_refused_unless_asked_for(
    tiny_encoder: Path, tmp_path: Path
) -> None:
    refused = r"without dropout \(encoder\.dropout is 0\) a sentence encoded twice gives the same"
    with pytest.raises(UsageError, match=refused):
        check(tiny_encoder, ONE, dropout=0.0)
    check(tiny_encoder, ONE, dropout=0.0, views={"allow_equal_views": True})
    check(tiny_encoder, ONE, dropout=0.0, views={"positive": "delete_one_word"})
    check(tiny_encoder, PAIR, dropout=0.0)

    without = save_tiny_encoder(tmp_path / "without")
    config = AutoConfig.from_pretrained(without)
    config.hidden_dropout_prob = config.attention_probs_dropout_prob = 0.0
    config.save_pretrained(without)
    with pytest.raises(UsageError, match=r"without dropout \(.*without has none\) a sentence"):
        check(without, ONE)
    check(without, ONE, dropout=0.1)


def test_columns_are_described_by_what_they_are_to_the_objective() -> None:
    assert describe_columns(ONE, 1) == "sentences 'text'"
    assert describe_columns(PAIR, 1) == "anchor 'first', positive 'second'"
    assert describe_columns(TRIPLET, 1) == (
        "anchor 'first', positive 'second', hard negative 'third'"
    )
    assert describe_columns(TRIPLET, 2) == "anchor 'first', positive 'second' and 'third'"


@pytest.mark.parametrize(
    ("assignments", "message"),
    [
        (
            ["objective.learnable_temperature=true", "objective.temperature=0.005"],
            r"objective\.temperature is 0\.005, but a learnable one starts at 0\.01 or above",
        ),
        (["views.positive=synonyms"], r"positive is 'synonyms' and views\.synonyms is None: one"),
        (["views.synonyms=words.tsv"], r"is 'same_sentence' and views\.synonyms is 'words\.tsv'"),
        (
            ["views.fixed_dropout_mask=true", "views.encoders=2"],
            r"fixed_dropout_mask makes two views of one sentence equal: it needs",
        ),
        (["views.rate=0.3"], r"views\.rate is 0\.3, but views\.positive=same_sentence has no rate"),
        (
            ["views.allow_equal_views=true", "views.positive=crop"],
            r"views\.allow_equal_views is for views\.positive=same_sentence without views\.fixed",
        ),
        (
            ["objective.masked_language_rate=0.3"],
            r"masked_language_rate is 0\.3, but objective\.masked_language_weight is 0, so that",
        ),
        (["views.rate=0"], r"views\.rate is 0: Input should be greater than 0"),
        (["objective.positives=0"], r"objective\.positives is 0: Input should be greater than or"),
        (["objective.hard_negative_alpha=0"], r"hard_negative_alpha is 0: Input should be greater"),
        (
            ["objective.hard_negative_weight=0"],
            r"hard_negative_weight is a name of the original project: write objective\.hard_nega"
            r"tive_alpha, of which it is the logarithm",
        ),
        (["objective.temp=0.05"], r"is a name of the original project: write objective\.temperat"),
        (["do_mlm=true"], r"write objective\.masked_language_weight, 0 being without"),
    ],
)
def test_settings_that_cannot_be_are_refused_by_name(assignments: list[str], message: str) -> None:
    run = TrainRun(encoder=EncoderConfig(model="bert-base-uncased"))
    with pytest.raises(UsageError, match=message):
        override(run, assignments)


def test_names_of_the_original_are_explained_in_files_too() -> None:
    tree = {"encoder": {"model": "m", "pooler_type": "cls"}}
    with pytest.raises(
        UsageError, match=r"encoder\.pooler_type is a name of the original.*pooling"
    ):
        from_tree(tree)


def test_a_checkpoint_without_a_masked_language_head_is_refused_before_the_run(
    tiny_encoder: Path, tmp_path: Path
) -> None:
    with pytest.raises(ModelError, match=r"head.*; or set objective\.masked_language_weight=0$"):
        check(tiny_encoder, ONE, objective={"masked_language_weight": 0.1})
    with pytest.raises(ModelError, match=r"head.*; or set another views\.positive$"):
        check(tiny_encoder, ONE, views={"positive": "masked_language"})
    whole = save_masked_language_model(tmp_path / "bert", "bert")
    check(whole, ONE, objective={"masked_language_weight": 0.1}, views={"encoders": 2})
    check(whole, ONE, views={"positive": "masked_language"})
