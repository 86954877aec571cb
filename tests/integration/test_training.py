"""Training runs on Ray Train: two workers on gloo, a tiny encoder, dropout on."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from simcse.encoder import SentenceEncoder
from simcse.errors import SimcseError
from simcse.evaluation import evaluate
from simcse_platform import config as settings
from simcse_platform import provenance
from simcse_platform.storage import RunFolder
from simcse_platform.training import checkpoint
from simcse_platform.training.worker import WorkerResult
from support.ray_runs import DEV, ROWS, STEPS, Fail, Outcome, Runs

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_cluster")]


def once(marker: Path, *, at_step: int, act: Callable[[], None]) -> Fail:
    """On rank 1 at `at_step`, but only the first time."""

    def fail(rank: int, step: int) -> None:
        if (rank, step) == (1, at_step) and not marker.exists():
            marker.touch()
            act()

    return fail


def starts(folder: RunFolder) -> list[str]:
    """The ranks of all workers that were started, one after the other."""
    return (folder.path / "starts").read_text().split()


def ids_by_step(folder: RunFolder, rank: int) -> list[tuple[int, list[int]]]:
    lines = (folder.path / f"ids-{rank}.jsonl").read_text().splitlines()
    return [(step, ids) for step, ids in map(json.loads, lines)]


def assert_same_end(got: Outcome, want: Outcome) -> None:
    """Weights, moments and dev scores bit for bit, and the same cursor and counts."""
    got_end, want_end = got.last_checkpoint(), want.last_checkpoint()
    assert got_end.weights.keys() == want_end.weights.keys()
    for name, weight in want_end.weights.items():
        assert got_end.weights[name].equal(weight), name
        for moment, value in want_end.moments[name].items():
            assert got_end.moments[name][moment].equal(value), (name, moment)
    times = {"seconds", "stalled_seconds"}
    assert got.result.progress.model_dump(exclude=times) == want.result.progress.model_dump(
        exclude=times
    )


@pytest.fixture(scope="module")
def runs(tiny_encoder: Path, tmp_path_factory: pytest.TempPathFactory) -> Runs:
    return Runs(tiny_encoder, tmp_path_factory.mktemp("training"))


@pytest.fixture(scope="module")
def ddp(runs: Runs, ray_cluster: object) -> Outcome:
    """A run under DDP that nothing disturbed."""
    return runs.fit("ddp", runs.settings(0))


@pytest.fixture(scope="module")
def zero(runs: Runs, ray_cluster: object) -> Outcome:
    """A run under ZeRO-2 that nothing disturbed."""
    return runs.fit("zero", runs.settings(2))


@pytest.fixture(params=["ddp", "zero"])
def undisturbed(request: pytest.FixtureRequest) -> Outcome:
    outcome: Outcome = request.getfixturevalue(request.param)
    return outcome


def test_the_best_model_is_loaded_and_has_the_score_it_was_kept_for(undisturbed: Outcome) -> None:
    best = undisturbed.result.progress.best
    assert best is not None
    folder = undisturbed.folder.path / "best"
    encoder = SentenceEncoder.load(folder)
    vectors_nD = encoder.encode(["a dog runs", "rain"])
    assert vectors_nD.shape == (2, 32)
    assert not np.allclose(vectors_nD[0], vectors_nD[1])
    assert evaluate(encoder, [DEV]).scores["STSBenchmark"].headline == pytest.approx(best.score)

    assert settings.load(folder / "run.yaml") == undisturbed.run
    described = json.loads((folder / "simcse.json").read_text())
    assert described["lineage"]["step"] == best.step
    assert described["scores"] == best.scores


def test_the_result_counts_every_step_row_and_score(undisturbed: Outcome) -> None:
    stored = json.loads((undisturbed.folder.path / "result.json").read_text())
    assert WorkerResult.model_validate(stored) == undisturbed.result
    model = undisturbed.folder.path / "best"
    summary = undisturbed.result.summary(run_id="abc", model=model)
    progress = undisturbed.result.progress
    assert progress.best is not None
    assert (summary["run_id"], summary["steps"], summary["rows"]) == ("abc", STEPS, ROWS)
    assert summary["rows_per_s"] == pytest.approx(ROWS / progress.seconds)
    assert summary["tokens_per_s"] == pytest.approx(progress.tokens / progress.seconds)
    assert 0.5 < summary["padding_efficiency"] <= 1
    assert 0 <= summary["data_stall_share"] < 1
    assert 100 < summary["peak_rss_mb"] < 10_000
    assert summary["dev_before"].keys() == summary["dev"].keys() == {"dev_stsb_spearman"}
    assert summary["best"] == {
        "step": progress.best.step,
        "scores": progress.best.scores,
        "geometry": progress.best.geometry,
        "model": str(model),
    }
    # Of the same vectors that the score of that step is of.
    assert progress.best.geometry is not None
    measured = undisturbed.shown[progress.best.step]
    assert progress.best.geometry["alignment"] == measured["dev_alignment"]
    assert progress.best.geometry["uniformity"] == pytest.approx(measured["dev_uniformity"])


def test_each_row_is_trained_on_once_and_by_one_worker(undisturbed: Outcome) -> None:
    ranks = [ids_by_step(undisturbed.folder, rank) for rank in range(2)]
    for rank in ranks:
        assert [step for step, _ in rank] == list(range(STEPS))
        assert [len(ids) for _, ids in rank] == [4] * 11 + [1]
    ids = [row for rank in ranks for _, own in rank for row in own]
    assert sorted(ids) == list(range(ROWS))


def test_engines_train_on_the_same_rows_to_nearly_the_same_losses(
    ddp: Outcome, zero: Outcome
) -> None:
    for rank in range(2):
        assert ids_by_step(ddp.folder, rank) == ids_by_step(zero.folder, rank)
    for step in (3, 6, 9, 12):
        assert ddp.shown[step]["loss"] == pytest.approx(zero.shown[step]["loss"], abs=1e-4)


def test_the_driver_and_the_tracker_get_the_measurements_of_rank_0(undisturbed: Outcome) -> None:
    lines = (undisturbed.folder.path / "metrics.jsonl").read_text().splitlines()
    tracked: dict[int, dict[str, float]] = {}
    for step, values in map(json.loads, lines):
        tracked.setdefault(step, {}).update(values)
    assert tracked == undisturbed.shown
    assert {s for s, v in tracked.items() if "loss" in v} == {3, 4, 6, 8, 9, 12}
    assert {s for s, v in tracked.items() if "dev_stsb_spearman" in v} == {0, 4, 8, 12}


def test_no_more_checkpoints_are_kept_than_asked_for(undisturbed: Outcome) -> None:
    assert checkpoints(undisturbed.folder) == [8, 12]


def checkpoints(folder: RunFolder) -> list[int]:
    """Steps of the checkpoints in a run's folder."""
    return [checkpoint.step_of(path.name) for path in sorted(folder.path.glob("checkpoint-*"))]


