"""Training checkpoints as files: what is written, and what is refused."""

from __future__ import annotations

import errno
import json
import logging
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from simcse.errors import UsageError
from simcse_platform.config import TrainRun
from simcse_platform.errors import CheckpointError, StorageError
from simcse_platform.storage import RunFolder
from simcse_platform.training import checkpoint
from simcse_platform.training.checkpoint import Best, Progress
from simcse_platform.training.engine import DdpEngine
from support.training import ddp_engine, make_batches, make_task

PARAMETERS = "parameters-00000-of-00001.safetensors"


@pytest.fixture(scope="module")
def run(tiny_encoder: Path) -> TrainRun:
    return TrainRun.model_validate({"encoder": {"model": str(tiny_encoder)}})


@pytest.fixture(scope="module")
def engine(run: TrainRun) -> DdpEngine:
    """An engine that has taken a step, so that its moments exist."""
    engine = ddp_engine(make_task(run), run)
    [batch] = make_batches(run, range(1), columns=2)
    engine.backward(engine(batch).loss)
    engine.step(1e-3)
    return engine


@pytest.fixture
def folder(run: TrainRun, engine: DdpEngine, tmp_path: Path) -> RunFolder:
    """A run with whole checkpoints of the steps 5 and 10."""
    for step in (5, 10):
        path = tmp_path / checkpoint.checkpoint_name(step, "abc")
        path.mkdir()
        checkpoint.save(engine, path, progress=Progress(step=step), run=run)
    return RunFolder(tmp_path)


NEWEST = "checkpoint-00000010-abc"
BEFORE = "checkpoint-00000005-abc"


def test_names_sort_by_step_and_tell_attempts_apart() -> None:
    assert checkpoint.checkpoint_name(125, "0f3a") == "checkpoint-00000125-0f3a"
    names = [checkpoint.checkpoint_name(step, "f") for step in (9, 10, 99, 100, 12345678)]
    assert sorted(names) == names


def test_what_was_saved_is_loaded(run: TrainRun, engine: DdpEngine, tmp_path: Path) -> None:
    progress = Progress(
        step=3,
        rows=192,
        tokens=4000,
        positions=5000,
        seconds=1.5,
        stalled_seconds=0.25,
        dev_before={"dev_stsb_spearman": 60.0},
        dev={"dev_stsb_spearman": 70.0},
        best=Best(step=2, score=71.0, scores={"dev_stsb_spearman": 71.0}),
        evaluations_without_gain=1,
    )
    (tmp_path / "checkpoint-00000003-x").mkdir()
    checkpoint.save(engine, tmp_path / "checkpoint-00000003-x", progress=progress, run=run)
    loaded = checkpoint.load(RunFolder(tmp_path), "checkpoint-00000003-x")

    assert (loaded.name, loaded.progress, loaded.run) == ("checkpoint-00000003-x", progress, run)
    names = [name for name, _ in engine.task.named_parameters()]
    assert sorted(loaded.weights) == sorted(loaded.moments) == sorted(names)
    for name, weight in engine.weights():
        assert loaded.weights[name].equal(weight)
    for name, moments in engine.moments():
        assert loaded.moments[name].keys() == moments.keys() == {"exp_avg", "exp_avg_sq"}
        assert all(loaded.moments[name][key].equal(value) for key, value in moments.items())


def test_a_checkpoint_is_json_and_safetensors_only(folder: RunFolder) -> None:
    assert {file.name for file in (folder.path / NEWEST).iterdir()} == {
        "checkpoint.json",
        PARAMETERS,
    }
    manifest = json.loads((folder.path / NEWEST / "checkpoint.json").read_text())
    assert (manifest["format"], manifest["world_size"]) == (1, 1)
    assert manifest["files"].keys() == {PARAMETERS}


def test_the_newest_is_found_and_says_where_the_run_goes_on(
    folder: RunFolder, caplog: pytest.LogCaptureFixture
) -> None:
    assert checkpoint.newest(folder) == NEWEST
    assert checkpoint.next_step(folder) == 10
    assert caplog.records == []


def test_a_run_without_checkpoints_starts_at_step_0(tmp_path: Path) -> None:
    for folder in (RunFolder(tmp_path), RunFolder(tmp_path / "nowhere")):
        assert checkpoint.newest(folder) is None
        assert checkpoint.next_step(folder) == 0


def remove_manifest(path: Path) -> None:
    (path / "checkpoint.json").unlink()


