"""`simcse report`: one page about a run, a sweep or a model, for a reader who has nothing else."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pipelines import settings
from pipelines.console import JsonFile, may_be_written, say, write_json, write_text
from simcse.errors import UsageError

if TYPE_CHECKING:
    from pipelines.reporting.gathering import ModelReport, Record, Report, RunReport, Target

PAGE = "report.html"


def report(
    target: Annotated[
        str,
        typer.Argument(
            metavar="TARGET",
            help="Name of a run or sweep in --output, model folder, or models:/NAME@alias.",
        ),
    ],
    tasks: Annotated[
        str | None,
        typer.Option(
            metavar="NAMES",
            help="Test sets, as `evaluate` has them; default: sts for a model, and the dev sets "
            "of a run.",
        ),
    ] = None,
    data: settings.Data = None,
    html: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            callback=may_be_written,
            help="The page; default: report.html in the run's folder, or here for a model.",
        ),
    ] = None,
    output: settings.Output = Path("runs"),
    tracking: settings.TrackingUri = None,
    json_file: JsonFile = None,
) -> None:
    """Write one HTML page: scores beside the paper's, curves, figures, neighbours, lineage.

    It needs no network to be read, and is an artifact of the MLflow run as well.
    """
    from pipelines.reporting import gathering, page, sections
    from simcse.evaluation import missing_lines
    from simcse_platform.storage import check_writable

    if html is not None and json_file is not None and html.absolute() == json_file.absolute():
        raise UsageError(f"--json and --html both name {html}: name two files")
    found = gathering.find(target, output, tracking)
    file = html or _default_file(found)
    check_writable(file.absolute().parent)
    chosen = None if tasks is None else [*map(settings.evaluation_task, settings.names(tasks))]
    wanted = gathering.Wanted(chosen, data, tracking)
    gathered = gathering.gather(found, wanted, output)
    written = f"Written by simcse report on {datetime.now(UTC):%Y-%m-%d at %H:%M} UTC."
    text = page.render(sections.page_of(gathered, written=written))
    write_text(file, text, option="--html")
    say(f"report: {file}")
    about = _scored(gathered)
    for line in missing_lines(about.scored.missing) if about else ():
        say(line)
    logged = _log(gathered.record, text, _artifact(gathered))
    write_json(json_file, _result(found, gathered, file, logged=logged))


def _default_file(found: Target) -> Path:
    return Path(PAGE) if found.kind == "model" else found.folder / PAGE


def _artifact(gathered: Report) -> str:
    """A version's page lies beside that of the run which trained it, not in its place."""
    from pipelines.reporting.gathering import ModelReport

    if isinstance(gathered, ModelReport) and (stands := gathered.standing):
        return f"report-{stands.name}-{stands.version}.html"
    return PAGE


def _log(record: Record, text: str, name: str) -> bool:
    """The page as an artifact of the run, if there is one that the server has."""
    from simcse_platform.errors import TrackingError
    from simcse_platform.tracking.mlflow_tracker import log_text

    if record.run_id is None:
        return False
    if record.unread:
        say(f"no curves and no artifact: {record.unread}")
        return False
    try:
        log_text(record.uri, record.run_id, text, name)
    except TrackingError as error:
        say(f"no artifact: {error}")
        return False
    say(f"artifact {name} of MLflow run {record.run_id}")
    return True


def _scored(gathered: Report) -> RunReport | ModelReport | None:
    """What was scored for the page: of a sweep its best run, if there is one."""
    from pipelines.reporting.gathering import SweepReport

    return gathered.best if isinstance(gathered, SweepReport) else gathered


def _result(found: Target, gathered: Report, file: Path, *, logged: bool) -> dict[str, Any]:
    """The report for `--json`."""
    from pipelines.reporting.gathering import SweepReport
    from simcse.evaluation import evaluation_report

    about = _scored(gathered)
    return {
        "target": found.name,
        "kind": found.kind,
        "html": str(file.absolute()),
        "run_id": gathered.record.run_id,
        "logged": logged,
        "best": about.name if isinstance(gathered, SweepReport) and about else None,
        "scores": about
        and evaluation_report(
            about.name,
            about.scored.mode,
            about.scored.pooling,
            about.scored.evaluation,
            about.scored.missing,
            about.scored.data_sha256,
        ),
        "neighbours": [example.as_json() for example in (about.scored.examples if about else ())],
    }
