"""From the rows of files to the rows of a dataset: made, split, cleaned, counted."""

from __future__ import annotations

import string
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, Field
from sentencex import segment  # type: ignore[import-untyped]

from simcse.errors import UsageError
from simcse_platform.ingest import readers
from simcse_platform.ingest.builders import BUILDERS, EMPTY, Builder, Reason, Texts
from simcse_platform.ingest.manifest import FOLLOWING, MAX_FOLLOWING, TOKENS_SUFFIX

DUPLICATE = "duplicate"
EMPTY_NEGATIVE = "empty hard negative"
SAME_AS_ANCHOR = "positive equals its anchor"
REPEATED_IN_ROW = "hard negative repeats a text of its row"
TOO_FEW_WORDS = "too few words"
TOO_MANY_WORDS = "too many words"

_ARTICLE_COLUMNS = ("text",)


@dataclass(frozen=True, slots=True, kw_only=True)
class RowOptions:
    """Which rows a dataset has, and how they are made of those that are read.

    Raises `UsageError` for options that do not go together.
    """

    build: str | None = None
    """Name in `BUILDERS`; None takes the text columns as they are."""
    split_language: str | None = None
    """Language, such as `en`, by whose rules articles are split into sentences; None leaves texts
    whole. `sentencex` splits what it has no rules for as English."""
    min_words: int = 0
    """Words, by white space, that every text of a row must have."""
    max_words: int | None = None
    keep_order: bool = False
    """Document order: no duplicate is dropped, and each row knows how many sentences follow it."""
    dedupe_corpus: bool = False
    """Drop rows that repeat one of the whole corpus, not of their shard alone."""
    sample: int | None = None
    """Rows drawn from all; in the order of the input."""
    sample_each: int | None = None
    """Rows drawn from each source."""
    seed: int = 0
    """Of the draw."""

    def __post_init__(self) -> None:
        if self.build is not None and self.build not in BUILDERS:
            raise UsageError(f"--build is {self.build!r}: it may be {', '.join(BUILDERS)}")
        if self.build and self.split_language:
            raise UsageError(
                f"--split-sentences makes one column, --build {self.build} more: drop one"
            )
        if self.max_words is not None and self.max_words < self.min_words:
            raise UsageError(f"--max-words {self.max_words} is below --min-words {self.min_words}")
        if self.sample and self.sample_each:
            raise UsageError("--sample and --sample-each are two ways to draw rows: leave out one")
        if self.seed and not (self.sample or self.sample_each):
            raise UsageError(
                f"--seed {self.seed} draws nothing: give --sample or --sample-each, or leave it out"
            )
        if self.sample_each and self.builder and self.builder.joins:
            raise UsageError(
                f"--build {self.build} joins all sources, so --sample-each cannot tell them apart: "
                "prepare each source by itself with --sample"
            )
        if self.keep_order and (self.build or self.chooses):
            raise UsageError(
                "--keep-order keeps every sentence where it is: leave out --build, --sample, "
                "--sample-each and --dedupe-corpus"
            )

    @property
    def builder(self) -> Builder | None:
        """The builder that `build` names."""
        return BUILDERS[self.build] if self.build else None

    @property
    def chooses(self) -> bool:
        """Whether some usable rows are left out, which takes a reading of all before."""
        return bool(self.sample or self.sample_each or self.dedupe_corpus)

    def input_columns(self, files: Sequence[Path], wanted: Sequence[str] | None) -> tuple[str, ...]:
        """The columns to read from every file. Raises `UsageError` naming a wrong one."""
        builder = self.builder
        if builder and wanted is not None and len(wanted) != len(builder.inputs):
            raise UsageError(
                f"--build {self.build} reads {len(builder.inputs)} columns "
                f"({', '.join(builder.inputs)}): --columns names {', '.join(wanted)}"
            )
        if wanted is None and (builder or self.split_language):
            wanted = builder.inputs if builder else _ARTICLE_COLUMNS
        columns = readers.common_columns(
            files, wanted, numbers=tuple(wanted or ())[:1] if builder else ()
        )
        one_column = "--split-sentences" if self.split_language else "--keep-order"
        if (self.split_language or self.keep_order) and len(columns) > 1:
            raise UsageError(
                f"{one_column} needs one text column, not {', '.join(columns)}: name it by "
                "--columns"
            )
        return columns

    def output_columns(self, columns: tuple[str, ...]) -> tuple[str, ...]:
        """The columns of the dataset, given those that are read."""
        outputs = self.builder.outputs if self.builder else columns
        reserved = {FOLLOWING, *(name + TOKENS_SUFFIX for name in outputs)}
        if taken := reserved & set(outputs):
            raise UsageError(
                f"a text column cannot be called {min(taken)!r}, which is a column that preparing "
                "adds: rename it, or choose others by --columns"
            )
        return outputs


