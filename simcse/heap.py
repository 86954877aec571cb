"""Memory that the process has freed, given back to the system."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache


def give_back_freed_memory() -> None:
    """Costs milliseconds. Does nothing where the C library is not GNU's.

    Pieces of many sizes leave holes in its heap that nothing later fits, so that what a process
    holds grows with the number of its allocations.
    """
    if (trim := _malloc_trim()) is not None:
        trim(0)


@cache
def _malloc_trim() -> Callable[[int], int] | None:
    try:
        trim: Callable[[int], int] = ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError, TypeError):
        return None
    return trim
