"""Words that are looked up once for all chunks."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from simcse.tokens import RaggedTokens
from simcse.words import EmbeddedTokens

PAD = 9
SENTENCES = [[4, 2, 4], [7], [2, 2, 0, 7, 4]]


def make_table() -> nn.Embedding:
    torch.manual_seed(0)
    return nn.Embedding(10, 3, dtype=torch.float64)


def states(words: EmbeddedTokens) -> Tensor:
    states_mLE, mask_mL = words.padded()
    return states_mLE[mask_mL.bool()]


def test_each_token_has_its_embedding() -> None:
    table, tokens = make_table(), RaggedTokens.from_lists(SENTENCES)
    words = EmbeddedTokens.look_up(table, tokens, PAD)
    assert words.words_UE.shape == (5, 3)  # 0, 2, 4, 7 and padding
    assert states(words).equal(table(tokens.ids_T))
    rows = torch.tensor([2, 0])
    assert states(words.select(rows)).equal(table(tokens.select(rows).ids_T))


def test_padding_is_the_padding_token() -> None:
    table = make_table()
    words = EmbeddedTokens.look_up(table, RaggedTokens.from_lists(SENTENCES), PAD)
    states_mLE, mask_mL = words.padded()
    assert mask_mL.sum(1).tolist() == [3, 1, 5]
    assert states_mLE[1, 1].equal(table.weight[PAD])


def test_chunks_together_have_the_gradient_of_one_look_up() -> None:
    table, tokens = make_table(), RaggedTokens.from_lists(SENTENCES)
    weight_TE = torch.arange(len(tokens.ids_T) * 3.0, dtype=torch.float64).view(-1, 3)
    (table(tokens.ids_T) * weight_TE).sum().backward()
    assert table.weight.grad is not None
    want, table.weight.grad = table.weight.grad, None
    words = EmbeddedTokens.look_up(table, tokens, PAD)
    parts = [states(words.select(torch.tensor([row]))) for row in range(len(SENTENCES))]
    (torch.cat(parts) * weight_TE).sum().backward()
    assert table.weight.grad.equal(want)


def test_no_sentences_become_one_of_padding_that_the_table_hears_of() -> None:
    table = make_table()
    words = EmbeddedTokens.look_up(table, RaggedTokens.from_lists([]), PAD)
    assert len(words) == 0
    states_mLE, mask_mL = words.padded()
    assert states_mLE.shape == (1, 1, 3)
    assert mask_mL.tolist() == [[1]]
    (states_mLE.sum() * 0).backward()
    assert table.weight.grad is not None
