"""The space of a sweep: which settings vary, and over what. Ray is not needed for it.

Values are kept as the text that `--set` would take, so that a trial is a run and nothing more.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Literal, get_args

from simcse.errors import UsageError
from simcse_platform.config import TrainRun, override

Assignments = Mapping[str, str]
"""Setting to value, both as `--set` has them."""

_RANGE = re.compile(r"(?P<kind>[a-z]+)\((?P<low>[^,()]+),(?P<high>[^,()]+)\)")
_NOT_SWEPT = ("scale", "memory", "tracking", "checkpoint")
"""Sections that decide where and how fast a run is, and how it is recorded."""
_DEV_SETS = ("dev.tasks", "dev.data")


MOST_POINTS = 10_000
"""Of a grid: each is a training run."""
Kind = Literal["uniform", "loguniform", "integer"]


@dataclass(frozen=True, slots=True)
class Choice:
    """One of some values."""

    values: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Range:
    """A number between two bounds: even, even in its logarithm, or whole with both bounds in."""

    kind: Kind
    low: float
    high: float


Dimension = Choice | Range
Space = Mapping[str, Dimension]


def parse(searches: Sequence[str], base: TrainRun) -> dict[str, Dimension]:
    """The space that `--search` options span, each `a.b=V,V,V` or `a.b=loguniform(LOW,HIGH)`.

    Raises `UsageError` for what is no such text, a setting that cannot be swept, and a value or
    bound that the setting cannot have.
    """
    space: dict[str, Dimension] = {}
    for search in searches:
        path, equals, text = (part.strip() for part in search.partition("="))
        if not (path and equals and text):
            raise UsageError(
                f"{search!r} spans no space: write section.field=value,value or "
                "section.field=loguniform(low,high)"
            )
        if path in space:
            raise UsageError(f"{path} is searched twice: put all its values into one --search")
        if path.partition(".")[0] in _NOT_SWEPT:
            raise UsageError(
                f"{path} changes how a run is carried out, not what it learns: set it by --set"
            )
        if path in _DEV_SETS:
            raise UsageError(
                f"{path} is what all trials are compared on: set it by --set, for all of them"
            )
        dimension = _range(path, text) or _choice(path, text)
        for value in _extremes(dimension):
            override(base, [f"{path}={value}"])
        space[path] = dimension
    if not space:
        raise UsageError(
            "a sweep needs something to search: give --search section.field=values, or --space NAME"
        )
    return space


def grid(space: Space) -> Iterator[dict[str, str]]:
    """Every combination. Raises `UsageError` for a range, which has no end, and for too many."""
    for path, dimension in space.items():
        if isinstance(dimension, Range):
            raise UsageError(
                f"{path} has a range, of which a grid would have no end: list values, or draw "
                "--trials N"
            )
    choices = [dimension.values for dimension in space.values() if isinstance(dimension, Choice)]
    if (points := math.prod(map(len, choices))) > MOST_POINTS:
        raise UsageError(
            f"the grid has {points:,} points, and may have {MOST_POINTS:,}: search fewer values, "
            "or draw --trials N"
        )
    for values in product(*choices):
        yield dict(zip(space, values, strict=True))


def trial_name(sweep: str, assignments: Assignments) -> str:
    """Name of the run of a trial: the same settings have the same name, in any order."""
    text = "\n".join(f"{path}={value}" for path, value in sorted(assignments.items()))
    return f"{sweep}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def trial_run(base: TrainRun, assignments: Assignments) -> TrainRun:
    """The run of a trial. Raises `UsageError` for settings that do not go together."""
    return override(base, [f"{path}={value}" for path, value in assignments.items()])


def _range(path: str, text: str) -> Range | None:
    match = _RANGE.fullmatch(text.replace(" ", ""))
    if match is None:
        return None
    kind = next((kind for kind in get_args(Kind) if kind == match["kind"]), None)
    if kind is None:
        raise UsageError(
            f"{path}={text}: there is no {match['kind']}, write uniform, loguniform or integer"
        )
    try:
        low, high = float(match["low"]), float(match["high"])
    except ValueError:
        raise UsageError(f"{path}={text}: the bounds must be numbers") from None
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise UsageError(f"{path}={text}: the lower bound must be below the upper one")
    if kind == "loguniform" and low <= 0:
        raise UsageError(f"{path}={text}: a logarithm needs bounds above 0")
    if kind == "integer" and not (low.is_integer() and high.is_integer()):
        raise UsageError(f"{path}={text}: the bounds must be whole numbers")
    if kind == "integer" and max(-low, high) >= 2**63:
        raise UsageError(f"{path}={text}: the bounds must be within 64 bits")
    return Range(kind, low, high)


def _choice(path: str, text: str) -> Choice:
    values = tuple(value.strip() for value in _split(text))
    if not all(values) or len(set(values)) < len(values):
        raise UsageError(f"{path}={text}: give each value once, none of them empty")
    return Choice(values)


def _split(text: str) -> list[str]:
    """At commas outside brackets, so that a value may be a list."""
    parts, depth = [""], 0
    for character in text:
        depth += (character in "[({") - (character in "])}")
        if character == "," and not depth:
            parts.append("")
        else:
            parts[-1] += character
    return parts


def _extremes(dimension: Dimension) -> Sequence[str]:
    if isinstance(dimension, Choice):
        return dimension.values
    return [as_text(dimension, dimension.low), as_text(dimension, dimension.high)]


def as_text(dimension: Range, value: float) -> str:
    """A number drawn from a range, as `--set` takes it."""
    return str(round(value)) if dimension.kind == "integer" else repr(float(value))
