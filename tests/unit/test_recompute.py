"""What is computed twice: under the same random numbers, and without the heap growing."""

from __future__ import annotations

import math
import subprocess
import sys
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, UntypedStorage

from simcse import encoder as encoder_module
from simcse import heap, recompute
from simcse.config import EncoderConfig
from simcse.encoder import SentenceEncoder
from simcse.recompute import recomputed
from support.peak_memory import PEAK_CAN_BE_READ

CPU = torch.device("cpu")


def gradients(
    *, enabled: bool, random: bool = True, autocast: torch.dtype | None = None
) -> list[Tensor]:
    """Of a layer's weights and inputs, behind dropout and other draws from the generator."""
    torch.manual_seed(3)
    layer, inputs = torch.nn.Linear(8, 8), torch.randn(16, 8, requires_grad=True)

    def function() -> Tensor:
        return F.dropout(layer(inputs).tanh(), 0.5)

    with torch.autocast("cpu", dtype=autocast, enabled=autocast is not None):
        output = recomputed(function, enabled=enabled, device=CPU, random=random)
    assert output.dtype == autocast or autocast is None
    torch.randn(5)
    output.float().square().sum().backward()
    return [cast(Tensor, x.grad) for x in (layer.weight, layer.bias, inputs)] + [torch.randn(3)]


@pytest.mark.parametrize("autocast", [None, torch.bfloat16, torch.float16])
def test_gradients_are_those_of_one_call(autocast: torch.dtype | None) -> None:
    kept = gradients(enabled=False, autocast=autocast)
    again = gradients(enabled=True, autocast=autocast)
    # The last are numbers drawn afterwards: the second call left no trace in the generator.
    assert all(torch.equal(a, b) for a, b in zip(kept, again, strict=True))


def test_without_its_random_numbers_the_second_call_has_other_masks() -> None:
    kept, again = gradients(enabled=False), gradients(enabled=True, random=False)
    assert not torch.equal(kept[0], again[0])


def test_generators_of_the_device_are_set_back(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[Any, ...]] = []

    def states(*places: Tensor) -> tuple[list[int], list[Tensor]]:
        asked.append(("get", *(place.device.type for place in places)))
        return [], [torch.ones(1)] * len(places)

    def set_back(devices: list[int], states: list[Tensor], *, device_type: str) -> None:
        asked.append(("set", devices, len(states), device_type))

    monkeypatch.setattr(recompute, "get_device_states", states)
    monkeypatch.setattr(recompute, "set_device_states", set_back)
    weight = torch.zeros(2, requires_grad=True)
    for random in (True, False):
        recomputed(weight.exp, enabled=True, device=CPU, random=random).sum().backward()
    assert asked == [("get", "cpu"), ("set", [], 1, "cpu"), ("get",)]


def test_a_call_keeps_nothing_until_the_backward_pass_and_then_no_longer_than_needed() -> None:
    alive: list[weakref.ref[UntypedStorage]] = []
    seen: list[int] = []

    def living() -> int:
        return sum(reference() is not None for reference in alive)

    def function() -> Tensor:
        states = weight
        for _ in range(5):
            states = _Watched.apply(states, lambda: seen.append(living()))  # type: ignore[no-untyped-call]
            # Of the memory itself: what autograd keeps are other tensors on it.
            alive.append(weakref.ref(states.untyped_storage()))
        return states.sum()

    weight = torch.zeros(4, requires_grad=True)
    output = recomputed(function, enabled=True, device=CPU)
    assert (len(alive), living()) == (5, 0)
    output.backward()
    assert len(alive) == 10
    # Each step of the backward pass finds one fewer than the one before, its own included.
    assert seen == [5, 4, 3, 2, 1]
    assert living() == 0


class _Watched(torch.autograd.Function):
    """exp, which keeps its result; and a call in the backward pass, once it has that."""

    @staticmethod
    def forward(ctx: Any, states: Tensor, watch: Callable[[], None]) -> Tensor:
        result = states.exp()
        ctx.save_for_backward(result)
        ctx.watch = watch
        return result

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (result,) = ctx.saved_tensors
        ctx.watch()
        return gradient * result, None


def test_a_second_backward_pass_is_refused() -> None:
    weight = torch.zeros(4, requires_grad=True)
    output = recomputed(lambda: weight.exp().sum(), enabled=True, device=CPU)
    output.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match=r"^a second backward pass"):
        output.backward()


@pytest.mark.parametrize(
    "second",
    [lambda w: w.exp().exp().sum(), lambda w: w[:1].exp().sum(), lambda w: w.double().exp().sum()],
)
def test_two_calls_that_differ_are_refused_each_time(second: Callable[[Tensor], Tensor]) -> None:
    weight, calls = torch.zeros(4, requires_grad=True), 0

    def function() -> Tensor:
        nonlocal calls
        calls += 1
        return weight.exp().sum() if calls == 1 else second(weight)

    output = recomputed(function, enabled=True, device=CPU)
    for _ in range(2):
        with pytest.raises(RuntimeError, match=r"^two calls differ in what autograd keeps"):
            output.backward(retain_graph=True)


def test_a_second_call_that_fails_may_be_repeated() -> None:
    weight, calls = torch.zeros(4, requires_grad=True), 0

    def function() -> Tensor:
        nonlocal calls
        calls += 1
        result = weight.exp()
        if calls == 2:
            raise MemoryError("no room")
        return result.exp().sum()

    output = recomputed(function, enabled=True, device=CPU)
    with pytest.raises(MemoryError, match="no room"):
        output.backward(retain_graph=True)
    output.backward()
    assert weight.grad is not None
    assert weight.grad.allclose(torch.full((4,), math.e))


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
