"""Whether a challenger becomes the champion: the policy, what was measured, the decision."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Annotated, Literal

from pydantic import Field, JsonValue

from simcse.config import Settings
from simcse.errors import UsageError
from simcse.evaluation.significance import Difference, PairedBootstrap, Sample, paired_bootstrap


class PromotionPolicy(Settings):
    """What a challenger must show; scores are x 100, so that 1 is one point."""

    margin: float = Field(default=0.0, ge=0)
    """Points by which the average must be better, all but surely: the interval of the difference
    must lie above."""
    budget: float = Field(default=1.0, ge=0)
    """Points that any one set may lose."""
    budgets: dict[str, Annotated[float, Field(ge=0)]] = Field(default_factory=dict)
    """The same for single sets, by name."""
    confidence: float = Field(default=0.95, gt=0.5, lt=1)
    """Of the interval, two-sided."""
    resamples: int = Field(default=10_000, ge=100, le=1_000_000)
    """Of the paired bootstrap."""
    seed: int = Field(default=0, ge=0)
    """Of the paired bootstrap."""
    highest_uniformity: float | None = None
    """Uniformity of STS-B that the challenger must not exceed (section 7: lower is better)."""
    highest_latency_ms: float | None = Field(default=None, gt=0)
    """Milliseconds that one sentence alone may take on the machine that compares, by the median."""

    def check(self, names: Collection[str]) -> None:
        """Raises `UsageError` for a budget of a set that is not among those compared."""
        if unknown := self.budgets.keys() - set(names):
            raise UsageError(
                f"the policy has a budget for {min(unknown)}, which is not compared: compare it by "
                f"--tasks, or name one of {', '.join(names)}"
            )


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What is known of one model, on the sets that are compared."""

    headlines: Mapping[str, float]
    samples: Mapping[str, Sample]
    """The items behind each headline."""
    uniformity: float | None = None
    """None when the policy does not ask for it; likewise the latency."""
    latency_ms: float | None = None

    @property
    def average(self) -> float:
        """Mean headline."""
        return fmean(self.headlines.values())


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Both models on the same data."""

    champion: Measured | None
    """None while nobody is champion."""
    challenger: Measured
    data_sha256: Mapping[str, str]
    """Checksum of every file or dataset that was scored."""

    def __post_init__(self) -> None:
        if self.champion is None:
            return
        champion, challenger = self.champion.headlines, self.challenger.headlines
        if champion.keys() != challenger.keys():
            raise ValueError(
                f"the champion was scored on {sorted(champion)}, the challenger on "
                f"{sorted(challenger)}"
            )


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What a gate says to a comparison."""

    passed: bool
    reason: str
    bootstrap: PairedBootstrap | None = None
    """None while nobody is champion."""


def judge(comparison: Comparison, policy: PromotionPolicy) -> Verdict:
    """Passed when every rule of the policy is kept; the reason names each that is not.

    The first champion is held to the rules that need no other. Raises `UsageError` for a budget of
    a set that is not compared.
    """
    challenger, champion = comparison.challenger, comparison.champion
    policy.check(challenger.headlines)
    refusals = _absolute_refusals(challenger, policy)
    if champion is None:
        reason = f"the first champion, average {challenger.average:.2f} on {_sets(challenger)}"
        return Verdict(passed=not refusals, reason="; ".join(refusals) or reason)
    found = paired_bootstrap(
        champion.samples,
        challenger.samples,
        resamples=policy.resamples,
        confidence=policy.confidence,
        seed=policy.seed,
    )
    average = (
        f"average {challenger.average:.2f} on {_sets(challenger)} against the champion's "
        f"{champion.average:.2f}: "
        f"{_with_interval(found.average, policy)}"
    )
    # Written so that what is not a number is refused.
    if not found.average.low > policy.margin:
        refusals.insert(0, f"{average} is not surely above {policy.margin:g}")
    for name, difference in found.sets.items():
        budget = policy.budgets.get(name, policy.budget)
        if not difference.difference >= -budget:
            refusals.append(
                f"{name} loses {-difference.difference:.2f}, and may lose {budget:g} "
                f"({_with_interval(difference, policy)})"
            )
    return Verdict(passed=not refusals, reason="; ".join(refusals) or average, bootstrap=found)


@dataclass(frozen=True, kw_only=True)
class Decision:
    """A change of champion, made or refused."""

    name: str
    action: Literal["promote", "rollback"]
    version: str
    """The version that was to become champion."""
    champion_before: str | None
    promoted: bool
    reason: str
    comparison: Comparison | None = None
    """None for a rollback, which compares nothing; likewise what follows from it."""
    bootstrap: PairedBootstrap | None = None
    policy: PromotionPolicy | None = None
    earlier_comparisons: int | None = None
    """Promotions tried before on the same data: the more, the likelier one passed by chance."""
    author: str
    time: str
    """ISO 8601, UTC."""
    dry_run: bool = False
    carried_out: bool = False
    """Whether the aliases are as decided, as far as anything was to be done."""

    def to_dict(self) -> dict[str, JsonValue]:
        """Everything but single items, as JSON has it."""
        tree: dict[str, JsonValue] = {
            "name": self.name,
            "action": self.action,
            "version": self.version,
            "champion_before": self.champion_before,
            "promoted": self.promoted,
            "reason": self.reason,
            "author": self.author,
            "time": self.time,
            "dry_run": self.dry_run,
            "carried_out": self.carried_out,
        }
        if self.comparison is not None:
            tree["champion"] = _numbers(self.comparison.champion)
            tree["challenger"] = _numbers(self.comparison.challenger)
            tree["data_sha256"] = dict(self.comparison.data_sha256)
        if self.bootstrap is not None:
            tree["difference"] = {
                "average": asdict(self.bootstrap.average),
                "sets": {name: asdict(found) for name, found in self.bootstrap.sets.items()},
            }
        if self.policy is not None:
            tree["policy"] = self.policy.model_dump(mode="json")
            tree["earlier_comparisons"] = self.earlier_comparisons
        return tree


def _sets(measured: Measured) -> str:
    return ", ".join(measured.headlines)


def _absolute_refusals(challenger: Measured, policy: PromotionPolicy) -> list[str]:
    """What the challenger alone does not keep."""
    limits = (
        ("uniformity", challenger.uniformity, policy.highest_uniformity, ""),
        ("latency", challenger.latency_ms, policy.highest_latency_ms, " ms"),
    )
    return [
        f"{what} is {value:.2f}{unit}, and may be {limit:g}{unit}"
        for what, value, limit, unit in limits
        if limit is not None and value is not None and not value <= limit
    ]


def _with_interval(difference: Difference, policy: PromotionPolicy) -> str:
    share = f"{100 * policy.confidence:g}%"
    bounds = f"{difference.low:+.2f} and {difference.high:+.2f}"
    return f"{difference.difference:+.2f}, {share} between {bounds}"


def _numbers(measured: Measured | None) -> dict[str, JsonValue] | None:
    if measured is None:
        return None
    return {
        "scores": dict(measured.headlines),
        "average": measured.average,
        "uniformity": measured.uniformity,
        "latency_ms": measured.latency_ms,
    }
