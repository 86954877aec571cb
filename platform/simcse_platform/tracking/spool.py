"""A tracker that no outage stops: every record goes to a file first, to the server when it can.

The spool is one JSON record a line, in the order of logging; beside it, `<name>.sent` holds the
number of its bytes that have reached the server. So a killed process loses nothing, and whoever
opens the spool next, in the same run or a later one, sends the rest. Records carry the time they
were made: sending one twice, after an answer that was lost, must leave one.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal, TypedDict, cast

from simcse_platform.errors import TrackingError
from simcse_platform.storage import append_line, write_atomically
from simcse_platform.tracking.tracker import Cell, Status

logger = logging.getLogger(__name__)

MAX_METRICS = 1000
"""Values of one request; MLflow refuses more."""


class Metrics(TypedDict):
    """Measurements at one step; `time` in milliseconds since 1970."""

    kind: Literal["metrics"]
    time: int
    step: int
    values: dict[str, float]


class Params(TypedDict):
    """Settings of the run."""

    kind: Literal["params"]
    values: dict[str, str]


class File(TypedDict):
    """A text file, or a table in the JSON that MLflow shows as one."""

    kind: Literal["text", "table"]
    name: str
    text: str


class End(TypedDict):
    """The end of the run; `time` in milliseconds since 1970."""

    kind: Literal["end"]
    time: int
    status: Status


Record = Metrics | Params | File | End
Send = Callable[[Sequence[Record]], None]
"""Delivers one request: several `Metrics`, or one record of another kind. Raises `TrackingError`
when the server cannot be reached."""


class Spool:
    """Every record of a run, and how many of them were sent.

    Everything is in the files, so several may use one spool after another; two that drain it at
    once send some records twice.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._mark = path.with_name(path.name + ".sent")

    def append(self, record: Record) -> None:
        """One more record, in the file before this returns."""
        append_line(self._path, json.dumps(record, ensure_ascii=False))

    def drain(self, send: Send) -> None:
        """Nothing left to send. Raises what `send` raises; what went out before it stays marked."""
        records = self._records(self._sent())
        done = 0
        for request in _requests(record for record, _ in records):
            send(request)
            done += len(request)
            write_atomically(self._mark, str(records[done - 1][1]))

    def rewind(self) -> None:
        """Everything is unsent again: the record moves to another server."""
        self._mark.unlink(missing_ok=True)

    def last_steps(self) -> dict[str, int]:
        """Last step on record of every metric."""
        steps: dict[str, int] = {}
        for record, _ in self._records(0):
            if record["kind"] == "metrics":
                steps |= dict.fromkeys(record["values"], record["step"])
        return steps

    def _sent(self) -> int:
        """Bytes that have reached the server; 0 where that is not known, since twice does no harm.

        A power failure may leave a mark that is damaged, or that is newer than the records.
        """
        mark = self._mark.read_text(errors="replace") if self._mark.exists() else ""
        if not mark.isdecimal() or int(mark) == 0 or not self._path.exists():
            return 0
        with self._path.open("rb") as file:
            file.seek(int(mark) - 1)
            return int(mark) if file.read(1) == b"\n" else 0

    def _records(self, start: int) -> list[tuple[Record, int]]:
        """The records of whole lines from byte `start` on, each with the byte behind it.

        Lines that are not records are passed over, such as the zeros that a power failure leaves.
        """
        if not self._path.exists():
            return []
        with self._path.open("rb") as file:
            file.seek(start)
            content = file.read()
        found: list[tuple[Record, int]] = []
        for line in content[: content.rfind(b"\n") + 1].splitlines(keepends=True):
            start += len(line)
            try:
                record = json.loads(line)
            except ValueError:
                continue
            if isinstance(record, dict) and "kind" in record:
                found.append((cast(Record, record), start))
        return found


@dataclass(frozen=True, kw_only=True)
class Pace:
    """How often a tracker turns to its server."""

    records: int = 50
    """Records that make it send."""
    seconds: float = 10.0
    """Seconds after which it sends fewer."""
    retry_seconds: float = 60.0
    """Seconds it leaves a server alone that failed, so that one that hangs costs one time-out a
    minute."""


