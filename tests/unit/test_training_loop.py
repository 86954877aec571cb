"""The training loop in one process, with a reporter that only records."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from simcse.batch import Batch
from simcse.encoder import SentenceEncoder
from simcse.evaluation import Pairs, STSSet, evaluate
from simcse.objective import TaskOutput
from simcse.optim import build_optimizer, learning_rate
from simcse_platform.config import TrainRun
from simcse_platform.training import checkpoint
from simcse_platform.training.checkpoint import Best, Progress
from simcse_platform.training.dev import DevEvaluation
from simcse_platform.training.engine import DdpEngine
from simcse_platform.training.loop import SCORED
from support.loop_runs import ScriptedDev, settings, train
from support.training import TIMES, Recorder, ddp_engine, make_batches, make_task

GOLDEN = Path(__file__).parents[1] / "assets" / "golden_losses.json"


@pytest.mark.parametrize("columns", [2, 3], ids=["pairs", "triplets"])
def test_losses_of_ten_steps_are_those_pinned(
    tiny_encoder: Path, tmp_path: Path, columns: int, request: pytest.FixtureRequest
) -> None:
    """To pin them anew, delete the file and run this twice: the first run writes and fails."""
    reporter = Recorder(tmp_path)
    # Without dropout, whose masks differ between processors.
    train(settings(tiny_encoder, dropout=0.0), reporter, total_steps=10, columns=columns)
    losses = list(reporter.series("loss").values())
    case = request.node.callspec.id

    golden = json.loads(GOLDEN.read_text()) if GOLDEN.exists() else {}
    if case not in golden:
        GOLDEN.write_text(json.dumps(golden | {case: losses}, indent=1) + "\n")
        pytest.fail(f"{GOLDEN.name} had no losses of {case}; it has those of this run now")
    np.testing.assert_allclose(losses, golden[case], rtol=0, atol=1e-5)


class WatchedEngine(DdpEngine):
    """Keeps the generator's seed and the learning rate of each step."""

    def __init__(self, run: TrainRun) -> None:
        task = make_task(run)
        super().__init__(task, build_optimizer(task, run.optim), max_gradient_norm=1.0)
        self.seeds: list[int] = []
        self.rates: list[float] = []

    def __call__(self, batch: Batch) -> TaskOutput:
        self.seeds.append(torch.initial_seed())
        return super().__call__(batch)

    def step(self, learning_rate: float) -> float:
        self.rates.append(learning_rate)
        return super().step(learning_rate)


def test_dropout_is_seeded_by_position_alone(tiny_encoder: Path, tmp_path: Path) -> None:
    def seeds(seed: int, *, first_step: int = 0) -> list[int]:
        run = settings(tiny_encoder, seed=seed)
        engine, progress = WatchedEngine(run), Progress(step=first_step)
        train(run, Recorder(tmp_path), total_steps=4, engine=engine, progress=progress)
        return engine.seeds

    all_steps = seeds(42)
    # Pinned: other seeds would be another run under the same settings.
    assert all_steps[0] == 5732826375231505755
    assert seeds(42, first_step=2) == all_steps[2:]
    assert len({*all_steps, *seeds(43)}) == 8


def test_the_learning_rate_decays_over_all_steps(tiny_encoder: Path, tmp_path: Path) -> None:
    run = settings(tiny_encoder, optim={"learning_rate": 1e-3, "warmup_share": 0.25})
    engine, reporter = WatchedEngine(run), Recorder(tmp_path)
    train(run, reporter, total_steps=8, engine=engine)
    assert engine.rates == [learning_rate(step, 8, run.optim) for step in range(8)]
    assert engine.rates == pytest.approx([0, 5e-4, *(1e-3 * k / 6 for k in (6, 5, 4, 3, 2, 1))])
    assert list(reporter.series("learning_rate").values()) == engine.rates


def test_dev_is_scored_before_the_first_step_every_k_steps_and_after_the_last(
    tiny_encoder: Path, tmp_path: Path
) -> None:
    reporter = Recorder(tmp_path)
    progress = train(
        settings(tiny_encoder, dev={"every": 3}),
        reporter,
        total_steps=7,
        dev=ScriptedDev([10.0, 20.0, 40.0, 30.0]),
    )
    assert reporter.series("dev_scripted") == {0: 10.0, 3: 20.0, 6: 40.0, 7: 30.0}
    assert (progress.dev_before, progress.dev) == ({"dev_scripted": 10.0}, {"dev_scripted": 30.0})


