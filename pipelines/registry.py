"""`simcse register`, `promote`, `rollback`, `history`: models under a name, and which is in use."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Column, Table

from pipelines import embedders, evaluate, settings
from pipelines.console import JsonFile, add_row, console, say, write_json
from simcse.errors import UsageError

if TYPE_CHECKING:
    from simcse.evaluation import LoadedSets, Scores
    from simcse_platform.tracking.promotion import (
        Comparison,
        Decision,
        Measured,
        PromotionPolicy,
    )

Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the registered model.")]
Experiment = Annotated[
    str, typer.Option(metavar="NAME", help="MLflow experiment of a model without a run.")
]

_MODELS = "models:/"
_RUN_ID = re.compile(r"[0-9a-f]{32}")


def register(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL", help="Model folder, run name, MLflow run id, or models:/NAME@alias."
        ),
    ],
    name: Name,
    source: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="URI",
            help="MLflow server of models:/NAME@alias; default: that of --tracking.",
        ),
    ] = None,
    output: settings.Output = Path("runs"),
    tracking: settings.TrackingUri = None,
    experiment: Experiment = "simcse",
    json_file: JsonFile = None,
) -> None:
    """Register a trained model; it becomes the challenger of NAME."""
    from simcse_platform.tracking import registry
    from simcse_platform.tracking.location import tracking_uri

    uri = tracking_uri(tracking, output)
    if source is not None and not model.startswith(_MODELS):
        raise UsageError(
            f"--from {source} is for models:/NAME@alias, not for {model}: leave it out"
        )
    if model.startswith(_MODELS):
        version = registry.copy_version(
            tracking_uri(source or tracking, output),
            model,
            uri,
            name,
            cache=output / ".models",
            experiment=experiment,
        )
    elif _RUN_ID.fullmatch(model):
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
    say(version.shown)
    write_json(json_file, asdict(version))


def promote(
    name: Name,
    version: Annotated[
        str | None, typer.Option(metavar="N", help="Version to promote; default: the challenger.")
    ] = None,
    tasks: evaluate.Tasks = "sts",
    policy: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="YAML with what a challenger must show; see README."),
    ] = None,
    data: settings.Data = None,
    output: settings.Output = Path("runs"),
    tracking: settings.TrackingUri = None,
    dry_run: Annotated[
        bool, typer.Option(help="Show the decision without carrying it out.")
    ] = False,
    json_file: JsonFile = None,
) -> None:
    """Make a version the champion if it is better on the test sets by more than chance."""
    from pipelines import evaluation_sets
    from simcse_platform.tracking import champions
    from simcse_platform.tracking.location import tracking_uri

    rules = read_policy(policy)
    folder = settings.evaluation_data(data)
    loaded = evaluation_sets.load_all(
        settings.names(tasks),
        data=folder,
        mode="test",
        purpose="a promotion compares on every set of --tasks",
    )
    rules.check([found.name for found in loaded.sets])
    if rules.highest_uniformity is not None:
        evaluation_sets.add_geometry(loaded, data=folder, purpose="--policy limits uniformity")
    decision = champions.promote(
        tracking_uri(tracking, output),
        name,
        compare=comparison(loaded, rules, kept=output / ".scores"),
        cache=output / ".models",
        policy=rules,
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
    from simcse_platform.tracking import champions
    from simcse_platform.tracking.location import tracking_uri

    report_decision(champions.rollback(tracking_uri(tracking, output), name), json_file)


def history(
    name: Name,
    output: settings.Output = Path("runs"),
    tracking: settings.TrackingUri = None,
    json_file: JsonFile = None,
) -> None:
    """Show every decision about NAME, promotions made and refused, and rollbacks."""
    from simcse_platform.tracking import champions
    from simcse_platform.tracking.location import tracking_uri

    decisions = champions.history(tracking_uri(tracking, output), name)
    table = Table(
        Column("time (UTC)", no_wrap=True),
        "action",
        "version",
        "champion before",
        "author",
        "outcome",
        "reason",
    )
    for past in decisions:
        before = past["champion_before"] or "-"
        add_row(
            table,
            past["time"][:16].replace("T", " "),
            past["action"],
            past["version"],
            before,
            past["author"],
            champions.outcome(past),
            past["reason"],
        )
    console.print(table)
    write_json(json_file, {"name": name, "decisions": decisions})


def report_decision(decision: Decision, json_file: Path | None) -> None:
    """Show a decision; one that refuses a promotion ends the command with exit code 1."""
    outcome = "champion" if decision.promoted else "not promoted"
    would = " (dry run, nothing was changed)" if decision.dry_run else ""
    say(f"version {decision.version} of {decision.name}: {outcome}, {decision.reason}{would}")
    write_json(json_file, decision.to_dict())
    if not decision.promoted:
        raise typer.Exit(1)


def comparison(
    loaded: LoadedSets, policy: PromotionPolicy, *, kept: Path
) -> Callable[[Path | None, Path], Comparison]:
    """Scores two model folders on the same sets, each by its own pooling.

    Scores are kept in a folder, by model and data, and taken from there the next time.
    """

    def compare(champion: Path | None, challenger: Path) -> Comparison:
        from simcse_platform.tracking.promotion import Comparison

        return Comparison(
            champion=None if champion is None else measure(champion, "champion"),
            challenger=measure(challenger, "challenger"),
            data_sha256=loaded.sha256,
        )

    def measure(folder: Path, label: str) -> Measured:
        from simcse_platform.score_cache import ScoreCache

        cache = ScoreCache(kept, model=folder, sets=loaded.sets, data_sha256=loaded.sha256)
        scores: Mapping[str, Scores] | None = cache.read()
        if scores is None:
            scores = evaluate.score(embedders.load_folder(folder), loaded.sets, label=label).scores
            try:
                cache.write(scores)
            except OSError as error:
                say(f"the scores are not kept for the next time: {error}")
        else:
            say(f"{label}: scored before on this data")
        latency = None
        if policy.highest_latency_ms is not None:
            latency = evaluate.latency_ms(embedders.load_folder(folder), loaded.sets)
        return measured(scores, latency_ms=latency)

    return compare


def measured(scores: Mapping[str, Scores], *, latency_ms: float | None = None) -> Measured:
    """Scores as a promotion sees them: uniformity is a limit and no headline."""
    from simcse.evaluation.suite import GEOMETRY
    from simcse_platform.tracking.promotion import Measured

    ranking = {name: found for name, found in scores.items() if found.sample is not None}
    return Measured(
        headlines={name: found.headline for name, found in ranking.items()},
        samples={name: found.sample for name, found in ranking.items() if found.sample},
        uniformity=scores[GEOMETRY].headline if GEOMETRY in scores else None,
        latency_ms=latency_ms,
    )


def read_policy(path: Path | None) -> PromotionPolicy:
    """The policy of a YAML file, or the default one. Raises `UsageError` with one line."""
    from simcse_platform.config import read_settings
    from simcse_platform.tracking.promotion import PromotionPolicy

    return PromotionPolicy() if path is None else read_settings(PromotionPolicy, path)


def _run_of(folder: Path) -> str | None:
    """The MLflow run id of a finished run in `folder`, if there is one."""
    import json

    from simcse_platform.run import SUMMARY_FILE

    summary = folder / SUMMARY_FILE
    if not summary.is_file():
        return None
    try:
        run_id = json.loads(summary.read_text(encoding="utf-8"))["run_id"]
        if not isinstance(run_id, str):
            raise ValueError
    except (ValueError, LookupError, TypeError):
        raise UsageError(
            f"{summary} is damaged: register the folder {folder / 'best'} instead"
        ) from None
    return run_id
