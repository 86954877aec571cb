"""Activations that are computed twice so that they need not be kept."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import get_device_states, set_device_states

T = TypeVar("T")


def recomputed(
    function: Callable[[], T], *, enabled: bool, device: torch.device, random: bool = False
) -> T:
    """`function()`, which runs on `device`; if `enabled`, no activation of it is kept.

    The backward pass calls it again instead: under the same autocast and, with `random`, with the
    same numbers from the generators of the CPU and of `device`, such as dropout masks. It raises
    `RuntimeError` when the two calls differ in what autograd keeps, and in a second backward pass.
    As in non-reentrant `torch.utils.checkpoint`, whose bookkeeping for each tensor costs more: one
    backward pass in one thread is all that is asked for here.
    """
    return _TwoCalls(function, device, random=random).first() if enabled else function()


class _TwoCalls(Generic[T]):
    """In place of each tensor that autograd would keep of the first call, its number is kept.

    The second call has the tensors of those numbers, because it does the same in the same order.
    """

    def __init__(self, function: Callable[[], T], device: torch.device, *, random: bool) -> None:
        self._function = function
        self._device_type = device.type
        self._autocast = torch.autocast(
            device.type,
            dtype=torch.get_autocast_dtype(device.type),
            enabled=torch.is_autocast_enabled(device.type),
        )
        self._cpu_state = torch.get_rng_state() if random else None
        # Of devices other than the CPU, torch asks for those that some tensors lie on.
        place = [torch.empty(0, device=device)] if random else []
        self._devices, self._states = get_device_states(*place)
        self._kinds: list[tuple[torch.Size, torch.dtype]] = []
        self._again: list[Tensor | None] | None = None

    def first(self) -> T:
        with saved_tensors_hooks(self._pack, self._unpack):
            return self._function()

    def _pack(self, tensor: Tensor) -> int:
        self._kinds.append((tensor.shape, tensor.dtype))
        return len(self._kinds) - 1

    def _unpack(self, number: int) -> Tensor:
        if self._again is None:
            self._again = [*self._second()]
        tensor = self._again[number]
        if tensor is None:
            raise RuntimeError("a second backward pass through what is computed again")
        # Freed as soon as its operation is done, like what autograd itself keeps.
        self._again[number] = None
        return tensor

    def _second(self) -> list[Tensor]:
        tensors: list[Tensor] = []

        def keep(tensor: Tensor) -> None:
            tensors.append(tensor.detach())

        def never(_: Any) -> Tensor:
            raise AssertionError("the second call's own graph is thrown away")

        with (
            torch.random.fork_rng(self._devices, enabled=self._cpu_state is not None),
            torch.enable_grad(),
            self._autocast,
            saved_tensors_hooks(keep, never),
        ):
            if self._cpu_state is not None:
                torch.set_rng_state(self._cpu_state)
                set_device_states(self._devices, self._states, device_type=self._device_type)
            self._function()
        if [(tensor.shape, tensor.dtype) for tensor in tensors] != self._kinds:
            raise RuntimeError("two calls differ in what autograd keeps of them")
        return tensors
