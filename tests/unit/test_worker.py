"""What a worker leaves for the driver."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from simcse.encoder import SentenceEncoder
from simcse.errors import DataError, ModelError, SimcseError
from simcse_platform.errors import StorageError, StreamError, TrainingError
from simcse_platform.storage import RunFolder
from simcse_platform.training.checkpoint import Best, Progress
from simcse_platform.training.worker import (
    ATTEMPTS,
    Attempt,
    WorkerFailure,
    WorkerResult,
    _failure_recorded,
    _published,
)


@pytest.mark.parametrize("error", [DataError("a.parquet:7: empty"), ModelError("no weights")])
def test_an_error_of_the_project_is_left_with_its_exit_code(
    error: SimcseError, tmp_path: Path
) -> None:
    folder = RunFolder(tmp_path)
    with pytest.raises(type(error)), _failure_recorded(folder):
        raise error
    recorded = WorkerFailure.recorded(folder)
    assert isinstance(recorded, TrainingError)
    assert (str(recorded), recorded.exit_code) == (str(error), error.exit_code)


@pytest.mark.parametrize("error", [RuntimeError("a peer is gone"), StreamError("out of turn")])
def test_an_error_that_a_restart_may_mend_is_not_left(error: Exception, tmp_path: Path) -> None:
    with pytest.raises(type(error)), _failure_recorded(RunFolder(tmp_path)):
        raise error
    assert WorkerFailure.recorded(RunFolder(tmp_path)) is None


def test_the_best_model_of_an_earlier_attempt_is_known_however_it_ended(
    tiny_encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, lineage = RunFolder(tmp_path), {"data_sha256": "ab"}
    assert _published(folder, lineage) is None
    best = Best(step=5, score=80.0, scores={"dev_stsb_spearman": 80.0})
    SentenceEncoder.load(tiny_encoder, pooling="avg").save(
        tmp_path / "best", lineage=lineage, scores={}
    )
    (tmp_path / "best" / "dev.json").write_text(best.model_dump_json())
    assert _published(folder, lineage) == best
    assert _published(folder, {"data_sha256": "of another corpus"}) is None
    # Killed between the two moves of publishing another one.
    (tmp_path / "best").rename(tmp_path / ".best.x.old")
    assert _published(folder, lineage) == best
    assert [path.name for path in tmp_path.iterdir()] == ["best"]

    def stale(*_: object, **__: object) -> str:
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))

    with monkeypatch.context() as patch:
        patch.setattr(Path, "read_text", stale)
        with pytest.raises(StorageError, match=r"best cannot be read now \(.*Stale file handle\)"):
            _published(folder, lineage)
    (tmp_path / "best" / "dev.json").write_text("not JSON")
    assert _published(folder, lineage) is None


def test_the_summary_holds_rates_and_the_last_step_where_there_was_no_dev_set() -> None:
    progress = Progress(
        step=10, rows=640, tokens=6400, positions=8000, seconds=4.0, stalled_seconds=1.0
    )
    result = WorkerResult(progress=progress, peak_rss_mb=512.0)
    assert result.summary(run_id="abc", model=Path("/runs/a/best")) == {
        "run_id": "abc",
        "steps": 10,
        "rows": 640,
        "rows_per_s": 160.0,
        "tokens_per_s": 1600.0,
        "padding_efficiency": 0.8,
        "skipped_updates": 0,
        "data_stall_share": 0.25,
        "peak_rss_mb": 512.0,
        "dev_before": {},
        "dev": {},
        "best": {"step": 10, "scores": {}, "geometry": None, "model": "/runs/a/best"},
    }
    best = Best(step=5, score=80.0, scores={"dev_stsb_spearman": 80.0})
    scored = WorkerResult(
        progress=progress.model_copy(update={"best": best, "dev": {"dev_stsb_spearman": 79.0}}),
        peak_rss_mb=512.0,
    ).summary(run_id="abc", model=Path("best"))
    assert scored["dev"] == {"dev_stsb_spearman": 79.0}
    assert scored["best"] == {
        "step": 5,
        "scores": {"dev_stsb_spearman": 80.0},
        "geometry": None,
        "model": "best",
    }


def test_attempts_are_read_past_what_was_torn(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    assert Attempt.recorded(folder) == []
    attempts = [Attempt(attempt=name, first_step=3, processes=[("n", 1)]) for name in "ab"]
    lines = [attempt.model_dump_json().encode() for attempt in attempts]
    (tmp_path / ATTEMPTS).write_bytes(
        lines[0] + b"\n" + bytes(50) + b"\n\xff\n" + lines[1] + b"\n" + lines[0]
    )
    assert Attempt.recorded(folder) == attempts
