"""What a run records, whoever keeps the record."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Literal, Protocol

Status = Literal["FINISHED", "FAILED", "KILLED"]
Cell = str | float | int | bool | None


class Tracker(Protocol):
    """The record of one run. No method raises because the record cannot be reached."""

    def log_params(self, params: Mapping[str, str]) -> None:
        """Settings of the run, by dotted path."""

    def log_metrics(self, metrics: Mapping[str, float], step: int) -> None:
        """Measurements at `step`; one that is there for this step or a later one stays as it is."""

    def log_sample(self, values: Mapping[str, float]) -> None:
        """Measurements of no step but of now; they are numbered, on from those on record.

        Any thread may call this. It contacts nobody: other calls take along what it has kept.
        """

    def log_text(self, text: str, name: str) -> None:
        """A file `name` with this text."""

    def log_table(self, rows: Sequence[Mapping[str, Cell]], name: str) -> None:
        """A table `name` (ending in `.json`); every row has the columns of the first."""

    def flush(self) -> None:
        """All that was not sent yet, here or by an earlier process, goes out now if it can."""

    def finish(self, status: Status) -> None:
        """The end of the run, and a last flush."""


@contextmanager
def ended_with(tracker: Tracker) -> Iterator[None]:
    """The run ends as the block does: killed by Ctrl-C, failed by an error, else finished."""
    try:
        yield
    except KeyboardInterrupt:
        tracker.finish("KILLED")
        raise
    except BaseException:
        tracker.finish("FAILED")
        raise
    tracker.finish("FINISHED")


class NullTracker:
    """A tracker that records nothing."""

    def log_params(self, params: Mapping[str, str]) -> None: ...

    def log_metrics(self, metrics: Mapping[str, float], step: int) -> None: ...

    def log_sample(self, values: Mapping[str, float]) -> None: ...

    def log_text(self, text: str, name: str) -> None: ...

    def log_table(self, rows: Sequence[Mapping[str, Cell]], name: str) -> None: ...

    def flush(self) -> None: ...

    def finish(self, status: Status) -> None: ...