def test_the_best_model_is_kept_and_a_worse_or_equal_one_does_not_replace_it(
    tiny_encoder: Path, tmp_path: Path
) -> None:
    reporter = Recorder(tmp_path)
    run = settings(tiny_encoder, dev={"every": 2}, checkpoint={"every": 2})
    progress = train(run, reporter, total_steps=8, dev=ScriptedDev([10.0, 20.0, 40.0, 40.0, 30.0]))
    assert progress.best == checkpoint.Best(step=4, score=40.0, scores={"dev_scripted": 40.0})
    assert reporter.times_best_was_saved == 3

    saved = json.loads((tmp_path / "best" / "simcse.json").read_text())
    assert saved["scores"] == {"dev_scripted": 40.0}
    assert saved["lineage"] == {"corpus": "tiny", "step": 4}
    kept = dict(SentenceEncoder.load(tmp_path / "best").backbone.named_parameters())
    at_step_4 = checkpoint.load(reporter.folder, "checkpoint-00000004-first").weights
    for name, weight in kept.items():
        assert weight.equal(at_step_4[f"encoder.backbone.{name}"]), name


def test_without_a_dev_set_the_last_model_is_kept(tiny_encoder: Path, tmp_path: Path) -> None:
    run, reporter = settings(tiny_encoder), Recorder(tmp_path)
    engine = ddp_engine(make_task(run), run)
    progress = train(run, reporter, total_steps=2, engine=engine)
    assert (progress.best, progress.dev_before, progress.dev) == (None, {}, {})
    kept = SentenceEncoder.load(tmp_path / "best").backbone.state_dict()
    for name, weight in engine.task.encoder.backbone.state_dict().items():
        assert weight.equal(kept[name]), name


def test_a_real_dev_set_is_scored_without_dropout(tiny_encoder: Path, tmp_path: Path) -> None:
    pairs = Pairs(
        first=("a dog runs", "the man eats food", "red car", "rain"),
        second=("the dog is running", "a woman plays", "the car was red", "a game of music"),
        gold_n=np.array([4.0, 1.0, 5.0, 0.0]),
    )
    sets = [STSSet("STSBenchmark", "dev", {"all": pairs}), STSSet("Own", "dev", {"all": pairs})]
    run = settings(tiny_encoder, dropout=0.5)
    task = make_task(run)
    want = evaluate(task.encoder, sets).scores["STSBenchmark"].headline
    progress = train(
        run,
        Recorder(tmp_path),
        total_steps=1,
        engine=ddp_engine(task, run),
        dev=DevEvaluation(sets, task.encoder),
    )
    assert progress.dev_before == {"dev_stsb_spearman": want, "dev_own_spearman": want}


def test_training_stops_when_patience_is_out(tiny_encoder: Path, tmp_path: Path) -> None:
    reporter = Recorder(tmp_path)
    run = settings(
        tiny_encoder,
        dev={"every": 2, "patience": 2},
        checkpoint={"every": 100},
        tracking={"log_every": 100},
    )
    scores = [10.0, 20.0, 15.0, 19.0, 99.0]
    progress = train(run, reporter, total_steps=8, dev=ScriptedDev(scores))
    assert progress.step == 6
    assert progress.best is not None
    assert (progress.best.step, progress.best.score) == (2, 20.0)
    # What a rerun goes on from, and what the final figures are made of, is that of all six steps.
    assert reporter.checkpoints == ["checkpoint-00000006-first"]
    assert progress.rows == 6 * 8
    assert progress.seconds > 0

    stored = checkpoint.load(reporter.folder, reporter.checkpoints[0]).progress
    assert stored == progress
    again = train(run, reporter, total_steps=8, progress=stored, dev=ScriptedDev([99.0]))
    assert again.step == 6


def test_a_better_score_starts_patience_anew(tiny_encoder: Path, tmp_path: Path) -> None:
    run = settings(tiny_encoder, dev={"every": 1, "patience": 2})
    scores = [10.0, 9.0, 11.0, 10.0, 12.0, 11.0, 11.0, 99.0]
    progress = train(run, Recorder(tmp_path), total_steps=7, dev=ScriptedDev(scores))
    assert progress.step == 6


