"""What every benchmark shares: sides by turns in fresh processes, medians, a table, raw JSON."""

from __future__ import annotations

import argparse
import datetime
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median
from typing import Any, TypeVar

T = TypeVar("T")

Options = argparse.Namespace
Figures = dict[str, Any]
"""What one run of one side measured, ready for JSON."""

ROOT = Path(__file__).parents[2]
RESULTS = Path(__file__).parent / "results"
COLUMNS = ("what", "ours", "theirs", "ratio", "goal", "reached")
LIBRARIES = (
    "torch",
    "transformers",
    "sentence-transformers",
    "ray",
    "datasets",
    "tokenizers",
    "pyarrow",
    "numpy",
)


@dataclass(frozen=True)
class Row:
    """One line of a table: a figure, or the ratio of two, and what it should be."""

    what: str
    ours: float
    theirs: float | None = None
    """What ours is divided by; None compares the figure itself with the goal."""
    at_least: float | None = None
    at_most: float | None = None
    unit: str = ""

    @property
    def figure(self) -> float:
        """What the goal is about."""
        return self.ours if self.theirs is None else self.ours / self.theirs

    @property
    def goal(self) -> str:
        if self.at_least is not None:
            return f">= {self.at_least:g}"
        return "" if self.at_most is None else f"<= {self.at_most:g}"

    @property
    def reached(self) -> str:
        if self.at_least is not None:
            return "yes" if self.figure >= self.at_least else "no"
        if self.at_most is not None:
            return "yes" if self.figure <= self.at_most else "no"
        return ""

    def cells(self) -> list[str]:
        return [
            self.what,
            self._text(self.ours),
            "" if self.theirs is None else self._text(self.theirs),
            "" if self.theirs is None else f"{self.figure:.3f}",
            self.goal,
            self.reached,
        ]

    def _text(self, value: float) -> str:
        number = f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
        return f"{number} {self.unit}".strip()


@dataclass(frozen=True)
class Runs:
    """The figures of every run of every side."""

    runs: Sequence[Mapping[str, Any]]

    def median(self, side: str, name: str) -> float:
        """Of one figure of one side over the repeats."""
        return float(median(run[name] for run in self.runs if run["side"] == side))


@dataclass(frozen=True)
class Option:
    """A size that a trial may want smaller; its type is that of its default."""

    default: int | float | str
    tiny: int | float | str
    text: str


@dataclass(frozen=True)
class Benchmark:
    """Sides to be measured by turns, each run in a process of its own."""

    name: str
    """Of its module."""
    text: str
    sides: Mapping[str, Callable[[Options], Figures]]
    rows: Callable[[Runs, Options], list[Row]]
    options: Mapping[str, Option] = field(default_factory=dict)
    prepare: Callable[[Options], None] | None = None
    """Leaves what the sides read in the folder `options.scratch`."""


def main(benchmark: Benchmark) -> None:
    """Measure and show; with `--side`, the run of one side that the first process asked for."""
    options = _parse(benchmark)
    if options.side:
        _measure_here(benchmark, options)
        return
    with tempfile.TemporaryDirectory(prefix="simcse-benchmark-") as scratch:
        options.scratch = Path(scratch)
        if benchmark.prepare:
            benchmark.prepare(options)
        runs = []
        for repeat in range(options.repeats):
            for side in benchmark.sides:
                say(f"{benchmark.name}: repeat {repeat + 1} of {options.repeats}, {side}")
                figures = _measure_in_fresh_process(benchmark, side, options)
                runs.append({"side": side, "repeat": repeat, **figures})
    rows = benchmark.rows(Runs(runs), options)
    trial = " (a trial of the code at the smallest sizes: its figures mean nothing)"
    show(benchmark.text + (trial if options.tiny else ""), rows)
    write(benchmark.name, rows, runs, options)


def seconds_of_each(
    call: Callable[[T], object], inputs: Iterable[T], *, warm_up: int
) -> list[float]:
    """Seconds of `call` for each input after the first `warm_up`."""
    seconds = []
    for value in inputs:
        start = time.perf_counter()
        call(value)
        seconds.append(time.perf_counter() - start)
    return seconds[warm_up:]


@dataclass(frozen=True)
class Stepper:
    """One side of a comparison of steps: what it does with each of its inputs."""

    step: Callable[[Any], object]
    inputs: Sequence[Any]


def seconds_by_turns(sides: Mapping[str, Stepper], *, warm_up: int) -> Figures:
    """Median seconds of a step of each side, `NAME_s`: one step of each in turn, in this process.

    A machine whose rate wanders from minute to minute does so for all of them alike.
    """
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for inputs in zip(*(side.inputs for side in sides.values()), strict=True):
        for (name, side), value in zip(sides.items(), inputs, strict=True):
            start = time.perf_counter()
            side.step(value)
            seconds[name].append(time.perf_counter() - start)
    timed = {name: taken[warm_up:] for name, taken in seconds.items()}
    return {
        **{f"{name}_s": median(taken) for name, taken in timed.items()},
        "seconds": timed,
    }


