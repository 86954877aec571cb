"""What a report says of scores and lineage: the numbers it was given, and beside which others."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

import pytest

from pipelines.paper.published import PUBLISHED_STS, PUBLISHED_TRANSFER
from pipelines.reporting import scores
from pipelines.reporting.gathering import Scored
from pipelines.reporting.page import Block, Note, Table
from pipelines.reporting.sections import _duration
from simcse.evaluation import STS_SUITE, TRANSFER_SUITE, Evaluation, Mode, Scores
from simcse.model_description import ModelDescription


def scored(
    headlines: dict[str, float], *, mode: Mode = "test", missing: dict[str, str] | None = None
) -> Scored:
    numbers = {"subsets": {"x": {"pairs": 2, "spearman": 1.0, "pearson": 2.0}}}
    found = {name: Scores(value, "spearman", numbers) for name, value in headlines.items()}
    return Scored(
        mode=mode,
        pooling="cls",
        evaluation=Evaluation(found, {}),
        missing=missing or {},
        data_sha256={},
        geometry=None,
        examples=[],
    )


def tables(blocks: Sequence[Block]) -> dict[str, Table]:
    return {block.caption: block for block in blocks if isinstance(block, Table)}


def notes(blocks: Sequence[Block]) -> list[str]:
    return [block.text for block in blocks if isinstance(block, Note)]


def texts(table: Table) -> list[list[str]]:
    return [[cell.text for cell in row] for row in table.rows]


def test_a_whole_suite_has_an_average_beside_the_published_ones() -> None:
    headlines = {name: 70.004 + place for place, name in enumerate(STS_SUITE)}
    found = tables(scores.section("mine", scored(headlines | {"MR": 80.0})).blocks)
    sts = found["STS: Spearman x 100; the other rows are the paper's"]
    transfer = found["Transfer: accuracy x 100; the other rows are the paper's"]
    assert sts.columns == [
        *("model", "STS12", "STS13", "STS14", "STS15", "STS16", "STS-B", "SICK-R", "Avg.")
    ]
    own, *others = texts(sts)
    assert own == ["mine", *(f"{70 + place:.2f}" for place in range(7)), "73.00"]
    assert sts.rows[0][1].value == 70.004
    assert others[0][1:] == [f"{value:.2f}" for value in PUBLISHED_STS[others[0][0]].values()]
    assert len(others) == len(PUBLISHED_STS)
    assert texts(transfer)[0] == ["mine", "80.00", *["-"] * len(TRANSFER_SUITE)]
    assert len(transfer.rows) == 1 + len(PUBLISHED_TRANSFER)


def test_dev_scores_do_not_stand_beside_published_ones() -> None:
    section = scores.section("mine", scored({"STSBenchmark": 80.0}, mode="dev"), way_out="say this")
    found = tables(section.blocks)
    assert texts(found["STS: Spearman x 100, dev splits"]) == [
        ["STSBenchmark", "spearman", "80.00"]
    ]
    published = found["Published scores, STS: Spearman x 100"]
    assert [row[0] for row in texts(published)] == [*PUBLISHED_STS]
    (note,) = (block for block in section.blocks if isinstance(block, Note))
    assert (note.command, "do not compare" in note.text) == ("say this", True)


def test_what_is_missing_is_said_and_what_is_no_suite_has_its_own_table() -> None:
    missing = {"STS14": "no folder", "STS16": "no folder"}
    section = scores.section("mine", scored({"own": 12.5}, missing=missing))
    assert notes(section.blocks) == ["STS14, STS16 are missing: no folder."]
    found = tables(section.blocks)
    assert texts(found["Other sets"]) == [["own", "spearman", "12.50"]]
    assert texts(found["STS: Spearman x 100; the other rows are the paper's"])[0] == [
        "mine",
        *["-"] * 8,
    ]
    assert notes(scores.section("mine", scored({})).blocks) == ["Nothing was scored."]


def test_the_lineage_says_what_other_seeds_gave() -> None:
    spread = {"mean": 75.0, "deviation": 1.25, "minimum": 74.0, "maximum": 76.5}
    description = ModelDescription(
        pooling="cls",
        head="none",
        max_length=32,
        dimension=8,
        lineage={"step": 125, "seeds": {"count": 3, "scores": {"dev_stsb_spearman": spread}}},
        scores={},
    )
    (section,) = scores.lineage(description)
    (table,) = tables(section.blocks).values()
    assert table.caption == "Over 3 seeds"
    assert texts(table) == [["dev_stsb_spearman", "75.00", "1.25", "74.00", "76.50"]]
    assert scores.lineage(None) == []


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (8.24, "8.2 s"),
        (59.94, "59.9 s"),
        (200, "3 min 20 s"),
        (3599.7, "1 h 0 min"),
        (9e4, "25 h 0 min"),
    ],
)
def test_a_duration_is_read_at_a_glance(seconds: float, text: str) -> None:
    assert _duration(timedelta(seconds=seconds)) == text
