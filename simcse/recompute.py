"""Activations that are computed twice so that they need not be kept."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

T = TypeVar("T")


def recomputed(
    function: Callable[[], T], *, enabled: bool, device: torch.device, random: bool = False
) -> T:
    """`function()`, which runs on `device`; if `enabled`, it keeps nothing for the backward pass.

    That calls it again instead: under the same autocast and, with `random`, with the same numbers
    from the generators of the CPU and of `device`, such as dropout masks. Once only, so the graph
    cannot be kept for another backward pass. It does what `torch.utils.checkpoint` does without
    re-entering autograd, at less than half of what that costs above the second call itself.
    """
    return _TwoCalls(function, device, random=random).first() if enabled else function()


class _TwoCalls(Generic[T]):
    """In place of each tensor that autograd would keep of the first call, its number is kept.

    The second call, in the same order, has the tensors of those numbers.
    """

    def __init__(self, function: Callable[[], T], device: torch.device, *, random: bool) -> None:
        self._function = function
        self._autocast = torch.autocast(
            device.type,
            dtype=torch.get_autocast_dtype(device.type),
            enabled=torch.is_autocast_enabled(device.type),
        )
        self._generators = _generators(device) if random else []
        self._states = [generator.get_state() for generator in self._generators]
        self._count = 0
        self._tensors: list[Tensor | None] = []

    def first(self) -> T:
        with saved_tensors_hooks(self._number, self._tensor):
            return self._function()

    def _number(self, _: Tensor) -> int:
        self._count += 1
        return self._count - 1

    def _tensor(self, number: int) -> Tensor:
        if not self._tensors:
            self._call_again()
        tensor = self._tensors[number]
        assert tensor is not None, "a second backward pass through what is computed again"
        # Freed as soon as its operation is done, like what autograd itself keeps.
        self._tensors[number] = None
        return tensor

    def _call_again(self) -> None:
        def keep(tensor: Tensor) -> Tensor:
            self._tensors.append(tensor.detach())
            return tensor.detach()

        with (
            torch.enable_grad(),
            self._autocast,
            _set_back(self._generators, self._states),
            saved_tensors_hooks(keep, lambda tensor: tensor),
        ):
            self._function()
        assert len(self._tensors) == self._count, "two calls differ in what autograd keeps"


def _generators(device: torch.device) -> list[torch.Generator]:
    generators = [torch.default_generator]
    if device.type == "cuda":
        index = torch.cuda.current_device() if device.index is None else device.index
        generators.append(torch.cuda.default_generators[index])
    return generators


@contextmanager
def _set_back(generators: list[torch.Generator], states: list[Tensor]) -> Iterator[None]:
    """The generators as they were at `states`; afterwards as they are now."""
    now = [generator.get_state() for generator in generators]
    for generator, state in zip(generators, states, strict=True):
        generator.set_state(state)
    try:
        yield
    finally:
        for generator, state in zip(generators, now, strict=True):
            generator.set_state(state)