def test_a_better_model_of_a_lost_attempt_stays_the_best(
    tiny_encoder: Path, tmp_path: Path
) -> None:
    run, reporter = settings(tiny_encoder, dev={"every": 2, "patience": 3}), Recorder(tmp_path)
    lost = Best(step=4, score=30.0, scores={"dev_scripted": 30.0})
    scores = [10.0, 20.0, 29.0]
    progress = train(run, reporter, total_steps=4, dev=ScriptedDev(scores), published=lost)
    assert reporter.times_best_was_saved == 0
    assert progress.best == lost
    # Patience goes by the scores of this attempt alone, as if there had been no other.
    stored = checkpoint.load(reporter.folder, reporter.checkpoints[-1]).progress
    assert stored.best is not None
    assert (stored.best.score, stored.evaluations_without_gain) == (29.0, 0)

    better = train(
        run, reporter, total_steps=6, progress=stored, dev=ScriptedDev([31.0]), published=lost
    )
    assert reporter.times_best_was_saved == 1
    assert better.best is not None
    assert better.best.step == 6
    kept = Best.model_validate_json((reporter.folder.path / "best" / SCORED).read_text())
    assert kept == better.best


def test_checkpoints_come_every_k_steps_and_after_the_last(
    tiny_encoder: Path, tmp_path: Path
) -> None:
    reporter = Recorder(tmp_path)
    train(settings(tiny_encoder, checkpoint={"every": 3}), reporter, total_steps=7)
    assert reporter.checkpoints == [
        "checkpoint-00000003-first",
        "checkpoint-00000006-first",
        "checkpoint-00000007-first",
    ]


def test_measurements_are_means_since_the_last_and_steps_are_left_out_by_none(
    tiny_encoder: Path, tmp_path: Path
) -> None:
    def logged(name: str, log_every: int) -> Recorder:
        reporter = Recorder(tmp_path / name)
        run = settings(tiny_encoder, tracking={"log_every": log_every}, checkpoint={"every": 100})
        train(run, reporter, total_steps=5)
        return reporter

    each, pairs = logged("each", 1), logged("pairs", 2)
    assert list(pairs.series("loss")) == [2, 4, 5]
    one = list(each.series("loss").values())
    want = [(one[0] + one[1]) / 2, (one[2] + one[3]) / 2, one[4]]
    assert list(pairs.series("loss").values()) == pytest.approx(want)


class StoppedError(Exception):
    """The machine goes away."""


def stopped_before(step: int, batches: Iterator[Batch]) -> Iterator[Batch]:
    for batch in batches:
        if batch.step == step:
            raise StoppedError
        yield batch


def comparable(progress: Progress) -> dict[str, Any]:
    return progress.model_dump(exclude={"seconds", "stalled_seconds"})


def without_times(logged: list[tuple[int, dict[str, float]]]) -> list[tuple[int, dict[str, float]]]:
    return [(step, {k: v for k, v in values.items() if k not in TIMES}) for step, values in logged]


def assert_equal(got: Mapping[str, Tensor], want: Mapping[str, Tensor]) -> None:
    assert got.keys() == want.keys()
    for name, value in got.items():
        assert value.equal(want[name]), name


@pytest.mark.parametrize("columns", [1, 3], ids=["one column", "triplets"])
def test_a_resumed_run_is_bit_for_bit_the_one_that_was_never_stopped(
    tiny_encoder: Path, tmp_path: Path, columns: int
) -> None:
    """With dropout, clipping, weight decay and warm-up; stopped two steps after a checkpoint."""
    run = settings(
        tiny_encoder,
        optim={"learning_rate": 1e-3, "weight_decay": 0.1, "warmup_share": 0.5},
        checkpoint={"every": 3},
        dev={"every": 2},
    )
    scores = [10.0, 30.0, 20.0, 25.0, 40.0]
    whole, parts = Recorder(tmp_path / "whole"), Recorder(tmp_path / "parts")
    engine = ddp_engine(make_task(run), run)
    want = train(run, whole, total_steps=8, engine=engine, dev=ScriptedDev(scores), columns=columns)

    batches = stopped_before(5, make_batches(run, range(8), columns=columns))
    with pytest.raises(StoppedError):
        train(run, parts, total_steps=8, batches=batches, dev=ScriptedDev(scores))
    name = checkpoint.newest(parts.folder)
    assert name == "checkpoint-00000003-first"
    assert checkpoint.next_step(parts.folder) == 3
    loaded = checkpoint.load(parts.folder, name)
    assert loaded.run == run

    torch.manual_seed(99)
    task = make_task(run)
    checkpoint.load_weights(task, loaded.weights)
    resumed = ddp_engine(task, run)
    resumed.restore_moments(loaded.moments, loaded.progress.updates(1))
    got = train(
        run,
        parts,
        total_steps=8,
        engine=resumed,
        progress=loaded.progress,
        dev=ScriptedDev(scores[2:]),
        columns=columns,
    )
    assert_equal(dict(resumed.weights()), dict(engine.weights()))
    for (name, moments), (_, want_moments) in zip(resumed.moments(), engine.moments(), strict=True):
        assert moments["exp_avg"].any(), name
        assert_equal(moments, want_moments)
    assert comparable(got) == comparable(want)
    # The steps after the checkpoint were taken twice, and logged the same twice.
    again = without_times(whole.logged)
    assert without_times(parts.logged)[-len(again) :][-5:] == again[-5:]


