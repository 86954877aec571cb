"""`simcse register`, `promote` and `rollback`: models under a name, and which one is in use."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pipelines import embedders, evaluate, settings
from pipelines.console import JsonFile, say, write_json
from simcse.errors import UsageError

if TYPE_CHECKING:
    from simcse.evaluation import EvaluationSet
    from simcse_platform.tracking.promotion import Comparison, Decision

Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the registered model.")]
Experiment = Annotated[
    str, typer.Option(metavar="NAME", help="MLflow experiment of a model without a run.")
]

_RUN_ID = re.compile(r"[0-9a-f]{32}")


def register(
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="Model folder, run name or MLflow run id.")
    ],
    name: Name,
    output: settings.Output = Path("runs"),
    tracking: settings.TrackingUri = None,
    experiment: Experiment = "simcse",
    json_file: JsonFile = None,
) -> None:
    """Register a trained model; it becomes the challenger of NAME."""
    from simcse_platform.tracking import registry
    from simcse_platform.tracking.location import tracking_uri

    uri = tracking_uri(tracking, output)
    if _RUN_ID.fullmatch(model):
        version = registry.register(uri, name, run_id=model)
    elif (run_id := _run_of(output / model)) is not None:
        version = registry.register(uri, name, run_id=run_id)
    elif Path(model).expanduser().is_dir():
        folder = Path(model).expanduser().absolute()
        version = registry.register_folder(uri, name, folder, experiment=experiment)
    else:
        raise UsageError(
            f"{model!r} is no model folder, no finished run in {output} and no MLflow run id: "
            "check the path"
        )
    say(f"registered {version.uri} with the alias {version.alias}")
    write_json(json_file, asdict(version))


def promote(
    name: Name,
    version: Annotated[
        str | None, typer.Option(metavar="N", help="Version to promote; default: the challenger.")
    ] = None,
    tasks: evaluate.Tasks = "sts",
    data: settings.Data = None,
    output: settings.Output = Path("runs"),
    tracking: settings.TrackingUri = None,
    dry_run: Annotated[
        bool, typer.Option(help="Show the decision without carrying it out.")
    ] = False,
    json_file: JsonFile = None,
) -> None:
    """Make a version the champion if its average on the test sets is above the champion's."""
    from pipelines import evaluation_sets
    from simcse_platform.tracking import registry
    from simcse_platform.tracking.location import tracking_uri

    loaded = evaluation_sets.load_all(
        settings.names(tasks),
        data=settings.evaluation_data(data),
        mode="test",
        purpose="a promotion compares on every set of --tasks",
    )
    decision = registry.promote(
        tracking_uri(tracking, output),
        name,
        compare=comparison(loaded.sets, loaded.sha256),
        cache=output / ".models",
        version=version,
        dry_run=dry_run,
    )
    report_decision(decision, json_file)


def rollback(
    name: Name,
    output: settings.Output = Path("runs"),
    tracking: settings.TrackingUri = None,
    json_file: JsonFile = None,
) -> None:
    """Make the previous champion the champion again."""
    from simcse_platform.tracking import registry
    from simcse_platform.tracking.location import tracking_uri

    report_decision(registry.rollback(tracking_uri(tracking, output), name), json_file)


def report_decision(decision: Decision, json_file: Path | None) -> None:
    """Show a decision; one that refuses a promotion ends the command with exit code 1."""
    outcome = "champion" if decision.promoted else "not promoted"
    would = " (dry run, nothing was changed)" if decision.dry_run else ""
    say(f"version {decision.version} of {decision.name}: {outcome}, {decision.reason}{would}")
    write_json(json_file, decision.to_dict())
    if not decision.promoted:
        raise typer.Exit(1)


def comparison(
    sets: Sequence[EvaluationSet], sha256: Mapping[str, str]
) -> Callable[[Path | None, Path], Comparison]:
    """Scores two model folders on the same sets, each by its own pooling."""

    def compare(champion: Path | None, challenger: Path) -> Comparison:
        from simcse_platform.tracking.promotion import Comparison

        def headlines(folder: Path, label: str) -> dict[str, float]:
            found = evaluate.score(embedders.load_folder(folder), sets, label=label)
            return {name: scores.headline for name, scores in found.scores.items()}

        return Comparison(
            champion=None if champion is None else headlines(champion, "champion"),
            challenger=headlines(challenger, "challenger"),
            data_sha256=sha256,
        )

    return compare


def _run_of(folder: Path) -> str | None:
    """The MLflow run id of a finished run in `folder`, if there is one."""
    import json

    from simcse_platform.run import SUMMARY_FILE

    summary = folder / SUMMARY_FILE
    if not summary.is_file():
        return None
    return str(json.loads(summary.read_text(encoding="utf-8"))["run_id"])
