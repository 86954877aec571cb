from __future__ import annotations

import json
import random
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import ray.train
from ray.data import DataContext
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer

from simcse.batch import Batch
from simcse.config import EncoderConfig
from simcse.errors import DataError
from simcse.tokenizer import load_tokenizer, tokenize
from simcse_platform.config import DataConfig
from simcse_platform.errors import StreamError
from simcse_platform.ingest import stream
from simcse_platform.ingest.source import Corpus, open_corpus
from simcse_platform.ingest.stream import PlannedDataConfig, batches, split, window_dataset
from simcse_platform.ingest.window import WindowPlan

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_cluster")]

SHARDS = (150, 1, 83, 8, 211, 30)
ROWS = sum(SHARDS)
STEPS_PER_EPOCH = 31  # of 16 rows, the last of 3


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory, tiny_encoder: Path) -> WindowPlan:
    """Two epochs and a half of six uneven shards of pairs, in small row groups."""
    folder = tmp_path_factory.mktemp("corpus")
    first = 0
    for number, rows in enumerate(SHARDS):
        ids = range(first, first + rows)
        pq.write_table(
            pa.table({"a": [f"dog {i}" for i in ids], "b": [f"{i} cats run" for i in ids]}),
            folder / f"{number}.parquet",
            row_group_size=32,
        )
        first += rows
    corpus = open_corpus(
        DataConfig(corpus=(str(folder),)),
        EncoderConfig(model=str(tiny_encoder), max_length=8),
        folder,
        lambda line: None,
    )
    return WindowPlan(
        corpus,
        seed=3,
        global_batch_size=16,
        batches_per_window=4,
        total_steps=2 * STEPS_PER_EPOCH + 14,
    )


def streamed(plan: WindowPlan, world_size: int, first_step: int = 0) -> list[list[Batch]]:
    """The batches of each rank, all ranks reading at once."""
    iterators = split(window_dataset(plan, first_step), plan, world_size)

    def one(rank: int) -> list[Batch]:
        return list(
            batches(
                iterators[rank],
                plan,
                rank=rank,
                world_size=world_size,
                first_step=first_step,
                timeout_s=300,
            )
        )

    with ThreadPoolExecutor(world_size) as pool:
        return list(pool.map(one, range(world_size)))


def global_ids(ranks: list[list[Batch]]) -> list[list[int]]:
    """Row ids of each global batch: those of rank 0, then of rank 1, and so on."""
    return [
        [row for batch in step for row in batch.row_ids_b.tolist()]
        for step in zip(*ranks, strict=True)
    ]


def planned_ids(plan: WindowPlan) -> list[list[int]]:
    order, ids = plan.order, []
    for number in range(order.window_of(plan.total_steps - 1) + 1):
        window = order.window(number)
        rows = order.row_ids(window)[order.permutation(window)]
        ids += np.split(rows, np.cumsum(window.batch_rows)[:-1])
    return [rows.tolist() for rows in ids[: plan.total_steps]]


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_global_batches_are_those_of_the_plan_at_any_worker_count(
    plan: WindowPlan, world_size: int
) -> None:
    ranks = streamed(plan, world_size)
    assert global_ids(ranks) == planned_ids(plan)
    for rank in ranks:
        assert [batch.step for batch in rank] == list(range(plan.total_steps))
        assert [batch.epoch for batch in rank] == [
            step // STEPS_PER_EPOCH for step in range(plan.total_steps)
        ]
        assert [batch.global_rows for batch in rank[:STEPS_PER_EPOCH]] == [16] * 30 + [3]


def test_tasks_that_finish_out_of_order_change_nothing(plan: WindowPlan) -> None:
    class Dawdling(WindowPlan):
        def read(self, number: int, world_size: int) -> pa.Table:
            time.sleep(random.Random(number).choice([0.0, 0.05, 0.6]))
            return super().read(number, world_size)

    slow = Dawdling(**{name: getattr(plan, name) for name in plan.__dataclass_fields__})
    assert global_ids(streamed(slow, 3)) == planned_ids(plan)


def test_a_task_may_read_several_windows(plan: WindowPlan, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "_MAX_TASKS", 3)
    assert global_ids(streamed(plan, 2)) == planned_ids(plan)