def skip_first_update(engine: DdpEngine) -> DdpEngine:
    """As when its gradient is not finite: nothing is updated."""
    step = engine.step

    def skip(learning_rate: float) -> float:
        engine.task.zero_grad()
        engine.step = step  # type: ignore[method-assign]
        return math.inf

    engine.step = skip  # type: ignore[method-assign]
    return engine


def test_a_resumed_run_counts_updates_and_not_batches(tiny_encoder: Path, tmp_path: Path) -> None:
    """Two batches an update, of which the first is left out: AdamW corrects its bias by number."""
    run = settings(
        tiny_encoder,
        optim={"learning_rate": 1e-3, "accumulated_batches": 2},
        checkpoint={"every": 6},
        dev={"every": 2},
    )
    whole, parts = Recorder(tmp_path / "whole"), Recorder(tmp_path / "parts")
    engine = skip_first_update(ddp_engine(make_task(run), run))
    want = train(run, whole, total_steps=10, engine=engine)
    assert (want.step, want.skipped_updates, want.skipped_in_a_row) == (10, 1, 0)
    assert want.rows == 8 * run.global_batch_size  # not those of the update that was left out
    assert sorted(whole.series("loss")) == [4, 6, 8, 10]

    first = skip_first_update(ddp_engine(make_task(run), run))
    batches = stopped_before(7, make_batches(run, range(10), columns=2))
    with pytest.raises(StoppedError):
        train(run, parts, total_steps=10, engine=first, batches=batches)
    name = checkpoint.newest(parts.folder)
    assert name is not None
    loaded = checkpoint.load(parts.folder, name)
    assert loaded.progress.updates(2) == 2
    task = make_task(run)
    checkpoint.load_weights(task, loaded.weights)
    resumed = ddp_engine(task, run)
    resumed.restore_moments(loaded.moments, loaded.progress.updates(2))
    got = train(run, parts, total_steps=10, engine=resumed, progress=loaded.progress)
    assert_equal(dict(resumed.weights()), dict(engine.weights()))
    assert comparable(got) == comparable(want)


def test_a_checkpoint_before_the_first_update_has_moments_of_zero(
    tiny_encoder: Path, tmp_path: Path
) -> None:
    run, reporter = settings(tiny_encoder, checkpoint={"every": 1}), Recorder(tmp_path)
    engine = skip_first_update(ddp_engine(make_task(run), run))
    batches = stopped_before(1, make_batches(run, range(3), columns=2))
    with pytest.raises(StoppedError):
        train(run, reporter, total_steps=3, engine=engine, batches=batches)
    name = checkpoint.newest(reporter.folder)
    assert name is not None
    loaded = checkpoint.load(reporter.folder, name)
    assert loaded.progress.updates(1) == 0
    assert not any(moments["exp_avg"].any() for moments in loaded.moments.values())
    resumed = ddp_engine(make_task(run), run)
    resumed.restore_moments(loaded.moments, 0)
    want = skip_first_update(ddp_engine(make_task(run), run))
    train(run, Recorder(tmp_path / "whole"), total_steps=3, engine=want)
    train(run, reporter, total_steps=3, engine=resumed, progress=loaded.progress)
    assert_equal(dict(resumed.weights()), dict(want.weights()))