PACE = Pace()


class SpooledTracker:
    """A tracker over `send`; `flush` and `finish` try at once, whatever the pace.

    A run that resumes from a checkpoint repeats some steps: their metrics are there already and
    are not recorded again. Samples come from any thread and go into the spool only: sending sets
    MLflow's variables in the environment of the process, so one thread does it.
    """

    def __init__(
        self,
        spool: Path,
        send: Send,
        pace: Pace = PACE,
    ) -> None:
        self._spool = Spool(spool)
        self._appending = threading.Lock()
        self._buffered = 0
        self._path = spool
        self._send = send
        self._pace = pace
        self._last_flush = time.monotonic()
        self._closed_until = 0.0

    def log_params(self, params: Mapping[str, str]) -> None:
        self._record({"kind": "params", "values": dict(params)})

    def log_metrics(self, metrics: Mapping[str, float], step: int) -> None:
        with self._appending:
            new = {
                name: float(value)
                for name, value in metrics.items()
                if step > self._last_steps.get(name, -1)
            }
            if not new:
                return
            self._append_metrics(new, step)
        self._send_if_due()

    def log_sample(self, values: Mapping[str, float]) -> None:
        with self._appending:
            last = max((self._last_steps.get(name, -1) for name in values), default=-1)
            self._append_metrics(values, last + 1)

    def log_text(self, text: str, name: str) -> None:
        self._record({"kind": "text", "name": name, "text": text})

    def log_table(self, rows: Sequence[Mapping[str, Cell]], name: str) -> None:
        columns = list(rows[0]) if rows else []
        table = {"columns": columns, "data": [[row[column] for column in columns] for row in rows]}
        self._record({"kind": "table", "name": name, "text": json.dumps(table)})

    def finish(self, status: Status) -> None:
        end: End = {"kind": "end", "time": _now(), "status": status}
        try:
            with self._appending:
                self._spool.append(end)
        except OSError as error:
            # A full disk may be why the run ends, and the server can hear of that all the same.
            logger.warning("%s cannot be written: %s", self._path, error.strerror)
            with suppress(TrackingError):
                self._send([end])
            return
        self.flush()

    def flush(self) -> None:
        self._last_flush = time.monotonic()
        self._buffered = 0
        try:
            self._spool.drain(self._send)
        except (TrackingError, OSError) as error:
            # What was sent and could not be marked so is sent again, which changes nothing.
            if not self._closed_until:
                logger.warning("%s (no record is lost: they wait in %s)", error, self._path)
            self._closed_until = time.monotonic() + self._pace.retry_seconds
            return
        if self._closed_until:
            logger.info("the tracking server answers again; nothing was lost")
        self._closed_until = 0.0

    @cached_property
    def _last_steps(self) -> dict[str, int]:
        return self._spool.last_steps()

    def _append_metrics(self, values: Mapping[str, float], step: int) -> None:
        """More metrics in the spool; the lock is held."""
        self._spool.append(
            {"kind": "metrics", "time": _now(), "step": step, "values": dict(values)}
        )
        self._last_steps.update(dict.fromkeys(values, step))

    def _record(self, record: Record) -> None:
        with self._appending:
            self._spool.append(record)
        self._send_if_due()

    def _send_if_due(self) -> None:
        """The spool goes out when the record that was just appended makes it due."""
        self._buffered += 1
        now = time.monotonic()
        due = self._buffered >= self._pace.records or now >= self._last_flush + self._pace.seconds
        if due and now >= self._closed_until:
            self.flush()


def _requests(records: Iterator[Record]) -> Iterator[list[Record]]:
    """The records in order, neighbouring metrics together up to `MAX_METRICS` values."""
    together: list[Record] = []
    values = 0
    for record in records:
        size = len(record["values"]) if record["kind"] == "metrics" else MAX_METRICS
        if together and values + size > MAX_METRICS:
            yield together
            together, values = [], 0
        together.append(record)
        values += size
    if together:
        yield together


def _now() -> int:
    return time.time_ns() // 1_000_000
