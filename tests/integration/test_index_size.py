"""An index of 100,000 sentences: exact, and no more memory than one of 20,000.

n: sentences, q: queries, D: width.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from numpy.typing import NDArray

WIDTH = 384
SIZES = (20_000, 100_000)
TOP_K = 7
GROWTH_IN_VECTORS_MB = (SIZES[1] - SIZES[0]) * WIDTH * 4 / 1e6

PROGRAM = """
import json, re, sys
from pathlib import Path
import numpy as np
from simcse.index import SentenceIndex

folder, count, width, top_k = Path(sys.argv[1]), *map(int, sys.argv[2:])
queries = np.load(folder / "queries.npy")

def batches():
    for start in range(0, count, 2000):
        rows = np.random.default_rng(start).standard_normal((2000, width), dtype=np.float32)
        rows[::500] = queries[0]
        yield [f"sentence {place}" for place in range(start, start + 2000)], rows

index = SentenceIndex.create(
    folder / str(count), model="random", fingerprint="0", dimension=width
)
index.append(batches())
index = SentenceIndex.open(folder / str(count), model="random", fingerprint="0")
hits = index.search(queries, top_k=top_k, threshold=-1)
# What getrusage says begins with the peak of the parent process.
peak_kb = re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]
print(json.dumps({"hits": hits, "peak_mb": int(peak_kb) / 1000}))
"""


class Outcome(NamedTuple):
    hits: list[list[tuple[str, float]]]
    peak_mb: float


@pytest.fixture(scope="module")
def queries() -> NDArray[np.float32]:
    return np.random.default_rng(1).standard_normal((20, WIDTH), dtype=np.float32)


@pytest.fixture(scope="module")
def by_size(
    tmp_path_factory: pytest.TempPathFactory, queries: NDArray[np.float32]
) -> dict[int, Outcome]:
    folder = tmp_path_factory.mktemp("indexes")
    np.save(folder / "queries.npy", queries)
    return {count: _build_and_search(folder, count) for count in SIZES}


def _build_and_search(folder: Path, count: int) -> Outcome:
    arguments = [str(folder), str(count), str(WIDTH), str(TOP_K)]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *arguments], capture_output=True, text=True, check=True
    )
    return Outcome(**json.loads(done.stdout))


def test_peak_memory_does_not_grow_with_the_index(by_size: dict[int, Outcome]) -> None:
    growth_mb = by_size[SIZES[1]].peak_mb - by_size[SIZES[0]].peak_mb
    assert growth_mb < 0.1 * GROWTH_IN_VECTORS_MB


@pytest.mark.parametrize("count", SIZES)
def test_hits_are_those_of_brute_force_ties_included(
    by_size: dict[int, Outcome], queries: NDArray[np.float32], count: int
) -> None:
    starts = range(0, count, 2000)
    vectors_nD = np.concatenate(
        [
            np.random.default_rng(start).standard_normal((2000, WIDTH), dtype=np.float32)
            for start in starts
        ]
    )
    vectors_nD[::500] = queries[0]
    lengths_n = np.linalg.norm(vectors_nD, axis=1)
    for query_D, hits in zip(queries, by_size[count].hits, strict=True):
        cosines_n = (vectors_nD @ query_D) / lengths_n / np.linalg.norm(query_D)
        # Equal vectors have equal cosines but for the order of summation.
        best = np.argsort(-cosines_n.round(6), kind="stable")[:TOP_K]
        assert [sentence for sentence, _ in hits] == [f"sentence {place}" for place in best]
        np.testing.assert_allclose([c for _, c in hits], cosines_n[best], atol=1e-6, rtol=0)
    assert [sentence for sentence, _ in by_size[count].hits[0]] == [
        f"sentence {place}" for place in range(0, 500 * TOP_K, 500)
    ]
