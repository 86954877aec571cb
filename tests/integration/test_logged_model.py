"""Model folders on their way into MLflow, and what it says of them, on SQLite."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest
from mlflow import MlflowClient

from simcse.config import EncoderConfig
from simcse.encoder import SentenceEncoder
from simcse_platform.config import DataConfig, TrainRun
from simcse_platform.tracking import mlflow_model
from simcse_platform.tracking.location import tracking_uri
from simcse_platform.tracking.mlflow_model import log_model
from simcse_platform.tracking.mlflow_session import session
from simcse_platform.tracking.mlflow_tracker import CorpusRecord, MlflowTracker, start_run
from simcse_platform.tracking.registry import register, register_folder


@pytest.fixture(scope="module")
def uri(tmp_path_factory: pytest.TempPathFactory) -> str:
    return tracking_uri(None, tmp_path_factory.mktemp("output"))


@pytest.mark.parametrize(
    "writer",
    ["simcse_platform.tracking.mlflow_model._save", "mlflow.MlflowClient.log_model_artifacts"],
)
def test_a_full_disk_is_not_blamed_on_the_server(
    writer: str, uri: str, tiny_encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_id = start_run(uri, "simcse", "demo", storage=tmp_path, spool=tmp_path / "spool.jsonl")
    SentenceEncoder.load(tiny_encoder, pooling="avg").save(tmp_path / "model")

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(writer, full)
        with pytest.raises(OSError, match="No space left on device"):
            log_model(uri, run_id, tmp_path / "model")
    with session(uri) as client:
        experiment = client.get_run(run_id).info.experiment_id
        models = client.search_logged_models([experiment], f"source_run_id = '{run_id}'")
        assert [model.status for model in models] == ["FAILED"]


def test_a_version_says_what_it_is_and_a_run_what_belongs_to_it(
    uri: str, tiny_encoder: Path, tmp_path: Path
) -> None:
    corpus = CorpusRecord(
        name="wiki", source="/data/wiki.txt", fingerprint="ab" * 32, rows=7, columns=("sentence",)
    )
    spool = tmp_path / "spool.jsonl"
    run_id = start_run(
        uri, "simcse", "demo", storage=tmp_path, spool=spool, description="Mine.", corpus=corpus
    )
    tracker = MlflowTracker(uri, run_id, spool)
    for step, score in ((0, 70.0), (4, 81.25), (8, 80.5)):
        tracker.log_metrics({"dev_stsb_spearman": score}, step)
    tracker.flush()
    model, scores = tmp_path / "model", {"dev_stsb_spearman": 81.25}
    settings = TrainRun(
        encoder=EncoderConfig(model="a-bert"), data=DataConfig(corpus=("/data/wiki.txt",))
    )
    lineage = {
        "run": settings.model_dump(mode="json"),
        "mlflow_run_id": run_id,
        "data_sha256": "ab" * 32,
        "source_hash": "cd",
        "step": 4,
    }
    SentenceEncoder.load(tiny_encoder, pooling="avg").save(model, lineage=lineage, scores=scores)
    # As a process leaves it that is killed while it logs.
    experiment = MlflowClient(uri).get_run(run_id).info.experiment_id
    cut_off = MlflowClient(uri).create_logged_model(experiment, source_run_id=run_id)
    model_uri = log_model(uri, run_id, model)
    assert MlflowClient(uri).get_logged_model(cut_off.model_id).status == "FAILED"
    assert MlflowClient(uri).get_logged_model(model_uri.rpartition("/")[2]).status == "READY"
    registered = register(uri, "described", run_id=run_id)

    client = MlflowClient(uri, uri)
    version = client.get_model_version("described", registered.version)
    assert version.description == (
        "Sentence encoder: a sentence becomes 32 numbers, by the pooling `avg`. Compare them by "
        f"cosine.\n\nTrained by SimCSE from `a-bert` on `/data/wiki.txt` up to step 4, in run "
        f"`{run_id}`.\n\nScores x 100: `dev_stsb_spearman` 81.25."
    )
    assert version.tags == {
        "encoder": "a-bert",
        "seed": "42",
        "corpus_sha256": "ab" * 32,
        "source_hash": "cd",
        "training_run": run_id,
        "step": "4",
        "pooling": "avg",
        "dimension": "32",
        "dev_stsb_spearman": "81.25",
    }
    assert version.run_id == run_id
    whole = client.get_registered_model("described")
    assert whole.description.startswith("Sentence encoders. `challenger` is the newest version")
    assert whole.tags == {"task": "sentence-similarity"}

    logged = client.get_logged_model(model_uri.removeprefix("models:/"))
    assert logged.tags["mlflow.note.content"] == version.description
    assert logged.params["objective.temperature"] == "0.05"
    assert [(m.key, m.value, m.step) for m in logged.metrics] == [("dev_stsb_spearman", 81.25, 4)]
    history = client.get_metric_history(run_id, "dev_stsb_spearman")
    assert sorted(entry.step for entry in history) == [0, 4, 8]

    run = client.get_run(run_id)
    assert run.data.tags["mlflow.note.content"] == "Mine."
    (trained_on,) = run.inputs.dataset_inputs
    assert (trained_on.dataset.name, trained_on.tags[0].value) == ("wiki", "training")
    (made,) = run.outputs.model_outputs
    assert (made.model_id, made.step) == (logged.model_id, 4)


def test_a_name_that_has_a_description_keeps_it_and_a_foreign_model_says_what_its_vectors_are(
    uri: str, tiny_encoder: Path, tmp_path: Path
) -> None:
    client = MlflowClient(uri, uri)
    client.create_registered_model("ours", description="Of the search team.")
    folder = tmp_path / "model"
    SentenceEncoder.load(tiny_encoder, pooling="avg").save(folder)
    version = register_folder(uri, "ours", folder)
    assert client.get_registered_model("ours").description == "Of the search team."
    described = client.get_model_version("ours", version.version)
    assert described.description == (
        "Sentence encoder: a sentence becomes 32 numbers, by the pooling `avg`. Compare them by "
        "cosine."
    )
    assert described.tags == {"pooling": "avg", "dimension": "32"}
    run = client.get_run(version.run_id)
    assert run.data.tags["mlflow.note.content"] == (
        f"Registers {folder} as `ours`; nothing is trained here."
    )
    assert run.outputs.model_outputs


def test_a_model_requires_what_encoding_imports() -> None:
    program = (
        "import sys, simcse.encoder\n"
        "print(*(m.__file__ for n, m in sys.modules.items() if n.partition('.')[0] == 'simcse'))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    files = [Path(file) for file in done.stdout.split()]
    imported = {
        name.partition(".")[0]
        for file in [*files, Path(mlflow_model.__file__).with_name("pyfunc_model.py")]
        for node in ast.walk(ast.parse(file.read_text()))
        for name in _names(node)
    }
    foreign = imported - sys.stdlib_module_names - {"simcse"}
    assert sorted(foreign) == sorted(name.replace("-", "_") for name in mlflow_model.REQUIREMENTS)


def _names(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    return [node.module] if isinstance(node, ast.ImportFrom) and node.module else []
