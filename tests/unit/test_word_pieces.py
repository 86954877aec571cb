"""Ids by remembered words are those of the tokenizer itself, whatever the text."""

from __future__ import annotations

import random
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from tokenizers import AddedToken, Tokenizer
from tokenizers.normalizers import BertNormalizer, Lowercase, Sequence
from tokenizers.pre_tokenizers import ByteLevel, Whitespace
from tokenizers.processors import TemplateProcessing
from transformers import PreTrainedTokenizerFast

from simcse import word_pieces
from simcse.tokenizer import load_tokenizer, tokenize
from simcse.word_pieces import WordPieces
from support.tiny import tiny_tokenizer

ASCII = [chr(code) for code in range(128)]
ODD = [*ASCII, "é", "ß", "İ", "中", "\u0301", "\u200b", "\u00a0", "’", "😀", "\ufffd", " [SEP] "]  # noqa: RUF001
LENGTH = 12


def random_texts(characters: list[str], count: int = 3000) -> list[str]:
    draw = random.Random(1)
    return ["".join(draw.choices(characters, k=draw.randrange(25))) for _ in range(count)]


def plain(tokenizer: PreTrainedTokenizerFast, texts: list[str]) -> list[list[int]]:
    """By the tokenizer's own call."""
    return tokenizer(texts, truncation=True, max_length=LENGTH)["input_ids"]


@pytest.fixture(params=["tiny", "minilm", "cased"])
def tokenizer(request: pytest.FixtureRequest) -> PreTrainedTokenizerFast:
    if request.param == "minilm":
        return load_tokenizer(request.getfixturevalue("minilm"))
    made = tiny_tokenizer()
    if request.param == "cased":
        made.backend_tokenizer.normalizer = BertNormalizer(lowercase=False)
    return made


@pytest.mark.parametrize("characters", [ASCII, ODD], ids=["ascii", "odd"])
def test_ids_of_any_text_are_those_of_the_tokenizer(
    tokenizer: PreTrainedTokenizerFast, characters: list[str]
) -> None:
    texts = [*random_texts(characters), "", " ", "x" * 99, "x" * 100, "x" * 101, "don't stop"]
    assert tokenize(tokenizer, texts, LENGTH).ids == plain(tokenizer, texts)
    fast = WordPieces.of(tokenizer.backend_tokenizer)
    assert fast is not None
    assert 100 < sum(fast.ids(text) is not None for text in texts) < len(texts)


def test_as_many_are_counted_as_cut_as_the_tokenizer_cuts(
    tokenizer: PreTrainedTokenizerFast,
) -> None:
    texts = random_texts(ODD)
    longer = sum(len(ids) > LENGTH for ids in tokenizer(texts)["input_ids"])
    assert 100 < longer < len(texts)
    assert tokenize(tokenizer, texts, LENGTH).cut == longer


def test_a_token_added_after_the_first_use_is_one() -> None:
    tokenizer = tiny_tokenizer()
    before = tokenize(tokenizer, ["a dog", "a DOG"], LENGTH).ids
    tokenizer.add_tokens([AddedToken("DOG", normalized=False)])
    after = tokenize(tokenizer, ["a dog", "a DOG"], LENGTH).ids
    assert after == plain(tokenizer, ["a dog", "a DOG"])
    assert before[0] == before[1] == after[0] != after[1]


def test_a_token_that_is_sought_in_lower_case_is_found_in_capitals() -> None:
    tokenizer = tiny_tokenizer()
    tokenizer.add_tokens([AddedToken("mydog", normalized=True)])
    assert WordPieces.of(tokenizer.backend_tokenizer) is None
    texts = ["my MYDOG", "my mydog"]
    assert tokenize(tokenizer, texts, LENGTH).ids == plain(tokenizer, texts)
    assert tokenizer.convert_tokens_to_ids("mydog") in plain(tokenizer, texts)[0]


