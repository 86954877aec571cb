"""The loss and its options against loops that write the equations out.

b: rows on this rank, B: all rows, N: keys of closed forms, P: positives, h: hard negatives,
V = 1 + P + h: vectors a row, D: width.
"""

from __future__ import annotations

import math
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from simcse.config import ObjectiveConfig
from simcse.losses import contrastive_losses, gathered_contrastive_loss
from support.row_by_row import row_by_row_loss

ROWS = 6


def make_views(views: int, rows: int = ROWS, width: int = 7) -> Tensor:
    generator = torch.Generator().manual_seed(views)
    return torch.randn(rows, views, width, dtype=torch.float64, generator=generator)


def make_texts(views: int, rows: int = ROWS) -> Tensor:
    """Hashes of texts from a small stock, so that every kind of repetition is there."""
    generator = torch.Generator().manual_seed(views)
    return torch.randint(0, 8, (rows, views), generator=generator)


OPTIONS = [
    {"positives": positives, "hard_negative_alpha": alpha, "similarity": similarity}
    for positives, alpha, similarity in product((1, 2, 3), (1.0, 0.5, 2.0), ("cosine", "dot"))
]


@pytest.mark.parametrize("options", OPTIONS, ids=lambda o: "-".join(map(str, o.values())))
@pytest.mark.parametrize("hard_negatives", [0, 1, 3])
@pytest.mark.parametrize("masked", [False, True], ids=["all keys", "false negatives masked"])
@pytest.mark.parametrize("tile", [None, 1, 4, 100])
def test_loss_and_gradient_are_those_written_out_row_by_row(
    options: dict[str, object], hard_negatives: int, masked: bool, tile: int | None
) -> None:
    objective = ObjectiveConfig.model_validate({"temperature": 0.3, **options})
    views = 1 + objective.positives + hard_negatives
    views_bVD = make_views(views).requires_grad_()
    hashes_bV = make_texts(views) if masked else None
    loss, _ = gathered_contrastive_loss(
        views_bVD, objective, global_rows=ROWS, hashes_bV=hashes_bV, tile=tile
    )
    [got] = torch.autograd.grad(loss, views_bVD)
    want_loss = row_by_row_loss(views_bVD, objective, hashes_bV)
    [want] = torch.autograd.grad(want_loss, views_bVD)
    assert loss.item() == pytest.approx(want_loss.item(), abs=1e-10)
    torch.testing.assert_close(got, want, rtol=0, atol=1e-10)


def test_the_stock_of_texts_masks_keys_of_every_kind() -> None:
    objective = ObjectiveConfig(positives=2)
    plain = row_by_row_loss(make_views(4), objective, None)
    assert row_by_row_loss(make_views(4), objective, make_texts(4)) < plain - 0.05


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("unsup_t0.05", {"temperature": 0.05}),
        ("unsup_t1", {"temperature": 1.0}),
        ("sup_t0.05_w0", {"temperature": 0.05}),
        ("sup_t0.05_wlog0.5", {"temperature": 0.05, "hard_negative_alpha": 0.5}),
        ("sup_t1_w0", {"temperature": 1.0}),
    ],
)
def test_the_originals_own_losses_and_gradients_are_met(
    data_dir: Path, name: str, options: dict[str, float]
) -> None:
    with np.load(data_dir / "validation" / "original-loss.npz") as stored:
        want = {key: torch.from_numpy(stored[key]) for key in stored}
    names = ("z1", "z2", "z3")[: 3 if name.startswith("sup") else 2]
    views_bVD = torch.stack([want[view] for view in names], dim=1).requires_grad_()
    loss, _ = gathered_contrastive_loss(
        views_bVD, ObjectiveConfig.model_validate(options), global_rows=len(views_bVD)
    )
    loss.backward()
    assert views_bVD.grad is not None
    assert loss.item() == pytest.approx(want[f"{name}/loss"].item(), abs=1e-10)
    for place, view in enumerate(names):
        gradient = want[f"{name}/grad_{view}"]
        torch.testing.assert_close(views_bVD.grad[:, place], gradient, rtol=0, atol=1e-10)


