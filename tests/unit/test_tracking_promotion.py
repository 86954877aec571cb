"""The gate of a promotion and the decision."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

from pipelines.registry import measured, read_policy
from simcse.errors import UsageError
from simcse.evaluation import Scores
from simcse.evaluation.significance import ItemMean
from simcse_platform.tracking.promotion import (
    Comparison,
    Decision,
    Measured,
    PromotionPolicy,
    judge,
)

POLICY = PromotionPolicy(resamples=500)


def measure(
    means: dict[str, float], *, spread: float = 1.0, items: int = 100, **known: float
) -> Measured:
    """A model whose items lie around a mean, the same way for every model."""
    around_n = np.random.default_rng(0).normal(0, spread, items)
    around_n -= around_n.mean()
    return Measured(
        headlines=means,
        samples={name: ItemMean(mean + around_n) for name, mean in means.items()},
        **known,
    )


def compare(champion: Measured | None, challenger: Measured) -> Comparison:
    return Comparison(champion=champion, challenger=challenger, data_sha256={"a.csv": "00ff"})


def test_a_better_average_passes() -> None:
    verdict = judge(
        compare(measure({"A": 80.0, "B": 70.0}), measure({"A": 79.5, "B": 73.0})), POLICY
    )
    assert verdict.passed
    assert verdict.reason == (
        "average 76.25 on A, B against the champion's 75.00: +1.25, 95% between +1.25 and +1.25"
    )
    assert verdict.bootstrap is not None
    assert verdict.bootstrap.sets["B"].difference == pytest.approx(3)


def test_a_model_against_itself_does_not_pass() -> None:
    model = measure({"A": 80.0, "B": 70.0})
    verdict = judge(compare(model, model), POLICY)
    assert not verdict.passed
    assert verdict.reason == (
        "average 75.00 on A, B against the champion's 75.00: +0.00, 95% between +0.00 and +0.00 is "
        "not surely above 0"
    )


def test_a_difference_that_may_be_chance_does_not_pass() -> None:
    value_n = np.random.default_rng(1).normal(50, 20, 100)
    # Half of the items win and half lose, the winners a little more.
    other_n = value_n + np.tile([10.5, -10.0], 50)
    champion = Measured(headlines={"A": value_n.mean()}, samples={"A": ItemMean(value_n)})
    challenger = Measured(headlines={"A": other_n.mean()}, samples={"A": ItemMean(other_n)})
    assert challenger.average > champion.average
    verdict = judge(compare(champion, challenger), POLICY)
    assert not verdict.passed
    assert re.search(
        r"\+\d\.\d\d, 95% between -\d\.\d\d and \+\d\.\d\d is not surely above 0$", verdict.reason
    )


def test_the_margin_is_what_the_interval_must_lie_above() -> None:
    comparison = compare(measure({"A": 75.0}), measure({"A": 75.6}))
    assert judge(comparison, POLICY).passed
    strict = judge(comparison, POLICY.model_copy(update={"margin": 0.7}))
    assert not strict.passed
    assert strict.reason.endswith("is not surely above 0.7")


def test_a_set_that_loses_more_than_its_budget_is_named() -> None:
    comparison = compare(measure({"A": 70.0, "B": 80.0}), measure({"A": 75.0, "B": 78.5}))
    verdict = judge(comparison, POLICY)
    assert not verdict.passed
    assert verdict.reason == ("B loses 1.50, and may lose 1 (-1.50, 95% between -1.50 and -1.50)")
    assert judge(comparison, POLICY.model_copy(update={"budgets": {"B": 2.0}})).passed


def test_the_first_champion_is_held_to_limits_of_its_own() -> None:
    first = compare(None, measure({"A": 75.0}, uniformity=-2.0, latency_ms=12.5))
    verdict = judge(first, POLICY)
    assert verdict.passed
    assert verdict.reason == "the first champion, average 75.00 on A"
    assert verdict.bootstrap is None
    strict = PromotionPolicy(highest_uniformity=-2.5, highest_latency_ms=10)
    refused = judge(first, strict)
    assert not refused.passed
    assert refused.reason == (
        "uniformity is -2.00, and may be -2.5; latency is 12.50 ms, and may be 10 ms"
    )


def test_a_budget_of_a_set_that_is_not_compared_is_refused() -> None:
    policy = PromotionPolicy(budgets={"STS12": 2.0})
    with pytest.raises(
        UsageError, match="the policy has a budget for STS12, which is not compared: compare it by"
    ):
        judge(compare(None, measure({"A": 75.0})), policy)


def test_models_scored_on_different_sets_cannot_be_compared() -> None:
    with pytest.raises(ValueError, match=r"champion was scored on \['A'\], the challenger on"):
        compare(measure({"A": 75.0}), measure({"A": 75.0, "B": 99.0}))


def test_a_policy_is_read_from_yaml_and_its_faults_are_one_line(tmp_path: Path) -> None:
    assert read_policy(None) == PromotionPolicy()
    file = tmp_path / "policy.yaml"
    file.write_text("margin: 0.2\nbudgets: {STS12: 2}\n")
    assert read_policy(file) == PromotionPolicy(margin=0.2, budgets={"STS12": 2})
    file.write_text("margins: 0.2\n")
    with pytest.raises(UsageError, match=r"there is no setting margins: did you mean margin\?$"):
        read_policy(file)
    file.write_text("budgets: {STS12: -1}\n")
    with pytest.raises(UsageError, match=r"budgets.STS12 is -1: Input should be greater than"):
        read_policy(file)
    file.write_text("confidence: 95\n")
    with pytest.raises(UsageError, match=r"confidence is 95: Input should be less than 1"):
        read_policy(file)
    with pytest.raises(UsageError, match="there is no configuration file"):
        read_policy(tmp_path / "none.yaml")


def test_uniformity_is_a_limit_and_no_headline() -> None:
    scores = {
        "A": Scores(70.0, "mrr", {}, ItemMean(np.full(3, 70.0))),
        "geometry": Scores(-2.0, "uniformity", {}),
    }
    found = measured(scores, latency_ms=3.0)
    assert found.headlines == {"A": 70.0}
    assert found.samples.keys() == {"A"}
    assert (found.uniformity, found.latency_ms) == (-2.0, 3.0)


def test_a_decision_is_json_with_all_its_numbers() -> None:
    comparison = compare(measure({"A": 75.0, "B": 76.0}), measure({"A": 80.0, "B": 81.0}))
    verdict = judge(comparison, POLICY)
    decision = Decision(
        name="demo",
        action="promote",
        version="2",
        champion_before="1",
        promoted=True,
        reason="because",
        comparison=comparison,
        bootstrap=verdict.bootstrap,
        policy=POLICY,
        earlier_comparisons=3,
        author="ada",
        time="2026-01-01T00:00:00.000000Z",
    )
    tree = json.loads(json.dumps(decision.to_dict()))
    difference = tree.pop("difference")
    assert difference["average"]["difference"] == pytest.approx(5)
    assert difference["sets"]["A"].keys() == {"difference", "low", "high"}
    assert tree == {
        "name": "demo",
        "action": "promote",
        "version": "2",
        "champion_before": "1",
        "promoted": True,
        "reason": "because",
        "author": "ada",
        "time": "2026-01-01T00:00:00.000000Z",
        "dry_run": False,
        "carried_out": False,
        "champion": {
            "scores": {"A": 75.0, "B": 76.0},
            "average": 75.5,
            "uniformity": None,
            "latency_ms": None,
        },
        "challenger": {
            "scores": {"A": 80.0, "B": 81.0},
            "average": 80.5,
            "uniformity": None,
            "latency_ms": None,
        },
        "data_sha256": {"a.csv": "00ff"},
        "policy": POLICY.model_dump(mode="json"),
        "earlier_comparisons": 3,
    }
