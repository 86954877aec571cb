"""How many steps a run has, and how its workers lie on a cluster."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from simcse.config import EncoderConfig
from simcse.errors import UsageError
from simcse_platform.config import DataConfig, ScaleConfig, TrainRun
from simcse_platform.errors import ClusterError
from simcse_platform.ingest.source import Corpus
from simcse_platform.run import _start
from simcse_platform.runtime import Resources
from simcse_platform.training import trainer
from simcse_platform.training.trainer import Placement, place, plan_steps, slow_precision


def scale(**fields: Any) -> ScaleConfig:
    return ScaleConfig.model_validate(fields)


@pytest.mark.parametrize(
    ("workers", "cpus"), [(1, 1.0), (2, 0.5), (3, 0.33), (4, 0.25), (100, 0.01)]
)
def test_workers_on_two_cores_share_one_and_leave_one_to_ray_data(
    workers: int, cpus: float
) -> None:
    placed = place(scale(num_workers=workers), Resources(cpus=2, gpus=0, nodes=1))
    assert (placed.use_gpu, placed.cpus_per_worker) == (False, cpus)


def test_workers_on_many_cores_have_one_each() -> None:
    placed = place(scale(num_workers=4), Resources(cpus=16, gpus=0, nodes=1))
    assert placed == Placement(use_gpu=False, cpus_per_worker=1.0, threads_per_worker=4)


def test_threads_are_the_cores_of_a_node_divided_among_its_workers() -> None:
    def threads(workers: int, cpus: float, nodes: int) -> int:
        resources = Resources(cpus=cpus, gpus=0, nodes=nodes)
        return place(scale(num_workers=workers), resources).threads_per_worker

    assert [threads(workers, 2, 1) for workers in (1, 2, 3)] == [2, 1, 1]
    assert threads(4, 32, 2) == 8
    assert threads(3, 32, 2) == 8
    assert threads(1, 32, 2) == 16
    # As many as there may be, not as there are at the start.
    elastic = scale(num_workers=1, max_workers=8)
    assert place(elastic, Resources(cpus=16, gpus=0, nodes=1)).threads_per_worker == 2


def test_settings_go_before_what_would_be_worked_out() -> None:
    asked = scale(num_workers=2, cpus_per_worker=1.5, threads_per_worker=7)
    placed = place(asked, Resources(cpus=4, gpus=0, nodes=1))
    assert placed == Placement(use_gpu=False, cpus_per_worker=1.5, threads_per_worker=7)


def test_every_cluster_with_a_hundredth_of_a_cpu_for_each_worker_holds_them() -> None:
    for free in range(1, 30):
        for workers in range(1, 100 * free, 1 + free):
            resources = Resources(cpus=free + 1, gpus=0, nodes=1)
            cpus = place(scale(num_workers=workers), resources).cpus_per_worker
            assert 0 < round(workers * cpus, 2) <= free


@pytest.mark.parametrize(
    ("gpus", "device", "use_gpu"),
    [
        (0, "auto", False),
        (1, "auto", False),
        (2, "auto", True),
        (2, "cpu", False),
        (2, "cuda", True),
    ],
)
def test_gpus_are_taken_where_there_is_one_for_each_worker(
    gpus: int, device: str, use_gpu: bool
) -> None:
    placed = place(scale(num_workers=2, device=device), Resources(cpus=8, gpus=gpus, nodes=1))
    assert placed.use_gpu == use_gpu


def test_too_few_gpus_are_refused() -> None:
    with pytest.raises(
        ClusterError,
        match=r"^scale.num_workers is 4, but the cluster has 3 GPUs: use fewer workers or "
        r"scale.device=cpu$",
    ):
        place(scale(num_workers=4, device="cuda"), Resources(cpus=64, gpus=3, nodes=1))


def test_offload_without_a_gpu_is_refused() -> None:
    with pytest.raises(
        UsageError, match=r"^scale.offload moves state off a GPU, and no GPU is used: leave it out$"
    ):
        place(scale(zero_stage=2, offload="optimizer"), Resources(cpus=64, gpus=0, nodes=1))
    assert place(
        scale(zero_stage=2, offload="optimizer"), Resources(cpus=64, gpus=1, nodes=1)
    ).use_gpu


@pytest.mark.parametrize(
    ("workers", "asked", "cpus", "message"),
    [
        (1, None, 1, r"1 worker\(s\) of 0 CPUs leave none of the cluster's 1 to Ray Data"),
        (101, None, 2, r"101 worker\(s\) of 0 CPUs leave none of the cluster's 2 to Ray Data"),
        (
            2,
            1.0,
            2,
            r"2 worker\(s\) of 1 CPUs leave none of the cluster's 2 to Ray Data, which needs ",
        ),
        (3, 0.34, 2, r"which needs one: use fewer workers, or lower scale.cpus_per_worker$"),
    ],
)
def test_workers_that_leave_no_cpu_to_ray_data_are_refused(
    workers: int, asked: float | None, cpus: float, message: str
) -> None:
    with pytest.raises(ClusterError, match=message):
        place(
            scale(num_workers=workers, cpus_per_worker=asked), Resources(cpus=cpus, gpus=0, nodes=1)
        )


def test_a_worker_that_no_machine_can_hold_is_refused() -> None:
    with pytest.raises(
        ClusterError,
        match=r"^scale.cpus_per_worker is 6, but the largest machine has 4 CPUs: lower it$",
    ):
        place(
            scale(num_workers=1, cpus_per_worker=6.0),
            Resources(cpus=8, gpus=0, nodes=2, node_cpus=(4, 4)),
        )


@pytest.mark.parametrize(
    ("epochs", "max_steps", "steps"),
    [(1, None, 7), (3, None, 21), (3, 20, 20), (1, 7, 7), (1, 100, 7)],
)
def test_steps_are_those_of_the_epochs_but_no_more_than_max_steps(
    epochs: int, max_steps: int | None, steps: int
) -> None:
    corpus = Corpus(
        files=("a", "b"),
        rows=(30, 20),
        columns=("text",),
        tokenised=False,
        tokenizer_model="model",
        max_length=32,
        fingerprint="",
    )
    run = TrainRun(
        encoder=EncoderConfig(model="model"),
        global_batch_size=8,
        epochs=epochs,
        max_steps=max_steps,
        seed=5,
    )
    plan = plan_steps(run, corpus)
    assert plan.total_steps == steps
    assert (plan.seed, plan.global_batch_size) == (5, 8)
    assert plan.batches_per_window == run.data.batches_per_window


def test_where_there_is_no_gpu_fewer_workers_are_no_way_out() -> None:
    with pytest.raises(ClusterError, match=r"the cluster has 0 GPUs: use scale.device=cpu$"):
        place(scale(device="cuda"), Resources(cpus=2, gpus=0, nodes=1))


@pytest.mark.parametrize(
    ("sections", "threads", "line"),
    [
        ({"num_workers": 2, "zero_stage": 2}, 1, "starting 2 worker(s) of 1 thread(s), ZeRO-2"),
        (
            {"num_workers": 3},
            1,
            "starting 3 worker(s) of 1 thread(s), DDP: more than the 2 CPUs there are, which they "
            "share",
        ),
    ],
)
def test_what_is_started_is_told(sections: dict[str, Any], threads: int, line: str) -> None:
    run = TrainRun(
        encoder=EncoderConfig(model="m"), scale=scale(**sections), data=DataConfig(corpus=("c",))
    )
    placed = Placement(use_gpu=False, cpus_per_worker=0.3, threads_per_worker=threads)
    assert _start(run, placed, Resources(cpus=2, gpus=0, nodes=1)) == line


@pytest.mark.parametrize(
    ("precision", "use_gpu", "instructions", "slow"),
    [
        ("bf16", False, False, True),
        ("bf16", False, True, False),
        ("bf16", True, False, False),
        ("fp32", False, False, False),
    ],
)
def test_a_precision_that_the_processor_lacks_is_told(
    precision: str, use_gpu: bool, instructions: bool, slow: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trainer, "_takes_bf16", lambda: instructions)
    placed = Placement(use_gpu=use_gpu, cpus_per_worker=1.0, threads_per_worker=1)
    said = slow_precision(scale(precision=precision), placed)
    assert (said is not None and "take fp32" in said) == slow


def test_without_onednn_there_are_only_plain_loops(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    assert not trainer._takes_bf16()


@pytest.mark.parametrize(("flag", "wanted"), [("avx512_bf16", True), ("avx2", False)])
def test_torch_says_whether_the_processor_takes_bf16(flag: str, wanted: bool) -> None:
    has = torch.cpu.get_capabilities()
    larger = any(has.get(name) for name in ("avx512_f", "avx_ne_convert"))
    if not has.get(flag) or (flag == "avx2" and larger):
        pytest.skip(f"this processor is none that has {flag} and no more")
    assert trainer._takes_bf16() == wanted
