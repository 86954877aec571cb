"""Attention with dropout on a CPU, against torch's and against its definition."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import AutoModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from simcse import dropout
from simcse.config import EncoderConfig
from simcse.dropout import ATTENTION, attention
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
    monkeypatch.setattr(dropout, "_drop", lambda x, _: torch.where(dropped, 0, x / 0.5))
    found, _ = attention(Layer(), query, key, value, mask, dropout=0.5, scaling=scaling)
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
    found, _ = attention(Layer(), query, key, value, mask, dropout=0.1)
    assert found.isfinite().all()
    assert all(g.isfinite().all() for g in torch.autograd.grad(found.sum(), (query, key, value)))


@pytest.mark.parametrize(
    ("layer", "key_heads", "mask", "options"),
    [
        (Layer(), h, boolean_mask(), {"dropout": 0.0}),
        (Layer(causal=True), h, None, {"dropout": 0.1}),
        (Layer(groups=2), 1, boolean_mask(), {"dropout": 0.1}),
        (Layer(causal=True), h, None, {"dropout": 0.1, "is_causal": None}),
        (Layer(), h, None, {"dropout": 0.1, "is_causal": True}),
        (Layer(), h, None, {"dropout": 0.1, "position_bias": torch.randn(1, h, L, L).double()}),
    ],
)
def test_what_it_does_not_know_is_left_to_torch(
    layer: Layer, key_heads: int, mask: Tensor | None, options: dict[str, Any]
) -> None:
    inputs = (states(), states(key_heads), states(key_heads))
    torch.manual_seed(1)
    found, _ = attention(layer, *inputs, mask, **options)
    torch.manual_seed(1)
    wanted, _ = sdpa_attention_forward(layer, *inputs, mask, **options)
    assert torch.equal(found, wanted)


@pytest.fixture(scope="module", params=ARCHITECTURES)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    name: str = request.param
    return save_encoder(tmp_path_factory.mktemp("encoders") / name, name)


def test_a_mask_of_numbers_that_are_no_logits_is_refused_as_by_torch() -> None:
    mask = boolean_mask().long()
    with pytest.raises(RuntimeError, match="attn_mask dtype"):
        attention(Layer(), states(), states(), states(), mask, dropout=0.1)


def test_a_soft_cap_is_refused_as_by_transformers() -> None:
    with pytest.raises(ValueError, match="softcap"):
        attention(Layer(), states(), states(), states(), None, dropout=0.1, softcap=3.0)


def encoder_of(folder: Path) -> SentenceEncoder:
    config = EncoderConfig(model=str(folder), dropout=0.25, pooling="avg", head="none")
    return SentenceEncoder.from_config(config, seed=0).double()


def test_an_encoder_that_drops_nothing_is_as_transformers_has_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[float] = []

    def keep_all(inputs: Tensor, probability: float) -> Tensor:
        drawn.append(probability)
        return inputs

    monkeypatch.setattr(dropout, "_drop", keep_all)
    encoder = encoder_of(folder)
    found = encoder(encoder.tokenize(SENTENCES))
    assert set(drawn) == {0.25}
    plain = AutoModel.from_pretrained(folder).double().eval()
    for sentence, vector in zip(SENTENCES, found, strict=True):
        ids = torch.tensor([encoder.tokenizer(sentence).input_ids])
        wanted = plain(input_ids=ids).last_hidden_state[0].mean(0)
        torch.testing.assert_close(vector, wanted, rtol=0, atol=1e-6)


def test_it_is_used_wherever_it_can_be_chosen(folder: Path) -> None:
    chosen = encoder_of(folder).backbone.config._attn_implementation == ATTENTION
    assert chosen == (folder.name != "mpnet")


_LOAD = """
import pickle, sys
loaded = pickle.load(open(sys.argv[1], "rb"))
import torch
ids = torch.tensor([[5, 6, 7]])
print(loaded(input_ids=ids).last_hidden_state.shape)
"""


def test_a_backbone_runs_where_it_is_unpickled(tmp_path: Path) -> None:
    backbone = encoder_of(save_encoder(tmp_path / "bert", "bert")).float().backbone
    (tmp_path / "pickled").write_bytes(pickle.dumps(backbone))
    done = subprocess.run(
        [sys.executable, "-c", _LOAD, str(tmp_path / "pickled")],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert (done.returncode, done.stdout) == (0, "torch.Size([1, 3, 32])\n"), done.stderr
