"""What an evaluation says: a dictionary for JSON, a table for a terminal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypedDict

from simcse.evaluation.protocol import Scores
from simcse.evaluation.suite import STS_SUITE


class EvaluationReport(TypedDict):
    """The result of `evaluate`; correlations x 100, unrounded."""

    model: str
    mode: str
    pooling: str
    tasks: dict[str, Mapping[str, object]]
    avg: float | None
    """Mean Spearman `all` of the seven STS sets; null unless all seven are scored."""
    missing: list[str]
    """Names of the sets asked for that were not there."""
    missing_reasons: dict[str, str]
    """Why, by name."""
    data_sha256: dict[str, str]


def evaluation_report(
    model: str,
    mode: str,
    pooling: str,
    results: Mapping[str, Scores],
    missing: Mapping[str, str],
    sha256: Mapping[str, str],
) -> EvaluationReport:
    """The report of `results` by set; `missing` gives reasons by set."""
    return EvaluationReport(
        model=model,
        mode=mode,
        pooling=pooling,
        tasks={name: scores.numbers for name, scores in results.items()},
        avg=average(results),
        missing=list(missing),
        missing_reasons=dict(missing),
        data_sha256=dict(sha256),
    )


def average(results: Mapping[str, Scores]) -> float | None:
    """Mean headline of the seven STS sets, or null: no other mean compares with published ones."""
    if not STS_SUITE.keys() <= results.keys():
        return None
    return sum(results[name].headline for name in STS_SUITE) / len(STS_SUITE)


def render_table(results: Mapping[str, Scores], missing: Mapping[str, str]) -> str:
    """Headlines side by side with two decimals, as the original prints them, and why some lack."""
    cells = {name: f"{scores.headline:.2f}" for name, scores in results.items()}
    cells |= dict.fromkeys(missing, "-")
    order = [*STS_SUITE, *(name for name in cells if name not in STS_SUITE)]
    columns = [(name, cells[name]) for name in order if name in cells]
    mean = average(results)
    columns.append(("Avg.", "-" if mean is None else f"{mean:.2f}"))
    widths = [max(len(name), len(cell)) for name, cell in columns]
    rule = "+" + "+".join("-" * (width + 2) for width in widths) + "+"
    rows = [
        "|" + "|".join(f" {c:^{w}} " for c, w in zip(row, widths, strict=True)) + "|"
        for row in zip(*columns, strict=True)
    ]
    reasons = [f"{name} is missing: {reason}" for name, reason in missing.items()]
    return "\n".join([rule, rows[0], rule, rows[1], rule, *reasons])
