"""What is computed twice: under the same random numbers, and without the heap growing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from simcse import encoder as encoder_module
from simcse import heap, recompute
from simcse.config import EncoderConfig
from simcse.encoder import SentenceEncoder
from simcse.recompute import recomputed
from support.peak_memory import PEAK_CAN_BE_READ


def test_generators_of_the_encoders_device_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[torch.device, bool]] = []

    def checkpoint(function: Any, *inputs: torch.Tensor, **options: Any) -> Any:
        [place] = inputs
        calls.append((place.device, options["preserve_rng_state"]))
        return function(place)

    monkeypatch.setattr(recompute, "checkpoint", checkpoint)
    assert recomputed(lambda: 7, enabled=True, random_on=torch.device("meta")) == 7
    assert recomputed(lambda: 8, enabled=True) == 8
    assert recomputed(lambda: 9, enabled=False, random_on=torch.device("meta")) == 9
    assert calls == [(torch.device("meta"), True), (torch.device("cpu"), False)]


@pytest.mark.parametrize(("chunks", "left", "times"), [(None, 0, 0), (6, 80, 0), (6, 60, 3)])
def test_a_cached_encoder_gives_memory_back_in_large_batches(
    tiny_encoder: Path,
    chunks: int | None,
    left: int,
    times: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(encoder_module, "_POSITIONS_BETWEEN_TIDYING", 20)
    monkeypatch.setattr(encoder_module, "_POSITIONS_LEFT_UNTIDIED", left)
    given_back: list[None] = []
    monkeypatch.setattr(encoder_module, "give_back_freed_memory", lambda: given_back.append(None))
    encoder = SentenceEncoder.from_config(EncoderConfig(model=str(tiny_encoder)), seed=1)
    tokens = encoder.tokenize(["a dog runs", "the sun", "rain"] * 6)
    # After 30, 42 and 63 of them one more stretch of 20 is full.
    assert encoder.positions(tokens, 6) == [15, 15, 12, 12, 9, 9]
    vectors_nD = encoder(tokens, recomputed_chunks=chunks)
    assert len(given_back) == times
    vectors_nD.sum().backward()
    assert len(given_back) == 2 * times


_HOLES = """
import sys
from pathlib import Path
from simcse.heap import give_back_freed_memory

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

pieces = [bytes([1]) * 100_000 for _ in range(1000)]
for place in range(0, 1000, 2):
    pieces[place] = b""
before = resident()
give_back_freed_memory()
print(before - resident())
"""


def test_memory_in_holes_goes_back_to_the_system() -> None:
    if not PEAK_CAN_BE_READ or heap._malloc_trim() is None:
        pytest.skip("this system has no /proc or no malloc_trim")
    done = subprocess.run(
        [sys.executable, "-c", _HOLES], capture_output=True, text=True, check=True, timeout=60
    )
    assert int(done.stdout) > 30_000_000


def test_without_the_gnu_library_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heap, "_malloc_trim", lambda: None)
    heap.give_back_freed_memory()
