"""What one Ray Train worker runs: it builds the parts of a run and hands them to the loop."""

from __future__ import annotations

import json
import os
import re
import resource
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar, cast

import ray
import ray.train
import ray.train.torch
import torch
import torch.distributed as dist
from pydantic import BaseModel, JsonValue
from ray._raylet import PlacementGroupID
from ray.exceptions import RayError
from ray.util import get_current_placement_group
from ray.util.placement_group import PlacementGroup, placement_group_table
from ray.util.queue import Queue

from simcse.errors import SimcseError
from simcse.evaluation import EvaluationSet
from simcse.model_description import read_description
from simcse.objective import build_task
from simcse_platform import provenance
from simcse_platform.config import TrainRun, shown, to_yaml
from simcse_platform.errors import ClusterError, PassingError, StalledError, TrainingError
from simcse_platform.ingest.stream import batches
from simcse_platform.ingest.window import WindowPlan
from simcse_platform.storage import RunFolder, append_line, read_again_later, written
from simcse_platform.tracking.system_metrics import system_metrics
from simcse_platform.tracking.tracker import NullTracker, Tracker
from simcse_platform.training import checkpoint, loop
from simcse_platform.training.checkpoint import Best, Progress
from simcse_platform.training.dev import DevEvaluation
from simcse_platform.training.engine import Engine, rank_and_world
from simcse_platform.training.engines import build_engine
from simcse_platform.training.loop import SCORED

T = TypeVar("T")

# As gloo ("Timed out waiting 5000ms for recv operation"), NCCL and Ray's barrier say it.
_TIMED_OUT = re.compile(r"timed out|timeout", re.IGNORECASE)

BEST = "best"
RESULT = "result.json"
ATTEMPTS = "attempts.jsonl"
FAILURE = "failure.json"


class Record(Protocol):
    """A way to the record of a run that is cheap to hand to every process."""

    def open(self) -> Tracker:
        """The tracker, opened once, on rank 0."""


@dataclass(frozen=True)
class WorkerSetup:
    """All that a worker needs to know, pickled by the driver."""

    run: TrainRun
    folder: RunFolder
    plan: WindowPlan
    dev_sets: tuple[EvaluationSet, ...]
    record: Record
    lineage: Mapping[str, JsonValue]
    threads: int
    source_hash: str
    progress: Queue | None
    """Rank 0 puts (step, measurements) here for the driver to show."""


def train_worker(config: Mapping[str, WorkerSetup]) -> None:
    """Train as `config["setup"]` says; rank 0 leaves `best/` and `result.json` in the run folder.

    An error that a restart cannot mend is written to `failure.json` before it is raised.
    """
    setup = config["setup"]
    with _failure_recorded(setup.folder), _stalls_named(setup.run.scale.timeout_s):
        if provenance.source_hash() != setup.source_hash:
            raise ClusterError(
                "this worker runs another version of the project than the command: install the "
                "same one on every machine, or submit with cluster/runtime_env.yaml"
            )
        torch.set_num_threads(setup.threads)
        rank, world = rank_and_world()
        # One rank alone looks: what is there is read from its first byte to its last.
        attempt, found, published = _of_rank_0(
            (
                uuid.uuid4().hex[:8],
                checkpoint.newest(setup.folder),
                _published(setup.folder, setup.lineage),
            )
            if rank == 0
            else None
        )
        engine, progress = _build(setup, found)
        _record_attempt(setup.folder, attempt, progress.step)
        tracker = setup.record.open() if rank == 0 else NullTracker()
        every_s = setup.run.tracking.system_metrics_every_s
        watched = system_metrics(tracker, every_s) if rank == 0 and every_s else nullcontext()
        with watched:
            progress = loop.train(
                engine,
                batches(
                    ray.train.get_dataset_shard("train"),
                    setup.plan,
                    rank=rank,
                    world_size=world,
                    first_step=progress.step,
                    timeout_s=setup.run.scale.timeout_s,
                ),
                DevEvaluation(setup.dev_sets, engine.task.encoder),
                _RayReporter(setup, tracker),
                setup.run,
                total_steps=setup.plan.total_steps,
                progress=progress,
                published=published,
                attempt=attempt,
                lineage=setup.lineage,
            )
        peaks = [resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024] * world
        if world > 1:
            dist.all_gather_object(peaks, peaks[0])
        if rank == 0:
            tracker.flush()
            result = WorkerResult(progress=progress, peak_rss_mb=max(peaks))
            with written("the result"):
                setup.folder.write_text(RESULT, result.model_dump_json())


