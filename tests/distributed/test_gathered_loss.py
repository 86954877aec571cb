"""The gathered loss on W processes is the loss of one process, value and gradient.

b: rows on a rank, B: rows on all ranks, C: keys a row, V = 1 + C: vectors a row, D: width.
"""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from simcse.config import ObjectiveConfig
from simcse.gather import gather_rows
from simcse.losses import contrastive_losses, gathered_contrastive_loss
from support.ranks import run_on_ranks
from support.row_by_row import row_by_row_loss

TEMPERATURE = 0.05
ROWS = {1: [(6,)], 2: [(3, 3), (5, 1), (6, 0)], 4: [(2, 2, 2, 2), (4, 1, 0, 2), (0, 0, 5, 0)]}
HARD_NEGATIVES = (0, 1, 3)
WITH_OPTIONS: list[tuple[int, dict[str, object], bool]] = [
    (3, {"hard_negative_alpha": 0.5}, False),
    (2, {"similarity": "dot", "temperature": 1.0}, False),
    (4, {"positives": 2, "hard_negative_alpha": 2.0}, False),
    (2, {}, True),
    (4, {"positives": 2}, True),
]
"""V, settings and whether false negatives are masked."""

Case = tuple[tuple[int, ...], int, dict[str, object], bool]
"""Rows of each rank, V, settings of the objective, whether false negatives are masked."""


def all_cases(world: int) -> list[Case]:
    plain = [(rows, 2 + hard, {}, False) for rows in ROWS[world] for hard in HARD_NEGATIVES]
    return plain + [
        (rows, views, options, masked)
        for rows in ROWS[world]
        for views, options, masked in WITH_OPTIONS
    ]


def make_views(total: int, views: int) -> Tensor:
    generator = torch.Generator().manual_seed(total * 10 + views)
    return torch.randn(total, views, 7, dtype=torch.float64, generator=generator)


def make_hashes(total: int, views: int) -> Tensor:
    """Of texts from so small a stock that ranks share some."""
    generator = torch.Generator().manual_seed(views)
    return torch.randint(0, 7, (total, views), generator=generator)


def own_rows(views_BVD: Tensor, rows: tuple[int, ...], rank: int) -> Tensor:
    first = sum(rows[:rank])
    return views_BVD[first : first + rows[rank]].clone()


def difference_from_one_process(
    rank: int, world: int, case: Case, variant: str
) -> tuple[float, float]:
    """Largest error of the mean loss and of this rank's gradient of it."""
    rows, views, options, masked = case
    objective = ObjectiveConfig.model_validate({"temperature": TEMPERATURE, **options})
    views_BVD = make_views(sum(rows), views).requires_grad_()
    hashes_BV = make_hashes(sum(rows), views) if masked else None
    want = row_by_row_loss(views_BVD, objective, hashes_BV)
    want.backward()

    own_bVD = own_rows(views_BVD.detach(), rows, rank).requires_grad_()
    if variant == "gather without gradient":
        keys_BCD, first = gather_rows(own_bVD[:, 1:].detach())
        own_end = first + len(own_bVD)
        keys_BCD = torch.cat([keys_BCD[:first], own_bVD[:, 1:], keys_BCD[own_end:]])
        own_b = first + torch.arange(len(own_bVD))
        losses_b, _ = contrastive_losses(own_bVD[:, 0], keys_BCD, own_b, objective)
        loss = losses_b.sum() * world / sum(rows)
    else:
        loss, _ = gathered_contrastive_loss(
            own_bVD,
            objective,
            global_rows=sum(rows),
            hashes_bV=None if hashes_BV is None else own_rows(hashes_BV, rows, rank),
            tile=2 if variant == "tiled" else None,
        )
    if variant == "scaled by 1 / W":
        loss = loss / world
    loss.backward()

    # What an engine applies is the mean over ranks of each rank's gradient. A row lives on one
    # rank, so its part of that mean is its own gradient over W.
    mean_loss = loss.detach().clone()
    dist.all_reduce(mean_loss)
    first = sum(rows[:rank])
    assert own_bVD.grad is not None
    assert views_BVD.grad is not None
    want_bVD = views_BVD.grad[first : first + rows[rank]]
    gradient_error = (own_bVD.grad / world - want_bVD).abs().sum().clone()
    dist.all_reduce(gradient_error)
    return abs(mean_loss.item() / world - want.item()), gradient_error.item()


def check_equal(rank: int, world: int) -> None:
    for case, variant in product(all_cases(world), ("full", "tiled")):
        loss_error, gradient_error = difference_from_one_process(rank, world, case, variant)
        assert loss_error < 1e-10, (case, variant, loss_error)
        assert gradient_error < 1e-10, (case, variant, gradient_error)


@pytest.mark.parametrize("world", [1, 2, 4])
def test_loss_and_gradient_equal_those_of_one_process(world: int, tmp_path: Path) -> None:
    run_on_ranks(check_equal, world, tmp_path)


def check_wrong_variants_differ(rank: int, world: int) -> None:
    for case in all_cases(world):
        if sorted(case[0])[-2] == 0:
            continue  # one rank holds all rows, so there is nothing to lose in the gather
        _, no_gradient = difference_from_one_process(rank, world, case, "gather without gradient")
        assert no_gradient > 1e-4, case
        loss_error, scaled = difference_from_one_process(rank, world, case, "scaled by 1 / W")
        assert loss_error > 1e-4, case
        assert scaled > 1e-4, case


@pytest.mark.parametrize("world", [2, 4])
def test_known_wrong_variants_are_told_apart(world: int, tmp_path: Path) -> None:
    run_on_ranks(check_wrong_variants_differ, world, tmp_path)


def check_gather(rank: int, world: int) -> None:
    rows_bD = torch.full((rank, 2), float(rank), requires_grad=True)
    rows_BD, first = gather_rows(rows_bD)
    want = [rank for rank in range(world) for _ in range(rank)]
    assert rows_BD[:, 0].tolist() == want
    assert first == sum(range(rank))
    weights_B = torch.arange(1.0, len(rows_BD) + 1) * (rank + 1)
    (rows_BD * weights_B[:, None]).sum().backward()
    everyone = sum(range(1, world + 1))
    assert rows_bD.grad is not None
    torch.testing.assert_close(
        rows_bD.grad[:, 0], everyone * torch.arange(first + 1.0, first + rank + 1)
    )


def test_gather_keeps_rank_order_and_sums_gradients_over_ranks(tmp_path: Path) -> None:
    run_on_ranks(check_gather, 3, tmp_path)
