"""Text to token ids, without loading an encoder: what data workers need of a model."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from functools import cache, lru_cache
from pathlib import Path
from threading import Lock
from typing import NamedTuple

from tokenizers import Tokenizer
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from simcse.errors import ModelError
from simcse.model_source import locate, readable
from simcse.word_pieces import WordPieces

_one_at_a_time = Lock()


def load_tokenizer(model: str | Path) -> PreTrainedTokenizerFast:
    """The fast tokenizer of a model folder or hub id, with no padding or truncation of its own.

    Raises `ModelError` when there is none, or only a slow one.
    """
    folder = locate(model)
    with readable(folder):
        tokenizer = AutoTokenizer.from_pretrained(folder)
    if not isinstance(tokenizer, PreTrainedTokenizerFast):
        raise ModelError(
            f"the tokenizer of {model} ({type(tokenizer).__name__}) has no fast form: convert it "
            "to a tokenizer.json first"
        )
    # Published tokenizer files have both baked in, all-MiniLM-L6-v2 for one at 128 tokens.
    _neither_cut_nor_pad(tokenizer)
    return tokenizer


@cache
def cached_tokenizer(model: str) -> PreTrainedTokenizerFast:
    """`load_tokenizer` once a process: data workers are asked for the same one again and again."""
    return load_tokenizer(model)


def save_tokenizer(tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    """The tokenizer's files, with no padding or truncation baked in."""
    _neither_cut_nor_pad(tokenizer)
    tokenizer.save_pretrained(folder)


class Tokenized(NamedTuple):
    """Sentences as ids."""

    ids: list[list[int]]
    """Of each sentence, special tokens included; nothing is padded."""
    cut: int
    """Sentences that were longer."""


def tokenize(
    tokenizer: PreTrainedTokenizerFast, sentences: Sequence[str], max_length: int
) -> Tokenized:
    """The sentences, cut to `max_length` tokens."""
    backend = tokenizer.backend_tokenizer
    by_words = _word_pieces(tokenizer, _what_decides(backend))
    found = [by_words.ids(sentence) if by_words else None for sentence in sentences]
    others = [sentence for sentence, ids in zip(sentences, found, strict=True) if ids is None]
    # Where to cut is a state of the backend, which a server's threads share.
    with _one_at_a_time:
        # A call of the wrapper leaves its padding behind in the backend.
        _neither_cut_nor_pad(tokenizer)
        backend.enable_truncation(max_length)
        # The backend itself: the wrapper's bookkeeping of every encoding doubles the time.
        encodings = backend.encode_batch_fast(others)
        backend.no_truncation()
    cut = sum(bool(encoding.overflowing) for encoding in encodings)
    cut += sum(len(ids) > max_length for ids in found if ids)
    rest = iter(encodings)
    return Tokenized([_first(max_length, ids) if ids else next(rest).ids for ids in found], cut)


def tokenizer_fingerprint(tokenizer: PreTrainedTokenizerFast) -> str:
    """sha256 of everything that decides the ids of an uncut sentence, in hexadecimal."""
    parts = json.loads(tokenizer.backend_tokenizer.to_str())
    parts["truncation"] = parts["padding"] = None
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def _neither_cut_nor_pad(tokenizer: PreTrainedTokenizerFast) -> None:
    tokenizer.backend_tokenizer.no_truncation()
    tokenizer.backend_tokenizer.no_padding()


def _first(count: int, ids: list[int]) -> list[int]:
    """No more than `count` of the ids, the end-of-sentence token among them."""
    return ids if len(ids) <= count else [*ids[: count - 1], ids[-1]]


def _what_decides(backend: Tokenizer) -> tuple[object, ...]:
    """How the backend makes words of a text, which a user may change; not its vocabulary."""
    parts = (backend.normalizer, backend.pre_tokenizer, backend.post_processor)
    states = [part and part.__getstate__() for part in parts]
    return (repr(backend.get_added_tokens_decoder()), *states)


@lru_cache(maxsize=2)
def _word_pieces(
    tokenizer: PreTrainedTokenizerFast, what_decides: tuple[object, ...]
) -> WordPieces | None:
    return WordPieces.of(tokenizer.backend_tokenizer)
