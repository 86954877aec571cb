"""The paper's altered texts as positives (section 3, table 1), one sentence at a time.

What is altered is a function of seed, epoch and the sentence's row, not of what came before.
R: sentences.
"""

from __future__ import annotations

import string
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from simcse.config import PositiveView, ViewsConfig
from simcse.errors import DataError, UsageError
from simcse.positional import uniforms

Synonyms = Callable[[str], Sequence[str]]
"""Other words for a word in lower case; none for one that is not known."""
Draw = Callable[[int], NDArray[np.float64]]
"""That many numbers in [0, 1), one for each word of a sentence."""

FOLLOWING: Mapping[PositiveView, int] = {"next_sentence": 1, "next_three_sentences": 3}
"""How many of the next sentences are the positive."""
WORDNET = "wordnet"
POSITIVE = 1
"""The positive's place among the views, by which its random choices are told from others."""


def is_altered_text(view: PositiveView) -> bool:
    """Whether the positive is the sentence itself in other words."""
    return view != "same_sentence" and view not in FOLLOWING


def alter(
    sentences: Sequence[str],
    views: ViewsConfig,
    synonyms: Synonyms | None,
    *,
    seed: int,
    epoch: int,
    row_ids_R: NDArray[np.int64],
) -> list[str]:
    """The positive of each sentence; one word alone stays as it is, unless it has a synonym.

    Of n words `word_deletion` drops rate x n, rounded, at least one and not all; `crop` keeps as
    many as that leaves, side by side; `delete_one_word` drops one; `synonyms` replaces one.
    """

    def altered(words: list[str], draw: Draw) -> list[str]:
        share = min(max(1, round(views.rate * len(words))), len(words) - 1)
        match views.positive:
            case "word_deletion":
                return _delete(words, share, draw)
            case "delete_one_word":
                return _delete(words, min(1, len(words) - 1), draw)
            case "crop":
                start = int(draw(1)[0] * (share + 1))
                return words[start : start + len(words) - share]
            case "synonyms":
                assert synonyms is not None
                return _replace_one(words, synonyms, draw)
            case other:
                raise AssertionError(other)

    return [
        " ".join(altered(sentence.split(), _draws(seed, epoch, int(row))))
        for sentence, row in zip(sentences, row_ids_R, strict=True)
    ]


def load_synonyms(source: str) -> Synonyms:
    """Synonyms from WordNet (the package wn), or from lines `word<TAB>synonym<TAB>...` of a file.

    Raises `UsageError` when there is no such source, `DataError` naming a bad line.
    """
    if source == WORDNET:
        return _wordnet()
    path = Path(source)
    try:
        # Not splitlines, which also breaks at characters that stand inside words.
        lines = path.read_text(encoding="utf-8-sig").split("\n")
    except OSError as error:
        raise UsageError(
            f"views.synonyms {source} cannot be read ({error.strerror}): name a file of lines "
            f"word<TAB>synonym<TAB>..., or {WORDNET}"
        ) from None
    except UnicodeDecodeError:
        raise DataError(f"{source} is not UTF-8: convert the file to UTF-8") from None
    table: dict[str, list[str]] = {}
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        word, *others = (field.strip() for field in line.split("\t"))
        if not word or not others or not all(others):
            raise DataError(
                f"{source}:{number}: {line[:80]!r} is no line word<TAB>synonym<TAB>...: mend or "
                "remove it"
            )
        table.setdefault(word.lower(), []).extend(others)
    if not table:
        raise DataError(f"{source} has no synonyms: write lines word<TAB>synonym<TAB>...")
    return lambda word: table.get(word, [])


def _draws(seed: int, epoch: int, row: int) -> Draw:
    used = 0

    def draw(count: int) -> NDArray[np.float64]:
        nonlocal used
        places = np.arange(used, used + count)
        used += count
        return uniforms(seed, epoch, POSITIVE, row, places)

    return draw


def _delete(words: list[str], count: int, draw: Draw) -> list[str]:
    dropped = set(np.argsort(draw(len(words)), kind="stable")[:count].tolist())
    return [word for place, word in enumerate(words) if place not in dropped]


def _replace_one(words: list[str], synonyms: Synonyms, draw: Draw) -> list[str]:
    order = np.argsort(draw(len(words)), kind="stable").tolist()
    for place in order:
        before, core, after = _core(words[place])
        known = synonyms(core.lower()) if core else []
        if others := [other for other in known if other.lower() != core.lower()]:
            other = others[int(draw(1)[0] * len(others))]
            if core[0].isupper():
                other = other[0].upper() + other[1:]
            return [*words[:place], before + other + after, *words[place + 1 :]]
    return words


def _core(word: str) -> tuple[str, str, str]:
    """The word and the punctuation around it."""
    tail = word.lstrip(string.punctuation)
    core = tail.rstrip(string.punctuation)
    return word[: len(word) - len(tail)], core, tail[len(core) :]


def _wordnet() -> Synonyms:
    try:
        import wn
    except ImportError:
        raise UsageError(
            "views.synonyms=wordnet needs the package wn: run `pip install "
            "'simcse-platform[wordnet]'`, or name a file"
        ) from None
    if not wn.lexicons(lang="en"):
        raise UsageError(
            "views.synonyms=wordnet needs an English WordNet: run `python -m wn download "
            "oewn:2024`, or name a file"
        )
    english = wn.Wordnet(lang="en")

    def synonyms(word: str) -> Sequence[str]:
        lemmas = (lemma for synset in english.synsets(word) for lemma in synset.lemmas())
        return list(dict.fromkeys(lemma for lemma in lemmas if lemma.lower() != word))

    return synonyms
