from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from simcse.errors import UsageError
from simcse_platform.ingest.cleaning import (
    RowOptions,
    Tally,
    clean,
    following,
    lexical_overlap,
    usable_rows,
)

PLAIN = RowOptions()


def rows_of(
    files: Sequence[Path], columns: Sequence[str], options: RowOptions
) -> tuple[list[tuple[str, int]], Tally]:
    """First text and number of followers of each usable row of one shard."""
    tally = Tally()
    rows = list(usable_rows(dict(enumerate(files)), columns, options, tally))
    texts = [row.texts[0] for row in rows]
    return list(zip(texts, following([row.run for row in rows]), strict=True)), tally


@pytest.mark.parametrize(
    ("row", "cleaned"),
    [
        ((" a\t b\n",), ("a b",)),
        (("a", " b"), ("a", "b")),
        (("a", "b", "c", "c"), "hard negative repeats a text of its row"),
        ((None,), "empty"),
        (("a", " \u3000"), "empty"),
        (("", "b", ""), "empty"),
        (("a", "b", " "), "empty hard negative"),
        (("a", "b", "c", None), "empty hard negative"),
        (("a  b", "a b"), "positive equals its anchor"),
        (("a", "a", "c"), "positive equals its anchor"),
        (("a", "b", "a "), "hard negative repeats a text of its row"),
        (("a", "b", "c", "b"), "hard negative repeats a text of its row"),
        (("a", "A"), ("a", "A")),
    ],
)
def test_a_row_is_cleaned_or_left_out_for_a_reason(
    row: tuple[str | None, ...], cleaned: tuple[str, ...] | str
) -> None:
    assert clean(row, PLAIN) == cleaned


def test_texts_with_too_few_or_too_many_words_are_left_out() -> None:
    options = RowOptions(min_words=2, max_words=3)
    assert clean(("a b", "a b  c"), options) == ("a b", "a b c")
    assert clean(("a b", "a"), options) == "too few words"
    assert clean(("a b c d", "a b"), options) == "too many words"


def test_a_document_of_a_text_file_ends_with_an_empty_line_or_an_unusable_one(
    tmp_path: Path,
) -> None:
    first, second = tmp_path / "a.txt", tmp_path / "b.txt"
    first.write_text("a1\na2\na1\na4\na5\n\nb1\nb2\n")
    second.write_bytes(b"c1\n\xff\nc3\nc4\n")
    rows, tally = rows_of([first, second], ["text"], RowOptions(keep_order=True))
    assert rows == [
        ("a1", 3),
        ("a2", 3),
        ("a1", 2),
        ("a4", 1),
        ("a5", 0),
        ("b1", 1),
        ("b2", 0),
        ("c1", 0),
        ("c3", 1),
        ("c4", 0),
    ]
    assert tally == Tally(read=12, bad=[(1, 2, "not UTF-8")], dropped={"empty": 1})


def test_articles_are_split_into_sentences_and_keep_their_bounds(tmp_path: Path) -> None:
    file = tmp_path / "dump.jsonl"
    articles = [
        "Dr. Moss lives in Bath. She  paints boats.\n\nHistory\nHer house is old.",
        None,
        " \n ",
        "One more place. It is far away.",
    ]
    lines = [json.dumps({"title": "t", "text": article}) for article in articles]
    file.write_text("\n".join([*lines[:1], "{", *lines[1:]]))
    options = RowOptions(split_language="en", keep_order=True)
    columns = options.input_columns([file], None)
    rows, tally = rows_of([file], columns, options)
    assert (columns, rows) == (
        ("text",),
        [
            ("Dr. Moss lives in Bath.", 3),
            ("She paints boats.", 2),
            ("History", 1),
            ("Her house is old.", 0),
            ("One more place.", 1),
            ("It is far away.", 0),
        ],
    )
    assert tally == Tally(read=5, bad=[(0, 2, "no JSON object")], dropped={"empty": 2})
    longer = RowOptions(split_language="en", keep_order=True, min_words=2)
    assert rows_of([file], columns, longer)[0][:3] == [
        ("Dr. Moss lives in Bath.", 1),
        ("She paints boats.", 0),
        ("Her house is old.", 0),
    ]


