"""Input with faults, and what must not be left after it was refused."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from support.command_line import Outcome

SENTENCES = [
    f"the {animal} runs to house {number}"
    for number in range(25)
    for animal in ("dog", "cat", "bird", "horse")
]
Train = Callable[..., Outcome]


def write_parquet(file: Path, sentences: list[str], column: str = "text") -> Path:
    pq.write_table(pa.table({column: sentences}), file, compression="zstd", use_dictionary=False)
    return file


def damaged(file: Path) -> bytes:
    """Spoil the pages of a parquet file and leave its footer; the former content."""
    content = file.read_bytes()
    file.write_bytes(content[:4] + bytes(60) + content[64:])
    return content


def sts_folder(data: Path, gold: str) -> Path:
    """A folder with the dev split of STS-B, of one pair."""
    folder = data / "STSBenchmark"
    folder.mkdir(parents=True)
    (folder / "dev.tsv").write_text(f"score\tsentence1\tsentence2\n{gold}\ta dog\ta cat\n")
    return data


def command_line(config: Path, corpus: Path, tmp_path: Path) -> list[str]:
    """`simcse train` as the fixture `train` has it, for a process of its own."""
    run = ["train", "--config", config, "--name", "mine", "--output", tmp_path / "runs"]
    return [sys.executable, "-m", "pipelines", *map(str, run), "--corpus", str(corpus)]


def environment() -> dict[str, str]:
    """That of a process which shall have a Ray of its own."""
    return {k: v for k, v in os.environ.items() if not k.startswith(("RAY_", "SIMCSE_"))}


def nothing_is_left(tmp_path: Path) -> bool:
    """No run, dataset or result, and no trace of one that was begun."""
    runs, result = tmp_path / "runs", [*tmp_path.glob("*.json"), *tmp_path.glob("prepared*")]
    begun = [*tmp_path.glob(".*"), *runs.glob("mine*"), *runs.glob(".prepared/*")]
    begun += runs.glob(".prepared/.*")
    return not result and not begun