def test_a_run_goes_on_by_its_name_and_survives_killed_workers(runs: Runs, zero: Outcome) -> None:
    """Bit for bit the undisturbed run, after three faults.

    A worker is killed half-way through the upload of checkpoint 8, one in step 10, and one after
    the last checkpoint.
    """

    def kill() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    folder = runs.folder("disturbed")

    kill_in_step = once(runs.output / "killed", at_step=10, act=kill)
    kill_at_end = once(runs.output / "killed-at-end", at_step=STEPS, act=kill)

    def fail(rank: int, step: int) -> None:
        kill_in_step(rank, step)
        kill_at_end(rank, step)

    ended = runs.fit("disturbed", runs.settings(2, max_failures=3), fail, kill_in_upload=8)
    assert_same_end(ended, zero)
    steps = [step for step, _ in ids_by_step(folder, 1)]
    assert steps == [*range(8), *range(4, 10), *range(8, STEPS)]
    assert len(starts(folder)) == 2 * 4
    assert checkpoints(folder) == [8, 12]


def test_an_error_that_a_restart_cannot_mend_ends_the_run_at_once(
    runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(provenance, "source_hash", lambda: "of another tree")
    with pytest.raises(
        SimcseError,
        match=r"^this worker runs another version of the project than the command: install the "
        r"same one on every machine, or submit with cluster/runtime_env.yaml$",
    ):
        runs.fit("other-sources", runs.settings(0, max_failures=3))
    folder = runs.folder("other-sources")
    assert len(starts(folder)) <= 2
    assert not (folder.path / "result.json").exists()
