"""`simcse tune`: many runs that differ in a few settings, and which of them is best on dev."""

from __future__ import annotations

import hashlib
import importlib.util
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.table import Table

from pipelines import settings, spaces
from pipelines.console import JsonFile, add_row, console, say, write_json
from pipelines.train import check_corpus, check_output, load_dev_sets
from simcse.errors import SimcseError, UsageError

if TYPE_CHECKING:
    from simcse_platform.sweep.execute import FinishedSweep
    from simcse_platform.sweep.space import Space
    from simcse_platform.sweep.sweep import SearchPlan


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
    space_name: Annotated[
        str | None,
        typer.Option(
            "--space",
            metavar="NAME",
            help="A space of the paper: batch (with learning rate) or temperature (likewise); "
            "--search adds to it.",
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
    seeds: Annotated[
        int, typer.Option(min=1, help="Runs at each point, which differ in their seed.")
    ] = 1,
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
    from simcse_platform.sweep.space import grid, parse
    from simcse_platform.sweep.sweep import SEED, SearchPlan, draw

    resolved = settings.resolve(recipe, config, corpus, data, tracking, assignments)
    named = spaces.find(space_name) if space_name else ()
    space = settings.absolute_space(parse([*named, *(search or [])], resolved.run), resolved.run)
    chosen = sampler or ("random" if trials else "grid")
    if chosen == "grid" and trials:
        raise UsageError(f"--trials {trials} draws points, and a grid takes all: leave out one")
    if chosen != "grid" and not trials:
        raise UsageError(f"--sampler {chosen} draws points: say how many by --trials")
    if chosen == "optuna" and importlib.util.find_spec("optuna") is None:
        raise UsageError(
            "--sampler optuna needs the package optuna: pip install 'simcse-platform[optuna]'"
        )
    if asha and seeds > 1:
        raise UsageError(
            f"--asha stops some of the {seeds} runs at a point, whose mean would be that of the "
            "others: leave out --asha or --seeds"
        )
    if seeds > 1 and (chosen == "optuna" or SEED in space):
        what = "optuna takes every run for a point" if chosen == "optuna" else "seed is searched"
        raise UsageError(f"--seeds {seeds} repeats each point, and {what}: leave out one")
    # A grid without end and a space with too few points are found before Ray starts.
    if chosen == "grid":
        next(grid(space))
    elif chosen == "random":
        draw(space, trials or 1, seed)
    # Not above, since MLflow comes along: what is refused without it is refused at once.
    from simcse_platform.tracking import registry

    if register is not None:
        registry.check_name(register)
    plan = SearchPlan(
        sampler=chosen,
        trials=trials,
        seeds=seeds,
        seed=seed,
        stops_early=asha,
        concurrent=concurrent,
    )
    finished = run_sweep(resolved, space, plan, name=name, output=output, address=address)
    show_sweep(finished, list(space))
    if register is not None and finished.best and finished.best.run_id:
        version = registry.register(finished.tracking_uri, register, run_id=finished.best.run_id)
        say(version.shown)
    write_json(json_file, result_of(finished))
    if finished.best is None:
        raise SimcseError("no trial finished: the table says why")


def run_sweep(
    resolved: settings.Resolved,
    space: Space,
    plan: SearchPlan,
    *,
    name: str | None,
    output: Path,
    address: str | None,
) -> FinishedSweep:
    """Run a sweep under `name`, or go on with it.

    Everything that can be refused is refused before Ray is connected.
    """
    from simcse.encoder import check_config
    from simcse_platform import runtime
    from simcse_platform.run import check_settings
    from simcse_platform.storage import RunFolder
    from simcse_platform.sweep import execute as sweeps
    from simcse_platform.tracking.location import tracking_uri

    base = resolved.run
    if not base.dev.tasks:
        raise UsageError("a sweep selects by dev scores, and dev.tasks is empty: name a set")
    check_corpus(base)
    tracking_uri(base.tracking.uri, output)
    description = sweeps.describe(base, space, plan)
    digest = hashlib.sha256(description.encode()).hexdigest()[:8]
    folder = RunFolder.of(str(output), name or f"{resolved.origin}-sweep-{digest}")
    sweeps.check_claim(folder, description)
    check_config(base.encoder)
    check_settings(base)
    dev = load_dev_sets(base)
    check_output(output)
    say("connecting to Ray")
    with runtime.connect(address) as resources:
        return sweeps.execute(base, space, plan, folder, dev.sets, resources=resources, say=say)


def show_sweep(finished: FinishedSweep, paths: Sequence[str]) -> None:
    """The trials as a table, what seeds say where there are several, and the best."""
    from simcse_platform.sweep.sweep import SEED, in_order

    repeats = any(len(repeated.trials) > 1 for repeated in finished.repeated)
    seed = [SEED] if repeats and SEED not in paths else []
    table = Table("trial", *paths, *seed, "rows", "dev score", "outcome")
    for result in in_order(finished.results):
        score = "-" if result.score is None else f"{result.score:.2f}"
        outcome = f"{result.status}: {result.reason}" if result.reason else result.status
        values = [result.assignments[path] for path in [*paths, *seed]]
        add_row(table, result.name, *values, str(result.rows), score, outcome)
    console.print(table)
    if repeats:
        others = [path for path in paths if path != SEED]
        seeds = Table(*others, "seeds", "mean", "deviation", "minimum", "maximum")
        for repeated in finished.repeated:
            spread = repeated.score
            figures = [spread.mean, spread.deviation, spread.minimum, spread.maximum]
            add_row(
                seeds,
                *(repeated.assignments[path] for path in others),
                repeated.count,
                *("-" if figure is None else f"{figure:.2f}" for figure in figures),
            )
        console.print(seeds)
    if (best := finished.best) is not None:
        folder = finished.folder.path.parent / best.name
        say(f"best by dev: {best.name}, {best.score:.2f}, in {folder}")


def result_of(finished: FinishedSweep) -> dict[str, object]:
    """The sweep for `--json`."""
    from simcse_platform.sweep.sweep import table

    return {
        "name": finished.folder.name,
        "run_id": finished.run_id,
        "trials": table(finished.results),
        "seeds": [
            {
                "assignments": dict(repeated.assignments),
                "count": len(repeated.trials),
                "begun": repeated.begun,
                "score": asdict(repeated.score),
                "scores": {name: asdict(spread) for name, spread in repeated.scores.items()},
            }
            for repeated in finished.repeated
        ],
        "best": finished.best.name if finished.best else None,
    }
