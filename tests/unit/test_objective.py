"""The task in one process: views, loss and measurements.

b: rows, h: hard negatives, V = 2 + h: vectors a row, N: keys, D: width.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from simcse import losses
from simcse.batch import Batch
from simcse.config import EncoderConfig, MemoryConfig, ObjectiveConfig
from simcse.encoder import SentenceEncoder
from simcse.objective import ContrastiveTask, TaskOutput
from simcse.tokens import RaggedTokens

TEMPERATURE = 0.05
TEXTS = (
    ("a dog runs in the sun", "the man eats food", "red car", "birds sleep on a river", "rain"),
    ("the dog is running", "a man is eating", "the car was red", "a bird sleeps", "it rains"),
    ("a cat reads a book", "the woman plays", "a blue bus", "two horses ride", "sea and sun"),
    ("the house is old", "water was bad", "a good team", "people write", "the first day"),
)


def make_task(
    folder: Path, *, dropout: float = 0.0, autocast_dtype: torch.dtype | None = None
) -> ContrastiveTask:
    config = EncoderConfig(model=str(folder), dropout=dropout, length_buckets=3)
    return ContrastiveTask(
        SentenceEncoder.from_config(config, seed=1),
        ObjectiveConfig(temperature=TEMPERATURE),
        autocast_dtype=autocast_dtype,
    )


def make_batch(task: ContrastiveTask, columns: int, rows: int = 5) -> Batch:
    return Batch(
        epoch=0,
        step=0,
        global_rows=5,
        row_ids_b=torch.arange(rows),
        columns=tuple(task.encoder.tokenize(texts[:rows]) for texts in TEXTS[:columns]),
    )


def run(task: ContrastiveTask, batch: Batch) -> TaskOutput:
    output = task(batch)
    assert isinstance(output, TaskOutput)
    return output


def row_by_row_loss(views_VbD: Tensor) -> Tensor:
    """Equation 5 written out: of each anchor over all positives and all hard negatives."""
    anchors_bD, keys = views_VbD[0], [key_D for view_bD in views_VbD[1:] for key_D in view_bD]
    total = torch.zeros((), dtype=views_VbD.dtype)
    for i, anchor_D in enumerate(anchors_bD):
        cosines = [
            (anchor_D @ key_D) / (anchor_D.square().sum() * key_D.square().sum()).sqrt()
            for key_D in keys
        ]
        exponents = [torch.exp(cosine / TEMPERATURE) for cosine in cosines]
        total = total - torch.log(exponents[i] / torch.stack(exponents).sum())
    return total / len(anchors_bD)


@pytest.mark.parametrize("columns", [2, 3, 4], ids=["pairs", "triplets", "two hard negatives"])
def test_loss_and_gradient_are_those_written_out_row_by_row(
    tiny_encoder: Path, columns: int
) -> None:
    task = make_task(tiny_encoder)
    task.encoder.double()
    batch = make_batch(task, columns)
    loss = run(task, batch).loss
    got = torch.autograd.grad(loss, list(task.parameters()))

    want_loss = row_by_row_loss(torch.stack([task.encoder(column) for column in batch.columns]))
    want = torch.autograd.grad(want_loss, list(task.parameters()))
    assert loss.dtype == torch.float64
    assert loss.item() == pytest.approx(want_loss.item(), abs=1e-10)
    for got_gradient, want_gradient in zip(got, want, strict=True):
        torch.testing.assert_close(got_gradient, want_gradient, rtol=0, atol=1e-10)


def test_one_column_is_the_same_sentences_twice_under_different_dropout(
    tiny_encoder: Path,
) -> None:
    task = make_task(tiny_encoder, dropout=0.1)
    task.encoder.double()
    batch = make_batch(task, 1)
    torch.manual_seed(7)
    output = run(task, batch)

    torch.manual_seed(7)
    views_2bD = task.encoder(RaggedTokens.concatenate(batch.columns * 2)).unflatten(0, (2, 5))
    assert not torch.isclose(views_2bD[0], views_2bD[1]).all(dim=1).any()
    assert output.loss.item() == pytest.approx(row_by_row_loss(views_2bD).item(), abs=1e-10)
    assert output.squared_distance > 1e-3


def test_one_column_without_dropout_gives_equal_views(tiny_encoder: Path) -> None:
    output = run(make_task(tiny_encoder), make_batch(make_task(tiny_encoder), 1))
    assert output.squared_distance.item() == pytest.approx(0.0, abs=1e-9)
    assert output.correct == 5


def test_measurements_are_those_of_the_rows(tiny_encoder: Path) -> None:
    task = make_task(tiny_encoder)
    batch = make_batch(task, 3)
    output = run(task, batch)

    anchors_bD, *others = (
        torch.nn.functional.normalize(task.encoder(column), dim=1) for column in batch.columns
    )
    nearest_b = (anchors_bD @ torch.cat(others).T).argmax(dim=1)
    assert output.correct == (nearest_b == torch.arange(5)).sum()
    distances_b = (anchors_bD - others[0]).square().sum(dim=1)
    torch.testing.assert_close(output.squared_distance, distances_b.sum())
    assert not output.squared_distance.requires_grad

    lengths = sorted(int(n) for column in batch.columns for n in column.lengths_n)
    assert output.tokens == sum(lengths)
    # 15 sentences in three buckets of five, each padded to its own longest.
    assert output.positions == 5 * (lengths[4] + lengths[9] + lengths[14])


def test_autocast_to_bf16_reaches_the_encoder_and_leaves_the_loss_in_float32(
    tiny_encoder: Path,
) -> None:
    exact_task = make_task(tiny_encoder)
    task = make_task(tiny_encoder, autocast_dtype=torch.bfloat16)
    seen: list[torch.dtype] = []
    task.encoder.backbone.encoder.layer[0].intermediate.dense.register_forward_hook(
        lambda module, inputs, output: seen.append(output.dtype)
    )
    batch = make_batch(task, 2)
    output, exact = run(task, batch), run(exact_task, batch)

    assert set(seen) == {torch.bfloat16}
    assert output.loss.dtype == output.squared_distance.dtype == torch.float32
    assert output.loss.item() != exact.loss.item()
    assert output.loss.item() == pytest.approx(exact.loss.item(), rel=0.1, abs=0.1)
    output.loss.backward()
    assert all(p.grad is not None and p.grad.dtype == torch.float32 for p in task.parameters())


def add_rows_of_another_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    def gathered(rows_b: Tensor, group: object) -> tuple[Tensor, int]:
        return torch.cat([rows_b, torch.ones(5, *rows_b.shape[1:])]), 0

    monkeypatch.setattr(losses, "gather_rows", gathered)


def test_a_rank_without_rows_has_loss_zero_and_a_gradient_everywhere(
    tiny_encoder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_rows_of_another_rank(monkeypatch)
    task = make_task(tiny_encoder)
    batch = make_batch(task, 2, rows=0)
    output = run(task, batch)
    assert (output.loss, output.correct, output.squared_distance) == (0.0, 0, 0.0)
    # One row of padding for each of the three buckets, or ranks would make unequal calls.
    assert (output.tokens, output.positions) == (0, 3)
    output.loss.backward()
    for name, parameter in task.named_parameters():
        assert parameter.grad is not None, name
        assert not parameter.grad.any(), name


def test_tokens_pass_through_to_their_vectors(tiny_encoder: Path) -> None:
    task = make_task(tiny_encoder).eval()
    tokens = task.encoder.tokenize(TEXTS[0])
    vectors_nD = task(tokens)
    assert isinstance(vectors_nD, Tensor)
    assert vectors_nD.equal(task.encoder(tokens))


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_a_cached_encoder_is_the_direct_one_bit_for_bit_under_dropout(
    tiny_encoder: Path, device: str
) -> None:
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    task = make_task(tiny_encoder, dropout=0.1).to(device)
    batch = make_batch(task, 3)

    def loss_and_gradient() -> list[Tensor]:
        task.zero_grad()
        torch.manual_seed(3)
        loss = run(task, batch).loss
        loss.backward()
        return [loss, *(parameter.grad for parameter in task.parameters())]

    direct = loss_and_gradient()
    # Five rows of three views in chunks of five are three chunks, as many as there are buckets.
    task.memory = MemoryConfig(encoder_chunk=5)
    for cached, want in zip(loss_and_gradient(), direct, strict=True):
        assert cached.equal(want)


@pytest.mark.parametrize("rows", [0, 1, 5])
def test_a_cached_encoder_is_called_as_often_however_few_rows_a_rank_has(
    tiny_encoder: Path, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = make_task(tiny_encoder)
    task.memory = MemoryConfig(encoder_chunk=2)
    sizes = []
    encode = SentenceEncoder._encode

    def watched(encoder: SentenceEncoder, tokens: RaggedTokens, *, tidy: bool) -> Tensor:
        sizes.append(len(tokens))
        return encode(encoder, tokens, tidy=tidy)

    add_rows_of_another_rank(monkeypatch)
    monkeypatch.setattr(SentenceEncoder, "_encode", watched)
    output = run(task, make_batch(task, 3, rows))
    forward = list(sizes)
    assert len(forward) == 8  # of 15 sentences two at a time
    assert max(forward) <= 2
    assert sum(forward) == 3 * rows
    output.loss.backward()
    assert sorted(sizes[8:]) == sorted(forward)


def test_a_cached_encoder_counts_the_positions_of_its_own_chunks(tiny_encoder: Path) -> None:
    task = make_task(tiny_encoder)
    batch = make_batch(task, 2)
    task.memory = MemoryConfig(encoder_chunk=1)
    output = run(task, batch)
    assert output.positions == output.tokens == sum(int(c.lengths_n.sum()) for c in batch.columns)
