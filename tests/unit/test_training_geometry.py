"""Alignment and uniformity along a run, recomputed from its checkpoints.

n: pairs, m: distinct sentences, D: width.
"""

from __future__ import annotations

import math
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest

from simcse.evaluation import Pairs, STSSet
from simcse_platform.config import TrainRun
from simcse_platform.storage import RunFolder
from simcse_platform.training import checkpoint, loop
from simcse_platform.training.checkpoint import Progress
from simcse_platform.training.dev import DevEvaluation
from support.training import Recorder, ddp_engine, make_batches, make_task

FIRST = ("a dog runs in the rain", "the old man reads", "a red car", "birds sleep", "big house")
SECOND = ("the dog is running", "a man reads a book", "a blue bus", "the birds sleep", "two cats")
GRADES = (4.5, 4.0, 1.0, 5.0, 0.0)


def reference(vectors: dict[str, np.ndarray]) -> tuple[float, float]:
    """Equations 6 and 7 of section 7 in plain loops, on vectors of length one."""
    unit = {text: vector / np.sqrt((vector**2).sum()) for text, vector in vectors.items()}
    positives = [(a, b) for a, b, grade in zip(FIRST, SECOND, GRADES, strict=True) if grade > 4]
    alignment = sum(((unit[a] - unit[b]) ** 2).sum() for a, b in positives) / len(positives)
    pairs = list(combinations(unit.values(), 2))
    potential = sum(math.exp(-2 * ((a - b) ** 2).sum()) for a, b in pairs) / len(pairs)
    return float(alignment), math.log(potential)


def test_both_are_stored_at_every_evaluation_and_are_those_of_the_checkpoint(
    tiny_encoder: Path, tmp_path: Path
) -> None:
    run = TrainRun.model_validate(
        {
            "encoder": {"model": str(tiny_encoder)},
            "optim": {"learning_rate": 1e-3},
            "global_batch_size": 8,
            "dev": {"every": 2},
            "checkpoint": {"every": 2},
        }
    )
    pairs = Pairs(FIRST, SECOND, np.array(GRADES))
    task = make_task(run)
    recorder = Recorder(tmp_path)
    loop.train(
        ddp_engine(task, run),
        make_batches(run, range(6), columns=1),
        DevEvaluation([STSSet("STSBenchmark", "dev", {"dev": pairs})], task.encoder),
        recorder,
        run,
        total_steps=6,
        progress=Progress(),
        attempt="a",
        lineage={},
    )
    alignments, uniformities = (
        recorder.series(name) for name in ("dev_alignment", "dev_uniformity")
    )
    assert list(alignments) == list(uniformities) == [0, 2, 4, 6]
    assert len(set(alignments.values())) == 4
    for step in (2, 4, 6):
        loaded = checkpoint.load(RunFolder(tmp_path), checkpoint.checkpoint_name(step, "a"))
        fresh = make_task(run)
        checkpoint.load_weights(fresh, loaded.weights)
        texts = sorted({*FIRST, *SECOND})
        vectors_mD = fresh.encoder.encode(texts).astype(np.float64)
        alignment, uniformity = reference(dict(zip(texts, vectors_mD, strict=True)))
        assert alignments[step] == pytest.approx(alignment, abs=1e-5)
        assert uniformities[step] == pytest.approx(uniformity, abs=1e-5)
