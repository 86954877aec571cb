"""`TrainRun`: one training run, complete. It is stored with every checkpoint, model and record."""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Self, TypeVar

import yaml
from pydantic import Field, ValidationError, field_validator, model_validator

from simcse.config import (
    EncoderConfig,
    MemoryConfig,
    ObjectiveConfig,
    OptimConfig,
    Settings,
    ViewsConfig,
)
from simcse.errors import UsageError
from simcse_platform.tracking.location import without_password

S = TypeVar("S", bound=Settings)


class DataConfig(Settings):
    """The training corpus."""

    corpus: tuple[str, ...] = ()
    """Files, folders or globs of raw text, datasets saved by `datasets` or `hf://` ones, or one
    folder written by `prepare`."""
    columns: tuple[str, ...] | None = None
    """Text columns in the order anchor, positive, hard negatives; null takes every text column of
    the file."""
    batches_per_window: int = Field(default=32, ge=1)
    """Global batches that one Ray Data task reads and shuffles together."""
    max_bad_share: float = Field(default=0.01, ge=0, le=1)
    """Share of unusable rows above which preparing fails."""

    @field_validator("columns")
    @classmethod
    def _name_each_column_once(cls, columns: tuple[str, ...] | None) -> tuple[str, ...] | None:
        if columns is not None and not 0 < len(columns) == len(set(columns)):
            raise ValueError(
                f"data.columns is {list(columns)}: name each text column once, or set "
                "data.columns=null for all of them"
            )
        return columns


class DevConfig(Settings):
    """What is scored while training; the best model by this score is kept."""

    tasks: tuple[str, ...] = ("STSBenchmark",)
    """Names of evaluation sets, scored in their dev split."""
    data: str | None = None
    """Folder with the evaluation sets; null means the hub."""
    every: int = Field(default=125, ge=1)
    """Steps between two evaluations; the original's scripts use 125."""
    patience: int | None = Field(default=None, ge=1)
    """Evaluations without a better score after which training stops; null never stops early."""
    lowest_score: float | None = None
    """Mean dev score under which the encoder has collapsed and the run stops; null never does."""
    highest_uniformity: float | None = -1e-4
    """Uniformity above which it has (0: all vectors are the same, section 7); null never stops.
    At the default they are the same but for rounding."""


class ScaleConfig(Settings):
    """How the run is spread over machines."""

    num_workers: int = Field(default=1, ge=1)
    """Data-parallel workers; with `max_workers`, the fewest that the run goes on with."""
    max_workers: int | None = Field(default=None, ge=1)
    """Workers that the run grows to when machines join; null keeps their number."""
    resize_every_s: float = Field(default=60.0, gt=0)
    """Seconds between two looks for machines that joined. To take them in, the workers start again
    from the last checkpoint, so make `checkpoint.every` take less time than this."""
    zero_stage: Literal[0, 1, 2, 3] = 0
    """0 is DDP; 1 to 3 are DeepSpeed ZeRO: optimiser state, gradients, parameters sharded."""
    offload: Literal["nothing", "optimizer", "parameters"] = "nothing"
    """What ZeRO keeps in host memory (GPUs only): optimiser state (stages 1 to 3), or parameters
    too (stage 3)."""
    persistence_threshold: int = Field(default=100_000, ge=0)
    """ZeRO-3 keeps parameters with fewer elements whole on every rank."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """`auto` takes a GPU for each worker where the cluster has enough of them."""
    precision: Literal["fp32", "bf16"] = "fp32"
    """bf16 runs the encoder under autocast; weights and reductions stay fp32. A CPU without
    AVX-512 is many times slower with it."""
    threads_per_worker: int | None = Field(default=None, ge=1)
    """CPU threads of one worker; null divides the node's cores among its workers."""
    cpus_per_worker: float | None = Field(default=None, gt=0)
    """Ray CPUs reserved for one worker; null leaves at least one for Ray Data."""
    max_failures: int = Field(default=3, ge=0)
    """Worker-group restarts before the run fails."""
    timeout_s: int = Field(default=600, ge=1)
    """Seconds after which a wait counts as hanging and ends in an error: of ranks for each other,
    for data, or for machines that the run needs."""


class CheckpointConfig(Settings):
    """Training checkpoints: written for resuming, apart from the best model."""

    every: int = Field(default=125, ge=1)
    """Steps between two checkpoints; the last step always writes one."""
    keep: int = Field(default=2, ge=1)
    """Newest checkpoints kept."""


