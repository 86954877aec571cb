"""The course of the resident memory of a tree of processes."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

import psutil


class Sample(NamedTuple):
    """One process at one time."""

    seconds: float
    """Of `time.monotonic`."""
    pid: int
    name: str
    resident_mb: float
    own_mb: float
    """Without shared pages, such as those of the object store."""


class MemorySampler:
    """Samples this process and all below it, in a thread, within a `with` block."""

    def __init__(self, interval_s: float = 0.5) -> None:
        self.samples: list[Sample] = []
        self._interval_s = interval_s
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._ended.set()
        self._thread.join()

    def _sample(self) -> None:
        root = psutil.Process()
        while not self._ended.wait(self._interval_s):
            now = time.monotonic()
            for process in (root, *root.children(recursive=True)):
                try:
                    memory, name = process.memory_info(), _title(process)
                except psutil.Error:
                    continue
                mb = 2**20
                own = (memory.rss - memory.shared) / mb
                self.samples.append(Sample(now, process.pid, name, memory.rss / mb, own))


def _title(process: psutil.Process) -> str:
    """What a process calls itself: Ray's workers say what they run."""
    words = process.cmdline()
    return Path(words[0]).name[:40] if words else process.name()