@pytest.mark.parametrize("flag", ["single_word", "lstrip", "rstrip"])
def test_an_added_token_may_take_or_leave_what_is_beside_it(flag: str) -> None:
    tokenizer = tiny_tokenizer()
    tokenizer.add_tokens([AddedToken("DOG", normalized=False, **{flag: True})])
    texts = ["a DOG runs", "aDOGs DOG", "a  DOG  "]
    assert tokenize(tokenizer, texts, LENGTH).ids == plain(tokenizer, texts)


def test_letters_may_become_others_in_a_tokenizer_in_use() -> None:
    tokenizer = tiny_tokenizer()
    lower = tokenize(tokenizer, ["a DOG"], LENGTH).ids
    tokenizer.backend_tokenizer.normalizer = BertNormalizer(lowercase=False)
    assert tokenize(tokenizer, ["a DOG"], LENGTH).ids == plain(tokenizer, ["a DOG"]) != lower


def test_threads_with_other_limits_do_not_cut_each_others_sentences(
    tokenizer: PreTrainedTokenizerFast,
) -> None:
    # The tabs leave them to the tokenizer itself, which knows one limit at a time.
    texts = ["a\tdog " * 40] * 50
    with ThreadPoolExecutor(8) as threads:
        limits = [8, 16, 24, 32] * 25
        found = threads.map(lambda limit: tokenize(tokenizer, texts, limit), limits)
        for limit, (ids, cut) in zip(limits, found, strict=True):
            assert {len(sentence) for sentence in ids} == {limit}
            assert cut == len(texts)


@pytest.mark.parametrize("first", ["a", "\u4e00"], ids=["ascii", "chinese"])
def test_what_is_remembered_has_an_end(minilm: Path, first: str) -> None:
    fast = WordPieces.of(load_tokenizer(minilm).backend_tokenizer)
    assert fast is not None
    draw = random.Random(1)
    letters = [chr(ord(first) + i) for i in range(26)]
    tracemalloc.start()
    for length in (5, 16, 40, 60):
        for _ in range(2000):
            fast.ids("".join(draw.choices(letters, k=length)))
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    remembered = fast._pieces.cache_info().currsize  # type: ignore[attr-defined]
    assert 2000 < remembered < 8000
    assert size / remembered * word_pieces._WORDS_REMEMBERED < 80e6


def test_words_that_were_forgotten_are_cut_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(word_pieces, "_WORDS_REMEMBERED", 2)
    tokenizer = tiny_tokenizer()
    texts = random_texts(ASCII, 200)
    assert tokenize(tokenizer, texts, LENGTH).ids == plain(tokenizer, texts)


def change_normalizer(backend: Tokenizer) -> None:
    backend.normalizer = Sequence([BertNormalizer(), Lowercase()])


def change_splitting(backend: Tokenizer) -> None:
    backend.pre_tokenizer = Whitespace()


def change_frame(backend: Tokenizer) -> None:
    backend.post_processor = TemplateProcessing(single="$A [SEP]", special_tokens=[("[SEP]", 3)])


def leave_unnormalized(backend: Tokenizer) -> None:
    backend.normalizer = None


def split_bytes(backend: Tokenizer) -> None:
    backend.pre_tokenizer = ByteLevel()


@pytest.mark.parametrize(
    "change",
    [change_normalizer, change_splitting, change_frame, leave_unnormalized, split_bytes],
)
def test_another_tokenizer_does_its_work_itself(change) -> None:
    tokenizer, texts = tiny_tokenizer(), random_texts(ASCII, 200)
    assert WordPieces.of(tokenizer.backend_tokenizer) is not None
    # What was remembered of the tokenizer that it was is forgotten.
    tokenize(tokenizer, texts, LENGTH)
    change(tokenizer.backend_tokenizer)
    assert WordPieces.of(tokenizer.backend_tokenizer) is None
    assert tokenize(tokenizer, texts, LENGTH).ids == plain(tokenizer, texts)


def test_ids_of_real_sentences_are_those_of_the_tokenizer(minilm: Path, data_dir: Path) -> None:
    file = min((data_dir / "wiki" / "parquet").glob("*.parquet"))
    texts = pq.read_table(file)["text"].to_pylist()[:5000]
    tokenizer = load_tokenizer(minilm)
    assert tokenize(tokenizer, texts, LENGTH).ids == plain(tokenizer, texts)
