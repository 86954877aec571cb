"""`simcse train`: a run from its settings to a best model and a record of how it came about."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pipelines import settings
from pipelines.console import JsonFile, progress_bar, say, write_json
from simcse.errors import SimcseError, UsageError

if TYPE_CHECKING:
    from simcse.evaluation import LoadedSets
    from simcse_platform.config import TrainRun
    from simcse_platform.run import FinishedRun
    from simcse_platform.training.supervision import Show


def train(
    recipe: settings.Recipe = None,
    config: settings.Config = None,
    corpus: settings.Corpus = None,
    data: settings.Data = None,
    assignments: settings.Assignments = None,
    name: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Name of the run; an unfinished run of it goes on."),
    ] = None,
    seeds: Annotated[
        int,
        typer.Option(min=1, help="Repeat the run with so many seeds, and say how they differ."),
    ] = 1,
    fresh: Annotated[bool, typer.Option(help="Refuse to go on with a run that exists.")] = False,
    output: settings.Output = Path("runs"),
    tracking: settings.TrackingUri = None,
    address: settings.Address = None,
    dry_run: Annotated[
        bool, typer.Option(help="Print all settings and stop; files are not looked at.")
    ] = False,
    json_file: JsonFile = None,
) -> None:
    """Train a sentence encoder.

    The same command goes on where an interrupted one stopped.
    """
    from simcse_platform.config import to_yaml

    resolved = settings.resolve(recipe, config, corpus, data, tracking, assignments)
    if dry_run:
        say(to_yaml(resolved.run).rstrip())
        return
    if seeds > 1:
        if fresh:
            raise UsageError("--fresh is for one run, and --seeds makes several: leave out one")
        _repeat(resolved, seeds, name, output, address, json_file)
        return
    finished = execute(
        resolved.run,
        name=name or default_name(resolved),
        output=output,
        fresh=fresh,
        address=address,
    )
    say_result(finished)
    write_json(json_file, finished.summary)


def execute(
    run: TrainRun,
    *,
    name: str,
    output: Path,
    fresh: bool = False,
    address: str | None = None,
) -> FinishedRun:
    """Train `run` under `name` in `output`, or go on with it, and record it.

    Everything that can be refused is refused before Ray is connected.
    """
    from simcse.encoder import check_config
    from simcse_platform import run as recorded
    from simcse_platform import runtime
    from simcse_platform.storage import RunFolder

    check_corpus(run)
    folder = RunFolder.of(str(output), name)
    recorded.check_claim(folder, run, fresh=fresh)
    check_config(run.encoder)
    if not (folder.path / recorded.SUMMARY_FILE).exists():
        recorded.check_settings(run)
    dev = load_dev_sets(run)
    check_output(output)
    say("connecting to Ray")
    with runtime.connect(address) as resources:
        return recorded.execute(
            run,
            folder,
            dev.sets,
            resources=resources,
            say=say,
            watch=lambda total_steps: _watch(name, total_steps),
        )


def check_corpus(run: TrainRun) -> None:
    """See that there is a corpus; the demo's own is fetched if it is not there."""
    from pipelines import demo_data

    if str(demo_data.sentences_path()) in run.data.corpus:
        demo_data.sentences_file()
    if not run.data.corpus:
        raise UsageError("there is nothing to train on: give --corpus PATH or set data.corpus")


def load_dev_sets(run: TrainRun) -> LoadedSets:
    """The sets that the run is scored on while it trains."""
    from pipelines import evaluation_sets

    return evaluation_sets.load_all(
        run.dev.tasks,
        data=Path(run.dev.data) if run.dev.data else None,
        mode="dev",
        purpose="dev.tasks names it",
    )


def check_output(output: Path) -> None:
    """See that runs can be written there, and say so if they will not stay."""
    from simcse_platform import runtime
    from simcse_platform.storage import check_writable

    check_writable(output.expanduser().resolve())
    if runtime.in_job() and not output.is_absolute():
        say(f"--output {output} goes when the job does: give an absolute path to keep the run")


def _repeat(
    resolved: settings.Resolved,
    seeds: int,
    name: str | None,
    output: Path,
    address: str | None,
    json_file: Path | None,
) -> None:
    """The run as a sweep over its seed alone."""
    from pipelines.tune import result_of, run_sweep, show_sweep
    from simcse_platform.sweep.sweep import SearchPlan

    plan = SearchPlan(sampler="grid", seeds=seeds)
    finished = run_sweep(resolved, {}, plan, name=name, output=output, address=address)
    show_sweep(finished, [])
    write_json(json_file, result_of(finished))
    if finished.best is None:
        raise SimcseError("no seed finished: the table says why")


def default_name(resolved: settings.Resolved) -> str:
    """A name made from the settings, so that only the same command goes on with a run."""
    from simcse_platform.run import identity

    digest = hashlib.sha256("\n".join(identity(resolved.run)).encode())
    return f"{resolved.origin}-{digest.hexdigest()[:8]}"


def say_result(finished: FinishedRun) -> None:
    """The figures of a finished run, and where its best model is."""
    from simcse_platform.run import score_rows

    summary = finished.summary
    for row in score_rows(summary):
        say(f"{row['score']}: {row['before']:.2f} before, {row['best']:.2f} at best")
    say(
        f"{summary['steps']} steps, {summary['rows_per_s']:.1f} rows/s, "
        f"{summary['tokens_per_s']:.0f} tokens/s, padding efficiency "
        f"{summary['padding_efficiency']:.0%}, waiting for data {summary['data_stall_share']:.1%}"
    )
    say(f"best model: {summary['best']['model']}")


@contextmanager
def _watch(name: str, total_steps: int) -> Iterator[Show]:
    with progress_bar(f"train {name}", total_steps) as show:
        yield lambda step, measured: show(step, _note(measured))


def _note(measured: Mapping[str, float]) -> str:
    if "loss" in measured:
        return f"loss {measured['loss']:.4f}  {measured['rows_per_s']:.1f} rows/s"
    return "  ".join(f"{name} {value:.2f}" for name, value in measured.items())