def show(title: str, rows: Sequence[Row]) -> None:
    """A table in Markdown."""
    table = [[*COLUMNS], *(row.cells() for row in rows)]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    table.insert(1, ["-" * width for width in widths])
    say(f"\n{title}\n")
    for cells in table:
        padded = (cell.ljust(width) for cell, width in zip(cells, widths, strict=True))
        say(f"| {' | '.join(padded)} |")


def write(
    name: str, rows: Sequence[Row], runs: Sequence[Mapping[str, Any]], options: Options
) -> None:
    """Raw figures and table as `NAME.json` in the folder `options.output`."""
    record = {
        "benchmark": name,
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "machine": describe_machine(),
        "options": {key: value for key, value in vars(options).items() if _is_plain(value)},
        "table": [dict(zip(COLUMNS, row.cells(), strict=True)) for row in rows],
        "runs": runs,
    }
    options.output.mkdir(parents=True, exist_ok=True)
    path = options.output / f"{name}.json"
    path.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    say(f"\nraw figures: {path}")


def describe_machine() -> dict[str, Any]:
    """Processor, load and versions: what a figure is worth without which nothing."""
    processor = next(
        (
            line.partition(":")[2].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        "unknown",
    )
    return {
        "processor": processor,
        "cores": os.cpu_count(),
        "memory_mb": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 20,
        "load_average_at_end": os.getloadavg()[0],
        "python": sys.version.partition(" ")[0],
        "commit": _git("rev-parse", "HEAD"),
        "changed_files": _git("--no-optional-locks", "status", "--porcelain").splitlines(),
        "versions": {name: _version(name) for name in LIBRARIES},
    }


def say(line: str) -> None:
    """One line for the user, at once."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def add_common_options(parser: argparse.ArgumentParser) -> None:
    """Those of every benchmark, the one on a GPU too."""
    parser.add_argument(
        "--output", type=Path, default=RESULTS, metavar="DIR", help="folder of raw figures"
    )
    parser.add_argument("--tiny", action="store_true", help="a trial: the smallest sizes")


def _parse(benchmark: Benchmark) -> Options:
    parser = argparse.ArgumentParser(
        prog=f"run.py {benchmark.name}",
        description=benchmark.text,
    )
    common = {
        "repeats": Option(5, 1, "runs of each side"),
        "threads": Option(2, 1, "CPU threads of a side"),
    }
    add_common_options(parser)
    choices = {**common, **benchmark.options}
    for name, option in choices.items():
        parser.add_argument(
            f"--{name}", type=type(option.default), help=f"{option.text} ({option.default})"
        )
    parser.add_argument("--side", choices=benchmark.sides, help=argparse.SUPPRESS)
    parser.add_argument("--scratch", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.output = options.output.absolute()
    for name, option in choices.items():
        key = name.replace("-", "_")
        if getattr(options, key) is None:
            setattr(options, key, option.tiny if options.tiny else option.default)
    return options


def _measure_in_fresh_process(benchmark: Benchmark, side: str, options: Options) -> Figures:
    log, result = options.scratch / "log", options.scratch / "figures.json"
    result.unlink(missing_ok=True)
    command = [sys.executable, "-m", f"benchmarks.{benchmark.name}", *sys.argv[1:]]
    with log.open("w", encoding="utf-8") as file:
        done = subprocess.run(
            [*command, "--side", side, "--scratch", str(options.scratch)],
            env=os.environ | _environment(options),
            stdout=file,
            stderr=subprocess.STDOUT,
            check=False,
        )
    if done.returncode:
        sys.exit(f"{log.read_text(encoding='utf-8')[-4000:]}\n{side}: exit {done.returncode}")
    figures: Figures = json.loads(result.read_text(encoding="utf-8"))
    return figures


def _measure_here(benchmark: Benchmark, options: Options) -> None:
    import torch

    torch.set_num_threads(options.threads)
    figures = benchmark.sides[options.side](options)
    (options.scratch / "figures.json").write_text(json.dumps(figures), encoding="utf-8")


def _environment(options: Options) -> dict[str, str]:
    return {
        "OMP_NUM_THREADS": str(options.threads),
        "HF_HUB_OFFLINE": "1",
        "HF_DATASETS_OFFLINE": "1",
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "RAY_AUTH_MODE": "disabled",
    }


def _git(*arguments: str) -> str:
    """Empty where the tree is a copy without its history."""
    try:
        done = subprocess.run(
            ["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False
        )
    except FileNotFoundError:
        return ""
    return done.stdout.rstrip()


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


def _is_plain(value: object) -> bool:
    return value is None or isinstance(value, bool | int | float | str)
