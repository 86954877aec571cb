"""`simcse tune`: many runs that differ in a few settings, and which of them is best on dev."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.table import Table

from pipelines import settings
from pipelines.console import JsonFile, console, say, write_json
from simcse.errors import SimcseError, UsageError

if TYPE_CHECKING:
    from simcse_platform.sweep.execute import FinishedSweep
    from simcse_platform.sweep.sweep import TrialResult


def tune(
    recipe: settings.Recipe = None,
    config: settings.Config = None,
    corpus: settings.Corpus = None,
    data: settings.Data = None,
    assignments: settings.Assignments = None,
    search: Annotated[
        list[str] | None,
        typer.Option(
            metavar="A.B=VALUES",
            help="What is searched: values separated by commas, or uniform(LOW,HIGH), "
            "loguniform(LOW,HIGH), integer(LOW,HIGH); may be repeated.",
        ),
    ] = None,
    sampler: Annotated[
        Literal["grid", "random", "optuna"] | None,
        typer.Option(help="How points are chosen; default: grid without --trials, else random."),
    ] = None,
    trials: Annotated[
        int | None, typer.Option(min=1, help="Points that are drawn; a grid takes all.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of the draws.")] = 0,
    asha: Annotated[
        bool,
        typer.Option("--asha", help="Stop trials that are behind others at as many rows (ASHA)."),
    ] = False,
    concurrent: Annotated[
        int | None,
        typer.Option(min=1, help="Trials at a time; default: as many as the cluster holds."),
    ] = None,
    name: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Name of the sweep; an unfinished one of it goes on."),
    ] = None,
    register: Annotated[
        str | None,
        typer.Option(metavar="MODEL", help="Register the best model as the challenger of MODEL."),
    ] = None,
    output: settings.Output = Path("runs"),
    tracking: settings.TrackingUri = None,
    address: settings.Address = None,
    json_file: JsonFile = None,
) -> None:
    """Search settings: train a run at each point and select by the dev score.

    The same command goes on where an interrupted sweep stopped.
    """
    from pipelines import evaluation_sets
    from simcse.encoder import check_config
    from simcse_platform import runtime
    from simcse_platform.run import check_settings
    from simcse_platform.storage import RunFolder, check_writable
    from simcse_platform.sweep import execute as sweeps
    from simcse_platform.sweep.space import grid, parse
    from simcse_platform.sweep.sweep import SearchPlan, draw
    from simcse_platform.tracking import registry

    resolved = settings.resolve(recipe, config, corpus, data, tracking, assignments)
    base = resolved.run
    space = parse(search or [], base)
    chosen = sampler or ("random" if trials else "grid")
    if chosen == "grid" and trials:
        raise UsageError(f"--trials {trials} draws points, and a grid takes all: leave out one")
    if chosen != "grid" and not trials:
        raise UsageError(f"--sampler {chosen} draws points: say how many by --trials")
    plan = SearchPlan(
        sampler=chosen, trials=trials, seed=seed, stops_early=asha, concurrent=concurrent
    )
    # A grid without end and a space with too few points are found before Ray starts.
    if chosen == "grid":
        list(grid(space))
    elif chosen == "random":
        draw(space, trials or 1, seed)
    if not base.dev.tasks:
        raise UsageError("a sweep selects by dev scores, and dev.tasks is empty: name a set")
    if not base.data.corpus:
        raise UsageError("there is nothing to train on: give --corpus PATH or set data.corpus")
    description = sweeps.describe(base, space, plan)
    digest = hashlib.sha256(description.encode()).hexdigest()[:8]
    folder = RunFolder.of(str(output), name or f"{resolved.origin}-sweep-{digest}")
    sweeps.check_claim(folder, description)
    check_config(base.encoder)
    check_settings(base)
    dev = evaluation_sets.load_all(
        base.dev.tasks,
        data=Path(base.dev.data) if base.dev.data else None,
        mode="dev",
        purpose="dev.tasks names it",
    )
    check_writable(folder.path.parent)
    say("connecting to Ray")
    with runtime.connect(address) as resources:
        finished = sweeps.execute(base, space, plan, folder, dev.sets, resources=resources, say=say)
    _show(finished.results, list(space))
    best = finished.best
    version = None
    if best is not None:
        say(f"best by dev: {best.name}, {best.score:.2f}, in {folder.path.parent / best.name}")
        if register and best.run_id:
            version = registry.register(finished.tracking_uri, register, run_id=best.run_id)
            say(f"registered {version.uri} with the alias {version.alias}")
    write_json(json_file, _result(finished))
    if best is None:
        raise SimcseError("no trial finished: the table says why")


def _show(results: Sequence[TrialResult], paths: Sequence[str]) -> None:
    table = Table("trial", *paths, "rows", "dev score", "outcome")
    for result in sorted(results, key=lambda result: -(result.score or 0)):
        score = "-" if result.score is None else f"{result.score:.2f}"
        outcome = f"{result.status}: {result.reason}" if result.reason else result.status
        values = [result.assignments[path] for path in paths]
        table.add_row(result.name, *values, str(result.rows), score, outcome)
    console.print(table)


def _result(finished: FinishedSweep) -> dict[str, object]:
    from simcse_platform.sweep.sweep import table

    return {
        "name": finished.folder.name,
        "run_id": finished.run_id,
        "trials": table(finished.results),
        "best": None if finished.best is None else finished.best.name,
    }
