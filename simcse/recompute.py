"""Activations that are computed twice so that they need not be kept."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, cast

import torch
from torch.utils.checkpoint import checkpoint

T = TypeVar("T")


def recomputed(
    function: Callable[[], T], *, enabled: bool, random_on: torch.device | None = None
) -> T:
    """`function()`; if `enabled`, the backward pass calls it again instead of keeping its way.

    With `random_on`, both calls draw the same random numbers, such as dropout masks, from the
    generators of the CPU and of that device.
    """
    if not enabled:
        return function()
    # Of devices other than the CPU, PyTorch keeps the generators of those that arguments lie on.
    place = torch.empty(0, device=random_on)
    return cast(
        T,
        checkpoint(
            lambda _: function(),
            place,
            use_reentrant=False,
            preserve_rng_state=random_on is not None,
        ),
    )
