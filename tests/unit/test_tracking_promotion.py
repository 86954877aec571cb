"""The gate and the decision."""

from __future__ import annotations

import json

import pytest

from simcse_platform.tracking.promotion import Comparison, Decision, better_average


def _comparison(champion: dict[str, float] | None, challenger: dict[str, float]) -> Comparison:
    return Comparison(champion=champion, challenger=challenger, data_sha256={"a.csv": "00ff"})


def test_the_better_average_passes_whatever_single_sets_say() -> None:
    verdict = better_average(_comparison({"A": 80.0, "B": 70.0}, {"A": 79.0, "B": 73.0}))
    assert verdict.passed
    assert verdict.reason == "average 76.00 is above the champion's 75.00"


@pytest.mark.parametrize("score", [74.0, 75.0])
def test_a_lower_or_equal_average_does_not_pass(score: float) -> None:
    verdict = better_average(_comparison({"A": 75.0}, {"A": score}))
    assert not verdict.passed
    assert verdict.reason == f"average {score:.2f} is not above the champion's 75.00"


def test_the_first_challenger_passes() -> None:
    verdict = better_average(_comparison(None, {"A": 75.0}))
    assert verdict.passed
    assert verdict.reason == "the first champion, average 75.00"


def test_models_scored_on_different_sets_cannot_be_compared() -> None:
    with pytest.raises(ValueError, match=r"champion was scored on \['A'\], the challenger on"):
        _comparison({"A": 75.0}, {"A": 75.0, "B": 99.0})


def test_a_decision_is_json_with_all_its_numbers() -> None:
    decision = Decision(
        name="demo",
        action="promote",
        version="2",
        champion_before="1",
        promoted=True,
        reason="because",
        comparison=_comparison({"A": 75.0, "B": 76.0}, {"A": 80.0, "B": 81.0}),
        author="ada",
        time="2026-01-01T00:00:00.000000Z",
    )
    assert json.loads(json.dumps(decision.to_dict())) == {
        "name": "demo",
        "action": "promote",
        "version": "2",
        "champion_before": "1",
        "promoted": True,
        "reason": "because",
        "comparison": {
            "champion": {"A": 75.0, "B": 76.0},
            "challenger": {"A": 80.0, "B": 81.0},
            "data_sha256": {"a.csv": "00ff"},
            "champion_average": 75.5,
            "challenger_average": 80.5,
        },
        "author": "ada",
        "time": "2026-01-01T00:00:00.000000Z",
        "dry_run": False,
    }
