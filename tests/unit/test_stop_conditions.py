"""What ends a run before its last step, in one process: each with its reason and the way out."""

from __future__ import annotations

import errno
import math
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import SafetensorError

from simcse.errors import ModelError
from simcse.metrics import uniformity
from simcse_platform.config import DevConfig, TrainRun
from simcse_platform.errors import CheckpointError, TrainingError
from simcse_platform.training import checkpoint, memory
from simcse_platform.training.dev import DevScores
from simcse_platform.training.engine import DdpEngine
from support.loop_runs import ScriptedDev, settings, train
from support.training import Recorder, ddp_engine, make_task


def test_a_full_disk_is_named_and_the_checkpoint_before_is_whole(
    tiny_encoder: Path, tmp_path: Path
) -> None:
    class FullDisk(Recorder):
        def save_checkpoint(self, name: str, folder: Path) -> None:
            if self.checkpoints:
                (self.folder.path / name).mkdir()
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            super().save_checkpoint(name, folder)

    run, reporter = settings(tiny_encoder, checkpoint={"every": 3}), FullDisk(tmp_path)
    with pytest.raises(
        CheckpointError,
        match=r"^a checkpoint cannot be written \(\[Errno 28\] No space left on device\): make "
        r"room in the temporary and the output folder, and run the same command again to go on "
        r"from the last checkpoint$",
    ):
        train(run, reporter, total_steps=7)
    assert checkpoint.newest(reporter.folder) == "checkpoint-00000003-first"


