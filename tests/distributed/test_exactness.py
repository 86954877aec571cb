"""Encoder direct or cached, loss full or tiled, on W processes: one gradient, that of loops.

b: rows on a rank, B: rows of the global batch, V: vectors a row, D: width.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from simcse.batch import Batch
from simcse.config import EncoderConfig, MemoryConfig, ObjectiveConfig, ViewsConfig
from simcse.masked_language import NO_TARGET
from simcse.objective import ContrastiveTask, build_task
from simcse.tokens import RaggedTokens
from support.architectures import save_masked_language_model
from support.ranks import run_on_ranks
from support.row_by_row import row_by_row_loss

ROWS = {1: [(6,)], 2: [(3, 3), (5, 1), (6, 0)], 4: [(2, 2, 1, 1), (3, 1, 0, 2), (0, 0, 6, 0)]}
TOTAL = 6
HARD_NEGATIVES = (0, 1, 3)
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "learnable temperature": {"learnable_temperature": True},
    "alpha": {"hard_negative_alpha": 0.5},
    "masking": {"mask_false_negatives": True},
    "masked language": {"masked_language_weight": 0.5, "masked_language_rate": 0.4},
    "all": {
        "learnable_temperature": True,
        "hard_negative_alpha": 2.0,
        "mask_false_negatives": True,
        "masked_language_weight": 0.5,
        "masked_language_rate": 0.4,
    },
}
COMBINATIONS = [
    MemoryConfig(encoder_chunk=chunk, loss_tile=tile)
    for chunk, tile in product((None, 2), (None, 4))
]
MAX_NORM = 1.0


class Case(NamedTuple):
    """What the answer depends on; how it is computed does not matter to it."""

    hard_negatives: int
    option: str


class Answer(NamedTuple):
    """Loss, gradient of all parameters end to end, and that gradient clipped."""

    loss: Tensor
    gradient: Tensor
    clipped: Tensor


def cases() -> Iterator[Case]:
    for case in map(Case._make, product(HARD_NEGATIVES, OPTIONS)):
        if case.hard_negatives or "hard_negative_alpha" not in OPTIONS[case.option]:
            yield case


def new_task(model: Path, case: Case) -> ContrastiveTask:
    config = EncoderConfig(model=str(model), dropout=0.0, length_buckets=2)
    objective = ObjectiveConfig.model_validate(OPTIONS[case.option])
    return build_task(config, objective, ViewsConfig(), seed=1).double()


def batch_of(case: Case, first: int, stop: int) -> Batch:
    """Rows of one global batch, some of whose sentences come up again in other rows."""
    generator = torch.Generator().manual_seed(case.hard_negatives)
    lengths = torch.randint(3, 12, (9,), generator=generator).tolist()
    stock = [torch.randint(5, 90, (n,), generator=generator).tolist() for n in lengths]
    chosen = torch.randint(0, 9, (2 + case.hard_negatives, TOTAL), generator=generator).tolist()
    columns = [RaggedTokens.from_lists([stock[i] for i in c[first:stop]]) for c in chosen]
    return Batch(
        epoch=1,
        step=7,
        global_rows=TOTAL,
        row_ids_b=torch.arange(first, stop) + 20,
        columns=tuple(columns),
    )


def answer(loss: Tensor, gradient: Tensor) -> Answer:
    return Answer(loss, gradient, gradient * (MAX_NORM / gradient.norm()).clamp(max=1))


def end_to_end(gradients: Sequence[Tensor | None]) -> Tensor:
    assert all(gradient is not None for gradient in gradients)
    return torch.cat([gradient.flatten() for gradient in gradients if gradient is not None])


def plain_answer(model: Path, case: Case) -> Answer:
    """One process and plain loops: sentences one by one, the loss term by term."""
    task, batch = new_task(model, case), batch_of(case, 0, TOTAL)
    sentences = [
        [column.select(torch.tensor([row])).ids_T for column in batch.columns]
        for row in range(TOTAL)
    ]

    def vector(ids_T: Tensor) -> Tensor:
        states_1TD = task.encoder.backbone(input_ids=ids_T[None]).last_hidden_state
        head = task.encoder.head
        assert head is not None
        return torch.tanh(F.linear(states_1TD[0, 0], head.dense.weight, head.dense.bias))

    views_BVD = torch.stack([torch.stack([vector(ids) for ids in row]) for row in sentences])
    objective = task.objective
    if objective.mask_false_negatives:
        hashes_BV = torch.tensor([[hash(tuple(ids.tolist())) for ids in row] for row in sentences])
    else:
        hashes_BV = None
    scale = 1.0 if task.log_scale is None else task.log_scale.exp() * objective.temperature
    loss = row_by_row_loss(views_BVD, objective, hashes_BV, scale=scale)
    if objective.masked_language_weight:
        loss = loss + objective.masked_language_weight * plain_term(task, batch)
    return answer(loss.detach(), end_to_end(torch.autograd.grad(loss, list(task.parameters()))))


def plain_term(task: ContrastiveTask, batch: Batch) -> Tensor:
    """Mean cross-entropy over all tokens that are to be predicted, one by one."""
    term = task.masked_language
    assert term is not None
    losses = []
    for view, column in enumerate(batch.columns):
        masked = term.mask(column, epoch=batch.epoch, row_ids_n=batch.row_ids_b, view=view)
        for row in range(TOTAL):
            ids_T, targets_T = (part.select(torch.tensor([row])).ids_T for part in masked)
            states_TD = task.encoder.backbone(input_ids=ids_T[None]).last_hidden_state[0]
            for logits_V, target in zip(term.head(states_TD), targets_T, strict=True):
                if target != NO_TARGET:
                    losses.append(torch.logsumexp(logits_V, dim=0) - logits_V[target])
    return torch.stack(losses).mean()


def answer_of_ranks(task: ContrastiveTask, batch: Batch, world: int) -> Answer:
    """Loss and gradient that data-parallel engines apply: the means over ranks."""
    task.zero_grad()
    loss = task(batch).loss
    loss.backward()
    gradient = end_to_end([parameter.grad for parameter in task.parameters()])
    mean = torch.cat([loss.detach()[None], gradient])
    dist.all_reduce(mean)
    mean /= world
    return answer(mean[0], mean[1:])


def check(rank: int, world: int, model: Path, answers: dict[Case, Answer]) -> None:
    for case, want in answers.items():
        task = new_task(model, case)
        for rows, memory in product(ROWS[world], COMBINATIONS):
            first = sum(rows[:rank])
            task.memory = memory
            got = answer_of_ranks(task, batch_of(case, first, first + rows[rank]), world)
            for name, ours, plain in zip(Answer._fields, got, want, strict=True):
                error = (ours - plain).abs().max().item()
                assert error < 1e-10, (case, rows, memory, name, error)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_masked_language_model(tmp_path_factory.mktemp("exactness") / "bert", "bert")


@pytest.fixture(scope="module")
def answers(model: Path) -> dict[Case, Answer]:
    """Worked out once, by loops, for the processes to meet."""
    return {case: plain_answer(model, case) for case in cases()}


@pytest.mark.parametrize("world", [1, 2, 4])
def test_every_combination_has_the_loss_and_gradient_of_plain_loops(
    world: int, model: Path, answers: dict[Case, Answer], tmp_path: Path
) -> None:
    run_on_ranks(check, world, tmp_path, model, answers)


def test_every_option_changes_the_answer_and_clipping_is_active(
    answers: dict[Case, Answer],
) -> None:
    for case, found in answers.items():
        assert found.gradient.norm() > 2 * MAX_NORM, case
        plain = answers[case._replace(option="plain")]
        more_parameters = len(found.gradient) > len(plain.gradient)
        if case.option != "plain":
            assert more_parameters or (found.clipped - plain.clipped).abs().sum() > 1e-4, case
