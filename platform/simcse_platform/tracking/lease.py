"""A lease on something many processes may change, over a tag that is set unconditionally.

The lease has no clock in common: whoever finds the tag of another waits until it goes, and takes it
over when it stays the same for `LEASE_SECONDS`. Having set its own, a process reads it again after
`_SETTLE_SECONDS`. Two processes can hold the lease together only if one of them stands still for
longer than that between reading and writing the tag, or holds it for longer than `LEASE_SECONDS`.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

LEASE_SECONDS = 30.0
"""After which a lease counts as left behind by a process that was killed."""

_SETTLE_SECONDS = 0.5


class Tag(Protocol):
    """A text that all processes see, or none."""

    def read(self) -> str | None:
        """The text."""

    def write(self, text: str) -> None:
        """Another text. It may be lost where another process writes at the same moment."""

    def clear(self) -> None:
        """No text."""


@contextmanager
def lease(tag: Tag, holder: str) -> Iterator[None]:
    """The lease until the block ends; `holder` says in the tag who has it."""
    mine = f"{holder} {uuid.uuid4().hex}"
    seen, since = None, time.monotonic()
    while (other := tag.read()) != mine:
        if other != seen:
            seen, since = other, time.monotonic()
        if other is None or time.monotonic() >= since + LEASE_SECONDS:
            tag.write(mine)
        time.sleep(_SETTLE_SECONDS)
    try:
        yield
    finally:
        if tag.read() == mine:
            tag.clear()
