"""Model folders in MLflow: this project's code and safetensors, nothing pickled."""

from __future__ import annotations

import importlib.metadata
import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from mlflow import MlflowClient
from mlflow.entities import LoggedModelOutput, LoggedModelStatus, Metric
from mlflow.models import Model, ModelSignature
from mlflow.types import ColSpec, Schema, TensorSpec
from mlflow.utils.mlflow_tags import MLFLOW_RUN_NOTE

import simcse
from simcse_platform.storage import scratch_folder
from simcse_platform.tracking.mlflow_session import quiet, session
from simcse_platform.tracking.mlflow_tracker import MAX_PARAM

if TYPE_CHECKING:
    from simcse_platform.tracking.model_facts import ModelFacts

ENCODER = "encoder"
"""Name of the model folder among a logged model's artifacts, and of the logged model."""

_MODEL_CODE = Path(__file__).with_name("pyfunc_model.py")
REQUIREMENTS = (
    "huggingface-hub",
    "mlflow",
    "numpy",
    "pandas",
    "pydantic",
    "safetensors",
    "tokenizers",
    "torch",
    "transformers",
)
"""What a logged model imports to encode; it is loaded with the versions it was saved with."""


def log_model(uri: str, run_id: str, folder: Path) -> str:
    """URI (`models:/<id>`) of the model folder, kept with the run as a pyfunc model.

    The model is this project's code and safetensors; nothing in it is pickled. It carries a
    description, tags, settings and dev scores, which its versions in the registry have from it. The
    run's tag `model_uri` names it. Raises `TrackingError`; `ModelError` for a folder that does not
    load.
    """
    # Late: torch takes seconds, and whoever fetches a model or moves an alias does without.
    from simcse_platform.tracking.model_facts import ModelFacts

    facts = ModelFacts.of(folder)
    with session(uri) as client:
        experiment = client.get_run(run_id).info.experiment_id
        _end_what_was_broken_off(client, experiment, run_id)
        logged = client.create_logged_model(
            experiment,
            name=ENCODER,
            source_run_id=run_id,
            tags={MLFLOW_RUN_NOTE: facts.text, **facts.tags},
            params={name: text[:MAX_PARAM] for name, text in facts.params.items()},
            model_type="sentence encoder",
        )
    description = Model(
        run_id=run_id, model_id=logged.model_id, artifact_path=logged.artifact_location
    )
    status = LoggedModelStatus.FAILED
    try:
        with scratch_folder() as scratch:
            local = scratch / "model"
            with quiet(uri):
                _save(folder, local, int(facts.tags["dimension"]), description)
            with session(uri, patient=True) as client:
                client.log_model_artifacts(logged.model_id, str(local))
        status = LoggedModelStatus.READY
    finally:
        with session(uri) as client:
            client.finalize_logged_model(logged.model_id, status)
    model_uri = f"models:/{logged.model_id}"
    with session(uri) as client:
        client.log_outputs(run_id, [LoggedModelOutput(logged.model_id, step=facts.step)])
        _log_scores(client, run_id, logged.model_id, facts)
        client.set_tag(run_id, "model_uri", model_uri)
    return model_uri


def _end_what_was_broken_off(client: MlflowClient, experiment: str, run_id: str) -> None:
    """A process that was killed while it logged a model left one that waits for its files."""
    mine = f"source_run_id = '{run_id}'"
    for model in client.search_logged_models([experiment], filter_string=mine):
        if model.status == LoggedModelStatus.PENDING:
            client.finalize_logged_model(model.model_id, LoggedModelStatus.FAILED)


def _log_scores(client: MlflowClient, run_id: str, model_id: str, facts: ModelFacts) -> None:
    """The dev scores of the run at the model's step, as the model's own."""
    metrics = []
    for name, score in facts.scores.items():
        # With the same time it is the measurement that the run has, and no second one.
        known = client.get_metric_history(run_id, name)
        times = [found.timestamp for found in known if found.step == facts.step]
        when = times[0] if times else time.time_ns() // 1_000_000
        metrics.append(Metric(name, score, when, facts.step, model_id=model_id))
    if metrics:
        client.log_batch(run_id, metrics=metrics)


def _save(folder: Path, target: Path, width: int, description: Model) -> None:
    """The model folder as MLflow's model in `target`: local work, at which no server takes part."""
    # Here and not above: importing it warns about MLflow's own type hints.
    from mlflow.pyfunc import save_model

    save_model(
        target,
        python_model=str(_MODEL_CODE),
        artifacts={ENCODER: str(folder)},
        code_paths=[str(Path(simcse.__file__).parent)],
        signature=ModelSignature(
            inputs=Schema([ColSpec("string")]),
            outputs=Schema([TensorSpec(np.dtype(np.float32), (-1, width))]),
        ),
        input_example=["A dog runs in the park.", "It rained all night."],
        pip_requirements=[f"{name}=={_version(name)}" for name in REQUIREMENTS],
        mlflow_model=description,
    )


def _version(name: str) -> str:
    """Installed version, without a build such as `+cpu`, which no package index has."""
    return importlib.metadata.version(name).partition("+")[0]
