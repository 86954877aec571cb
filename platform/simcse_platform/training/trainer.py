"""A training run on Ray Train: from settings and a corpus to a best model in the run folder."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import floor

import ray.train
import torch
from pydantic import JsonValue
from ray.data import Dataset
from ray.exceptions import RayError
from ray.train.torch import TorchConfig, TorchTrainer

from simcse.errors import SimcseError, UsageError
from simcse.evaluation import EvaluationSet
from simcse_platform import provenance, runtime
from simcse_platform.config import ScaleConfig, TrainRun
from simcse_platform.errors import ClusterError, TrainingError
from simcse_platform.ingest.source import Corpus
from simcse_platform.ingest.stream import PlannedDataConfig, window_dataset
from simcse_platform.ingest.window import WindowPlan
from simcse_platform.runtime import Resources, cluster_resources
from simcse_platform.storage import RunFolder
from simcse_platform.training import checkpoint
from simcse_platform.training.supervision import Show, enough_machines, interruptible, shown
from simcse_platform.training.worker import (
    FAILURE,
    RESULT,
    Attempt,
    Record,
    WorkerFailure,
    WorkerResult,
    WorkerSetup,
    train_worker,
)

# Ray refuses a run whose record names a checkpoint that was deleted, or was itself cut short. Ours
# stand for themselves, so `fit` begins without the record, and deletes what Ray then forgets.
_RAYS_RECORD = "checkpoint_manager_snapshot.json"
# What one start of workers may take where the run's time limit allows for more than one. After a
# machine has left, Ray's first start counts on it still.
_SECONDS_A_START = 60
_OTHERS_HOLD = (
    "something else holds what they need, or machines are slow; run the same command again later, "
    "use fewer workers, or raise scale.timeout_s"
)


@dataclass(frozen=True)
class Placement:
    """How a run's workers lie on a cluster."""

    use_gpu: bool
    cpus_per_worker: float
    threads_per_worker: int


def fit(
    run: TrainRun,
    corpus: Corpus,
    dev_sets: Sequence[EvaluationSet],
    folder: RunFolder,
    record: Record,
    *,
    placement: Placement,
    lineage: Mapping[str, JsonValue],
    show: Show | None = None,
) -> WorkerResult:
    """Train, or go on from the newest checkpoint in `folder`, and return what rank 0 measured.

    The best model is then in `folder / "best"`. `show` gets step and measurements while it runs.
    Ray must be connected. Raises the project's error that stopped a worker, or `TrainingError`;
    `KeyboardInterrupt` once the workers have stopped after Ctrl-C.
    """
    plan = plan_steps(run, corpus)
    for stale in (RESULT, FAILURE, _RAYS_RECORD):
        (folder.path / stale).unlink(missing_ok=True)
    scale = run.scale
    with shown(show) as progress:
        trainer = TorchTrainer(
            train_worker,
            train_loop_config={
                "setup": WorkerSetup(
                    run=run,
                    folder=folder,
                    plan=plan,
                    dev_sets=tuple(dev_sets),
                    record=record,
                    lineage=lineage,
                    threads=placement.threads_per_worker,
                    source_hash=provenance.source_hash(),
                    progress=progress,
                )
            },
            scaling_config=_scaling(scale, placement),
            torch_config=TorchConfig(timeout_s=scale.timeout_s),
            run_config=ray.train.RunConfig(  # type: ignore[call-arg]
                name=folder.name,
                storage_path=str(folder.path.parent),
                failure_config=ray.train.FailureConfig(  # type: ignore[call-arg]
                    max_failures=scale.max_failures, controller_failure_limit=_starts(scale) - 1
                ),
                checkpoint_config=ray.train.CheckpointConfig(num_to_keep=run.checkpoint.keep),
                worker_runtime_env={"env_vars": _worker_environment(placement)},
                logging_config=ray.train.LoggingConfig(log_level="ERROR"),
            ),
            datasets={"train": lambda: _remaining_windows(folder, plan)},
            dataset_config=PlannedDataConfig(plan),
        )
        try:
            with (
                _waits_at_most(scale),
                enough_machines(lambda: _check_machines(scale, placement, folder), scale.timeout_s),
                interruptible(),
            ):
                trainer.fit()
        except (ray.train.TrainingFailedError, RayError) as error:
            raise _reason(error, folder, scale) from error
    checkpoint.prune(folder, run.checkpoint.keep)
    return WorkerResult.model_validate_json((folder.path / RESULT).read_text(encoding="utf-8"))


