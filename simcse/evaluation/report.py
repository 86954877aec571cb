"""What an evaluation says: a dictionary for JSON, tables for a terminal and for Markdown."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from statistics import fmean
from typing import TypedDict

from simcse.evaluation.protocol import Evaluation, Scores
from simcse.evaluation.suite import STS_SUITE, TRANSFER_SUITE, Mode

Columns = list[tuple[str, str]]
"""Name and cell of each column of a table with one row."""


class EvaluationReport(TypedDict):
    """The result of `evaluate`; correlations and accuracies x 100, unrounded."""

    model: str
    mode: str
    pooling: str | None
    """Null for what is no encoder of ours."""
    tasks: dict[str, Mapping[str, object]]
    avg: float | None
    """Mean Spearman `all` of the seven STS sets; null unless all seven are scored."""
    avg_printed: float | None
    """The same as the original prints it: mean of scores with two decimals, to two decimals."""
    avg_transfer: float | None
    """Mean accuracy of the seven transfer tasks; null unless all seven are scored."""
    avg_transfer_printed: float | None
    missing: list[str]
    """Names of the sets asked for that were not there."""
    missing_reasons: dict[str, str]
    """Why, by name."""
    data_sha256: dict[str, str]
    seconds: dict[str, float]
    """For embedding all sentences, and then for scoring each set."""


def evaluation_report(
    model: str,
    mode: Mode,
    pooling: str | None,
    evaluation: Evaluation,
    missing: Mapping[str, str],
    sha256: Mapping[str, str],
) -> EvaluationReport:
    """The report of an evaluation; `missing` gives reasons by set."""
    scores = evaluation.scores
    return EvaluationReport(
        model=model,
        mode=mode,
        pooling=pooling,
        tasks={name: found.numbers for name, found in scores.items()},
        avg=average(scores, STS_SUITE),
        avg_printed=printed_average(scores, STS_SUITE),
        avg_transfer=average(scores, TRANSFER_SUITE),
        avg_transfer_printed=printed_average(scores, TRANSFER_SUITE),
        missing=list(missing),
        missing_reasons=dict(missing),
        data_sha256=dict(sha256),
        seconds=dict(evaluation.seconds),
    )


def average(scores: Mapping[str, Scores], suite: Collection[str]) -> float | None:
    """Mean headline of a whole suite, or null: no other mean compares with published ones."""
    if any(name not in scores for name in suite):
        return None
    return fmean(scores[name].headline for name in suite)


def printed_average(scores: Mapping[str, Scores], suite: Collection[str]) -> float | None:
    """`average` of scores with two decimals, to two decimals, as the original prints it."""
    if any(name not in scores for name in suite):
        return None
    return _printed(fmean(_printed(scores[name].headline) for name in suite))


def render_tables(scores: Mapping[str, Scores], missing: Mapping[str, str], mode: Mode) -> str:
    """Tables of headlines as the original prints them, and why sets are missing."""
    lines = [f"------ {mode} ------"]
    for columns in _tables(scores, missing, mode):
        widths = [max(len(name), len(cell)) for name, cell in columns]
        rule = "+" + "+".join("-" * (width + 2) for width in widths) + "+"
        head, row = (
            "|" + "|".join(f" {c:^{w}} " for c, w in zip(cells, widths, strict=True)) + "|"
            for cells in zip(*columns, strict=True)
        )
        lines += [rule, head, rule, row, rule]
    return "\n".join([*lines, *missing_lines(missing)])


def render_markdown(
    title: str, scores: Mapping[str, Scores], missing: Mapping[str, str], mode: Mode
) -> str:
    """The same tables in Markdown, under a heading."""
    blocks = [f"## {title}"]
    for columns in _tables(scores, missing, mode):
        head, row = (" | ".join(cells) for cells in zip(*columns, strict=True))
        blocks.append(f"| {head} |\n|{' ---: |' * len(columns)}\n| {row} |")
    blocks += [f"- {reason}" for reason in missing_lines(missing)]
    return "\n\n".join(blocks) + "\n"


def missing_lines(missing: Mapping[str, str]) -> list[str]:
    """A line a reason: which sets it is why they are missing."""
    by_reason: dict[str, list[str]] = {}
    for name, reason in missing.items():
        by_reason.setdefault(reason, []).append(name)
    return [
        f"{', '.join(names)} {'is' if len(names) == 1 else 'are'} missing: {reason}"
        for reason, names in by_reason.items()
    ]


def _tables(
    scores: Mapping[str, Scores], missing: Mapping[str, str], mode: Mode
) -> Iterator[Columns]:
    """One table for STS, one for transfer, one for all else; each only if any of it was asked."""
    asked = dict.fromkeys([*scores, *missing])
    cells = {name: _cell(scores[name].headline if name in scores else None) for name in asked}
    for suite in (STS_SUITE, TRANSFER_SUITE):
        columns = [(name, cells.pop(name)) for name in suite if name in cells]
        # Only two STS sets have a dev split: there is no average, in the original neither.
        if columns and (suite is TRANSFER_SUITE or mode != "dev"):
            columns.append(("Avg.", _cell(printed_average(scores, suite))))
        if columns:
            yield columns
    if cells:
        yield list(cells.items())


def _cell(score: float | None) -> str:
    return "-" if score is None else f"{score:.2f}"


def _printed(score: float) -> float:
    return float(f"{score:.2f}")