class Attempt(BaseModel):
    """A line of `attempts.jsonl`: one start of the workers."""

    attempt: str
    """As in the names of its checkpoints."""
    first_step: int
    processes: list[tuple[str, int]]
    """Ray's node id and the process id, by rank."""
    placement_group: str | None = None
    """Hexadecimal id of what the workers hold of the cluster."""

    @classmethod
    def recorded(cls, folder: RunFolder) -> list[Attempt]:
        """All attempts of a run, in their order.

        Lines that are no JSON are passed over, such as the zeros that a power failure leaves.
        """
        path = folder.path / ATTEMPTS
        content = path.read_bytes() if path.exists() else b""
        found = []
        # What follows the last end of a line was being written when its process was killed.
        for line in content[: content.rfind(b"\n") + 1].splitlines():
            with suppress(ValueError):
                found.append(json.loads(line))
        return [cls.model_validate(attempt) for attempt in found]

    def group(self) -> PlacementGroup | None:
        """What its workers hold of the connected cluster, if they still do."""
        if self.placement_group is None:
            return None
        group = PlacementGroup(PlacementGroupID(bytes.fromhex(self.placement_group)))
        holds = placement_group_table(group).get("state") == "CREATED"
        return group if holds else None


class WorkerResult(BaseModel):
    """What rank 0 leaves for the driver in `result.json`."""

    progress: Progress
    peak_rss_mb: float
    """Largest resident memory of a worker, in MiB."""

    def summary(self, *, run_id: str, model: Path) -> dict[str, JsonValue]:
        """The run's figures as `simcse train --json` writes them; scores are x 100."""
        done = self.progress
        best = done.best
        return {
            "run_id": run_id,
            "steps": done.step,
            "rows": done.rows,
            "rows_per_s": done.rows / done.seconds,
            "tokens_per_s": done.tokens / done.seconds,
            "padding_efficiency": done.tokens / done.positions,
            "skipped_updates": done.skipped_updates,
            "data_stall_share": done.stalled_seconds / done.seconds,
            "peak_rss_mb": self.peak_rss_mb,
            "dev_before": dict(done.dev_before),
            "dev": dict(done.dev),
            "best": {
                "step": best.step if best else done.step,
                "scores": dict(best.scores) if best else {},
                "geometry": cast(JsonValue, best.geometry) if best else None,
                "model": str(model),
            },
        }


class WorkerFailure(BaseModel):
    """What a worker leaves in `failure.json` when no restart can mend its error."""

    message: str
    exit_code: int

    @classmethod
    def recorded(cls, folder: RunFolder) -> TrainingError | None:
        """The error that was left in a run's folder, for the driver to raise."""
        path = folder.path / FAILURE
        if not path.exists():
            return None
        failure = cls.model_validate_json(path.read_text(encoding="utf-8"))
        error = TrainingError(failure.message)
        error.exit_code = failure.exit_code
        return error