class TrackingConfig(Settings):
    """Where the run is recorded."""

    uri: str | None = None
    """MLflow tracking server; null keeps an SQLite file in the output folder."""
    experiment: str = "simcse"
    """MLflow experiment."""
    log_every: int = Field(default=10, ge=1)
    """Steps between two records of loss, throughput and the other measurements."""
    system_metrics_every_s: float | None = Field(default=10.0, gt=0)
    """Seconds between two records of the load of rank 0's machine (CPU, memory, disk, network,
    GPUs); null makes none."""


class TrainRun(Settings):
    """Everything that decides a training run."""

    encoder: EncoderConfig
    objective: ObjectiveConfig = ObjectiveConfig()
    views: ViewsConfig = ViewsConfig()
    optim: OptimConfig = OptimConfig()
    data: DataConfig = DataConfig()
    dev: DevConfig = DevConfig()
    scale: ScaleConfig = ScaleConfig()
    memory: MemoryConfig = MemoryConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    tracking: TrackingConfig = TrackingConfig()
    global_batch_size: int = Field(default=64, ge=2)
    """Rows of one optimiser step over all workers: every other row is a negative."""
    epochs: int = Field(default=1, ge=1)
    """Passes over the corpus."""
    max_steps: int | None = Field(default=None, ge=1)
    """Steps after which training ends before its epochs do; the learning rate decays over them."""
    seed: int = Field(default=42, ge=0, lt=2**63)
    """Decides initial head weights, order and dropout."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        fewest, most = self.scale.num_workers, self.scale.max_workers
        if most is not None and most <= fewest:
            raise ValueError(
                f"scale.max_workers is {most} but scale.num_workers is {fewest}: set it higher, or "
                "null for a fixed number of workers"
            )
        name = "scale.num_workers" if most is None else "scale.max_workers"
        if self.global_batch_size < (most or fewest):
            raise ValueError(
                f"global_batch_size is {self.global_batch_size} but {name} is {most or fewest}: "
                "every worker needs a row, so raise the batch or use fewer workers"
            )
        together = self.optim.accumulated_batches
        for name, every in (("dev", self.dev.every), ("checkpoint", self.checkpoint.every)):
            if every % together:
                raise ValueError(
                    f"{name}.every is {every}, but optim.accumulated_batches is {together}: an "
                    f"update ends only after as many, so make {name}.every a multiple of it"
                )
        least_stage = {"nothing": 0, "optimizer": 1, "parameters": 3}[self.scale.offload]
        if self.scale.zero_stage < least_stage:
            raise ValueError(
                f"scale.offload={self.scale.offload} needs scale.zero_stage={least_stage} or more, "
                f"and it is {self.scale.zero_stage}"
            )
        return self


_ORIGINAL_NAMES = {
    "model_name_or_path": "encoder.model",
    "pooler_type": "encoder.pooling",
    "mlp_only_train": "encoder.head=training (true) or encoder.head=always (false)",
    "max_seq_length": "encoder.max_length",
    "temp": "objective.temperature",
    "hard_negative_weight": "objective.hard_negative_alpha, of which it is the logarithm",
    "do_mlm": "objective.masked_language_weight, 0 being without",
    "mlm_weight": "objective.masked_language_weight",
    "mlm_probability": "objective.masked_language_rate",
    "train_file": "data.corpus",
    "per_device_train_batch_size": "global_batch_size, the rows of all devices together",
    "num_train_epochs": "epochs",
    "eval_steps": "dev.every",
    "max_grad_norm": "optim.max_gradient_norm",
}
"""What the original's flags are called here; one that means something else must not pass."""


def override(run: TrainRun, assignments: Sequence[str]) -> TrainRun:
    """`run` with `a.b=value` assignments; values are YAML, so lists and null work.

    Raises `UsageError` naming the dotted path of an unknown key or a bad value.
    """
    tree = run.model_dump(mode="json")
    for assignment in assignments:
        path, equals, text = assignment.partition("=")
        if not (equals and path):
            raise UsageError(f"{assignment!r} is no assignment: write section.field=value")
        keys = path.strip().split(".")
        node = tree
        for key in keys[:-1]:
            if not isinstance(node.get(key), dict):
                raise UsageError(_unknown(path))
            node = node[key]
        if keys[-1] not in node:
            raise UsageError(_unknown(path))
        if isinstance(node[keys[-1]], dict):
            raise UsageError(f"{path} is a section: name one of {', '.join(node[keys[-1]])} in it")
        node[keys[-1]] = _parse(path, text)
    return from_tree(tree)


