"""Random numbers that are a function of position."""

from __future__ import annotations

import numpy as np
from scipy import stats

from simcse.positional import uniforms

_WORD = (1 << 64) - 1


def splitmix64(state: int) -> int:
    """The output of SplitMix64 for one state, in plain integers."""
    bits = (state + 0x9E3779B97F4A7C15) & _WORD
    bits = ((bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9) & _WORD
    bits = ((bits ^ (bits >> 27)) * 0x94D049BB133111EB) & _WORD
    return bits ^ (bits >> 31)


def test_each_part_of_a_position_is_mixed_in_by_splitmix64() -> None:
    want = splitmix64(splitmix64(splitmix64(42) ^ 7) ^ 3)
    assert uniforms(42, 7, 3) == (want >> 11) / 2**53


def test_arrays_of_positions_give_what_each_position_gives() -> None:
    rows, places = np.arange(5)[:, None], np.arange(4)
    together = uniforms(42, rows, places)
    apart = [[uniforms(42, row, place) for place in range(4)] for row in range(5)]
    np.testing.assert_array_equal(together, apart)


def test_numbers_are_uniform_and_neighbours_have_nothing_to_do_with_each_other() -> None:
    numbers = uniforms(42, 0, np.arange(50_000)[:, None], np.arange(2))
    assert stats.kstest(numbers.ravel(), "uniform").pvalue > 0.001
    for first, second in [
        (numbers[:, 0], numbers[:, 1]),
        (numbers[:-1, 0], numbers[1:, 0]),
        (numbers[:, 0], uniforms(42, 1, np.arange(50_000), 0)),
        (numbers[:, 0], uniforms(43, 0, np.arange(50_000), 0)),
    ]:
        assert abs(stats.pearsonr(first, second).statistic) < 0.02
