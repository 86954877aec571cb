"""AdamW's parameter groups, and its schedule against that of transformers."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import get_linear_schedule_with_warmup

from simcse.config import EncoderConfig, OptimConfig
from simcse.encoder import SentenceEncoder
from simcse.optim import build_optimizer, learning_rate


def test_matrices_are_decayed_and_biases_and_norms_are_not(tiny_encoder: Path) -> None:
    encoder = SentenceEncoder.from_config(EncoderConfig(model=str(tiny_encoder)), seed=0)
    decayed, kept = build_optimizer(encoder, OptimConfig(weight_decay=0.1)).param_groups

    assert (decayed["weight_decay"], kept["weight_decay"]) == (0.1, 0.0)
    names = {parameter: name for name, parameter in encoder.named_parameters()}
    kept_names = {names[parameter] for parameter in kept["params"]}
    decayed_names = {names[parameter] for parameter in decayed["params"]}
    # The original's own rule, by name.
    assert kept_names == {n for n in names.values() if n.endswith("bias") or "LayerNorm" in n}
    assert decayed_names == set(names.values()) - kept_names
    assert "head.dense.weight" in decayed_names


def test_a_frozen_parameter_is_left_out(tiny_encoder: Path) -> None:
    encoder = SentenceEncoder.from_config(EncoderConfig(model=str(tiny_encoder)), seed=0)
    frozen = encoder.get_parameter("backbone.embeddings.word_embeddings.weight")
    frozen.requires_grad_(False)
    groups = build_optimizer(encoder, OptimConfig()).param_groups
    given = [parameter for group in groups for parameter in group["params"]]
    assert all(parameter is not frozen for parameter in given)
    assert len(given) == len(list(encoder.parameters())) - 1


def test_settings_reach_the_optimiser() -> None:
    config = OptimConfig(learning_rate=1e-4, beta1=0.8, beta2=0.95, eps=1e-6)
    for group in build_optimizer(torch.nn.Linear(2, 2), config).param_groups:
        assert (group["lr"], group["betas"], group["eps"]) == (1e-4, (0.8, 0.95), 1e-6)


@pytest.mark.parametrize("warmup_share", [0.0, 0.1, 0.5])
@pytest.mark.parametrize("total_steps", [1, 7, 250])
def test_the_schedule_is_that_of_transformers(total_steps: int, warmup_share: float) -> None:
    config = OptimConfig(learning_rate=3e-5, warmup_share=warmup_share)
    optimizer = build_optimizer(torch.nn.Linear(2, 2), config)
    schedule = get_linear_schedule_with_warmup(
        optimizer, round(warmup_share * total_steps), total_steps
    )
    for step in range(total_steps):
        want = optimizer.param_groups[0]["lr"]
        assert learning_rate(step, total_steps, config) == pytest.approx(want, rel=1e-12, abs=0)
        optimizer.step()
        schedule.step()


def test_the_step_after_the_last_would_have_no_rate() -> None:
    config = OptimConfig(learning_rate=1e-3)
    assert learning_rate(0, 4, config) == 1e-3
    assert learning_rate(3, 4, config) == 0.25e-3
    assert learning_rate(4, 4, config) == 0.0
