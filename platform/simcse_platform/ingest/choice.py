"""Which usable rows of a corpus are taken: no repetitions, a sample.

It takes a first reading of the whole corpus, of which a hash of 8 bytes a row comes here: 1e8 rows
need some 4 GB of memory on the driver while they are sorted. Two different rows are taken for one
with probability 3e-4 in a corpus of that size. N: rows of the corpus.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simcse.errors import DataError
from simcse_platform.ingest.cleaning import RowOptions, UsableRow


def fingerprints(rows: Iterable[UsableRow]) -> NDArray[np.uint64]:
    """A 64-bit hash of the texts of each row."""
    # No clean text holds a line break.
    lines = ("\n".join(row.texts).encode() for row in rows)
    digests = (hashlib.blake2b(line, digest_size=8).digest() for line in lines)
    return np.fromiter(map(int.from_bytes, digests), np.uint64)


class Choice(NamedTuple):
    """Rows that are taken."""

    places: list[NDArray[np.int64]]
    """Within each piece of the corpus, in order."""
    repeated: int
    """Rows that are not taken because they repeat another one."""


def choose(
    hashes: Sequence[NDArray[np.uint64]],
    sources: Sequence[str],
    options: RowOptions,
) -> Choice:
    """The rows to take: without repetitions, then drawn, as the options say.

    `hashes` are those of the pieces, `sources` the source that each of them belongs to. The choice
    depends on the rows and their order alone, not on how they are cut into pieces. Raises
    `DataError` when there are fewer rows than a sample needs.
    """
    hashes_N = np.concatenate(hashes)
    places = np.arange(len(hashes_N))
    if options.dedupe_corpus:
        places = np.sort(np.unique(hashes_N, return_index=True)[1])
    repeated = len(hashes_N) - len(places)
    if options.sample:
        places = _draw(places, options.sample, [options.seed], "the corpus", "--sample")
    starts = np.fromiter(accumulate(map(len, hashes), initial=0), np.int64)
    if options.sample_each:
        numbers = {source: number for number, source in enumerate(dict.fromkeys(sources))}
        source_N = np.repeat([numbers[source] for source in sources], np.diff(starts))
        drawn = [
            _draw(
                places[source_N[places] == number],
                options.sample_each,
                [options.seed, number],
                source,
                "--sample-each",
            )
            for source, number in numbers.items()
        ]
        places = np.sort(np.concatenate(drawn))
    bounds = np.searchsorted(places, starts)
    return Choice(
        [
            places[first:last] - start
            for first, last, start in zip(bounds, bounds[1:], starts, strict=False)
        ],
        repeated,
    )


def _draw(
    places: NDArray[np.int64], count: int, seed: Sequence[int], what: str, option: str
) -> NDArray[np.int64]:
    """`count` of `places`, each subset as likely as any other, in order."""
    if count > len(places):
        raise DataError(
            f"{what} has {len(places)} usable row(s) and {option} asks for {count}: ask for fewer"
        )
    # NumPy fixes the bits of a generator for good, but not what `choice` makes of them.
    bits = np.random.PCG64(np.random.SeedSequence(seed)).random_raw(len(places))
    return places[np.sort(np.argsort(bits, kind="stable")[:count])]