def test_the_size_of_rays_blocks_changes_nothing(
    plan: WindowPlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(DataContext.get_current(), "target_max_block_size", 2000)
    assert global_ids(streamed(plan, 3)) == planned_ids(plan)


def test_batches_that_do_not_come_in_time_are_an_error(plan: WindowPlan) -> None:
    class Stuck(WindowPlan):
        def read(self, number: int, world_size: int) -> pa.Table:
            time.sleep(15 if number else 0)
            return super().read(number, world_size)

    stuck = Stuck(**{name: getattr(plan, name) for name in plan.__dataclass_fields__})
    [iterator] = split(window_dataset(stuck), stuck, 1)
    taken = batches(iterator, stuck, rank=0, world_size=1, timeout_s=8)
    with pytest.raises(
        StreamError,
        match=r"^no batch came for 8 s: Ray Data needs a CPU that no worker has reserved, and "
        r"storage that answers; lower scale.cpus_per_worker, or raise scale.timeout_s$",
    ):
        list(taken)


def test_each_row_comes_once_an_epoch_and_epochs_differ(plan: WindowPlan) -> None:
    ids = global_ids(streamed(plan, 2))
    first, second = ids[:STEPS_PER_EPOCH], ids[STEPS_PER_EPOCH : 2 * STEPS_PER_EPOCH]
    assert sorted(row for batch in first for row in batch) == list(range(ROWS))
    assert sorted(row for batch in second for row in batch) == list(range(ROWS))
    assert first != second


@pytest.mark.parametrize("first_step", [STEPS_PER_EPOCH + 9, 2 * STEPS_PER_EPOCH])
def test_a_resumed_run_with_other_workers_gets_the_remaining_batches(
    plan: WindowPlan, first_step: int
) -> None:
    ranks = streamed(plan, 3, first_step)
    assert [batch.step for batch in ranks[0]] == list(range(first_step, plan.total_steps))
    assert global_ids(ranks) == planned_ids(plan)[first_step:]


def test_tokens_are_those_of_the_rows_in_every_column(plan: WindowPlan, tiny_encoder: Path) -> None:
    tokenizer = load_tokenizer(tiny_encoder)
    for batch in streamed(replace(plan, total_steps=3), 1)[0]:
        ids = batch.row_ids_b.tolist()
        for column, texts in zip(
            batch.columns,
            ([f"dog {i}" for i in ids], [f"{i} cats run" for i in ids]),
            strict=True,
        ):
            want = tokenize(tokenizer, texts, 8).ids
            assert column.lengths_n.tolist() == [len(row) for row in want]
            assert column.ids_T.tolist() == [token for row in want for token in row]


def test_a_batch_with_fewer_rows_than_workers_leaves_ranks_without_rows(plan: WindowPlan) -> None:
    corpus = replace(plan.corpus, files=plan.corpus.files[1:2], rows=(1,))
    ranks = streamed(replace(plan, corpus=corpus, total_steps=2), 2)
    assert [[len(batch) for batch in rank] for rank in ranks] == [[0, 0], [1, 1]]
    assert ranks[0][0].global_rows == 1


def test_a_slice_of_another_rank_or_step_is_refused(plan: WindowPlan) -> None:
    plan = replace(plan, total_steps=8)
    iterators = split(window_dataset(plan), plan, 2)

    def swapped(rank: int) -> None:
        want = (
            f"rank {rank} waited for step 0 of epoch 0 and got 8 rows of step 0 of epoch 0 for "
            f"rank {1 - rank}: start the run again"
        )
        with pytest.raises(StreamError, match=want):
            next(batches(iterators[1 - rank], plan, rank=rank, world_size=2, timeout_s=300))

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(swapped, range(2)))


def test_a_slice_of_another_epoch_is_refused(plan: WindowPlan) -> None:
    [iterator] = split(window_dataset(plan, STEPS_PER_EPOCH), plan, 1)
    longer = replace(plan, corpus=replace(plan.corpus, rows=(ROWS + 16,)))
    want = "waited for step 31 of epoch 0 and got 16 rows of step 31 of epoch 1 for rank 0"
    with pytest.raises(StreamError, match=want):
        next(
            batches(
                iterator, longer, rank=0, world_size=1, first_step=STEPS_PER_EPOCH, timeout_s=300
            )
        )


