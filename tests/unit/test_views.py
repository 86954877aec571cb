"""Altered texts as positives, against what the paper's table 1 says of each."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from simcse.config import ViewsConfig
from simcse.errors import DataError, UsageError
from simcse.views import alter, is_altered_text, load_synonyms

SENTENCES = [
    "one two three four five six seven eight nine ten",
    "red green blue",
    "left right",
    "alone",
    "a b c d e f g h i j k l m n o p q r s t",
] * 40


def altered(
    sentences: list[str], *, seed: int = 1, epoch: int = 0, **settings: object
) -> list[str]:
    views = ViewsConfig.model_validate(settings)
    synonyms = load_synonyms(views.synonyms) if views.synonyms else None
    row_ids_R = np.arange(len(sentences))
    return alter(sentences, views, synonyms, seed=seed, epoch=epoch, row_ids_R=row_ids_R)


def is_subsequence(short: list[str], whole: list[str]) -> bool:
    rest = iter(whole)
    return all(word in rest for word in short)


@pytest.mark.parametrize("rate", [0.1, 0.3])
def test_word_deletion_keeps_the_order_of_what_it_leaves(rate: float) -> None:
    for before, after in zip(
        SENTENCES, altered(SENTENCES, positive="word_deletion", rate=rate), strict=True
    ):
        words = before.split()
        deleted = min(max(1, round(rate * len(words))), len(words) - 1)
        assert len(after.split()) == len(words) - deleted
        assert is_subsequence(after.split(), words)


def test_delete_one_word_deletes_one_wherever_it_stands() -> None:
    after = altered(SENTENCES[:1] * 200, positive="delete_one_word")
    words = SENTENCES[0].split()
    assert {sentence.count(" ") for sentence in after} == {8}
    assert {word for word in words for sentence in after if word not in sentence.split()} == set(
        words
    )


@pytest.mark.parametrize("rate", [0.1, 0.3])
def test_crop_keeps_words_that_stood_side_by_side(rate: float) -> None:
    starts = set()
    for before, after in zip(
        SENTENCES, altered(SENTENCES, positive="crop", rate=rate), strict=True
    ):
        words, kept = before.split(), after.split()
        assert len(kept) == len(words) - min(max(1, round(rate * len(words))), len(words) - 1)
        start = words.index(kept[0])
        assert words[start : start + len(kept)] == kept
        if len(words) == 10:
            starts.add(start)
    assert starts == set(range(1 + round(rate * 10)))


def test_synonyms_replace_one_word_and_keep_its_capital_and_its_comma(tmp_path: Path) -> None:
    table = tmp_path / "synonyms.tsv"
    table.write_text("dog\thound\tcur\ndog\tmutt\nrain\tdrizzle\n", encoding="utf-8")
    after = altered(["Dog, meet cat."] * 60, positive="synonyms", synonyms=str(table))
    assert set(after) == {"Hound, meet cat.", "Cur, meet cat.", "Mutt, meet cat."}
    both = altered(["the dog in the rain"] * 60, positive="synonyms", synonyms=str(table))
    assert set(both) == {
        "the hound in the rain",
        "the cur in the rain",
        "the mutt in the rain",
        "the dog in the drizzle",
    }
    assert altered(["- dog !"] * 9, positive="synonyms", synonyms=str(table))[0][:2] == "- "
    assert altered(["nothing known"], positive="synonyms", synonyms=str(table)) == ["nothing known"]


@pytest.mark.parametrize("positive", ["word_deletion", "delete_one_word", "crop"])
def test_what_is_altered_is_a_function_of_seed_epoch_and_row(positive: str) -> None:
    once = altered(SENTENCES, positive=positive)
    assert altered(SENTENCES, positive=positive) == once
    assert altered(SENTENCES, positive=positive, seed=2) != once
    assert altered(SENTENCES, positive=positive, epoch=1) != once
    last = alter(
        SENTENCES[-1:],
        ViewsConfig.model_validate({"positive": positive}),
        None,
        seed=1,
        epoch=0,
        row_ids_R=np.array([len(SENTENCES) - 1]),
    )
    assert last == once[-1:]


def test_views_of_the_same_text_are_told_from_those_of_another() -> None:
    assert is_altered_text("crop")
    assert is_altered_text("masked_language")
    assert not is_altered_text("same_sentence")
    assert not is_altered_text("next_sentence")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"dog\thound\ncat\n", r":2: 'cat' is no line word<TAB>synonym<TAB>\.\.\.: mend"),
        (b"dog\t\n", r":1: 'dog\\t' is no line"),
        (b"\thound\n", r":1: '\\thound' is no line"),
        (b"\n \n", r"has no synonyms: write lines word<TAB>synonym"),
        (b"dog\t\xff\n", r"is not UTF-8: convert the file to UTF-8"),
    ],
)
def test_a_bad_synonym_file_is_named(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "synonyms.tsv"
    path.write_bytes(content)
    with pytest.raises(DataError, match=message):
        load_synonyms(str(path))


def test_a_synonym_file_that_is_not_there_is_named() -> None:
    with pytest.raises(UsageError, match=r"views\.synonyms nowhere\.tsv cannot be read \(No such"):
        load_synonyms("nowhere.tsv")


LEXICON = """<?xml version="1.0" encoding="UTF-8"?>
<!DOCTYPE LexicalResource SYSTEM "http://globalwordnet.github.io/schemas/WN-LMF-1.1.dtd">
<LexicalResource xmlns:dc="https://globalwordnet.github.io/schemas/dc/">
<Lexicon id="tiny" label="Tiny" language="en" email="nobody@example.org" license="MIT" version="1">
<LexicalEntry id="e1"><Lemma writtenForm="dog" partOfSpeech="n"/><Sense id="s1" synset="tiny-1"/>
</LexicalEntry>
<LexicalEntry id="e2"><Lemma writtenForm="hound" partOfSpeech="n"/><Sense id="s2" synset="tiny-1"/>
</LexicalEntry>
<Synset id="tiny-1" ili="" partOfSpeech="n" members="s1 s2"/>
</Lexicon>
</LexicalResource>
"""


def test_wordnet_gives_the_other_words_of_a_words_synsets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import wn

    monkeypatch.setattr(wn.config, "data_directory", tmp_path)
    with pytest.raises(UsageError, match=r"needs an English WordNet: run `python -m wn download"):
        load_synonyms("wordnet")
    lexicon = tmp_path / "tiny.xml"
    lexicon.write_text(LEXICON, encoding="utf-8")
    wn.add(lexicon, progress_handler=None)
    synonyms = load_synonyms("wordnet")
    assert list(synonyms("dog")) == ["hound"]
    assert list(synonyms("cat")) == []


def test_wordnet_without_its_package_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "wn", None)
    with pytest.raises(UsageError, match=r"needs the package wn: run `pip install"):
        load_synonyms("wordnet")
