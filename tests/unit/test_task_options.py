"""What the options add to the task, in one process.

b: rows, V: vectors a row, D: width.
"""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from simcse.batch import Batch
from simcse.config import EncoderConfig, ObjectiveConfig, OptimConfig, ViewsConfig
from simcse.masked_language import NO_TARGET
from simcse.objective import ContrastiveTask, TaskOutput, build_task
from simcse.optim import build_optimizer
from simcse.tokens import RaggedTokens
from support.architectures import save_masked_language_model
from support.row_by_row import row_by_row_loss

TEXTS = (
    ("a dog runs in the sun", "the man eats food", "red car", "birds sleep on a river", "red car"),
    ("the dog is running", "a man is eating", "the car was red", "a bird sleeps", "it rains"),
    ("a cat reads a book", "the woman plays", "a blue bus", "two horses ride", "sea and sun"),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_masked_language_model(tmp_path_factory.mktemp("models") / "bert", "bert")


def make_task(
    folder: Path,
    *,
    dropout: float = 0.0,
    objective: ObjectiveConfig | None = None,
    views: ViewsConfig | None = None,
) -> ContrastiveTask:
    encoder = EncoderConfig(model=str(folder), dropout=dropout, length_buckets=3)
    task = build_task(encoder, objective or ObjectiveConfig(), views or ViewsConfig(), seed=1)
    return task.double()


def make_batch(task: ContrastiveTask, columns: int) -> Batch:
    return Batch(
        epoch=3,
        step=0,
        global_rows=5,
        row_ids_b=torch.arange(5) + 40,
        columns=tuple(task.encoder.tokenize(texts) for texts in TEXTS[:columns]),
    )


def run(task: ContrastiveTask, batch: Batch) -> TaskOutput:
    torch.manual_seed(7)
    output = task(batch)
    assert isinstance(output, TaskOutput)
    return output


def test_under_the_fixed_mask_both_views_are_equal_bit_for_bit_and_else_they_differ(
    folder: Path,
) -> None:
    fixed = make_task(folder, dropout=0.1, views=ViewsConfig(fixed_dropout_mask=True))
    batch = make_batch(fixed, 1)
    assert run(fixed, batch).squared_distance.item() == 0.0
    torch.manual_seed(7)
    twice = [fixed._encode(call) for call in fixed.encoder_calls(batch)]
    assert twice[0].equal(twice[1])
    torch.manual_seed(8)
    assert not twice[0].equal(fixed.encoder(batch.columns[0])[:, None])

    plain = make_task(folder, dropout=0.1)
    assert run(plain, batch).squared_distance.item() > 1e-3


def test_two_encoders_encode_anchors_and_keys_apart_and_the_first_is_kept(folder: Path) -> None:
    task = make_task(folder, views=ViewsConfig(encoders=2))
    assert task.key_encoder is not None
    batch = make_batch(task, 3)
    anchors_bD, *keys = [
        encoder(column)
        for encoder, column in zip(
            (task.encoder, task.key_encoder, task.key_encoder), batch.columns, strict=True
        )
    ]
    views_bVD = torch.stack([anchors_bD, *keys], dim=1)
    want = row_by_row_loss(views_bVD, task.objective, None)
    assert run(task, batch).loss.item() == pytest.approx(want.item(), abs=1e-10)
    # The heads start apart, the checkpoint's weights alike.
    assert task.encoder.head is not None
    assert task.key_encoder.head is not None
    assert not task.encoder.head.dense.weight.equal(task.key_encoder.head.dense.weight)
    assert task(batch.columns[0]).equal(task.encoder(batch.columns[0]))


def test_a_learnable_temperature_starts_where_it_is_set_and_has_the_gradient_of_the_loss(
    folder: Path,
) -> None:
    objective = ObjectiveConfig(temperature=0.2, learnable_temperature=True)
    task = make_task(folder, objective=objective)
    batch = make_batch(task, 2)
    output = run(task, batch)
    output.loss.backward()
    assert task.log_scale is not None
    assert task.log_scale.shape == (1,)
    assert task.log_scale.grad is not None
    assert output.parts["temperature"].item() == pytest.approx(0.2)

    views_bVD = torch.stack([task.encoder(column) for column in batch.columns], dim=1).detach()
    step = 1e-5
    up, down = (
        row_by_row_loss(
            views_bVD, ObjectiveConfig(temperature=math.exp(-(math.log(5) + sign * step))), None
        )
        for sign in (1, -1)
    )
    slope = (up - down).item() / (2 * step)
    assert task.log_scale.grad.item() == pytest.approx(slope, rel=1e-6)


def test_a_learnable_temperature_ends_at_one_hundredth_and_has_no_weight_decay(
    folder: Path,
) -> None:
    task = make_task(folder, objective=ObjectiveConfig(learnable_temperature=True))
    assert task.log_scale is not None
    with torch.no_grad():
        task.log_scale.fill_(math.log(1000))
    output = run(task, make_batch(task, 2))
    assert output.parts["temperature"].item() == pytest.approx(0.01)
    output.loss.backward()
    assert task.log_scale.grad is not None
    assert task.log_scale.grad.item() != 0

    decayed, plain = build_optimizer(task, OptimConfig(weight_decay=0.1)).param_groups
    assert any(parameter is task.log_scale for parameter in plain["params"])
    assert plain["weight_decay"] == 0.0
    assert decayed["weight_decay"] == 0.1


def test_the_masked_language_term_is_added_with_its_weight(folder: Path) -> None:
    objective = ObjectiveConfig(masked_language_weight=0.3, masked_language_rate=0.4)
    task = make_task(folder, objective=objective)
    batch = make_batch(task, 2)
    output = run(task, batch)
    plain = run(make_task(folder), batch)
    term = task.masked_language
    assert term is not None
    masked = [
        term.mask(column, epoch=3, row_ids_n=batch.row_ids_b, view=view)
        for view, column in enumerate(batch.columns)
    ]
    total, count = 0.0, 0
    for part in masked:
        states_TD = task.encoder.token_states(task.encoder.embed_words(part.tokens))
        for logits_V, target in zip(term.head(states_TD), part.targets.ids_T, strict=True):
            if target != NO_TARGET:
                total += (torch.logsumexp(logits_V, dim=0) - logits_V[target]).item()
                count += 1
    assert output.parts["masked_language_loss"].item() == pytest.approx(total / count, abs=1e-10)
    assert output.loss.item() == pytest.approx(plain.loss.item() + 0.3 * total / count, abs=1e-10)
    assert output.tokens == 2 * plain.tokens
    output.loss.backward()
    assert all(parameter.grad is not None for parameter in task.parameters())


def test_the_head_shares_the_word_embeddings_that_the_encoder_trains(folder: Path) -> None:
    task = make_task(folder, objective=ObjectiveConfig(masked_language_weight=0.1))
    words = task.encoder.backbone.get_input_embeddings().weight
    assert task.masked_language is not None
    assert any(parameter is words for parameter in task.masked_language.parameters())
    assert sum(parameter is words for parameter in task.parameters()) == 1


def test_false_negatives_are_found_by_the_tokens_of_whole_sentences(folder: Path) -> None:
    task = make_task(folder, objective=ObjectiveConfig(mask_false_negatives=True))
    batch = make_batch(task, 1)
    # Sentences 2 and 4 are equal; without dropout both views are.
    vectors_bD = task.encoder(batch.columns[0])
    views_bVD = torch.stack([vectors_bD, vectors_bD], dim=1)
    hashes_bV = torch.tensor([[0, 0], [1, 1], [2, 2], [3, 3], [2, 2]])
    want = row_by_row_loss(views_bVD, task.objective, hashes_bV)
    assert run(task, batch).loss.item() == pytest.approx(want.item(), abs=1e-10)
    assert run(make_task(folder), batch).loss.item() > want.item() + 0.1


def test_altered_text_counts_as_the_text_it_was_before(folder: Path) -> None:
    task = make_task(
        folder,
        objective=ObjectiveConfig(mask_false_negatives=True),
        views=ViewsConfig(positive="delete_one_word"),
    )
    anchors, altered = (task.encoder.tokenize(texts) for texts in TEXTS[:2])
    batch = Batch(0, 0, 5, torch.arange(5), (anchors, altered))
    views_bVD = torch.stack([task.encoder(anchors), task.encoder(altered)], dim=1)
    hashes_bV = torch.tensor([[0, 0], [1, 1], [2, 2], [3, 3], [2, 2]])
    want = row_by_row_loss(views_bVD, task.objective, hashes_bV)
    assert run(task, batch).loss.item() == pytest.approx(want.item(), abs=1e-10)


def test_equal_sentences_have_equal_hashes_and_others_do_not() -> None:
    hashes = RaggedTokens.from_lists([[1, 2], [3], [1, 2], [1], [2, 1]]).hashes().tolist()
    assert hashes[0] == hashes[2]
    assert len(set(hashes)) == 4
    assert RaggedTokens.from_lists([]).hashes().shape == (0,)