def test_a_stream_that_ends_early_is_refused(plan: WindowPlan) -> None:
    [iterator] = split(window_dataset(replace(plan, total_steps=8)), plan, 1)
    with pytest.raises(StreamError, match="batches of rank 0 ended at step 8 of 76"):
        list(batches(iterator, plan, rank=0, world_size=1, timeout_s=300))


@pytest.mark.parametrize("text", [None, " "])
def test_an_empty_text_in_raw_parquet_is_named(
    tmp_path: Path, tiny_encoder: Path, text: str | None
) -> None:
    pq.write_table(
        pa.table({"text": ["dog"] * 70 + [text]}), tmp_path / "a.parquet", write_statistics=False
    )
    plan = raw_plan(tmp_path, tiny_encoder)
    want = r"a\.parquet:71: the text in column 'text' is empty: `simcse prepare` sorts .* out$"
    with pytest.raises(DataError, match=want):
        streamed(plan, 1)


def test_a_shard_that_breaks_while_it_is_read_is_named(tmp_path: Path, tiny_encoder: Path) -> None:
    file = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": [f"dog {i}" for i in range(1000)]}), file)
    content = bytearray(file.read_bytes())
    content[4:60] = bytes(56)
    file.write_bytes(content)
    with pytest.raises(DataError, match=r"a\.parquet is no readable parquet file") as raised:
        streamed(raw_plan(tmp_path, tiny_encoder), 1)
    assert raised.value.__cause__ is not None


def raw_plan(folder: Path, model: Path) -> WindowPlan:
    corpus = open_corpus(
        DataConfig(corpus=(str(folder),)),
        EncoderConfig(model=str(model), max_length=8),
        folder,
        lambda line: None,
    )
    return WindowPlan(
        corpus,
        seed=0,
        global_batch_size=16,
        batches_per_window=4,
        total_steps=-(-sum(corpus.rows) // 16),
    )


def test_a_corpus_larger_than_the_object_store_streams(tmp_path: Path) -> None:
    rows, length = 12_000, 512
    files = []
    for number in range(10):
        values = np.arange(rows * length, dtype=np.int32) % 30_000
        tokens = pa.ListArray.from_arrays(np.arange(rows + 1, dtype=np.int32) * length, values)
        files.append(str(tmp_path / f"{number}.parquet"))
        pq.write_table(pa.table({"text_tokens": tokens}), files[-1], row_group_size=1024)
    corpus = Corpus(
        files=tuple(files),
        rows=(rows,) * 10,
        columns=("text",),
        tokenised=True,
        tokenizer_model="",
        max_length=length,
        fingerprint="",
    )
    plan = WindowPlan(corpus, seed=0, global_batch_size=512, batches_per_window=16, total_steps=235)
    [iterator] = split(window_dataset(plan), plan, 1)
    tokens_read = sum(
        int(batch.columns[0].lengths_n.sum())
        for batch in batches(iterator, plan, rank=0, world_size=1, timeout_s=300)
    )
    assert tokens_read == 10 * rows * length
    assert 4 * tokens_read > 150_000_000


def _write_ids(config: dict[str, Any]) -> None:
    context = ray.train.get_context()
    rank, world_size = context.get_world_rank(), context.get_world_size()
    shard = ray.train.get_dataset_shard("train")
    ids = [
        batch.row_ids_b.tolist()
        for batch in batches(shard, config["plan"], rank=rank, world_size=world_size, timeout_s=300)
    ]
    (Path(config["folder"]) / f"{rank}.json").write_text(json.dumps(ids))


def test_ray_train_workers_get_their_planned_rows(plan: WindowPlan, tmp_path: Path) -> None:
    TorchTrainer(
        _write_ids,
        train_loop_config={"plan": plan, "folder": str(tmp_path)},
        scaling_config=ScalingConfig(num_workers=2, resources_per_worker={"CPU": 1.5}),
        run_config=RunConfig(storage_path=str(tmp_path / "runs"), name="ids"),
        datasets={"train": lambda: window_dataset(plan)},
        dataset_config=PlannedDataConfig(plan),
    ).fit()
    ranks = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)]
    assert [first + second for first, second in zip(*ranks, strict=True)] == planned_ids(plan)
