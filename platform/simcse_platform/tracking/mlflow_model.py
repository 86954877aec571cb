"""Model folders in MLflow: this project's code and safetensors, nothing pickled."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from mlflow.entities import LoggedModelOutput, LoggedModelStatus
from mlflow.models import Model, ModelSignature
from mlflow.types import ColSpec, Schema, TensorSpec

import simcse
from simcse_platform.tracking.mlflow_session import quiet, session

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
    "torch",
    "transformers",
)
"""What a logged model imports to encode; it is loaded with the versions it was saved with."""


def log_model(uri: str, run_id: str, folder: Path) -> str:
    """URI (`models:/<id>`) of the model folder, kept with the run as a pyfunc model.

    The model is this project's code and safetensors; nothing in it is pickled. The run's tag
    `model_uri` names it. Raises `TrackingError`; `ModelError` for a folder that does not load.
    """
    # Late: torch takes seconds, and whoever fetches a model or moves an alias does without.
    from simcse.encoder import SentenceEncoder

    width = SentenceEncoder.load(folder).dimension
    with session(uri) as client:
        experiment = client.get_run(run_id).info.experiment_id
        logged = client.create_logged_model(experiment, name=ENCODER, source_run_id=run_id)
    description = Model(
        run_id=run_id, model_id=logged.model_id, artifact_path=logged.artifact_location
    )
    status = LoggedModelStatus.FAILED
    try:
        with TemporaryDirectory() as scratch:
            local = Path(scratch, "model")
            with quiet(uri):
                _save(folder, local, width, description)
            with session(uri, patient=True) as client:
                client.log_model_artifacts(logged.model_id, str(local))
        status = LoggedModelStatus.READY
    finally:
        with session(uri) as client:
            client.finalize_logged_model(logged.model_id, status)
    model_uri = f"models:/{logged.model_id}"
    with session(uri) as client:
        client.log_outputs(run_id, [LoggedModelOutput(logged.model_id, step=0)])
        client.set_tag(run_id, "model_uri", model_uri)
    return model_uri


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
