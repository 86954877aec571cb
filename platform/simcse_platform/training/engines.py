"""Which engine a run trains under."""

from __future__ import annotations

from simcse.objective import ContrastiveTask
from simcse.optim import build_optimizer
from simcse_platform.config import TrainRun
from simcse_platform.training.engine import DdpEngine, Engine
from simcse_platform.training.zero import ZeroEngine


def build_engine(task: ContrastiveTask, run: TrainRun) -> Engine:
    """DDP for `scale.zero_stage` 0, DeepSpeed for the others, with the optimiser of the run."""
    optimizer = build_optimizer(task, run.optim)
    norm = run.optim.max_gradient_norm
    if not run.scale.zero_stage:
        return DdpEngine(task, optimizer, max_gradient_norm=norm)
    return ZeroEngine(
        task,
        optimizer,
        run.scale,
        max_gradient_norm=norm,
        accumulates=run.optim.accumulated_batches > 1,
    )
