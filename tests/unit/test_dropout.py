"""Dropout that is drawn 64 bits at a time."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn
from transformers import AutoModel

from simcse.backbone import load_checkpoint
from simcse.dropout import FastDropout, draw_faster
from support.tiny import save_tiny_encoder


@pytest.mark.parametrize("probability", [0.01, 0.1, 0.5, 0.9])
@pytest.mark.parametrize("shape", [(999_999,), (1001, 999)])
def test_as_many_are_dropped_as_should_be(shape: tuple[int, ...], probability: float) -> None:
    torch.manual_seed(0)
    dropped = FastDropout(probability)(torch.ones(shape))
    kept = dropped[dropped != 0]
    assert kept.allclose(torch.tensor(1 / (1 - probability)))
    count = dropped.numel()
    deviation = (count * probability * (1 - probability)) ** 0.5
    assert abs(count - len(kept) - count * probability) < 5 * deviation


def test_neighbours_are_dropped_independently() -> None:
    torch.manual_seed(0)
    dropped = (FastDropout(0.5)(torch.ones(4, 250_000).T.contiguous()) == 0).double()
    # Four neighbours come of one word.
    off_diagonal = torch.corrcoef(dropped.T) - torch.eye(4)
    assert off_diagonal.abs().max() < 0.01


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_the_gradient_passes_where_the_value_did(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    states = torch.randn(7, 33, dtype=dtype, requires_grad=True)
    dropped = FastDropout(0.3)(states)
    assert dropped.dtype == dtype
    dropped.sum().backward()
    assert states.grad is not None
    kept = dropped != 0
    assert 0 < kept.sum() < states.numel()
    want = torch.where(kept, torch.tensor(1 / 0.7, dtype=dtype), 0)
    assert states.grad.equal(want)
    torch.testing.assert_close(dropped.detach(), states.detach() * want)


def test_masks_are_those_of_torchs_generator() -> None:
    dropout, states = FastDropout(0.1), torch.ones(50, 8)
    torch.manual_seed(3)
    first, second = dropout(states), dropout(states)
    torch.manual_seed(3)
    assert dropout(states).equal(first)
    assert not second.equal(first)


@pytest.mark.parametrize("probability", [0.0, 1.0])
def test_all_and_nothing_are_as_in_torch(probability: float) -> None:
    states = torch.randn(5)
    assert FastDropout(probability)(states).equal(nn.Dropout(probability)(states))


def test_nothing_is_dropped_in_evaluation_mode() -> None:
    states = torch.randn(5)
    assert FastDropout(0.5).eval()(states).equal(states)


def test_an_encoder_has_no_other_dropout_module(tmp_path: Path) -> None:
    folder = save_tiny_encoder(tmp_path)
    backbone = load_checkpoint(folder, dropout=0.2).backbone
    found = [module for module in backbone.modules() if isinstance(module, nn.Dropout)]
    assert len(found) > 3
    assert {(type(module), module.p) for module in found} == {(FastDropout, 0.2)}


def test_what_is_put_in_place_keeps_its_mode(tmp_path: Path) -> None:
    model = AutoModel.from_pretrained(save_tiny_encoder(tmp_path))
    model.embeddings.dropout.train()
    draw_faster(model)
    assert model.embeddings.dropout.training
    assert not model.encoder.layer[0].output.dropout.training
