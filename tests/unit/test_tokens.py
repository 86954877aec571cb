import pytest
import torch

from simcse.tokenizer import load_tokenizer, tokenize, tokenizer_fingerprint
from simcse.tokens import RaggedTokens

SENTENCES = [[2, 5, 3], [2, 3], [2, 7, 8, 9, 3]]


def lists(tokens: RaggedTokens) -> list[list[int]]:
    return [part.tolist() for part in tokens.ids_T.split(tokens.lengths_n.tolist())]


def test_lists_come_back_as_they_went_in():
    assert lists(RaggedTokens.from_lists(SENTENCES)) == SENTENCES
    assert len(RaggedTokens.from_lists([])) == 0


def test_select_takes_sentences_in_the_order_asked():
    tokens = RaggedTokens.from_lists(SENTENCES)
    assert lists(tokens.select(torch.tensor([2, 0, 2]))) == [SENTENCES[i] for i in (2, 0, 2)]
    assert len(tokens.select(torch.tensor([], dtype=torch.int64))) == 0


def test_concatenate_joins_sentences():
    parts = [RaggedTokens.from_lists(part) for part in (SENTENCES, [], SENTENCES[:1])]
    assert lists(RaggedTokens.concatenate(parts)) == SENTENCES + SENTENCES[:1]


def test_padded_rows_are_as_long_as_the_longest():
    ids_nL, mask_nL = RaggedTokens.from_lists(SENTENCES[:2]).padded(pad_id=9)
    assert ids_nL.tolist() == [[2, 5, 3], [2, 3, 9]]
    assert mask_nL.tolist() == [[1, 1, 1], [1, 1, 0]]


def test_lengths_that_do_not_sum_to_the_ids_are_refused():
    with pytest.raises(ValueError, match="lengths sum to 3, but there are 2 ids"):
        RaggedTokens(torch.tensor([1, 2]), torch.tensor([3]))


def test_long_sentences_are_cut_and_none_is_padded(minilm):
    tokenizer = load_tokenizer(minilm)
    (short, long), cut = tokenize(tokenizer, ["a dog", "dog " * 300], 200)
    assert tokenizer.convert_ids_to_tokens(short) == ["[CLS]", "a", "dog", "[SEP]"]
    assert len(long) == 200
    assert long[-1] == tokenizer.sep_token_id
    assert cut == 1
    assert tokenize(tokenizer, ["dog " * 198, "dog " * 199], 200).cut == 1
    assert tokenize(tokenizer, [], 200) == ([], 0)


def test_ids_are_those_of_the_tokenizer_itself(tiny_encoder):
    tokenizer = load_tokenizer(tiny_encoder)
    text = ["The dog runs, 2 cats sit!", "é zebra", "", "[SEP] in the text"]
    wanted = tokenizer(text, truncation=True, max_length=8)["input_ids"]
    assert tokenize(tokenizer, text, 8).ids == wanted


def test_padding_that_a_call_of_the_tokenizer_left_behind_is_no_part_of_a_sentence(tiny_encoder):
    tokenizer = load_tokenizer(tiny_encoder)
    tokenizer(["a dog", "the dog runs and runs"], padding=True)
    ids = tokenize(tokenizer, ["a dog", "the dog runs"], 8).ids
    assert [len(row) for row in ids] == [4, 5]


def test_a_fingerprint_survives_use_and_saving_and_tells_tokenizers_apart(
    minilm, tiny_encoder, tmp_path
):
    tokenizer = load_tokenizer(minilm)
    fingerprint = tokenizer_fingerprint(tokenizer)
    tokenize(tokenizer, ["a dog"], 16)
    assert tokenizer_fingerprint(tokenizer) == fingerprint
    tokenizer.save_pretrained(tmp_path)
    for name in ("config.json", "model.safetensors"):
        (tmp_path / name).symlink_to(minilm / name)
    assert tokenizer_fingerprint(load_tokenizer(tmp_path)) == fingerprint
    assert tokenizer_fingerprint(load_tokenizer(tiny_encoder)) != fingerprint