def cut_manifest(path: Path) -> None:
    text = (path / "checkpoint.json").read_text()
    (path / "checkpoint.json").write_text(text[: len(text) // 2])


def manifest_of_other_fields(path: Path) -> None:
    tree = json.loads((path / "checkpoint.json").read_text())
    (path / "checkpoint.json").write_text(json.dumps(tree | {"unheard_of": 1}))


def manifest_of_bytes(path: Path) -> None:
    (path / "checkpoint.json").write_bytes(b"\xff\xfe\x00")


def remove_parameters(path: Path) -> None:
    (path / PARAMETERS).unlink()


def cut_parameters(path: Path) -> None:
    content = (path / PARAMETERS).read_bytes()
    (path / PARAMETERS).write_bytes(content[:-1])


def flip_a_bit(path: Path) -> None:
    content = bytearray((path / PARAMETERS).read_bytes())
    content[-1] ^= 1
    (path / PARAMETERS).write_bytes(content)


BROKEN = [
    (remove_manifest, rf"{NEWEST} has no checkpoint.json: its writing was interrupted"),
    (cut_manifest, rf"{NEWEST}/checkpoint.json cannot be read"),
    (manifest_of_other_fields, rf"{NEWEST}/checkpoint.json cannot be read"),
    (manifest_of_bytes, rf"{NEWEST}/checkpoint.json cannot be read"),
    (remove_parameters, rf"{NEWEST}/{PARAMETERS} is not whole: its writing was interrupted"),
    (cut_parameters, rf"{NEWEST}/{PARAMETERS} is not whole: its writing was interrupted"),
    (flip_a_bit, rf"{NEWEST}/{PARAMETERS} is damaged: its content has changed"),
]


@pytest.mark.parametrize(("spoil", "message"), BROKEN, ids=lambda x: getattr(x, "__name__", ""))
def test_a_checkpoint_that_is_not_whole_is_refused_and_the_one_before_is_taken(
    folder: RunFolder, caplog: pytest.LogCaptureFixture, spoil, message: str
) -> None:
    spoil(folder.path / NEWEST)
    with pytest.raises(CheckpointError, match=f"{message}$"):
        checkpoint.load(folder, NEWEST)
    with caplog.at_level(logging.WARNING):
        assert checkpoint.newest(folder) == BEFORE
    [record] = caplog.records
    assert record.getMessage().startswith(str(folder.path))
    assert record.getMessage().endswith("; it is passed over")
    assert checkpoint.next_step(folder) == 5
    assert checkpoint.load(folder, BEFORE).progress.step == 5


def test_a_checkpoint_of_another_version_is_neither_passed_over_nor_deleted(
    folder: RunFolder,
) -> None:
    manifest = folder.path / NEWEST / "checkpoint.json"
    tree = json.loads(manifest.read_text())
    # Another format has other fields.
    manifest.write_text(json.dumps({"format": 2, "cursor": tree["progress"]}))
    message = rf"{NEWEST} was written by another version \(format 2, this one reads 1\): go on with"
    for read in (
        lambda: checkpoint.load(folder, NEWEST),
        lambda: checkpoint.next_step(folder),
        lambda: checkpoint.prune(folder, keep=1),
    ):
        with pytest.raises(UsageError, match=message):
            read()
    assert {NEWEST, BEFORE} <= {path.name for path in folder.path.iterdir()}


@pytest.mark.parametrize("change", ["gone", "new", "shape"])
def test_a_checkpoint_of_an_encoder_that_has_changed_since_is_refused(
    engine: DdpEngine, change: str
) -> None:
    weights = dict(engine.weights())
    name = "encoder.backbone.embeddings.LayerNorm.bias"
    if change == "gone":
        del weights[name]
    else:
        weights[name if change == "shape" else f"{name}.more"] = torch.zeros(3)
    with pytest.raises(
        CheckpointError,
        match=rf"^the checkpoint does not fit the encoder, as {name}.* shows: .* bring it back",
    ):
        checkpoint.load_weights(engine.task, weights)


def test_the_newest_of_two_attempts_is_that_of_the_later_step(
    folder: RunFolder, run: TrainRun, engine: DdpEngine
) -> None:
    path = folder.path / checkpoint.checkpoint_name(7, "zzz")
    path.mkdir()
    checkpoint.save(engine, path, progress=Progress(step=7), run=run)
    assert checkpoint.newest(folder) == NEWEST


def test_a_checkpoint_that_cannot_be_read_now_is_neither_passed_over_nor_deleted(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    read_text = Path.read_text

    def stale(path: Path, *args: Any, **kwargs: Any) -> str:
        if path.parent.name == NEWEST:
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
        return read_text(path, *args, **kwargs)

    monkeypatch.setattr(Path, "read_text", stale)
    message = rf"^.*{NEWEST} cannot be read now \(.*Stale file handle\): see to its storage"
    with pytest.raises(StorageError, match=message):
        checkpoint.newest(folder)
    with pytest.raises(StorageError, match=message):
        checkpoint.prune(folder, 1)
    assert {NEWEST, BEFORE} <= {path.name for path in folder.path.iterdir()}


def test_all_but_the_newest_whole_checkpoints_are_deleted(
    folder: RunFolder, run: TrainRun, engine: DdpEngine
) -> None:
    for step in (1, 2, 20):
        path = folder.path / checkpoint.checkpoint_name(step, "abc")
        path.mkdir()
        checkpoint.save(engine, path, progress=Progress(step=step), run=run)
    for unfinished in ("checkpoint-00000002-abc", "checkpoint-00000020-abc"):
        remove_manifest(folder.path / unfinished)

    # What a user put beside them, which sorts above all of them, stays.
    shutil.copytree(folder.path / NEWEST, folder.path / "checkpoint-good-copy")
    (folder.path / "checkpoint-backup.tar").touch()
    others = {"checkpoint-good-copy", "checkpoint-backup.tar"}
    # One that was moved to another disk counts, and what is there stays too.
    moved = folder.path / "moved"
    shutil.copytree(folder.path / BEFORE, moved)
    (folder.path / "checkpoint-00000004-abc").symlink_to(moved)

    assert checkpoint.newest(folder) == NEWEST
    checkpoint.prune(folder, 2)
    assert {path.name for path in folder.path.iterdir()} == {NEWEST, BEFORE, "moved"} | others
    checkpoint.prune(RunFolder(folder.path / "nowhere"), 1)
