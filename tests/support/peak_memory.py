"""The peak of this process's resident memory."""

from __future__ import annotations

import gc
from pathlib import Path
from types import TracebackType
from typing import Self

_CLEAR = Path("/proc/self/clear_refs")
PEAK_CAN_BE_READ = _CLEAR.exists()


class PeakMemory:
    """Largest resident memory of this process within a `with` block, in MiB."""

    def __enter__(self) -> Self:
        gc.collect()
        # Linux starts the peak anew.
        _CLEAR.write_text("5")
        self.start_mb = _status_mb("VmRSS")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.peak_mb = _status_mb("VmHWM")

    @property
    def above_start_mb(self) -> float:
        return self.peak_mb - self.start_mb


def _status_mb(key: str) -> float:
    line = next(
        line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(key)
    )
    return int(line.split()[1]) / 1024
