"""Training runs on Ray Train with a tiny encoder, watched, and made to fail where a test says."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from ray.data import DataIterator

from simcse.batch import Batch
from simcse.evaluation import Pairs, STSSet
from simcse_platform import runtime
from simcse_platform.config import TrainRun
from simcse_platform.ingest.source import open_corpus
from simcse_platform.storage import RunFolder
from simcse_platform.tracking.tracker import NullTracker
from simcse_platform.training import checkpoint, trainer
from simcse_platform.training.checkpoint import Progress
from simcse_platform.training.worker import WorkerResult

ROWS = 90
STEPS = 12  # of 8 rows, the last of 2
WORDS = ("dog", "cat", "man", "woman", "child", "house", "river", "city", "music", "game")
DEV = STSSet(
    "STSBenchmark",
    "dev",
    {
        "all": Pairs(
            first=("a dog runs", "the man eats food", "red car", "rain", "two horses"),
            second=("the dog is running", "a woman plays", "the car was red", "music", "a horse"),
            gold_n=np.array([4.0, 1.0, 5.0, 0.0, 3.0]),
        )
    },
)

Fail = Callable[[int, int], None]
"""Called with the rank and the step that it has reached, before it is taken or after the last."""


class FileTracker(NullTracker):
    """Appends metrics to a file, one line a call."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def open(self) -> FileTracker:
        return self

    def log_metrics(self, metrics: Mapping[str, float], step: int) -> None:
        with self._file.open("a") as lines:
            lines.write(json.dumps([step, dict(metrics)]) + "\n")


@dataclass(frozen=True)
class Outcome:
    """What a run left behind."""

    run: TrainRun
    folder: RunFolder
    result: WorkerResult
    shown: dict[int, dict[str, float]]

    def last_checkpoint(self) -> checkpoint.Checkpoint:
        name = checkpoint.newest(self.folder)
        assert name is not None
        return checkpoint.load(self.folder, name)


class Runs:
    """Starts runs on one corpus, each in a folder of its own name."""

    def __init__(self, model: Path, output: Path) -> None:
        self.output = output
        self.model = model
        (output / "corpus").mkdir()
        for shard in range(3):
            texts = [
                f"the {WORDS[i % 10]} and the {WORDS[i % 7]} of {i}"
                for i in range(shard * 30, (shard + 1) * 30)
            ]
            pq.write_table(pa.table({"text": texts}), output / "corpus" / f"{shard}.parquet")

    def settings(self, zero_stage: int = 0, **scale: Any) -> TrainRun:
        return TrainRun.model_validate(
            {
                "encoder": {"model": str(self.model), "length_buckets": 2},
                "optim": {"learning_rate": 1e-3},
                "data": {"corpus": [str(self.output / "corpus")], "batches_per_window": 4},
                "dev": {"every": 4},
                "scale": {
                    "num_workers": 2,
                    "zero_stage": zero_stage,
                    "max_failures": 0,
                    "persistence_threshold": 0,
                    **scale,
                },
                "checkpoint": {"every": 4},
                "tracking": {"log_every": 3, "system_metrics_every_s": None},
                "global_batch_size": 8,
            }
        )

    def folder(self, name: str) -> RunFolder:
        return RunFolder.of(str(self.output / "runs"), name)

    def fit(
        self,
        name: str,
        run: TrainRun,
        fail: Fail | None = None,
        *,
        kill_in_upload: int | None = None,
        windows_of_rank_1: int | None = None,
    ) -> Outcome:
        """Train as run `name`; its `ids-RANK.jsonl` gets step and row ids of every batch.

        Rank 1 is killed while it uploads the checkpoint of a step, or gets so many windows only.
        """
        folder = self.folder(name)
        folder.path.mkdir(parents=True, exist_ok=True)
        shown: dict[int, dict[str, float]] = {}
        corpus = open_corpus(run.data, run.encoder, self.output, lambda line: None)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(
                trainer,
                "train_worker",
                watched(folder.path, fail, kill_in_upload, windows_of_rank_1),
            )
            result = trainer.fit(
                run,
                corpus,
                [DEV],
                folder,
                FileTracker(folder.path / "metrics.jsonl"),
                placement=trainer.place(run.scale, runtime.cluster_resources()),
                lineage={"corpus": corpus.fingerprint},
                show=lambda step, values: shown.setdefault(step, {}).update(values),
            )
        return Outcome(run, folder, result, shown)


class Short:
    """A rank's data of which no more than some windows arrive."""

    def __init__(self, iterator: DataIterator, windows: int) -> None:
        self._iterator = iterator
        self._windows = windows

    def iter_batches(self, **kwargs: Any) -> Iterator[Any]:
        return islice(self._iterator.iter_batches(**kwargs), self._windows)


def watched(
    folder: Path, fail: Fail | None, kill_in_upload: int | None, windows_of_rank_1: int | None
) -> Callable[[Any], None]:
    """`train_worker` that writes down what it trains on, and fails where it is told to."""

    def watched_worker(config: Any) -> None:
        from simcse_platform.training import loop, worker
        from simcse_platform.training.engine import rank_and_world

        planned_batches, train, rank = worker.batches, loop.train, rank_and_world()[0]
        with (folder / "starts").open("a") as starts:
            starts.write(f"{rank}\n")

        def reach(step: int) -> None:
            if fail:
                fail(rank, step)

        def watched_batches(data: DataIterator, *args: Any, **kwargs: Any) -> Iterator[Batch]:
            dealt: Any = data
            if rank == 1 and windows_of_rank_1 is not None:
                dealt = Short(data, windows_of_rank_1)
            # A busy machine may take its time over data; what a test makes hang is a rank.
            for batch in planned_batches(dealt, *args, **{**kwargs, "timeout_s": 300}):
                reach(batch.step)
                with (folder / f"ids-{rank}.jsonl").open("a") as lines:
                    lines.write(json.dumps([batch.step, batch.row_ids_b.tolist()]) + "\n")
                yield batch

        save_checkpoint = worker._RayReporter.save_checkpoint

        def cut_off(self: Any, name: str, scratch: Path) -> None:
            marker = folder / "killed-in-upload"
            if (rank, kill_in_upload) == (
                1,
                checkpoint.step_of(name),
            ) and not marker.exists():
                marker.touch()
                upload_half(scratch, folder / name)
                os.kill(os.getpid(), signal.SIGKILL)
            save_checkpoint(self, name, scratch)

        worker._RayReporter.save_checkpoint = cut_off

        def watched_train(*args: Any, **kwargs: Any) -> Progress:
            progress = train(*args, **kwargs)
            reach(progress.step)
            return progress

        worker.batches, loop.train = watched_batches, watched_train
        worker.train_worker(config)

    return watched_worker


def upload_half(scratch: Path, target: Path) -> None:
    target.mkdir(exist_ok=True)
    for file in scratch.iterdir():
        content = file.read_bytes()
        (target / file.name).write_bytes(content[: len(content) // 2])
