"""Random numbers that are a function of position, so that no generator state is kept.

What is drawn for a sentence depends on the seed, the epoch, the sentence's row in the corpus and a
place in the sentence, and on nothing that came before: not on batches, ranks or restarts.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


def uniforms(*position: ArrayLike) -> NDArray[np.float64]:
    """Numbers in [0, 1) for positions given as integers that broadcast against each other.

    Each part goes through the output function of SplitMix64 (Steele, Lea and Flood 2014, section
    5), so that neighbouring positions have nothing to do with each other.
    """
    hashed = np.zeros((), np.uint64)
    with np.errstate(over="ignore"):
        for part in position:
            hashed = _mix((hashed ^ np.asarray(part).astype(np.uint64)) + _GOLDEN)
    return (hashed >> np.uint64(11)) * np.float64(2.0**-53)


def _mix(bits: NDArray[np.uint64]) -> NDArray[np.uint64]:
    bits = (bits ^ (bits >> np.uint64(30))) * _FIRST
    bits = (bits ^ (bits >> np.uint64(27))) * _SECOND
    return bits ^ (bits >> np.uint64(31))
