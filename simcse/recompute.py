"""Activations that are computed twice so that they need not be kept."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, cast

from torch.utils.checkpoint import checkpoint

T = TypeVar("T")


def recomputed(function: Callable[[], T], *, enabled: bool, random: bool = False) -> T:
    """`function()`; if `enabled`, the backward pass calls it again instead of keeping its way.

    With `random`, both calls draw the same random numbers, such as dropout masks.
    """
    if not enabled:
        return function()
    return cast(T, checkpoint(function, use_reentrant=False, preserve_rng_state=random))
