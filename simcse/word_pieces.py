"""WordPiece ids by the words already seen, in less than half the tokenizer's time.

A corpus is mostly the same few thousand words, and the tokenizer library cuts each of them into
pieces anew. Here a word's pieces are remembered. BERT's normalisation looks at one character at a
time and its splitting cuts at every space, so that words between spaces stand for themselves; in
ASCII, where punctuation is known too, smaller ones do, which come back more often.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import lru_cache
from itertools import chain

from tokenizers import Tokenizer

_WORDS_REMEMBERED = 2**16
"""Some 15 MB, 60 at worst. Those that were not met for longest are forgotten."""
_LONGEST_ASCII, _LONGEST = 40, 16
"""A sentence without spaces is no word, and does not come back."""
# BERT's splitting of ASCII: letters and digits hold together, any other visible character is alone.
_ascii_words = re.compile(r"[A-Za-z0-9]+|[^\sA-Za-z0-9]").findall


class WordPieces:
    """The ids that a BERT tokenizer gives to most sentences.

    The tokenizer itself has to do the rest: what has unprintable characters (to Python also every
    space but one), names a special token, or holds very long words.
    """

    def __init__(self, parts: str) -> None:
        # Its own, which nobody else sets to cut.
        tokenizer = Tokenizer.from_str(parts)
        tokenizer.no_truncation()
        tokenizer.no_padding()
        self._first, _, self._last = tokenizer.encode("a").ids
        self._lowercase = tokenizer.normalizer.lowercase
        names = [token.content for token in tokenizer.get_added_tokens_decoder().values()]
        self._named_token = re.compile("|".join(map(re.escape, names))).search
        self._pieces: Callable[[str], tuple[int, ...]] = lru_cache(_WORDS_REMEMBERED)(
            lambda word: (
                tuple([token.id for token in tokenizer.model.tokenize(word)])
                if word.isascii()
                else tuple(tokenizer.encode(word, add_special_tokens=False).ids)
            )
        )

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> WordPieces | None:
        """None for a tokenizer that normalises, splits or frames sentences in any other way."""
        serialized = tokenizer.to_str()
        parts = json.loads(serialized)
        kinds = [(parts[part] or {}).get("type") for part in ("normalizer", "pre_tokenizer")]
        if (
            [*kinds, parts["model"]["type"]] == ["BertNormalizer", "BertPreTokenizer", "WordPiece"]
            and tokenizer.encode("a").special_tokens_mask == [1, 0, 1]
            and not any(token["normalized"] for token in parts["added_tokens"])
        ):
            return cls(serialized)
        return None

    def ids(self, sentence: str) -> list[int] | None:
        """All ids of a sentence, its special tokens included; None for one of the rest."""
        if not sentence.isprintable() or self._named_token(sentence):
            return None
        words = self._words(sentence)
        longest = _LONGEST_ASCII if sentence.isascii() else _LONGEST
        if max(map(len, words), default=0) > longest:
            return None
        return [self._first, *chain.from_iterable(map(self._pieces, words)), self._last]

    def _words(self, text: str) -> list[str]:
        """What is cut into pieces by itself."""
        if text.isascii():
            return _ascii_words(text.lower() if self._lowercase else text)
        parts = text.split(" ")
        return [
            word for part in parts for word in (self._words(part) if part.isascii() else [part])
        ]
