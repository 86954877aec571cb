"""Whether a challenger becomes the champion, and the record of that decision."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Headline scores of both models by evaluation set, on the same data."""

    champion: Mapping[str, float] | None
    """None while nobody is champion."""
    challenger: Mapping[str, float]
    data_sha256: Mapping[str, str]
    """Checksum of every file or dataset that was scored."""

    def __post_init__(self) -> None:
        if self.champion is not None and self.champion.keys() != self.challenger.keys():
            raise ValueError(
                f"the champion was scored on {sorted(self.champion)}, the challenger on "
                f"{sorted(self.challenger)}"
            )

    @property
    def champion_average(self) -> float | None:
        return None if self.champion is None else fmean(self.champion.values())

    @property
    def challenger_average(self) -> float:
        return fmean(self.challenger.values())


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What a gate says to a comparison."""

    passed: bool
    reason: str


def better_average(comparison: Comparison) -> Verdict:
    """Passed when the challenger's mean over all sets is above the champion's."""
    challenger, champion = comparison.challenger_average, comparison.champion_average
    if champion is None:
        return Verdict(passed=True, reason=f"the first champion, average {challenger:.2f}")
    passed = challenger > champion
    return Verdict(
        passed=passed,
        reason=f"average {challenger:.2f} is {'' if passed else 'not '}above the champion's "
        f"{champion:.2f}",
    )


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
    """None for a rollback, which compares nothing."""
    author: str
    time: str
    """ISO 8601, UTC."""
    dry_run: bool = False

    def to_dict(self) -> dict[str, object]:
        """Everything, as JSON has it, averages included."""
        tree = asdict(self)
        if self.comparison is not None:
            tree["comparison"] |= {
                "champion_average": self.comparison.champion_average,
                "challenger_average": self.comparison.challenger_average,
            }
        return tree
