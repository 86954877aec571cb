"""What is asked of DeepSpeed, as DeepSpeed itself understands it."""

from __future__ import annotations

from typing import Any

import pytest

from simcse_platform.config import ScaleConfig
from simcse_platform.training.zero import deepspeed_config


def understood(**scale: Any) -> Any:
    """DeepSpeed's own reading of its ZeRO section, which refuses names that it does not know."""
    from deepspeed.runtime.zero.config import DeepSpeedZeroConfig

    asked = deepspeed_config(ScaleConfig(**scale), max_gradient_norm=1.0)
    return DeepSpeedZeroConfig(**asked["zero_optimization"])


@pytest.mark.parametrize(
    ("stage", "offload", "optimizer", "parameters"),
    [
        (1, "nothing", None, None),
        (1, "optimizer", "cpu", None),
        (2, "optimizer", "cpu", None),
        (3, "optimizer", "cpu", None),
        (3, "parameters", "cpu", "cpu"),
    ],
)
def test_offload_moves_what_it_names_to_the_cpu(
    stage: int, offload: str, optimizer: str | None, parameters: str | None
) -> None:
    zero = understood(zero_stage=stage, offload=offload)
    devices = [
        section and str(section.device) for section in (zero.offload_optimizer, zero.offload_param)
    ]
    assert (zero.stage, devices) == (stage, [optimizer, parameters])


def test_small_parameters_stay_whole_below_the_threshold() -> None:
    assert understood(zero_stage=3, persistence_threshold=123).param_persistence_threshold == 123