class _RayReporter:
    """`loop.Reporter` that keeps things in the run folder, the tracker and the driver's display."""

    def __init__(self, setup: WorkerSetup, tracker: Tracker) -> None:
        self._setup = setup
        self._tracker = tracker
        self._display = setup.progress

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self._tracker.log_metrics(values, step)
        if self._display is not None:
            try:
                self._display.put((step, dict(values)))
            except RayError:
                # The display went with its machine; the run does not.
                self._display = None

    def save_checkpoint(self, name: str, folder: Path) -> None:
        ray.train.report(
            {}, checkpoint=ray.train.Checkpoint.from_directory(folder), checkpoint_dir_name=name
        )

    def save_best(self, folder: Path) -> None:
        (folder / "run.yaml").write_text(to_yaml(shown(self._setup.run)), encoding="utf-8")
        self._setup.folder.publish(folder, BEST)


def _build(setup: WorkerSetup, found: str | None) -> tuple[Engine, Progress]:
    """The engine and where it stands: at checkpoint `found`, or at the start."""
    run, scale = setup.run, setup.run.scale
    task = build_task(
        run.encoder,
        run.objective,
        run.views,
        seed=run.seed,
        memory=run.memory,
        autocast_dtype=torch.bfloat16 if scale.precision == "bf16" else None,
    ).to(ray.train.torch.get_device())
    loaded = None
    if found is not None:
        loaded = checkpoint.load(setup.folder, found)
        checkpoint.load_weights(task, loaded.weights)
    engine = build_engine(task, run)
    if loaded is None:
        return engine, Progress()
    updates = loaded.progress.updates(run.optim.accumulated_batches)
    engine.restore_moments(loaded.moments, updates)
    return engine, loaded.progress


def _published(folder: RunFolder, lineage: Mapping[str, JsonValue]) -> Best | None:
    """What the dev sets said of the best model that an earlier attempt has left."""
    folder.recover(BEST)
    model = folder.path / BEST
    with read_again_later(model):
        try:
            described = read_description(model)
            scored = Best.model_validate_json((model / SCORED).read_text(encoding="utf-8"))
        except (FileNotFoundError, ValueError):
            return None
    # A run without a checkpoint may have begun again on another corpus.
    same = described and described.lineage.get("data_sha256") == lineage.get("data_sha256")
    return scored if same else None


def _record_attempt(folder: RunFolder, attempt: str, first_step: int) -> None:
    own = (ray.get_runtime_context().get_node_id(), os.getpid())
    rank, world = rank_and_world()
    processes = [own] * world
    if world > 1:
        dist.all_gather_object(processes, own)
    if rank == 0:
        group = get_current_placement_group()
        line = Attempt(
            attempt=attempt,
            first_step=first_step,
            processes=processes,
            placement_group=group and group.id.hex(),
        )
        with written("the record of this attempt"):
            append_line(folder.path / ATTEMPTS, line.model_dump_json())


def _of_rank_0(value: T | None) -> T:
    """Rank 0's value on every rank; the others need none."""
    values = [value]
    if dist.is_initialized():
        dist.broadcast_object_list(values)
    return cast(T, values[0])


@contextmanager
def _failure_recorded(folder: RunFolder) -> Iterator[None]:
    try:
        yield
    except PassingError:
        raise
    except SimcseError as error:
        failure = WorkerFailure(message=str(error), exit_code=error.exit_code)
        # On a full disk there is no room for it either; then restarts end in the same error.
        with suppress(OSError):
            folder.write_text(FAILURE, failure.model_dump_json())
        raise


@contextmanager
def _stalls_named(timeout_s: int) -> Iterator[None]:
    """The collective that gave up waiting, as an error that says so."""
    try:
        yield
    except Exception as error:
        # Of many classes: PyTorch's, NCCL's, Ray's own.
        of_a_file = isinstance(error, OSError) and error.errno is not None
        if of_a_file or isinstance(error, SimcseError) or not _TIMED_OUT.search(str(error)):
            raise
        raise StalledError(
            f"rank {rank_and_world()[0]} waited {timeout_s} s for the others: one of them hangs or "
            "is far behind; see its log, or raise scale.timeout_s"
        ) from error
