"""The masked-language-model term and the substituted view, against plain loops.

T: tokens of all sentences, k: tokens to predict.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn
from transformers import AutoModelForMaskedLM

from simcse.backbone import load_masked_language_model
from simcse.encoder import SentenceEncoder
from simcse.errors import ModelError
from simcse.masked_language import NO_TARGET, MaskedLanguageTerm, MaskedTokens
from simcse.positional import uniforms
from simcse.substitution import TokenSubstitution
from simcse.tokenizer import load_tokenizer
from simcse.tokens import RaggedTokens
from support.architectures import save_masked_language_model
from support.tiny import tiny_tokenizer

TEXTS = ["the dog runs in the rain", "a cat", "music", "she reads an old book by the river"] * 50


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_masked_language_model(tmp_path_factory.mktemp("models") / "bert", "bert")


def make_encoder(folder: Path) -> tuple[SentenceEncoder, nn.Module]:
    backbone, head = load_masked_language_model(folder)
    encoder = SentenceEncoder(
        backbone, load_tokenizer(folder), pooling="cls_before_pooler", length_buckets=3
    )
    return encoder.eval(), head


def mask(term: MaskedLanguageTerm, tokens: RaggedTokens, *, epoch: int = 0) -> MaskedTokens:
    return term.mask(tokens, epoch=epoch, row_ids_n=torch.arange(len(tokens)), view=0)


def test_tokens_are_masked_one_by_one_as_bert_masks_them(folder: Path) -> None:
    encoder, head = make_encoder(folder)
    term = MaskedLanguageTerm(head, encoder.tokenizer, rate=0.3, seed=5)
    tokens = encoder.tokenize(TEXTS)
    masked = term.mask(tokens, epoch=2, row_ids_n=torch.arange(len(tokens)) + 9, view=1)

    special, vocabulary = encoder.tokenizer.all_special_ids, len(encoder.tokenizer)
    want, places, targets, first = [], [], [], 0
    for row, length in enumerate(tokens.lengths_n.tolist()):
        for place in range(length):
            token = int(tokens.ids_T[first + place])

            def draw(what: int, row: int = row, place: int = place) -> float:
                return float(uniforms(5, 2, 1, what, row + 9, place))

            if token not in special and draw(0) < 0.3:
                places.append(first + place)
                targets.append(token)
                if draw(1) < 0.8:
                    token = encoder.tokenizer.mask_token_id
                elif draw(1) < 0.9:
                    token = int(draw(2) * vocabulary)
            want.append(token)
        first += length
    assert masked.tokens.ids_T.tolist() == want
    targets_T = masked.targets.ids_T
    assert (targets_T != NO_TARGET).nonzero()[:, 0].tolist() == places
    assert targets_T[places].tolist() == targets
    hidden = sum(want[place] == encoder.tokenizer.mask_token_id for place in places)
    assert 0.7 < hidden / len(places) < 0.9
    assert 0.2 < len(places) / (len(want) - 2 * len(TEXTS)) < 0.4


def test_each_epoch_masks_other_tokens_and_each_row_the_same_in_any_batch(folder: Path) -> None:
    encoder, head = make_encoder(folder)
    term = MaskedLanguageTerm(head, encoder.tokenizer, rate=0.3, seed=5)
    tokens = encoder.tokenize(TEXTS)
    masked = mask(term, tokens)
    assert not mask(term, tokens, epoch=1).tokens.ids_T.equal(masked.tokens.ids_T)
    some = torch.tensor([7, 3])
    alone = term.mask(tokens.select(some), epoch=0, row_ids_n=some, view=0)
    assert alone.tokens.ids_T.equal(masked.tokens.select(some).ids_T)


def test_the_term_is_the_mean_cross_entropy_of_the_architectures_own_model(folder: Path) -> None:
    encoder, head = make_encoder(folder)
    term = MaskedLanguageTerm(head, encoder.tokenizer, rate=0.3, seed=5)
    tokens = encoder.tokenize(TEXTS[:20])
    masked = mask(term, tokens)

    ids_nL, mask_nL = masked.tokens.padded(0)
    labels_nL = torch.full_like(ids_nL, -100)
    original_nL, _ = tokens.padded(0)
    predicted_T = masked.targets.ids_T != NO_TARGET
    chosen_nL = torch.zeros_like(mask_nL, dtype=torch.bool)
    chosen_nL[mask_nL.bool()] = predicted_T
    labels_nL[chosen_nL] = original_nL[chosen_nL]
    model = AutoModelForMaskedLM.from_pretrained(folder).eval()
    want = model(input_ids=ids_nL, attention_mask=mask_nL, labels=labels_nL).loss
    assert term(encoder, masked, None).item() == pytest.approx(want.item(), abs=1e-5)


def test_a_batch_without_rows_has_term_zero_and_a_gradient_everywhere(folder: Path) -> None:
    encoder, head = make_encoder(folder)
    term = MaskedLanguageTerm(head, encoder.tokenizer, rate=0.3, seed=5)
    loss = term(encoder, mask(term, RaggedTokens.from_lists([])), None)
    assert loss.item() == 0
    loss.backward()
    for name, parameter in [*encoder.named_parameters(), *head.named_parameters()]:
        assert parameter.grad is not None, name


def test_states_of_tokens_come_in_the_order_of_the_tokens(folder: Path) -> None:
    encoder, _ = make_encoder(folder)
    tokens = encoder.tokenize(TEXTS[:7])
    words = encoder.embed_words(tokens)
    states_TD = encoder.token_states(words)
    first = 0
    for row, length in enumerate(tokens.lengths_n.tolist()):
        alone = encoder.token_states(words.select(torch.tensor([row])))
        torch.testing.assert_close(states_TD[first : first + length], alone, rtol=0, atol=1e-5)
        first += length


def test_substitution_puts_the_likeliest_other_token_where_tokens_are_hidden(folder: Path) -> None:
    encoder, _ = make_encoder(folder)
    tokens = encoder.tokenize(TEXTS[:12])
    got = TokenSubstitution(folder).substitute(
        tokens, rate=0.4, seed=3, epoch=1, row_ids_n=torch.arange(12) + 5
    )
    model = AutoModelForMaskedLM.from_pretrained(folder).eval()
    special = encoder.tokenizer.all_special_ids
    changed = 0
    for row in range(12):
        ids = tokens.select(torch.tensor([row])).ids_T.tolist()
        ordinary = [place for place, token in enumerate(ids) if token not in special]
        count = min(len(ordinary), max(1, round(0.4 * len(ordinary))))
        draws = [float(uniforms(3, 1, 1, row + 5, rank)) for rank in range(len(ordinary))]
        chosen = sorted(range(len(ordinary)), key=lambda rank: draws[rank])[:count]
        places = [ordinary[rank] for rank in chosen]
        hidden = list(ids)
        for place in places:
            hidden[place] = encoder.tokenizer.mask_token_id
        logits = model(input_ids=torch.tensor([hidden])).logits[0].detach()
        want = list(ids)
        for place in places:
            allowed = [
                token
                for token in range(logits.shape[1])
                if token not in special and token != ids[place]
            ]
            want[place] = max(allowed, key=lambda token: float(logits[place, token]))
            changed += 1
        assert got.select(torch.tensor([row])).ids_T.tolist() == want
    assert changed > 20


def test_a_tokenizer_without_mask_token_is_refused(folder: Path, tmp_path: Path) -> None:
    _, head = make_encoder(folder)
    tokenizer = tiny_tokenizer()
    tokenizer.mask_token = None
    with pytest.raises(ModelError, match=r"has no mask token, so that nothing can be hidden: name"):
        MaskedLanguageTerm(head, tokenizer, rate=0.15, seed=0)
    copy = save_masked_language_model(tmp_path / "bert", "bert")
    tokenizer.save_pretrained(copy)
    with pytest.raises(ModelError, match=r"bert has no mask token, so that nothing can be hidden"):
        TokenSubstitution(copy)
