"""What a run says before it trains, and what of a finished one can be registered."""

from __future__ import annotations

from pathlib import Path

import pytest

from simcse_platform.config import TrainRun
from simcse_platform.ingest.source import Corpus
from simcse_platform.run import _extent
from support.command_line import CommandLine


@pytest.mark.parametrize(
    ("rows", "settings", "line"),
    [
        (64, {}, "64 rows, 1 steps of 64: 1 epoch(s)"),
        (640, {"max_steps": 5}, "640 rows, 5 steps of 64: max_steps=5 ends it after 0.50 of 1"),
        (
            10,
            {},
            "10 rows, 1 steps of 64: the corpus does not fill a batch, so a row has 9 negatives at "
            "most; lower global_batch_size, or give more text",
        ),
    ],
)
def test_how_far_a_run_goes(rows: int, settings: dict[str, int], line: str) -> None:
    run = TrainRun.model_validate({"encoder": {"model": "any"}, **settings})
    corpus = Corpus(
        files=("a", "b"),
        rows=(rows - 3, 3),
        columns=("text",),
        tokenised=False,
        tokenizer_model="any",
        max_length=32,
        fingerprint="0",
    )
    steps = settings.get("max_steps", -(-rows // 64))
    assert _extent(run, corpus, steps).startswith(line)


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"run_id": null}', '{"run_id": 5}'])
def test_a_damaged_summary_is_named_with_the_folder_to_register(
    simcse: CommandLine, tmp_path: Path, content: str
) -> None:
    summary = tmp_path / "mine" / "summary.json"
    summary.parent.mkdir()
    summary.write_text(content)
    refused = simcse("register", "mine", "name", "--output", tmp_path)
    assert refused.code == 2
    assert refused.error == (
        f"{summary} is damaged: register the folder {tmp_path / 'mine' / 'best'} instead"
    )