@pytest.mark.parametrize("keys", [2, 3, 16])
def test_orthogonal_embeddings_have_the_loss_log_of_one_plus_the_rest_over_e(keys: int) -> None:
    one_hot_ND = torch.eye(keys, dtype=torch.float64)
    views_NVD = torch.stack([one_hot_ND, one_hot_ND], dim=1)
    objective = ObjectiveConfig(temperature=1.0)
    loss, correct = gathered_contrastive_loss(views_NVD, objective, global_rows=keys)
    assert loss.item() == pytest.approx(math.log(1 + (keys - 1) / math.e), abs=1e-12)
    assert correct == keys


@pytest.mark.parametrize("hard_negatives", [0, 1])
def test_embeddings_of_zero_have_the_loss_log_of_the_number_of_keys(hard_negatives: int) -> None:
    views_bVD = torch.zeros(6, 2 + hard_negatives, 4, dtype=torch.float64)
    loss, _ = gathered_contrastive_loss(views_bVD, ObjectiveConfig(), global_rows=6)
    assert loss.item() == pytest.approx(math.log(6 * (1 + hard_negatives)), abs=1e-12)


def test_a_row_without_any_negative_has_loss_zero_and_a_finite_gradient() -> None:
    views_bVD = make_views(2, rows=1).requires_grad_()
    hashes_bV = torch.tensor([[4, 4]])
    loss, correct = gathered_contrastive_loss(
        views_bVD, ObjectiveConfig(), global_rows=1, hashes_bV=hashes_bV
    )
    loss.backward()
    assert (loss.item(), correct.item()) == (0.0, 1)
    assert views_bVD.grad is not None
    assert not views_bVD.grad.any()


def test_the_length_of_vectors_does_not_matter_to_cosine_and_does_to_the_dot_product() -> None:
    views_bVD = make_views(3, rows=4, width=8)
    scale_bV1 = torch.rand(4, 3, 1, dtype=torch.float64) + 0.5

    def loss(similarity: str, views_bVD: Tensor) -> float:
        objective = ObjectiveConfig.model_validate({"similarity": similarity, "temperature": 1})
        return gathered_contrastive_loss(views_bVD, objective, global_rows=4)[0].item()

    assert loss("cosine", views_bVD * scale_bV1) == pytest.approx(
        loss("cosine", views_bVD), abs=1e-12
    )
    assert abs(loss("dot", views_bVD * scale_bV1) - loss("dot", views_bVD)) > 1e-2


def test_half_precision_vectors_get_a_float32_loss() -> None:
    anchors_bD = torch.randn(4, 8, generator=torch.Generator().manual_seed(0)).bfloat16()
    keys_BCD, own_b = anchors_bD[:, None], torch.arange(4)
    losses_b, _ = contrastive_losses(anchors_bD, keys_BCD, own_b, ObjectiveConfig())
    want_b, _ = contrastive_losses(anchors_bD.float(), keys_BCD.float(), own_b, ObjectiveConfig())
    assert losses_b.dtype == torch.float32
    assert losses_b.equal(want_b)


def test_a_row_is_right_when_any_of_its_positives_is_the_most_similar_key() -> None:
    first_D, second_D = torch.eye(2, dtype=torch.float64)
    near_second_D = torch.tensor([0.1, 0.9], dtype=torch.float64)
    views_bVD = torch.stack(
        [
            torch.stack([first_D, -first_D, -second_D]),
            torch.stack([second_D, first_D, near_second_D]),
        ]
    )
    _, correct = gathered_contrastive_loss(views_bVD, ObjectiveConfig(positives=2), global_rows=2)
    # The key nearest to the first row is a positive of the second; the second's is its own second.
    assert correct == 1
