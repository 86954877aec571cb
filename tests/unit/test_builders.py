from __future__ import annotations

import csv
import gzip
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import pytest

from simcse_platform.ingest.builders import BUILDERS
from simcse_platform.ingest.cleaning import RowOptions, Tally, usable_rows

Row = tuple[str | None, ...]


def build(name: str, rows: Iterable[Row]) -> tuple[list[Row], dict[str, int]]:
    made = list(BUILDERS[name].build(rows))
    return (
        [row for row in made if isinstance(row, tuple)],
        dict(Counter(reason for reason in made if isinstance(reason, str))),
    )


def built_from(name: str, *files: Path) -> list[tuple[str, ...]]:
    options = RowOptions(build=name)
    columns = options.input_columns(files, None)
    rows = usable_rows(dict(enumerate(files)), columns, options, Tally())
    return [row.texts for row in rows]


def test_nli_pairs_are_those_of_the_label_in_words_or_numbers() -> None:
    rows: list[Row] = [
        ("entailment", "p", "e"),
        ("0", "p", "e0"),
        ("Neutral", "p", "n"),
        ("1", "p", "n1"),
        ("contradiction", "p", "c"),
        (" 2 ", "p", None),
        ("-", "p", "x"),
        ("-1", "p", "x"),
        (None, "p", "x"),
        ("3", "p", "x"),
    ]
    rest = {"no gold label": 3, "unknown label": 1}
    assert build("nli-entailment", rows) == (
        [("p", "e"), ("p", "e0")],
        {"labelled neutral": 2, "labelled contradiction": 2, **rest},
    )
    assert build("nli-neutral", rows)[0] == [("p", "n"), ("p", "n1")]
    assert build("nli-contradiction", rows)[0] == [("p", "c"), ("p", None)]
    pairs, dropped = build("nli-all", rows)
    assert ([pair[1] for pair in pairs], dropped) == (["e", "e0", "n", "n1", "c", None], rest)


def test_triplets_join_the_labels_of_a_premise_and_use_its_contradictions_in_turn() -> None:
    rows: list[Row] = [
        ("contradiction", "a  man", "c1"),
        ("entailment", " a man", "e1"),
        ("entailment", "a man", "e2"),
        ("neutral", "a man", "n"),
        ("contradiction", "a man", "c2"),
        ("entailment", "a man", "e3"),
        ("entailment", "a man", "e1 "),
        ("entailment", "a man", "a man"),
        ("entailment", "a man", "both"),
        ("contradiction", "a man", "both"),
        ("contradiction", "a dog", "c1"),
        ("contradiction", "a dog", "c2"),
        ("entailment", "a cat", "e1"),
        ("contradiction", "a cat", "c1"),
        ("contradiction", "a cat", "c2"),
        ("entailment", None, "e1"),
    ]
    assert build("nli-triplets", rows) == (
        [
            ("a man", "e1", "c1"),
            ("a man", "e2", "c2"),
            ("a man", "e3", "c1"),
            ("a cat", "e1", "c1"),
        ],
        {
            "labelled neutral": 1,
            "repeated pair": 1,
            "hypothesis equals its premise": 1,
            "empty": 1,
            "hypothesis with two labels": 2,
            "premise without all labels needed": 2,
            "negative beyond the entailments": 1,
        },
    )


def test_neutral_hypotheses_can_be_second_hard_negatives() -> None:
    rows: list[Row] = [
        ("entailment", "p", "e1"),
        ("entailment", "p", "e2"),
        ("neutral", "p", "n1"),
        ("neutral", "p", "n2"),
        ("contradiction", "p", "c1"),
        ("neutral", "p", "c1 "),
        ("contradiction", "p", "c2"),
        ("entailment", "q", "e1"),
        ("contradiction", "q", "c1"),
    ]
    assert build("nli-triplets-neutral", rows) == (
        [("p", "e1", "c2", "n1"), ("p", "e2", "c2", "n2")],
        {"hypothesis with two labels": 2, "premise without all labels needed": 2},
    )


def test_paraphrases_are_the_pairs_labelled_so() -> None:
    rows: list[Row] = [("1", "a", "b"), ("0", "a", "c"), ("yes", "a", "d"), (None, "a", "e")]
    assert build("paraphrases", rows) == ([("a", "b")], {"no paraphrase": 1, "unknown label": 2})


def test_any_two_captions_of_an_image_are_a_pair() -> None:
    rows: list[Row] = [("1", "a"), ("2", "x"), ("1", "b"), ("3", "y"), ("1", "c"), ("", "z")]
    rows += [("2", "x"), (None, "z")]
    assert build("captions", rows) == (
        [("a", "b"), ("a", "c"), ("b", "c"), ("x", "x")],
        {"only caption of its image": 1, "empty": 2},
    )


@pytest.mark.parametrize(
    ("files", "rows"),
    [
        (["snli_dev"], 3167),
        (["mnli_dev_matched", "taxinli_mnli"], 3984),
        (["cad_snli"], 2263),
    ],
)
def test_triplets_of_real_nli_files_are_the_published_ones(
    data_dir: Path, files: list[str], rows: int
) -> None:
    made = built_from("nli-triplets", *(data_dir / f"nli/pairs/{name}.tsv.gz" for name in files))
    with gzip.open(
        data_dir / "nli/nli_triplets.csv.gz", "rt", encoding="utf-8", newline=""
    ) as file:
        published = set(map(tuple, csv.reader(file)))
    assert len(made) == len(set(made)) == rows
    assert set(made) < published


def test_real_paraphrases_and_captions_are_counted(data_dir: Path) -> None:
    # Of 5,000 duplicate questions one is word for word the same.
    assert len(built_from("paraphrases", data_dir / "paraphrase/qqp_dev.tsv.gz")) == 4999
    # Ten pairs an image, but for 36 pairs of equal captions.
    captions = data_dir / "retrieval/flickr30k_captions.tsv.gz"
    assert len(built_from("captions", captions)) == 10 * 31_014 - 36