def overlap_by_hand(anchor: str, positive: str) -> float:
    """F1 of the words of one text as a guess at those of the other, each word used once."""
    guess, truth = ([w.strip(".,!?'\"") for w in t.lower().split()] for t in (anchor, positive))
    guess, truth = [w for w in guess if w], [w for w in truth if w]
    left = list(truth)
    hits = 0
    for word in guess:
        if word in left:
            left.remove(word)
            hits += 1
    if hits == 0:
        return 0.0
    precision, recall = hits / len(guess), hits / len(truth)
    return 2 * precision * recall / (precision + recall)


@pytest.mark.parametrize(
    ("anchor", "positive"),
    [
        ("The cat sat on the mat.", "the mat, the cat!"),
        ("one two", "three"),
        ("a a a", "a"),
        ("...", "!?"),
        ("It's cold , isn't it ?", "Isn't it 'cold'"),
    ],
)
def test_lexical_overlap_is_the_f1_of_two_bags_of_words(anchor: str, positive: str) -> None:
    assert lexical_overlap(anchor, positive) == pytest.approx(overlap_by_hand(anchor, positive))


def test_real_pairs_overlap_as_in_the_paper(data_dir: Path) -> None:
    # Section 4.1: 39 % for entailment pairs of SNLI and MNLI, 60 % for QQP.
    for build, wanted, names in (
        ("nli-entailment", 0.39, ["nli/pairs/snli_dev", "nli/pairs/mnli_dev_matched"]),
        ("paraphrases", 0.60, ["paraphrase/qqp_dev"]),
    ):
        options = RowOptions(build=build)
        files = [data_dir / f"{name}.tsv.gz" for name in names]
        columns = options.input_columns(files, None)
        rows = list(usable_rows(dict(enumerate(files)), columns, options, Tally()))
        overlap = sum(lexical_overlap(*row.texts) for row in rows) / len(rows)
        assert overlap == pytest.approx(wanted, abs=0.02)


@pytest.mark.parametrize(
    ("options", "refused"),
    [
        ({"build": "nli"}, "--build is 'nli': it may be nli-entailment, .*, captions"),
        ({"build": "captions", "split_language": "en"}, "--split-sentences makes one column, --bu"),
        ({"min_words": 3, "max_words": 2}, "--max-words 2 is below --min-words 3"),
        ({"seed": 3}, "--seed 3 draws nothing: give --sample or --sample-each, or leave it out"),
        ({"sample": 1, "sample_each": 1}, "--sample and --sample-each are two ways"),
        (
            {"build": "captions", "sample_each": 1},
            "--build captions joins all sources, so --sample",
        ),
        ({"keep_order": True, "sample": 9}, "--keep-order keeps every sentence .* leave out"),
        ({"keep_order": True, "dedupe_corpus": True}, "--keep-order keeps every sentence"),
        ({"keep_order": True, "build": "paraphrases"}, "--keep-order keeps every sentence"),
    ],
)
def test_options_that_do_not_go_together_are_refused(
    options: dict[str, object], refused: str
) -> None:
    with pytest.raises(UsageError, match=refused):
        RowOptions(**options)  # type: ignore[arg-type]


def test_columns_are_those_that_the_options_need(tmp_path: Path) -> None:
    file = tmp_path / "a.csv"
    file.write_text("gold,s1,s2\nentailment,a,b\n")
    triplets = RowOptions(build="nli-triplets")
    assert triplets.input_columns([file], ["gold", "s1", "s2"]) == ("gold", "s1", "s2")
    assert triplets.output_columns(("gold", "s1", "s2")) == ("anchor", "positive", "hard_negative")
    with pytest.raises(UsageError, match="has no text column 'label': it has 'gold', 's1', 's2'"):
        triplets.input_columns([file], None)
    want = (
        r"--build nli-triplets reads 3 columns \(label, premise, hypothesis\): --columns names s1"
    )
    with pytest.raises(UsageError, match=want):
        triplets.input_columns([file], ["s1"])
    with pytest.raises(
        UsageError, match="--keep-order needs one text column, not gold, s1, s2: name"
    ):
        RowOptions(keep_order=True).input_columns([file], None)
    split = RowOptions(split_language="en")
    with pytest.raises(UsageError, match="--split-sentences needs one text column, not s1, s2"):
        split.input_columns([file], ["s1", "s2"])
    assert split.input_columns([file], ["s2"]) == ("s2",)


@pytest.mark.parametrize("columns", [("following",), ("text", "text_tokens")])
def test_a_column_that_preparing_adds_is_no_name_for_a_text(columns: tuple[str, ...]) -> None:
    with pytest.raises(UsageError, match=rf"a text column cannot be called '{columns[-1]}', which"):
        RowOptions().output_columns(columns)
