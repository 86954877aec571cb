"""A tracker that no outage stops: every record goes to a file first, to the server when it can.

The spool is one JSON record a line, in the order of logging; beside it, `<name>.sent` holds the
number of its bytes that have reached the server. So a killed process loses nothing, and whoever
opens the spool next, in the same run or a later one, sends the rest. Records carry the time they
were made: sending one twice, after an answer that was lost, must leave one.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypedDict

from simcse_platform.errors import TrackingError
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


class Labels(TypedDict):
    """Parameters or tags."""

    kind: Literal["params", "tags"]
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


Record = Metrics | Labels | File | End
Send = Callable[[Sequence[Record]], None]
"""Delivers one request: several `Metrics`, or one record of another kind. Raises `TrackingError`
when the server cannot be reached."""


class Spool:
    """Every record of a run, and how many of them were sent."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._mark = path.with_name(path.name + ".sent")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        content = path.read_bytes()
        whole = content.rfind(b"\n") + 1
        if whole < len(content):
            # The writer was killed within a line.
            with path.open("r+b") as file:
                file.truncate(whole)
        self._sent = int(self._mark.read_text()) if self._mark.exists() else 0
        self._unsent = content[self._sent : whole].splitlines(keepends=True)
        self.last_step: dict[str, int] = {}
        for line in content[:whole].splitlines():
            self._note(json.loads(line))

    def __len__(self) -> int:
        """Records that were not sent."""
        return len(self._unsent)

    def append(self, record: Record) -> None:
        """One more record, in the file before this returns."""
        line = json.dumps(record, ensure_ascii=False).encode() + b"\n"
        with self._path.open("ab") as file:
            file.write(line)
        self._unsent.append(line)
        self._note(record)

    def drain(self, send: Send) -> None:
        """Nothing left to send. Raises what `send` raises; what went out before it stays marked."""
        for request in list(_requests(json.loads(line) for line in self._unsent)):
            send(request)
            self._sent += sum(map(len, self._unsent[: len(request)]))
            del self._unsent[: len(request)]
            fresh = self._mark.with_name(self._mark.name + ".new")
            fresh.write_text(str(self._sent))
            fresh.replace(self._mark)

    def rewind(self) -> None:
        """Everything is unsent again: the record moves to another server."""
        self._mark.unlink(missing_ok=True)
        self._sent = 0
        self._unsent = self._path.read_bytes().splitlines(keepends=True)

    def _note(self, record: Record) -> None:
        if record["kind"] == "metrics":
            self.last_step |= dict.fromkeys(record["values"], record["step"])


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
    are not recorded again.
    """

    def __init__(
        self,
        spool: Path,
        send: Send,
        pace: Pace = PACE,
    ) -> None:
        self._spool = Spool(spool)
        self._path = spool
        self._send = send
        self._pace = pace
        self._last_flush = time.monotonic()
        self._closed_until = 0.0

    def log_params(self, params: Mapping[str, str]) -> None:
        self._record({"kind": "params", "values": dict(params)})

    def log_metrics(self, metrics: Mapping[str, float], step: int) -> None:
        last = self._spool.last_step
        new = (name for name in metrics if step > last.get(name, -1))
        values = {name: float(metrics[name]) for name in new}
        if values:
            self._record({"kind": "metrics", "time": _now(), "step": step, "values": values})

    def log_text(self, text: str, name: str) -> None:
        self._record({"kind": "text", "name": name, "text": text})

    def log_table(self, rows: Sequence[Mapping[str, Cell]], name: str) -> None:
        columns = list(rows[0]) if rows else []
        table = {"columns": columns, "data": [[row[column] for column in columns] for row in rows]}
        self._record({"kind": "table", "name": name, "text": json.dumps(table)})

    def set_tags(self, tags: Mapping[str, str]) -> None:
        self._record({"kind": "tags", "values": dict(tags)})

    def finish(self, status: Status) -> None:
        self._spool.append({"kind": "end", "time": _now(), "status": status})
        self.flush()

    def flush(self) -> None:
        self._last_flush = time.monotonic()
        try:
            self._spool.drain(self._send)
        except TrackingError as error:
            if not self._closed_until:
                logger.warning("%s (training goes on; its records wait in %s)", error, self._path)
            self._closed_until = time.monotonic() + self._pace.retry_seconds
            return
        if self._closed_until:
            logger.info("the tracking server answers again; nothing was lost")
        self._closed_until = 0.0

    def _record(self, record: Record) -> None:
        self._spool.append(record)
        now = time.monotonic()
        due = len(self._spool) >= self._pace.records or now >= self._last_flush + self._pace.seconds
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
