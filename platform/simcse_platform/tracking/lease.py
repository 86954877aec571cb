"""A lease on something many processes may change, over a tag that is set unconditionally.

The lease has no clock in common: whoever finds the tag of another waits until it goes, and takes it
over when it stays the same for `LEASE_SECONDS`. Having set its own, a process reads it again after
`_SETTLE_SECONDS`; one that took longer than that to set it may have done so when another held the
lease already, and waits as long as that may hold it. So two hold it together only if one does for
longer than `LEASE_SECONDS`.
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
    try:
        _take(tag, mine)
        yield
    finally:
        if tag.read() == mine:
            tag.clear()


def _take(tag: Tag, mine: str) -> None:
    seen, since, settled = None, time.monotonic(), 0.0
    while True:
        begun = time.monotonic()
        other = tag.read()
        if other == mine and begun >= settled:
            return
        if other != seen:
            seen, since = other, time.monotonic()
        if other is None or (other != mine and time.monotonic() >= since + LEASE_SECONDS):
            tag.write(mine)
            written = time.monotonic()
            quick = written - begun <= _SETTLE_SECONDS
            settled = written + (_SETTLE_SECONDS if quick else LEASE_SECONDS)
        time.sleep(_SETTLE_SECONDS)
