"""DeepSpeed ZeRO stages 1 to 3 behind the `Engine` protocol; the only import of deepspeed."""

from __future__ import annotations

import math
import os
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.optim import Optimizer

from simcse.batch import Batch
from simcse.objective import ContrastiveTask, TaskOutput
from simcse.tokens import RaggedTokens
from simcse_platform.config import ScaleConfig
from simcse_platform.training.engine import MOMENTS, rank_and_world, set_learning_rate


class ZeroEngine:
    """A `ContrastiveTask` whose optimiser state, gradients or parameters are sharded by ZeRO.

    A process group must exist. DeepSpeed averages gradients over ranks by default, as
    `simcse.gather` expects.
    """

    def __init__(
        self,
        task: ContrastiveTask,
        optimizer: Optimizer,
        scale: ScaleConfig,
        *,
        max_gradient_norm: float,
        accumulates: bool = False,
    ) -> None:
        device = next(task.parameters()).device
        # DeepSpeed picks its accelerator when it is imported, from this variable.
        os.environ.setdefault("DS_ACCELERATOR", device.type)
        import deepspeed

        if device.type == "cpu":
            # DeepSpeed would try every operator with a compiler, and build one for minutes that
            # only inference uses. Training here needs none of them.
            deepspeed.ops.__compatible_ops__ = defaultdict(bool)
        self._deepspeed = deepspeed
        self._engine, self._optimizer, _, _ = deepspeed.initialize(
            model=task,
            optimizer=optimizer,
            config=deepspeed_config(
                scale, max_gradient_norm=max_gradient_norm, accumulates=accumulates
            ),
            dist_init_required=False,
        )
        self.task = task

    def __call__(self, batch: Batch) -> TaskOutput:
        self._engine.train()
        return cast(TaskOutput, self._engine(batch))

    def backward(self, loss: Tensor) -> None:
        self._engine.backward(loss)

    def step(self, learning_rate: float) -> float:
        set_learning_rate(self._optimizer, learning_rate)
        self._engine.step()
        # An update that stage 3 skips leaves the norm of the one before.
        return math.inf if self._optimizer.overflow else float(self._engine.get_global_grad_norm())

    @torch.no_grad()
    def embed(self, tokens: RaggedTokens) -> Tensor:
        self._engine.eval()
        return cast(Tensor, self._engine(tokens))

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        for name, parameter in self.task.named_parameters():
            weight = self._deepspeed.utils.safe_get_full_fp32_param(parameter)
            yield name, _copy_on_cpu(weight)

    def moments(self) -> Iterator[tuple[str, dict[str, Tensor]]]:
        self._link_moments()
        get = self._deepspeed.utils.safe_get_full_optimizer_state
        # There are none before the first update, which may have been left out.
        begun = any(self._optimizer.optimizer.state.values())
        for name, parameter in self.task.named_parameters():
            if begun:
                yield name, {moment: _copy_on_cpu(get(parameter, moment)) for moment in MOMENTS}
            else:
                shape = getattr(parameter, "ds_shape", parameter.shape)
                yield name, {moment: torch.zeros(shape) for moment in MOMENTS}

    def restore_moments(self, moments: Mapping[str, Mapping[str, Tensor]], step: int) -> None:
        # AdamW makes its state in its first step, and the setters below need it to be there.
        self._step_that_changes_nothing()
        self._link_moments()
        for name, parameter in self.task.named_parameters():
            for moment, value in moments[name].items():
                self._set_moment(parameter, moment, value.to(parameter.device))
        for state in self._optimizer.optimizer.state.values():
            state["step"].fill_(step)
        self._engine.global_steps = step

    def _set_moment(self, parameter: Any, moment: str, value: Tensor) -> None:
        utils = self._deepspeed.utils
        if not hasattr(parameter, "ds_id"):
            utils.safe_set_full_optimizer_state(parameter, value, moment)
            return
        # Stage 3 takes whole tensors only where their elements divide evenly among the ranks.
        size, (rank, world) = parameter.partition_numel(), rank_and_world()
        padded = F.pad(value.flatten(), (0, size * world - value.numel()))
        own = padded[rank * size : (rank + 1) * size]
        utils.safe_set_local_optimizer_state(parameter, own, moment)

    def _link_moments(self) -> None:
        # Stages 1 and 2 link parameters to their moments once, after the step of the first of two
        # parameter groups, when the moments of the second do not exist yet.
        if hasattr(self._optimizer, "_hp_optimizer_states_linked"):
            self._optimizer._hp_optimizer_states_linked = False
            self._optimizer._lazy_init_hp_params_optimizer_state()

    def _step_that_changes_nothing(self) -> None:
        decays = [group["weight_decay"] for group in self._optimizer.param_groups]
        for group in self._optimizer.param_groups:
            group["weight_decay"] = 0.0
        self._engine.train()
        # One row of every view, since the gradient of every parameter must exist.
        views = 1 + self.task.objective.positives
        columns = (RaggedTokens.from_lists([[0]]),) * views
        batch = Batch(
            epoch=0, step=0, global_rows=1, row_ids_b=torch.zeros(1).long(), columns=columns
        )
        self._engine.backward(self._engine(batch).loss * 0.0)
        self.step(0.0)
        for group, decay in zip(self._optimizer.param_groups, decays, strict=True):
            group["weight_decay"] = decay


def _copy_on_cpu(tensor: Tensor) -> Tensor:
    """A copy, because DeepSpeed hands out views of its flat buffers."""
    return tensor.detach().to("cpu", torch.float32, copy=True)


def deepspeed_config(
    scale: ScaleConfig, *, max_gradient_norm: float, accumulates: bool = False
) -> dict[str, Any]:
    """DeepSpeed's JSON, every default that changed between releases set on purpose.

    With `accumulates`, several `backward` may precede a `step`, as many as the caller likes.
    """
    zero: dict[str, Any] = {
        "stage": scale.zero_stage,
        "reduce_scatter": True,
        "overlap_comm": False,
        "contiguous_gradients": True,
        "stage3_param_persistence_threshold": scale.persistence_threshold,
    }
    if scale.offload != "nothing":
        zero["offload_optimizer"] = {"device": "cpu"}
    if scale.offload == "parameters":
        zero["offload_param"] = {"device": "cpu"}
    return {
        # The loop hands over whole global batches; DeepSpeed only uses this to divide, by one.
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 1,
        "managed_gradient_accumulation": not accumulates,
        "gradient_clipping": max_gradient_norm,
        "communication_data_type": "fp32",
        "data_types": {"grad_accum_dtype": "fp32"},
        "bf16": {"enabled": False},
        "fp16": {"enabled": False},
        "zero_optimization": zero,
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "steps_per_print": 2**31,
    }