class Tally(BaseModel):
    """What became of the rows of some files, as far as they gave none for the dataset."""

    read: int = 0
    bad: list[tuple[int, int, str]] = []
    """File number, row and reason."""
    dropped: Counter[str] = Field(default_factory=Counter)


@dataclass(frozen=True, slots=True)
class UsableRow:
    """Clean texts of a row."""

    texts: tuple[str, ...]
    run: int
    """Rows of one run follow each other directly in one document."""


def usable_rows(
    files: Mapping[int, Path], columns: Sequence[str], options: RowOptions, tally: Tally
) -> Iterator[UsableRow]:
    """The usable rows of numbered files, in order; what becomes of the others goes into `tally`.

    A document ends with its file or article and with every row that is left out, an empty line for
    one. Raises `DataError` for files that cannot be read.
    """
    run = 0
    for made in _made(files, columns, options, tally):
        outcome = clean(made, options) if isinstance(made, tuple) else made
        if isinstance(outcome, tuple):
            yield UsableRow(outcome, run)
            continue
        run += 1
        if outcome is not None:
            tally.dropped[outcome] += 1


def clean(texts: Texts, options: RowOptions) -> tuple[str, ...] | Reason:
    """The texts with white space collapsed, or why the row cannot be used."""
    row = tuple([readers.collapse_spaces(text or "") for text in texts])
    pair, negatives = row[:2], row[2:]
    if not all(pair):
        return EMPTY
    if not all(negatives):
        return EMPTY_NEGATIVE
    if len(row) > 1:
        if pair[0] == pair[1]:
            return SAME_AS_ANCHOR
        if len(set(row)) < len(row):
            return REPEATED_IN_ROW
    if options.min_words > 1 and min(map(_count_words, row)) < options.min_words:
        return TOO_FEW_WORDS
    if options.max_words is not None and max(map(_count_words, row)) > options.max_words:
        return TOO_MANY_WORDS
    return row


def _count_words(text: str) -> int:
    return text.count(" ") + 1


def split_sentences(text: str, language: str) -> list[str]:
    """Sentences of an article, none of which runs over the end of a line."""
    parts = (sentence for line in text.splitlines() for sentence in segment(language, line))
    return [part for part in parts if part.strip()]


def following(runs: Sequence[object]) -> list[int]:
    """How many rows of its run come after each row of a shard, up to `MAX_FOLLOWING`."""
    counts = [0] * len(runs)
    for place in range(len(runs) - 2, -1, -1):
        if runs[place] == runs[place + 1]:
            counts[place] = min(counts[place + 1] + 1, MAX_FOLLOWING)
    return counts


def lexical_overlap(anchor: str, positive: str) -> float:
    """F1 between the two bags of words (paper section 4.1), from 0 to 1.

    Words are lower-cased, split at white space and stripped of punctuation.
    """
    first, second = _bag(anchor), _bag(positive)
    total = first.total() + second.total()
    return 2 * (first & second).total() / total if total else 0.0


def _bag(text: str) -> Counter[str]:
    words = (word.strip(string.punctuation) for word in text.lower().split())
    return Counter(word for word in words if word)


def _made(
    files: Mapping[int, Path], columns: Sequence[str], options: RowOptions, tally: Tally
) -> Iterator[Texts | Reason | None]:
    """Rows to be cleaned, reasons for rows left out, and None where a document ends."""
    raw = _raw(files, columns, tally)
    if options.builder:
        yield from options.builder.build(texts for texts in raw if texts is not None)
    elif options.split_language:
        for texts in raw:
            article = texts[0] if texts is not None else ""
            sentences = split_sentences(article or "", options.split_language)
            yield from ((sentence,) for sentence in sentences)
            if texts is not None and not sentences:
                yield EMPTY
            yield None
    else:
        yield from raw


def _raw(files: Mapping[int, Path], columns: Sequence[str], tally: Tally) -> Iterator[Texts | None]:
    """Texts as they are read, and None for what cannot be read and at the end of each file."""
    for number, file in files.items():
        read = 0
        for row in readers.read(file, columns):
            read += 1
            if row.reason is not None:
                tally.bad.append((number, row.number, row.reason))
            yield row.texts
        tally.read += read
        yield None