def test_a_full_temporary_folder_is_named_too(
    tiny_encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_room(*args: object) -> None:
        raise SafetensorError("I/O error: No space left on device (os error 28)")

    monkeypatch.setattr(checkpoint, "save_file", no_room)
    with pytest.raises(CheckpointError, match=r"^a checkpoint cannot be written \(I/O error"):
        train(settings(tiny_encoder), Recorder(tmp_path), total_steps=1)


def poisoned(run: TrainRun, value: float) -> DdpEngine:
    task = make_task(run)
    with torch.no_grad():
        task.encoder.backbone.get_parameter("encoder.layer.1.output.dense.bias")[3] = value
    return ddp_engine(task, run)


def test_gradients_that_stay_not_finite_end_the_run(tiny_encoder: Path, tmp_path: Path) -> None:
    run = settings(tiny_encoder, optim={"max_skipped_updates": 2}, checkpoint={"every": 100})
    reporter = Recorder(tmp_path)
    with pytest.raises(
        TrainingError,
        match=r"^the gradient of step 2 is not finite, for the 3. update in a row: lower "
        r"optim.learning_rate or raise objective.temperature$",
    ):
        train(run, reporter, total_steps=4, engine=poisoned(run, math.nan))
    assert reporter.checkpoints == []
    assert reporter.series("loss") == {}


def test_a_run_without_a_single_update_fails_at_its_end_and_again(
    tiny_encoder: Path, tmp_path: Path
) -> None:
    run, reporter = settings(tiny_encoder, optim={"max_skipped_updates": 3}), Recorder(tmp_path)
    message = r"^none of 2 steps had a finite gradient: lower optim.learning_rate or raise obj"
    with pytest.raises(TrainingError, match=message):
        train(run, reporter, total_steps=2, engine=poisoned(run, math.nan))
    done = checkpoint.load(reporter.folder, reporter.checkpoints[-1]).progress
    assert (done.step, done.skipped_updates) == (2, 2)
    with pytest.raises(TrainingError, match=message):
        train(run, reporter, total_steps=2, progress=done)
    assert reporter.times_best_was_saved == 0


def test_an_encoder_that_has_diverged_is_not_kept_without_a_dev_set_either(
    tiny_encoder: Path, tmp_path: Path
) -> None:
    """Its last updates were skipped, and the one before them destroyed it."""
    run, reporter = settings(tiny_encoder, optim={"learning_rate": 1e30}), Recorder(tmp_path)
    with pytest.raises(
        TrainingError,
        match=r"^the encoder has diverged by step 4 \(its vectors are not finite\): lower "
        r"optim.learning_rate or raise objective.temperature$",
    ):
        train(run, reporter, total_steps=4)
    assert reporter.times_best_was_saved == 0


def test_a_step_that_does_not_fit_is_refused_before_it_is_taken(
    tiny_encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = settings(tiny_encoder)
    engine = ddp_engine(make_task(run), run)
    monkeypatch.setattr(memory, "free_memory", lambda device: 1000)
    monkeypatch.setattr(engine, "backward", lambda loss: pytest.fail("a step was taken"))
    with pytest.raises(TrainingError, match=r"^a step needs about .* GiB on a worker"):
        train(run, Recorder(tmp_path), total_steps=1, engine=engine)


@pytest.mark.parametrize(
    ("limits", "scores", "message"),
    [
        ({"lowest_score": 20}, [30.0, 25.0, 19.5], "dev score is 19.50, below dev.lowest_score=20"),
        (
            {"highest_uniformity": -1.5},
            [30.0, 31.0],
            r"uniformity is -1, above .*uniformity=-1.5",
        ),
        # What lies beyond before it is trained has not collapsed.
        ({"lowest_score": 20}, [5.0, 7.5], "dev score is 7.50, below dev.lowest_score=20"),
    ],
)
def test_a_collapsed_encoder_stops_the_run_and_leaves_the_best_model(
    tiny_encoder: Path,
    tmp_path: Path,
    limits: dict[str, float],
    scores: list[float],
    message: str,
) -> None:
    run, reporter = settings(tiny_encoder, dev={"every": 2, **limits}), Recorder(tmp_path)
    step = 2 * (len(scores) - 1)
    with pytest.raises(
        TrainingError,
        match=f"the encoder has collapsed at step {step}: .*{message}; lower .* objective and data "
        "fit; the best model, of step 0, is kept$",
    ):
        train(run, reporter, total_steps=8, dev=ScriptedDev(scores))
    assert list(reporter.series("dev_scripted").values()) == scores
    assert reporter.times_best_was_saved == 1


def test_evaluations_and_checkpoints_come_between_updates(tiny_encoder: Path) -> None:
    with pytest.raises(
        ValueError, match=r"dev.every is 125, but optim.accumulated_batches is 2.*a multiple of it"
    ):
        settings(tiny_encoder, optim={"accumulated_batches": 2})
    with pytest.raises(ValueError, match=r"checkpoint\.every is 125, but"):
        settings(tiny_encoder, optim={"accumulated_batches": 2}, dev={"every": 4})


def test_an_encoder_that_diverged_between_evaluations_is_named_as_such(
    tiny_encoder: Path, tmp_path: Path
) -> None:
    class Diverged(ScriptedDev):
        def score(self, engine: object) -> DevScores:
            try:
                return super().score(engine)
            except IndexError:
                raise ModelError("the vectors of 3 of 3 sentences are not finite") from None

    run = settings(tiny_encoder, dev={"every": 2})
    with pytest.raises(
        TrainingError,
        match=r"^the encoder has diverged by step 2 \(its vectors are not finite\): lower "
        r"optim.learning_rate or raise objective.temperature; the best model, of step 0, is kept$",
    ):
        train(run, Recorder(tmp_path), total_steps=4, dev=Diverged([1.0]))


def test_vectors_that_are_all_the_same_lie_beyond_the_default() -> None:
    highest = DevConfig().highest_uniformity
    assert highest is not None
    same_nD = np.random.default_rng(0).normal(size=(1, 32)).repeat(50, axis=0)
    noise_nD = np.random.default_rng(1).normal(size=(50, 32))
    assert uniformity((same_nD + 1e-4 * noise_nD).astype(np.float32)) > highest
    assert uniformity((same_nD + 0.05 * noise_nD).astype(np.float32)) < highest
