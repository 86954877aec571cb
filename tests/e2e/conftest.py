"""The command line on a tiny encoder and corpus."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest

from support.bad_input import SENTENCES, Train, write_parquet
from support.command_line import CommandLine, Outcome


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> str:
    """One tracking database for all runs here: making one takes seconds."""
    return f"sqlite:///{tmp_path_factory.mktemp('tracking') / 'mlflow.db'}"


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """100 sentences in a parquet file."""
    return write_parquet(tmp_path / "corpus.parquet", SENTENCES)


@pytest.fixture
def config(tmp_path: Path, tiny_encoder: Path) -> Path:
    """Settings of a run of two steps, without dev sets."""
    file = tmp_path / "config.yaml"
    settings = {
        "encoder": {"model": str(tiny_encoder), "max_length": 12, "length_buckets": 2},
        "dev": {"tasks": []},
        "scale": {"cpus_per_worker": 1, "threads_per_worker": 1},
        "global_batch_size": 8,
        "max_steps": 2,
    }
    file.write_text(json.dumps(settings))
    return file


@pytest.fixture
def train(simcse: CommandLine, config: Path, tmp_path: Path, database: str) -> Train:
    """`simcse train` under the name "mine" in `runs`, with whatever else is given."""

    def run(*arguments: object) -> Outcome:
        return simcse(
            *("train", "--config", config, "--name", "mine", "--output", tmp_path / "runs"),
            *("--tracking", database, "--json", tmp_path / "train.json", *arguments),
        )

    return run


@pytest.fixture
def prepare(simcse: CommandLine, tmp_path: Path, tiny_encoder: Path) -> Train:
    """`simcse prepare` into `prepared`."""

    def run(*arguments: object) -> Outcome:
        return simcse(
            *("prepare", "--model", tiny_encoder, "--output", tmp_path / "prepared"),
            *("--json", tmp_path / "prepare.json", *arguments),
        )

    return run


@pytest.fixture
def no_server() -> str:
    """Address at which nothing listens."""
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{closed.getsockname()[1]}"