def from_tree(tree: Mapping[str, Any]) -> TrainRun:
    """A run from plain mappings. Raises `UsageError` with one line for the first fault."""
    try:
        return TrainRun.model_validate(tree)
    except ValidationError as error:
        raise UsageError(_first_fault(TrainRun, error)) from None


def load(path: Path) -> TrainRun:
    """A run from a YAML or JSON file, such as the `run.yaml` kept with every model."""
    return read_settings(TrainRun, path)


def read_settings(kind: type[S], path: Path) -> S:
    """Settings of any kind from a YAML or JSON file. Raises `UsageError` for the first fault."""
    try:
        tree = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UsageError(f"there is no configuration file {path}: check the path") from None
    except OSError as error:
        raise UsageError(f"{path} cannot be read ({error.strerror}): name a YAML file") from None
    except (yaml.YAMLError, ValueError) as error:
        # A date or number that is none is a plain ValueError, and so are bytes that are no text.
        raise UsageError(f"{path} is no YAML: {' '.join(str(error).split())}") from None
    if not isinstance(tree, Mapping):
        example = next(iter(kind.model_fields))
        raise UsageError(f"{path} holds no mapping: write lines such as `{example}: ...`")
    try:
        return kind.model_validate(tree)
    except ValidationError as error:
        raise UsageError(f"{path}: {_first_fault(kind, error)}") from None


def shown(run: TrainRun) -> TrainRun:
    """The run as it is kept and shown: without a password in the tracking server's URI."""
    uri = run.tracking.uri and without_password(run.tracking.uri)
    return run.model_copy(update={"tracking": run.tracking.model_copy(update={"uri": uri})})


def to_yaml(run: TrainRun) -> str:
    """The run as YAML that `load` takes back."""
    return yaml.safe_dump(run.model_dump(mode="json"), sort_keys=False, allow_unicode=True)


def flatten(run: TrainRun) -> dict[str, str]:
    """Dotted path to text, one entry a field: what a tracker records as parameters."""
    return flatten_tree(run.model_dump(mode="json"))


def flatten_tree(tree: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """The same of a run that was read from JSON, of whatever version its fields are."""
    flat: dict[str, str] = {}
    for key, value in tree.items():
        if isinstance(value, Mapping):
            flat |= flatten_tree(value, f"{prefix}{key}.")
        else:
            flat[prefix + key] = value if isinstance(value, str) else json.dumps(value)
    return flat


def _parse(path: str, text: str) -> Any:
    try:
        # YAML 1.1 reads 3e-5 as text, of which a number field makes a number.
        return yaml.safe_load(text)
    except (yaml.YAMLError, ValueError):
        # What looks like a date or number and is none is a plain ValueError.
        raise UsageError(f"{path}={text} is no YAML value: put text into quotes") from None


def _fields(model: type[Settings], prefix: str = "") -> list[str]:
    names: list[str] = []
    for name, field in model.model_fields.items():
        inner = field.annotation
        if isinstance(inner, type) and issubclass(inner, Settings):
            names += _fields(inner, f"{prefix}{name}.")
        else:
            names.append(prefix + name)
    return names


def _unknown(path: str, kind: type[Settings] = TrainRun) -> str:
    if ours := _ORIGINAL_NAMES.get(path.rpartition(".")[2]):
        return f"{path} is a name of the original project: write {ours}"
    near = difflib.get_close_matches(path, _fields(kind), n=1, cutoff=0.5)
    if not near and kind is TrainRun:
        return f"there is no setting {path}: `simcse train --recipe NAME --dry-run` shows them all"
    return f"there is no setting {path}" + (f": did you mean {near[0]}?" if near else "")


def _first_fault(kind: type[Settings], error: ValidationError) -> str:
    fault = error.errors(include_url=False)[0]
    path = ".".join(str(part) for part in fault["loc"])
    if fault["type"] == "extra_forbidden":
        return _unknown(path, kind)
    if fault["type"] == "missing":
        return f"{path} is missing: it has no default"
    if fault["type"] == "value_error":
        # A check of a whole section names its fields itself.
        return fault["msg"].removeprefix("Value error, ")
    message = "write a list such as [a, b]" if fault["type"] == "tuple_type" else fault["msg"]
    return f"{path} is {fault['input']!r}: {message}"
