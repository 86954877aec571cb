"""The README that a model folder has."""

from __future__ import annotations

from pydantic import JsonValue

from simcse.model_card import SEEDS, model_card
from simcse.model_description import ModelDescription


def test_it_says_how_the_model_was_trained_and_where_it_ends() -> None:
    run = {
        "encoder": {"model": "some/encoder"},
        "data": {"corpus": ["a|b.txt"]},
        "objective": {"temperature": 0.05},
        "seed": 7,
    }
    description = ModelDescription(
        pooling="cls",
        head="training",
        max_length=32,
        dimension=8,
        lineage={"run": run, "data_sha256": "00ff", "step": 60, "versions": {"torch": "2"}},
        scores={"dev_stsb_spearman": 84.5},
    )
    card = model_card(description, licence="mit", pooler_output=False)
    for part in (
        "| encoder | some/encoder |",
        '| corpus | ["a\\|b.txt"] |',
        "| sha256 of the corpus | 00ff |",
        "| temperature | 0.05 |",
        "| seed | 7 |",
        "| step | 60 |",
        "| versions | torch 2 |",
        "sentences of at most 32 tokens",
        "It was measured on the sets above",
        "Licence: mit.",
    ):
        assert part in card, part
    assert "learning rate" not in card
    assert "| measure | value |\n| --- | --- |\n| dev_stsb_spearman | 84.50 |\n" in card
    assert "the sets above, with one seed" in card
    spread = {"mean": 83.0, "deviation": 1.5, "minimum": 81.5, "maximum": 84.5}
    seeds: dict[str, JsonValue] = {"count": 3, "scores": {"dev_stsb_spearman": spread}}
    repeated = description.model_copy(update={"lineage": {SEEDS: seeds}})
    card = model_card(repeated, licence="mit", pooler_output=False)
    assert "| measure | value | over 3 seeds: mean ± deviation (minimum to maximum) |" in card
    assert "| dev_stsb_spearman | 84.50 | 83.00 ± 1.50 (81.50 to 84.50) |" in card
    assert "the sets above, as the best of 3 seeds" in card
    bare = description.model_copy(update={"lineage": {}, "scores": {}})
    assert "Nothing is on record." in model_card(bare, licence="unknown", pooler_output=False)


def test_a_zero_is_on_record() -> None:
    run: dict[str, JsonValue] = {"seed": 0, "encoder": {"model": None}}
    description = ModelDescription(
        pooling="cls",
        head="none",
        max_length=32,
        dimension=8,
        lineage={"run": run, "step": 0, "data_sha256": ""},
        scores={},
    )
    card = model_card(description, licence="mit", pooler_output=False)
    table = [line for line in card.splitlines() if line.startswith("| ")]
    assert table == ["| | |", "| seed | 0 |", "| step | 0 |"]
