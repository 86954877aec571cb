"""A comparison as it is shown, written as JSON and recorded."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from rich.table import Table

from pipelines.console import console, say
from pipelines.paper.measures import Bench, Outcome
from pipelines.paper.rows import Comparison
from pipelines.paper.runs import Scale
from simcse.figures import save_png
from simcse_platform.config import TrainRun
from simcse_platform.storage import write_atomically
from simcse_platform.sweep.execute import FinishedSweep
from simcse_platform.tracking.mlflow_tracker import log_files

_COMPARISON_FOLDER = "comparison"


def result_of(
    comparison: Comparison,
    scale: Scale,
    base: TrainRun,
    outcomes: Sequence[Outcome],
    bench: Bench,
) -> dict[str, Any]:
    """The comparison for `--json`; what is shown is made of it."""
    return {
        "name": comparison.name,
        "title": comparison.title,
        "scale": scale,
        "encoder": base.encoder.model,
        "corpus": list(base.data.corpus),
        "rows": [
            {
                "row": outcome.row.label,
                "published": dict(outcome.row.published),
                "ours": outcome.mean(),
                "deviation": outcome.deviation(),
                "seeds": len(outcome.models),
                "note": outcome.note,
                "neighbours": [
                    {
                        "query": example.query,
                        "neighbours": [found._asdict() for found in example.neighbours],
                    }
                    for example in (outcome.models[0].neighbours if outcome.models else ())
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
    how = "the paper's settings" if result["scale"] == "paper" else "scaled down, not the paper's"
    say(f"{result['title']}; ours: {how}, on {Path(result['encoder']).name or result['encoder']}")
    table = Table("row", "", *columns)
    for row in rows:
        if row["published"]:
            cells = [_cell(row["published"].get(column)) for column in columns]
            table.add_row(row["row"], "paper", *cells)
        label = "" if row["published"] else row["row"]
        cells = [_cell(row["ours"].get(c), row["deviation"].get(c)) for c in columns]
        table.add_row(label, "ours", *cells)
    if columns:
        console.print(table)
    for row in rows:
        for example in row["neighbours"]:
            say(f"{row['row']}: {example['query']}")
            for place, found in enumerate(example["neighbours"], start=1):
                say(f"  #{place} {found['cosine']:.3f} {found['sentence']}")
    reasons: dict[str, list[str]] = {}
    for row in rows:
        if row["note"]:
            reasons.setdefault(row["note"], []).append(row["row"])
    for name, why in result["missing"].items():
        reasons.setdefault(why, []).append(name)
    for reason, names in reasons.items():
        say(f"not at hand, {', '.join(names)}: {reason}")


def _cell(value: float | None, deviation: float | None = None) -> str:
    if value is None:
        return "-"
    return f"{value:.2f}" if deviation is None else f"{value:.2f} ± {deviation:.2f}"


def record(finished: FinishedSweep, result: Mapping[str, Any], drawn: Mapping[str, Figure]) -> None:
    """The comparison beside the sweep and with its MLflow run."""
    folder = finished.folder.path / _COMPARISON_FOLDER
    write_atomically(folder / f"{result['name']}.json", json.dumps(result, indent=1))
    save_png(drawn, folder)
    log_files(finished.tracking_uri, finished.run_id, folder)
    say(f"recorded in {folder} and with the MLflow run {finished.run_id}")
