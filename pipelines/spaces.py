"""Spaces by name, written as `--search` has them."""

from __future__ import annotations

from collections.abc import Mapping

from pipelines.names import look_up

GRID_BATCHES = ("64", "128", "256", "512")
GRID_RATES = ("1e-5", "3e-5", "5e-5")
"""Of the paper's appendix A."""
_RATES = f"optim.learning_rate={','.join(GRID_RATES)}"

SPACES: Mapping[str, tuple[str, ...]] = {
    "batch": (f"global_batch_size={','.join(GRID_BATCHES)}", _RATES),
    # The middle of table D.1.
    "temperature": ("objective.temperature=0.01,0.05,0.1", _RATES),
}


def find(name: str) -> tuple[str, ...]:
    """The searches of that name. Raises `UsageError` naming the ones there are."""
    return look_up("space", name, SPACES)
