"""A comparison as it is shown, written as JSON and recorded."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from rich.table import Table

from pipelines.console import add_row, console, say
from pipelines.paper.measures import Bench, Outcome
from pipelines.paper.rows import Comparison
from pipelines.paper.runs import Scale
from pipelines.paper.texts import GivenTexts
from simcse.errors import UsageError
from simcse.evaluation import missing_lines
from simcse.figures import save_png
from simcse_platform.config import TrainRun
from simcse_platform.storage import RunFolder, write_atomically
from simcse_platform.sweep.execute import FinishedSweep
from simcse_platform.sweep.trial import TRACKING_PATIENCE_S
from simcse_platform.tracking.mlflow_session import check_server
from simcse_platform.tracking.mlflow_tracker import log_files

_COMPARISON = "comparison"


def result_of(
    comparison: Comparison,
    scale: Scale,
    user: TrainRun,
    assignments: Sequence[str],
    given: GivenTexts,
    outcomes: Sequence[Outcome],
    bench: Bench,
) -> dict[str, Any]:
    """The comparison for `--json`; what is shown is made of it."""
    return {
        "name": comparison.name,
        "title": comparison.title,
        "scale": scale,
        "encoder": user.encoder.model,
        "settings": list(assignments),
        "texts": {"sentences": list(user.data.corpus), **asdict(given)},
        "rows": [
            {
                "row": outcome.row.label,
                "published": dict(outcome.row.published),
                "ours": outcome.mean(),
                "deviation": outcome.deviation(),
                "seeds": len(outcome.found),
                "runs": list(outcome.runs),
                "note": "; ".join(filter(None, (outcome.note, outcome.row.remark))),
                "failure": outcome.failure,
                "neighbours": [
                    example.as_json()
                    for example in (outcome.found[0].neighbours if outcome.found else ())
                ],
            }
            for outcome in outcomes
        ],
        "missing": bench.missing,
        "data_sha256": bench.data_sha256,
    }


def show(result: Mapping[str, Any]) -> None:
    """The paper's numbers above ours, row by row, and what is not at hand."""
    rows = result["rows"]
    columns = list(dict.fromkeys(c for row in rows for c in (*row["published"], *row["ours"])))
    say(f"{result['title']}; ours: {_settings(result)}")
    table = Table("row", "", *columns)
    for row in rows:
        if row["published"]:
            cells = [_cell(row["published"].get(column)) for column in columns]
            add_row(table, row["row"], "paper", *cells)
        label = "" if row["published"] else row["row"]
        cells = [_cell(row["ours"].get(c), row["deviation"].get(c)) for c in columns]
        add_row(table, label, "ours", *cells)
    if columns:
        console.print(table)
    for row in rows:
        for example in row["neighbours"]:
            say(f"{row['row']}: {example['query']}")
            for place, found in enumerate(example["neighbours"], start=1):
                say(f"  #{place} {found['cosine']:.3f} {found['sentence']}")
    for line in missing_lines(result["missing"]):
        say(line)
    for kind in ("note", "failure"):
        labels: dict[str, list[str]] = {}
        for row in rows:
            if row[kind]:
                labels.setdefault(row[kind], []).append(row["row"])
        for reason, names in labels.items():
            say(f"{'failed: ' if kind == 'failure' else ''}{'; '.join(names)}: {reason}")


def _settings(result: Mapping[str, Any]) -> str:
    """By which settings, on which encoder."""
    how = "the paper's settings" if result["scale"] == "paper" else "scaled down, not the paper's"
    but = f", and {', '.join(result['settings'])}" if result["settings"] else ""
    encoder = Path(result["encoder"])
    # The name of a folder may be no more than `model`.
    name = "/".join(encoder.parts[-2:]) if encoder.is_absolute() else result["encoder"]
    return f"{how}{but}, on {name}"


def _cell(value: float | None, deviation: float | None = None) -> str:
    if value is None:
        return "-"
    return f"{value:.2f}" if deviation is None else f"{value:.2f} ± {deviation:.2f}"


def folder_without_sweep(output: Path, name: str) -> RunFolder:
    """Where a comparison lies for which nothing is trained.

    Raises `UsageError` when something else lies there.
    """
    folder = RunFolder.of(str(output), name)
    if folder.path.exists() and {entry.name for entry in folder.path.iterdir()} - {_COMPARISON}:
        raise UsageError(
            f"{folder.path} exists and holds more than a comparison: choose another --name"
        )
    return folder


def record(
    folder: RunFolder,
    result: Mapping[str, Any],
    drawn: Mapping[str, Figure],
    finished: FinishedSweep | None,
) -> None:
    """The comparison in its folder and, where there was a sweep, with its MLflow run.

    Raises `TrackingError`.
    """
    comparison = folder.path / _COMPARISON
    write_atomically(comparison / f"{result['name']}.json", json.dumps(result, indent=1))
    save_png(drawn, comparison)
    if finished is None:
        say(f"recorded in {comparison}")
        return
    check_server(finished.tracking_uri, patience_s=TRACKING_PATIENCE_S)
    log_files(finished.tracking_uri, finished.run_id, comparison)
    say(f"recorded in {comparison} and with the MLflow run {finished.run_id}")