def plan_steps(run: TrainRun, corpus: Corpus) -> WindowPlan:
    """The steps of the run: its epochs over the corpus, but no more than `max_steps`."""
    steps_per_epoch = -(-sum(corpus.rows) // run.global_batch_size)
    total_steps = run.epochs * steps_per_epoch
    return WindowPlan(
        corpus=corpus,
        seed=run.seed,
        global_batch_size=run.global_batch_size,
        batches_per_window=run.data.batches_per_window,
        total_steps=min(total_steps, run.max_steps or total_steps),
        views=run.views,
    )


def place(scale: ScaleConfig, resources: Resources) -> Placement:
    """CPUs, GPUs and threads for each worker, leaving at least one CPU to Ray Data.

    Raises `ClusterError` when the cluster cannot hold the workers: Ray would wait for ever.
    """
    workers = scale.num_workers
    use_gpu = scale.device == "cuda" or (scale.device == "auto" and resources.gpus >= workers)
    if use_gpu and resources.gpus < workers:
        raise ClusterError(
            f"scale.num_workers is {workers}, but the cluster has {resources.gpus:g} GPUs: use "
            f"{'fewer workers or ' if resources.gpus else ''}scale.device=cpu"
        )
    if scale.offload != "nothing" and not use_gpu:
        raise UsageError("scale.offload moves state off a GPU, and no GPU is used: leave it out")
    free = resources.cpus - 1
    # In hundredths, since Ray counts no finer than that without rounding errors.
    cpus = scale.cpus_per_worker or min(1.0, floor(100 * free / workers) / 100)
    if cpus <= 0 or round(workers * cpus, 2) > free:
        raise ClusterError(
            f"{workers} worker(s) of {cpus:g} CPUs leave none of the cluster's {resources.cpus:g} "
            "to Ray Data, which needs one: use fewer workers, or lower scale.cpus_per_worker"
        )
    if cpus > resources.largest_node:
        raise ClusterError(
            f"scale.cpus_per_worker is {cpus:g}, but the largest machine has "
            f"{resources.largest_node:g} CPUs: lower it"
        )
    cores = resources.cpus / resources.nodes
    workers_per_node = -(-(scale.max_workers or workers) // resources.nodes)
    threads = scale.threads_per_worker or max(1, floor(cores / workers_per_node))
    return Placement(use_gpu=use_gpu, cpus_per_worker=cpus, threads_per_worker=threads)


def slow_precision(scale: ScaleConfig, placement: Placement) -> str | None:
    """What to say of a precision that the processor of this machine was not made for."""
    if scale.precision == "fp32" or placement.use_gpu or _takes_bf16():
        return None
    return (
        "scale.precision is bf16, for which this machine's processor has no instructions: unless "
        "the workers run on better ones, take fp32, in which a step is many times as fast"
    )


def _takes_bf16() -> bool:
    """Whether torch leaves products in bf16 to oneDNN here; otherwise it has plain loops."""
    if not torch.backends.mkldnn.is_available():
        return False
    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def _check_machines(scale: ScaleConfig, placement: Placement, folder: RunFolder) -> None:
    """Raises `ClusterError` when workers cannot be placed as decided, or an elastic run has none.

    Ray bounds the wait for a fixed number of workers itself, and for an elastic one never.
    """
    decided = {
        "device": "cuda" if placement.use_gpu else "cpu",
        "cpus_per_worker": placement.cpus_per_worker,
    }
    place(scale.model_copy(update=decided), cluster_resources())
    if scale.max_workers:
        attempts = Attempt.recorded(folder)
        if not attempts or (attempts[-1].placement_group and attempts[-1].group() is None):
            raise ClusterError(f"no workers have been started: {_OTHERS_HOLD}")


def _scaling(scale: ScaleConfig, placement: Placement) -> ray.train.ScalingConfig:
    workers = (scale.num_workers, scale.max_workers) if scale.max_workers else scale.num_workers
    # Ray's types are still those of the first Ray Train.
    return ray.train.ScalingConfig(  # type: ignore[call-arg]
        num_workers=workers,  # type: ignore[arg-type]
        elastic_resize_monitor_interval_s=scale.resize_every_s,
        use_gpu=placement.use_gpu,
        resources_per_worker={"CPU": placement.cpus_per_worker},
    )


def _remaining_windows(folder: RunFolder, plan: WindowPlan) -> Dataset:
    """Called by Ray whenever it starts a group of workers."""
    if (error := WorkerFailure.recorded(folder)) is not None:
        raise error
    # A run that has taken all its steps still gets a window, from which it takes no batch.
    return window_dataset(plan, min(checkpoint.next_step(folder), plan.total_steps - 1))


def _worker_environment(placement: Placement) -> dict[str, str]:
    return {
        "DS_ACCELERATOR": "cuda" if placement.use_gpu else "cpu",
        "OMP_NUM_THREADS": str(placement.threads_per_worker),
        "TOKENIZERS_PARALLELISM": "false",
        "MLFLOW_DISABLE_TELEMETRY": "true",
        # Every path is absolute, and a worker's own directory hides a user's relative ones.
        "RAY_CHDIR_TO_TRIAL_DIR": "0",
    }


def _starts(scale: ScaleConfig) -> int:
    """How often workers may be started within the run's time limit."""
    return max(1, scale.timeout_s // _SECONDS_A_START)


@contextmanager
def _waits_at_most(scale: ScaleConfig) -> Iterator[None]:
    """Ray's own waits, which its controller reads from the environment of the driver."""
    limits = {
        "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": scale.timeout_s / _starts(scale),
        "RAY_TRAIN_COLLECTIVE_TIMEOUT_S": scale.timeout_s,
        "RAY_TRAIN_WORKER_HEALTH_CHECK_TIMEOUT_S": scale.timeout_s,
    }
    before = {name: os.environ.get(name) for name in limits}
    os.environ.update({name: os.environ.get(name, str(limit)) for name, limit in limits.items()})
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]


def _reason(error: Exception, folder: RunFolder, scale: ScaleConfig) -> SimcseError:
    # What a worker wrote down is why the others, who waited for it, failed too.
    if (found := WorkerFailure.recorded(folder) or runtime.cause(error)) is not None:
        return found
    if "worker group startup timed out" in str(error):
        return ClusterError(
            f"the cluster did not start {scale.num_workers} worker(s) within {scale.timeout_s} s: "
            f"{_OTHERS_HOLD}"
        )
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return TrainingError(
        f"run {folder.name} failed: {lines[-1] if lines else 'no reason given'}; run the same "
        "command again to go on from its last checkpoint, with --debug to see the whole error"
    )
