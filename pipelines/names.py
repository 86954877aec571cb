"""Things that a user asks for by name."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import TypeVar

from simcse.errors import UsageError

T = TypeVar("T")


def look_up(kind: str, name: str, known: Mapping[str, T]) -> T:
    """What has that name. Raises `UsageError` naming what there is, the nearest name first."""
    if name not in known:
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        raise UsageError(f"there is no {kind} {name!r}: {hint}There are {', '.join(known)}")
    return known[name]
