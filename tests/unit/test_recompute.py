"""What is computed twice: under the same random numbers, and without the heap growing."""

from __future__ import annotations

import subprocess
import sys
import weakref
from pathlib import Path
from typing import cast

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from simcse import encoder as encoder_module
from simcse import heap
from simcse.config import EncoderConfig
from simcse.encoder import SentenceEncoder
from simcse.recompute import recomputed
from support.peak_memory import PEAK_CAN_BE_READ


def gradients(enabled: bool, *, random: bool = True, bf16: bool = False) -> list[Tensor]:
    """Of a layer's weights and inputs, behind dropout and other draws from the generator."""
    torch.manual_seed(3)
    layer, inputs = torch.nn.Linear(8, 8), torch.randn(16, 8, requires_grad=True)

    def function() -> Tensor:
        return F.dropout(layer(inputs).tanh(), 0.5)

    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=bf16):
        output = recomputed(function, enabled=enabled, device=torch.device("cpu"), random=random)
    torch.randn(5)
    output.float().square().sum().backward()
    return [cast(Tensor, x.grad) for x in (layer.weight, layer.bias, inputs)] + [torch.randn(3)]


@pytest.mark.parametrize("bf16", [False, True])
def test_gradients_are_those_of_one_call(bf16: bool) -> None:
    kept, again = gradients(False, bf16=bf16), gradients(True, bf16=bf16)
    # The last are numbers drawn afterwards: the second call left no trace in the generator.
    assert all(torch.equal(a, b) for a, b in zip(kept, again, strict=True))


def test_without_its_random_numbers_the_second_call_has_other_masks() -> None:
    kept, again = gradients(False), gradients(True, random=False)
    assert not torch.equal(kept[0], again[0])


def test_generators_of_the_device_are_set_back(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = torch.Generator(), torch.Generator()
    monkeypatch.setattr(torch.cuda, "default_generators", (first, second))
    drawn: list[list[Tensor]] = []

    def function() -> Tensor:
        drawn.append([torch.rand(2, generator=each) for each in (first, second)])
        return weight.exp()

    weight = torch.zeros(2, requires_grad=True)
    recomputed(function, enabled=True, device=torch.device("cuda:1"), random=True).sum().backward()
    [[once_first, once_second], [again_first, again_second]] = drawn
    assert torch.equal(once_second, again_second)
    assert not torch.equal(once_first, again_first)


def test_a_call_keeps_nothing_until_the_backward_pass_and_little_after() -> None:
    alive: list[weakref.ref[Tensor]] = []

    def function() -> Tensor:
        states = weight
        for _ in range(5):
            states = states.exp()
            alive.append(weakref.ref(states))
        return states.sum()

    weight = torch.zeros(4, requires_grad=True)
    output = recomputed(function, enabled=True, device=torch.device("cpu"))
    assert [reference() for reference in alive] == [None] * 5
    output.backward()
    assert len(alive) == 10
    assert weight.grad is not None
    assert [reference() for reference in alive] == [None] * 10


def test_a_second_backward_pass_is_refused() -> None:
    weight = torch.zeros(4, requires_grad=True)
    output = recomputed(lambda: weight.exp().sum(), enabled=True, device=torch.device("cpu"))
    output.backward(retain_graph=True)
    with pytest.raises(AssertionError, match="second backward pass"):
        output.backward()


def test_two_calls_that_differ_are_refused() -> None:
    weight, calls = torch.zeros(4, requires_grad=True), []

    def function() -> Tensor:
        calls.append(None)
        return (weight.exp() if len(calls) == 1 else weight.exp().exp()).sum()

    output = recomputed(function, enabled=True, device=torch.device("cpu"))
    with pytest.raises(AssertionError, match="two calls differ"):
        output.backward()


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
