"""SimCSE (Gao, Yao and Chen 2021, arXiv 2104.08821): the algorithm and its evaluation.

`from simcse import SimCSE` is the original project's tool.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from simcse.tool import SimCSE

__all__ = ["SimCSE"]


def __getattr__(name: str) -> object:
    # Late, so that `import simcse` costs no torch.
    if name == "SimCSE":
        from simcse.tool import SimCSE

        return SimCSE
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
