"""Training checkpoints: safetensors by parameter name and one JSON file, alike for every engine.

Rank r of W writes every W-th parameter, with both of AdamW's moments. A checkpoint loads at any
worker count and under any engine, holds no pickle, and is trusted only if every file has the hash
that the JSON file names.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
import shutil
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from pathlib import Path

import torch.distributed as dist
from pydantic import BaseModel, ConfigDict, Field
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from simcse.errors import UsageError
from simcse.evaluation.geometry import GeometryNumbers
from simcse_platform.config import TrainRun
from simcse_platform.errors import CheckpointError
from simcse_platform.storage import RunFolder, read_again_later
from simcse_platform.training.engine import Engine, rank_and_world

logger = logging.getLogger(__name__)

FORMAT = 1
PREFIX = "checkpoint-"
_NAME = re.compile(rf"{PREFIX}\d{{8}}-\w+")
MANIFEST = "checkpoint.json"


class Best(BaseModel):
    """The best model so far."""

    step: int
    score: float
    scores: dict[str, float]
    geometry: GeometryNumbers | None = None
    """How its dev vectors lie; rank 0 alone knows."""


class Progress(BaseModel):
    """What a run has done so far: the cursor, and the sums behind its final figures."""

    model_config = ConfigDict(extra="forbid")

    step: int = 0
    """Global batches trained on, which is also the next one's number."""
    skipped_updates: int = 0
    """Updates left out because their gradient was not finite."""
    skipped_in_a_row: int = 0
    """Of them those since the last update that was made."""
    rows: int = 0
    tokens: int = 0
    positions: int = 0
    """Positions the encoder computed, padding included."""
    seconds: float = 0.0
    """Time in training steps; evaluation and saving are not counted."""
    stalled_seconds: float = 0.0
    """Part of `seconds` spent waiting for data."""
    dev_before: dict[str, float] = Field(default_factory=dict)
    dev: dict[str, float] = Field(default_factory=dict)
    best: Best | None = None
    evaluations_without_gain: int = 0

    def updates(self, accumulated_batches: int) -> int:
        """Updates that the optimiser has made, at a step where none is half-way."""
        return -(-self.step // accumulated_batches) - self.skipped_updates


class _File(BaseModel):
    bytes: int
    sha256: str


class _Manifest(BaseModel):
    model_config = ConfigDict(extra="forbid")

    format: int
    world_size: int
    files: dict[str, _File]
    progress: Progress
    run: TrainRun


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint whose files are whole."""

    name: str
    progress: Progress
    run: TrainRun
    weights: dict[str, Tensor]
    """Float32, by parameter name."""
    moments: dict[str, dict[str, Tensor]]
    """AdamW's moments by parameter name, then by moment."""


def checkpoint_name(step: int, attempt: str) -> str:
    """Two attempts never write into one folder, since a merge of both would look complete."""
    return f"{PREFIX}{step:08d}-{attempt}"


def step_of(name: str) -> int:
    """The step that a checkpoint's name says."""
    return int(name.removeprefix(PREFIX).partition("-")[0])


def save(engine: Engine, folder: Path, *, progress: Progress, run: TrainRun) -> None:
    """Write this rank's file, and on rank 0 the JSON file, into a local folder. Collective."""
    rank, world = rank_and_world()
    tensors: dict[str, Tensor] = {}
    for index, (name, weight) in enumerate(engine.weights()):
        if index % world == rank:
            tensors[f"weight/{name}"] = weight.contiguous()
    for index, (name, moments) in enumerate(engine.moments()):
        if index % world == rank:
            tensors |= {f"{moment}/{name}": value.contiguous() for moment, value in moments.items()}
    path = folder / f"parameters-{rank:05d}-of-{world:05d}.safetensors"
    save_file(tensors, path)
    own = (
        path.name,
        {"bytes": path.stat().st_size, "sha256": _sha256(path)},
    )
    files = [own]
    if world > 1:
        files = [own] * world
        dist.all_gather_object(files, own)
    if rank == 0:
        manifest = _Manifest.model_validate(
            {
                "format": FORMAT,
                "world_size": world,
                "files": dict(files),
                "progress": progress.model_copy(deep=True),
                "run": run,
            }
        )
        (folder / MANIFEST).write_text(manifest.model_dump_json(indent=1), encoding="utf-8")


def newest(folder: RunFolder) -> str | None:
    """Name of the newest checkpoint that is as it was written; newer ones are named in warnings."""
    return next(_whole(folder), None)


def next_step(folder: RunFolder) -> int:
    """Where a run continues: the step after its newest checkpoint, or 0."""
    name = newest(folder)
    return _read_manifest(folder.path / name).progress.step if name else 0


def prune(folder: RunFolder, keep: int) -> None:
    """Delete all checkpoints but the newest `keep` that are whole; nothing may be writing one."""
    kept = set(islice(_whole(folder), keep))
    for path in _found(folder):
        if path.name not in kept:
            path.unlink() if path.is_symlink() else shutil.rmtree(path)


def load(folder: RunFolder, name: str) -> Checkpoint:
    """Read a checkpoint. Raises `CheckpointError` naming the file that is not as written."""
    path = folder.path / name
    manifest = _read_manifest(path)
    weights: dict[str, Tensor] = {}
    moments: dict[str, dict[str, Tensor]] = defaultdict(dict)
    for file in manifest.files:
        for key, tensor in load_file(path / file).items():
            kind, parameter = key.split("/", 1)
            if kind == "weight":
                weights[parameter] = tensor
            else:
                moments[parameter][kind] = tensor
    return Checkpoint(name, manifest.progress, manifest.run, weights, dict(moments))


def load_weights(task: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Set every parameter of the task that was saved; a tied one is named once.

    Raises `CheckpointError` for a task of other parameters.
    """
    shapes = {name: parameter.shape for name, parameter in task.named_parameters()}
    saved = {name: weight.shape for name, weight in weights.items()}
    if differing := sorted(name for name, _ in shapes.items() ^ saved.items()):
        raise CheckpointError(
            f"the checkpoint does not fit the encoder, as {differing[0]} shows: the model that "
            "encoder.model names has changed since the run began; bring it back, or choose another "
            "--name"
        )
    task.load_state_dict(weights, strict=False)


def _whole(folder: RunFolder) -> Iterator[str]:
    """Names of the checkpoints that are whole, newest first; a warning names each other one."""
    for path in _found(folder):
        try:
            _read_manifest(path)
        except CheckpointError as error:
            logger.warning("%s; it is passed over", error)
        else:
            yield path.name


def _found(folder: RunFolder) -> list[Path]:
    """The folders with the name of a checkpoint, newest first; what users put there is theirs."""
    return sorted(
        (
            path
            for path in folder.path.glob(f"{PREFIX}*")
            if _NAME.fullmatch(path.name) and path.is_dir()
        ),
        reverse=True,
    )


def _read_manifest(path: Path) -> _Manifest:
    """What a checkpoint holds, every file of which has been seen to have its hash.

    Raises `CheckpointError` for one that is damaged, `StorageError` where that cannot be told now.
    """
    with read_again_later(path):
        return _read_whole(path)


def _read_whole(path: Path) -> _Manifest:
    unreadable = CheckpointError(f"{path / MANIFEST} cannot be read")
    try:
        content = json.loads((path / MANIFEST).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointError(f"{path} has no {MANIFEST}: its writing was interrupted") from None
    except ValueError:
        raise unreadable from None
    _refuse_other_formats(path, content)
    try:
        manifest = _Manifest.model_validate(content)
    except ValueError:
        raise unreadable from None
    for file, expected in manifest.files.items():
        if not (path / file).is_file() or (path / file).stat().st_size != expected.bytes:
            raise CheckpointError(f"{path / file} is not whole: its writing was interrupted")
        if _sha256(path / file) != expected.sha256:
            raise CheckpointError(f"{path / file} is damaged: its content has changed")
    return manifest


def _refuse_other_formats(path: Path, manifest: object) -> None:
    # Passed over as damaged, it would be deleted once the run has gone its way again from step 0.
    number = manifest.get("format") if isinstance(manifest, dict) else None
    if isinstance(number, int) and number != FORMAT:
        raise UsageError(
            f"{path} was written by another version (format {number}, this one reads {FORMAT}): go "
            "on with that version, or choose another --name"
        )


def _sha256(path: Path) -> str:
    return _sha256_of_content(path, path.stat().st_mtime_ns)


@lru_cache(maxsize=256)
def _sha256_of_content(path: Path, changed_ns: int) -> str:
    # A start looks at its checkpoints more than once, and need not read them as often.
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
