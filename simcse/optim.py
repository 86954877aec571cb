"""AdamW and its schedule, as the original trains (paper appendix A; transformers' trainer)."""

from __future__ import annotations

from torch import nn
from torch.optim import AdamW

from simcse.config import OptimConfig


def build_optimizer(module: nn.Module, config: OptimConfig) -> AdamW:
    """AdamW over `module`; biases and normalisation weights are not decayed."""
    parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
    return AdamW(
        [
            {
                "params": [parameter for parameter in parameters if parameter.ndim >= 2],
                "weight_decay": config.weight_decay,
            },
            {
                "params": [parameter for parameter in parameters if parameter.ndim < 2],
                "weight_decay": 0.0,
            },
        ],
        lr=config.learning_rate,
        betas=(config.beta1, config.beta2),
        eps=config.eps,
        fused=True,
    )


def learning_rate(step: int, total_steps: int, config: OptimConfig) -> float:
    """Rate of step `step` of `total_steps`: linear warm-up, then linear decay to zero.

    Step 0 without warm-up has the full rate; the step after the last would have none.
    """
    warmup_steps = round(config.warmup_share * total_steps)
    if step < warmup_steps:
        return config.learning_rate * step / warmup_steps
    return config.learning_rate * (total_steps - step) / (total_steps - warmup_steps)
