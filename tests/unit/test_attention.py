"""Attention with dropout on a CPU, against torch's and against its definition."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from simcse import attention
from simcse.attention import _attention
from simcse.config import EncoderConfig
from simcse.dropout import FastDropout
from simcse.encoder import SentenceEncoder
from support.architectures import ARCHITECTURES, save_encoder

SENTENCES = ["a dog runs in the rain", "birds", "the old man reads a book in the big house", ""]
m, h, L, E = 3, 2, 5, 4


class Layer(nn.Module):
    """What an attention function asks a layer for."""

    def __init__(self, *, causal: bool = False, groups: int = 1) -> None:
        super().__init__()
        self.is_causal = causal
        self.num_key_value_groups = groups


def states(heads: int = h) -> Tensor:
    return torch.randn(m, heads, L, E, dtype=torch.float64, requires_grad=True)


def boolean_mask() -> Tensor:
    lengths_m = torch.tensor([5, 2, 4])
    return (torch.arange(L) < lengths_m[:, None])[:, None, None, :].expand(m, 1, L, L)


def additive_mask() -> Tensor:
    return torch.zeros(m, 1, L, L, dtype=torch.float64).masked_fill(~boolean_mask(), -1e30)


@pytest.mark.parametrize("mask", [None, boolean_mask(), additive_mask()])
@pytest.mark.parametrize("scaling", [None, 0.3])
def test_it_is_attention_as_defined(
    mask: Tensor | None, scaling: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    query, key, value = states(), states(), states()
    dropped = torch.rand(m, h, L, L, dtype=torch.float64) < 0.5
    monkeypatch.setattr(FastDropout, "forward", lambda _, x: torch.where(dropped, 0, x / 0.5))
    found, _ = _attention(Layer(), query, key, value, mask, dropout=0.5, scaling=scaling)
    wanted = torch.zeros_like(found)
    for i in range(m):
        for head in range(h):
            logits = query[i, head] @ key[i, head].T * (scaling or E**-0.5)
            if mask is not None:
                seen = boolean_mask()[i, 0]
                logits = torch.where(seen, logits, torch.tensor(float("-inf")).double())
            weights = logits.exp() / logits.exp().sum(dim=1, keepdim=True)
            weights = torch.where(dropped[i, head], 0.0, 2 * weights)
            wanted[i, :, head] = weights @ value[i, head]
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-12)
    gradient = torch.randn_like(found)
    for ours, plain in zip(
        torch.autograd.grad(found, (query, key, value), gradient),
        torch.autograd.grad(wanted, (query, key, value), gradient),
        strict=True,
    ):
        torch.testing.assert_close(ours, plain, rtol=0, atol=1e-12)


def test_a_sentence_that_is_padding_alone_has_numbers() -> None:
    query, key, value = states(), states(), states()
    mask = torch.zeros(m, 1, L, L, dtype=torch.bool)
    found, _ = _attention(Layer(), query, key, value, mask, dropout=0.1)
    assert found.isfinite().all()
    assert all(g.isfinite().all() for g in torch.autograd.grad(found.sum(), (query, key, value)))


@pytest.mark.parametrize(
    ("layer", "key_heads", "mask", "options"),
    [
        (Layer(), h, boolean_mask(), {"dropout": 0.0}),
        (Layer(causal=True), h, None, {"dropout": 0.1}),
        (Layer(groups=2), 1, boolean_mask(), {"dropout": 0.1}),
        (Layer(), h, None, {"dropout": 0.1, "is_causal": True}),
        (Layer(), h, None, {"dropout": 0.1, "position_bias": torch.randn(1, h, L, L).double()}),
    ],
)
def test_what_it_does_not_know_is_left_to_torch(
    layer: Layer, key_heads: int, mask: Tensor | None, options: dict[str, Any]
) -> None:
    inputs = (states(), states(key_heads), states(key_heads))
    torch.manual_seed(1)
    found, _ = _attention(layer, *inputs, mask, **options)
    torch.manual_seed(1)
    wanted, _ = sdpa_attention_forward(layer, *inputs, mask, **options)
    assert torch.equal(found, wanted)


@pytest.fixture(scope="module", params=ARCHITECTURES)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    name: str = request.param
    return save_encoder(tmp_path_factory.mktemp("encoders") / name, name)


def test_an_encoder_that_drops_nothing_is_as_in_evaluation(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[float] = []

    def keep_all(module: FastDropout, inputs: Tensor) -> Tensor:
        drawn.append(module.p)
        return inputs

    monkeypatch.setattr(FastDropout, "forward", keep_all)
    config = EncoderConfig(model=str(folder), dropout=0.25, pooling="avg", head="none")
    encoder = SentenceEncoder.from_config(config, seed=0).double()
    tokens = encoder.tokenize(SENTENCES)
    found = encoder(tokens)
    assert set(drawn) == {0.25}
    torch.testing.assert_close(found, encoder.eval()(tokens), rtol=0, atol=1e-12)


def test_it_is_used_wherever_it_can_be_chosen(folder: Path) -> None:
    encoder = SentenceEncoder.from_config(
        EncoderConfig(model=str(folder), pooling="avg", head="none"), seed=0
    )
    chosen = encoder.backbone.config._attn_implementation == attention._NAME
    assert chosen == (folder.name != "mpnet")


def test_a_saved_model_does_not_know_of_it(folder: Path, tmp_path: Path) -> None:
    encoder = SentenceEncoder.from_config(
        EncoderConfig(model=str(folder), pooling="avg", head="none"), seed=0
    )
    encoder.save(tmp_path / "saved")
    assert attention._NAME not in (tmp_path / "saved" / "config.json").read_text()
