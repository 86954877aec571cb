"""Model folders on their way into MLflow, on SQLite."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from simcse.encoder import SentenceEncoder
from simcse_platform.tracking import mlflow_model
from simcse_platform.tracking.location import tracking_uri
from simcse_platform.tracking.mlflow_model import log_model
from simcse_platform.tracking.mlflow_session import session
from simcse_platform.tracking.mlflow_tracker import start_run


@pytest.mark.parametrize(
    "writer",
    ["simcse_platform.tracking.mlflow_model._save", "mlflow.MlflowClient.log_model_artifacts"],
)
def test_a_full_disk_is_not_blamed_on_the_server(
    writer: str, tiny_encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = tracking_uri(None, tmp_path)
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
        assert [m.status for m in client.search_logged_models([experiment])] == ["FAILED"]


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
