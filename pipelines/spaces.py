"""Spaces by name, written as `--search` has them."""

from __future__ import annotations

import difflib
from collections.abc import Mapping

from simcse.errors import UsageError

SPACES: Mapping[str, tuple[str, ...]] = {
    # The grid of the paper's appendix A.
    "batch": ("global_batch_size=64,128,256,512", "optim.learning_rate=1e-5,3e-5,5e-5"),
    # Table D.1, without what trains no encoder, at the grid's rates.
    "temperature": ("objective.temperature=0.01,0.05,0.1", "optim.learning_rate=1e-5,3e-5,5e-5"),
}


def find(name: str) -> tuple[str, ...]:
    """The searches of that name. Raises `UsageError` naming the ones there are."""
    if name not in SPACES:
        near = difflib.get_close_matches(name, SPACES, n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        raise UsageError(f"there is no space {name!r}: {hint}There are {', '.join(SPACES)}")
    return SPACES[name]
