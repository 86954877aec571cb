"""What a step will need is estimated near enough, and refused with the setting to change."""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest
import torch

from simcse.objective import build_task
from simcse_platform.config import TrainRun
from simcse_platform.errors import TrainingError
from simcse_platform.training import memory
from simcse_platform.training.memory import check_memory, free_memory, step_memory
from support.peak_memory import PEAK_CAN_BE_READ
from support.tiny import save_tiny_encoder
from support.training import estimated_and_measured, make_batches

GIB = 2**30


@pytest.fixture(scope="module")
def middling(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An encoder whose activations are far larger than what the process holds besides."""
    return save_tiny_encoder(
        tmp_path_factory.mktemp("models") / "middling",
        hidden_size=256,
        num_hidden_layers=6,
        num_attention_heads=8,
        intermediate_size=1024,
    )


def settings(model: Path, **sections: Any) -> TrainRun:
    return TrainRun.model_validate(
        {"encoder": {"model": str(model)}, "global_batch_size": 256, **sections}
    )


@pytest.mark.parametrize("sections", [{}, {"memory": {"encoder_chunk": 128, "loss_tile": 64}}])
def test_the_estimate_is_near_what_a_step_takes(middling: Path, sections: dict[str, Any]) -> None:
    if not PEAK_CAN_BE_READ:
        pytest.skip("peak memory is read from /proc, which this system does not have")
    # A fresh process: a forked one would find the heap that the tests before it left free.
    with ProcessPoolExecutor(1, get_context("spawn"), torch.set_num_threads, (1,)) as process:
        run = settings(middling, **sections)
        estimate, measured = process.submit(estimated_and_measured, run).result(timeout=300)
    assert measured > 50e6
    assert 0.5 < estimate / measured < 2


def test_a_cached_encoder_and_a_tiled_loss_need_less(middling: Path) -> None:
    def need(**fields: int) -> memory.StepMemory:
        run = settings(middling, memory=fields, global_batch_size=512)
        task = build_task(run.encoder, run.objective, run.views, seed=1, memory=run.memory)
        [batch] = make_batches(run, range(1), columns=2)
        return step_memory(task, batch, run, world=1)

    direct, cached, tiled = need(), need(encoder_chunk=16), need(loss_tile=16)
    assert cached.activations < direct.activations / 20
    assert tiled.logits < direct.logits / 2
    assert cached.state == tiled.state == direct.state


def test_zero_shards_what_it_says(middling: Path) -> None:
    def state(stage: int) -> int:
        run = settings(middling, scale={"zero_stage": stage})
        task = build_task(run.encoder, run.objective, run.views, seed=1)
        [batch] = make_batches(run, range(1), columns=2)
        return step_memory(task, batch, run, world=4).state

    whole = state(0)
    assert state(1) == pytest.approx(whole * (1 + 2 / 4) / 3)
    assert state(2) == state(3) == pytest.approx(whole / 4)


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({}, r"GiB are free: set memory.encoder_chunk \(sentences .* at a time\) to 32$"),
        ({"memory": {"encoder_chunk": 64}}, r"at a time\) to 16$"),
        ({"memory": {"encoder_chunk": 1}}, r"GiB are free: shard the state by scale.zero_stage=2"),
    ],
)
def test_a_step_that_does_not_fit_is_refused_with_the_setting_to_change(
    middling: Path, monkeypatch: pytest.MonkeyPatch, sections: dict[str, Any], message: str
) -> None:
    run = settings(middling, **sections)
    task = build_task(run.encoder, run.objective, run.views, seed=1, memory=run.memory)
    [batch] = make_batches(run, range(1), columns=2)
    check_memory(task, batch, run, world=1)
    lacking = step_memory(task, batch, run, world=1).total - 1
    monkeypatch.setattr(memory, "free_memory", lambda device: lacking)
    with pytest.raises(TrainingError, match=r"^a step needs about .* GiB on a worker .*" + message):
        check_memory(task, batch, run, world=1)


def test_where_one_setting_does_not_suffice_each_is_named(
    middling: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = settings(middling)
    task = build_task(run.encoder, run.objective, run.views, seed=1, memory=run.memory)
    [batch] = make_batches(run, range(1), columns=2)
    monkeypatch.setattr(memory, "free_memory", lambda device: 1)
    with pytest.raises(
        TrainingError,
        match=r"are free: set memory.encoder_chunk .* to 32, and shard the state .* encoder, and "
        r"set memory.loss_tile .* to 1024$",
    ):
        check_memory(task, batch, run, world=1)


def test_free_memory_is_shared_by_the_workers_of_a_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    alone = free_memory(torch.device("cpu"))
    assert 0 < alone < 10_000 * GIB
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert free_memory(torch.device("cpu")) == pytest.approx(alone / 4, rel=0.2)


def test_a_containers_limit_counts_and_its_page_cache_makes_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = [tmp_path / name for name in ("limit", "used", "stat")]
    monkeypatch.setattr(memory, "_CGROUPS", [tuple(map(str, files))])
    unlimited = free_memory(torch.device("cpu"))
    limit, used, stat = files
    limit.write_text("1000\n")
    used.write_text("900\n")
    stat.write_text("anon 100\nactive_file 300\ninactive_file 400\n")
    assert free_memory(torch.device("cpu")) == 1000 - 900 + 700
    limit.write_text("max\n")
    assert free_memory(torch.device("cpu")) == pytest.approx(unlimited, rel=0.2)


def test_a_resumed_run_has_its_moments_already(middling: Path) -> None:
    run = settings(middling)
    task = build_task(run.encoder, run.objective, run.views, seed=1)
    [batch] = make_batches(run, range(1), columns=2)
    fresh = step_memory(task, batch, run, world=1)
    resumed = step_memory(task, batch, run, world=1, resumed=True)
    assert fresh.state - resumed.state == 2 * 4 * sum(p.numel() for p in task.parameters())
    assert fresh.activations == resumed.activations
