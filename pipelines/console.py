"""What a command shows: lines, progress, and its result as a JSON file."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Protocol

import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table
from rich.text import Text

from simcse.errors import UsageError
from simcse_platform.storage import check_writable, write_atomically


def may_be_written(parameter: typer.CallbackParam, path: Path | None) -> Path | None:
    """The path of a result; a wrong one is found before the work, not after it."""
    if path is not None:
        if path.is_dir():
            raise UsageError(f"{parameter.opts[0]} {path} is a folder: name a file")
        check_writable(path.absolute().parent)
    return path


JsonFile = Annotated[
    Path | None,
    typer.Option(
        "--json", metavar="FILE", callback=may_be_written, help="Write the result to this file."
    ),
]

_PLAIN_SECONDS = 10.0

console = Console(highlight=False, emoji=False, soft_wrap=True)


def say(text: str) -> None:
    """One line for the user."""
    console.print(text, markup=False)


def add_row(table: Table, *cells: str) -> None:
    """One row as it is written: brackets in a cell are no markup."""
    table.add_row(*map(Text, cells))


def write_json(path: Path | None, result: Mapping[str, Any]) -> None:
    """The result to `path`, in one move; nothing without a path."""
    if path is None:
        return
    write_text(path, json.dumps(result, indent=1, ensure_ascii=False) + "\n", option="--json")


def write_text(path: Path, text: str, *, option: str) -> None:
    """A result to the path that an option named, in one move."""
    try:
        write_atomically(path, text)
    except OSError as error:
        raise UsageError(f"{option} {path} cannot be written: {error.strerror}") from None


class Show(Protocol):
    """Moves a progress display to `done`; a note says what was measured there."""

    def __call__(self, done: int, note: str = "") -> None: ...


@contextmanager
def progress_bar(label: str, total: int | None = None) -> Iterator[Show]:
    """A bar on a terminal; elsewhere a line now and then, and one for every note."""
    if not sys.stdout.isatty():
        yield _PlainProgress(label, total)
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
    )
    with Progress(*columns, console=console) as bar:
        task = bar.add_task(label, total=total, note="")

        def show(done: int, note: str = "") -> None:
            bar.update(task, completed=done, note=note or bar.tasks[0].fields["note"])

        yield show


class _PlainProgress:
    def __init__(self, label: str, total: int | None) -> None:
        self._label, self._total = label, total
        self._last = time.monotonic()

    def __call__(self, done: int, note: str = "") -> None:
        now = time.monotonic()
        if not note and now - self._last < _PLAIN_SECONDS and done != self._total:
            return
        self._last = now
        of = f"/{self._total}" if self._total else ""
        say(f"{self._label} {done}{of} {note}".rstrip())
