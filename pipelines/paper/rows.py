"""The paper's comparisons: what each row is and what was published for it.

A row says how its model comes about, for `runs` and `models` to carry out. Rows of BERT-base are
made of whatever encoder the user names. "STS-B dev" is Spearman's correlation x 100 on STS-B's
development split.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Literal

from pipelines.names import look_up
from pipelines.paper.published import (
    AVERAGE,
    PUBLISHED_AGGREGATIONS,
    PUBLISHED_STS,
    PUBLISHED_TRANSFER,
)
from pipelines.spaces import GRID_BATCHES, GRID_RATES
from simcse.config import Pooling

Text = Literal[
    "sentences",
    "documents",
    "paraphrases",
    "captions",
    "entailment",
    "neutral",
    "contradiction",
    "all-nli",
    "triplets",
    "triplets-neutral",
]
"""What a row is trained on; documents are sentences in the order they were written in."""
Measure = Literal["dev", "sts", "transfer", "dev and transfer", "path", "geometry", "neighbours"]
"""What is measured of every row: the dev score, test scores, the way through the plane of
uniformity and alignment, how vectors lie, or what a search finds."""
Aggregation = Literal["all", "wmean"]
"""How STS scores of subsets become one (appendix B)."""

STSB_DEV, STS_AVERAGE, TRANSFER_AVERAGE = "STS-B dev", "STS avg.", "transfer dev avg."


@dataclass(frozen=True, slots=True)
class Trained:
    """A model that is trained for the row."""

    recipe: Literal["unsupervised", "supervised"]
    settings: tuple[str, ...] = ()
    """What differs from the recipe, as `--set` has it."""
    text: Text = "sentences"
    sampled: bool = False
    """Trained on as many pairs as there are paraphrases, the paper's smallest dataset (table 4)."""


@dataclass(frozen=True, slots=True)
class Untrained:
    """The encoder as it is before training."""

    pooling: Pooling
    whitened: bool = False
    """With a whitening fitted to NLI sentences."""


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """A system that this project does not make; the user may name one."""


Source = Trained | Untrained | Elsewhere


@dataclass(frozen=True, slots=True)
class Row:
    """A row of a table or a line of a figure."""

    label: str
    source: Source
    published: Mapping[str, float]
    """Score by column; empty where the paper shows a picture."""
    aggregation: Aggregation = "all"
    remark: str = ""
    """What is known of the published score since."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """A table or figure of the paper."""

    name: str
    title: str
    measure: Measure
    rows: tuple[Row, ...]


def find(name: str) -> Comparison:
    """The comparison of that name. Raises `UsageError` naming the ones there are."""
    return look_up("comparison", name, COMPARISONS)


def _unsupervised(*settings: str, text: Text = "sentences") -> Trained:
    return Trained("unsupervised", settings, text)


def _supervised(*settings: str, text: Text = "triplets", sampled: bool = False) -> Trained:
    return Trained("supervised", settings, text, sampled)


def _dev(label: str, source: Source, score: float | None) -> Row:
    return Row(label, source, {} if score is None else {STSB_DEV: score})


def _table_1() -> Iterator[Row]:
    yield _dev("none (unsupervised SimCSE)", _unsupervised(), 82.5)
    for view, scores in (("crop", (77.8, 71.4, 63.6)), ("word_deletion", (75.9, 72.2, 68.2))):
        for rate, score in zip((0.1, 0.2, 0.3), scores, strict=True):
            settings = (f"views.positive={view}", f"views.rate={rate}")
            yield _dev(f"{view.replace('_', ' ')} {rate:.0%}", _unsupervised(*settings), score)
    one = "views.positive=delete_one_word"
    yield _dev("delete one word", _unsupervised(one), 75.9)
    yield _dev("delete one word, without dropout", _unsupervised(one, "encoder.dropout=0"), 74.2)
    synonyms = ("views.positive=synonyms", "views.synonyms=wordnet")
    yield _dev("synonym replacement", _unsupervised(*synonyms), 77.4)
    masked = ("views.positive=masked_language", "views.rate=0.15")
    yield _dev("MLM 15%", _unsupervised(*masked), 62.2)


def _table_2() -> Iterator[Row]:
    views: tuple[tuple[str, str, Text, tuple[float, float]], ...] = (
        ("next sentence", "next_sentence", "documents", (67.1, 68.9)),
        ("next 3 sentences", "next_three_sentences", "documents", (67.4, 68.8)),
        ("delete one word", "delete_one_word", "sentences", (75.9, 73.1)),
        ("unsupervised SimCSE", "same_sentence", "sentences", (82.5, 80.7)),
    )
    for label, view, text, scores in views:
        for encoders, score in zip((1, 2), scores, strict=True):
            settings = (f"views.positive={view}", f"views.encoders={encoders}")
            what = "one encoder" if encoders == 1 else "two encoders"
            yield _dev(f"{label}, {what}", _unsupervised(*settings, text=text), score)


def _dropout(probability: float, *settings: str) -> Trained:
    equal = () if probability else ("views.allow_equal_views=true",)
    return _unsupervised(f"encoder.dropout={probability}", *equal, *settings)


def _fixed_dropout(*settings: str) -> Trained:
    return _unsupervised("encoder.dropout=0.1", "views.fixed_dropout_mask=true", *settings)


def _table_3() -> Iterator[Row]:
    scores = {0.0: 71.1, 0.01: 72.6, 0.05: 81.1, 0.1: 82.5, 0.15: 81.4, 0.2: 80.5, 0.5: 71.0}
    for probability, score in scores.items():
        yield _dev(f"p = {probability}", _dropout(probability), score)
    yield _dev("fixed 0.1", _fixed_dropout(), 43.6)


def _table_4() -> Iterator[Row]:
    """Sizes in brackets are those of the paper's datasets, whatever a row is trained on here."""
    yield _dev("unsupervised SimCSE (1m), full", _unsupervised(), 82.5)
    datasets: tuple[tuple[str, Text, tuple[float, float]], ...] = (
        ("QQP (134k)", "paraphrases", (81.8, 81.8)),
        ("Flickr30k (318k)", "captions", (81.5, 81.4)),
        ("NLI entailment (314k)", "entailment", (84.1, 84.9)),
        ("NLI neutral (314k)", "neutral", (82.6, 82.9)),
        ("NLI contradiction (314k)", "contradiction", (77.5, 77.6)),
        ("NLI all (942k)", "all-nli", (81.7, 81.9)),
    )
    for label, text, (sample, full) in datasets:
        yield _dev(f"{label}, sample", _supervised(text=text, sampled=True), sample)
        yield _dev(f"{label}, full", _supervised(text=text), full)
    yield _dev("ParaNMT (5m), sample", Elsewhere(), 79.7)
    yield _dev("ParaNMT (5m), full", Elsewhere(), 78.7)
    yield _dev("NLI entailment + hard negatives", _supervised(), 86.2)
    yield _dev("NLI + ANLI (52k)", Elsewhere(), 85.0)


_REMARKS = {
    "BERT-base (first-last avg.)": "the published average, 56.70, took the embedding layer for the "
    "first one, by mistake; corrected, the authors' code gives 60.73"
}


def _system(label: str, published: Mapping[str, float], ours: Mapping[str, Source]) -> Row:
    """A row of tables 5 and E.1 or of figure 3; what this project makes has a source in `ours`."""
    remark = _REMARKS.get(label, "")
    return Row(label, ours.get(label, Elsewhere()), published, remark=remark)


def _models(published: Mapping[str, Mapping[str, float]], ours: Mapping[str, Source]) -> list[Row]:
    """All published rows."""
    assert ours.keys() <= published.keys()
    return [_system(label, scores, ours) for label, scores in published.items()]


_FIRST_LAST = Untrained("avg_first_last")
_WHITENED = Untrained("avg_first_last", whitened=True)
_OURS: Mapping[str, Source] = {
    "BERT-base (first-last avg.)": _FIRST_LAST,
    "BERT-base-whitening": _WHITENED,
    "SimCSE-BERT-base, unsupervised": _unsupervised(),
    "SimCSE-BERT-base, supervised": _supervised(),
}


def _table_6() -> Iterator[Row]:
    poolings = {
        "[CLS] with MLP": ("encoder.head=always", 81.7, 86.2),
        "[CLS] with MLP (train)": ("encoder.head=training", 82.5, 85.8),
        "[CLS] without MLP": ("encoder.head=none", 80.9, 86.2),
        "first-last avg.": ("encoder.pooling=avg_first_last", 81.2, 86.1),
    }
    for label, (setting, unsupervised, supervised) in poolings.items():
        settings = (setting, "encoder.head=none") if "pooling" in setting else (setting,)
        yield _dev(f"{label}, unsupervised", _unsupervised(*settings), unsupervised)
        yield _dev(f"{label}, supervised", _supervised(*settings), supervised)


def _table_7() -> Iterator[Row]:
    yield _dev("no hard negatives", _supervised(text="entailment"), 84.9)
    for alpha, score in ((0.5, 86.1), (1.0, 86.2), (2.0, 86.2)):
        setting = f"objective.hard_negative_alpha={alpha}"
        yield _dev(f"contradiction, alpha {alpha}", _supervised(setting), score)
    yield _dev("contradiction + neutral", _supervised(text="triplets-neutral"), 85.3)


def _table_b() -> Iterator[Row]:
    for label, scores in PUBLISHED_AGGREGATIONS.items():
        system, aggregation = label.rsplit(", ", 1)
        source = _OURS.get(system, Elsewhere())
        yield Row(label, source, scores, "wmean" if aggregation == "wmean" else "all")


def _table_d1() -> Iterator[Row]:
    dot = _supervised("objective.similarity=dot", "objective.temperature=1")
    yield _dev("dot product", dot, 85.9)
    scores = {0.001: 84.9, 0.01: 85.4, 0.05: 86.2, 0.1: 82.0, 1: 64.0}
    for temperature, score in scores.items():
        setting = f"objective.temperature={temperature}"
        yield _dev(f"temperature {temperature}", _supervised(setting), score)


def _table_d2() -> Iterator[Row]:
    scores = {0: (86.2, 85.8), 0.01: (85.7, 86.1), 0.1: (85.7, 86.2), 1: (85.1, 85.8)}
    for weight, (stsb, transfer) in scores.items():
        setting = f"objective.masked_language_weight={weight}"
        label = f"MLM, weight {weight}" if weight else "without MLM"
        published = {STSB_DEV: stsb, TRANSFER_AVERAGE: transfer}
        yield Row(label, _supervised(setting), published)


def _figure_2() -> Iterator[Row]:
    often = "dev.every=10"
    one = "views.positive=delete_one_word"
    yield Row("unsupervised SimCSE", _unsupervised(often), {})
    yield Row("no dropout", _dropout(0.0, often), {})
    yield Row("fixed 0.1", _fixed_dropout(often), {})
    yield Row("delete one word", _unsupervised(often, one), {})


_BESIDE_SIMCSE = (
    "BERT-base (first-last avg.)",
    "BERT-base-flow",
    "BERT-base-whitening",
    "SimCSE-BERT-base, unsupervised",
    "SBERT-base",
    "SBERT-base-flow",
    "SBERT-base-whitening",
    "SimCSE-BERT-base, supervised",
)
"""The systems of figures 3 and F.1."""


def _figure_3() -> Iterator[Row]:
    """Numbers in brackets are averages of test scores, most of them those of table 5."""
    for label in _BESIDE_SIMCSE:
        yield _system(label, {STS_AVERAGE: PUBLISHED_STS[label][AVERAGE]}, _OURS)
    following = _unsupervised("views.positive=next_three_sentences", text="documents")
    yield Row("next 3 sentences", following, {STS_AVERAGE: 63.1})


def _singular_values() -> Iterator[Row]:
    for label in _BESIDE_SIMCSE:
        yield Row(label, _OURS.get(label, Elsewhere()), {})


def _cosines() -> Iterator[Row]:
    """Figure G.1 has no panels of flow."""
    for row in _singular_values():
        if not row.label.endswith("-flow"):
            yield row


def _batch() -> Iterator[Row]:
    """The grid of appendix A for BERT-base; only what it chose has a published score."""
    for rows, rate in product(GRID_BATCHES, GRID_RATES):
        source = _unsupervised(f"global_batch_size={rows}", f"optim.learning_rate={rate}")
        score = 82.5 if (rows, rate) == ("64", "3e-5") else None
        yield _dev(f"batch {rows}, rate {rate}", source, score)


_MLM = "objective.masked_language_weight=0.1"
_TRANSFER: Mapping[str, Source] = {
    "BERT-base (avg.)": Untrained("avg"),
    "BERT-base ([CLS])": Untrained("cls_before_pooler"),
    "SimCSE-BERT-base, unsupervised": _unsupervised(),
    "SimCSE-BERT-base, unsupervised, MLM": _unsupervised(_MLM),
    "SimCSE-BERT-base, supervised": _supervised(),
    "SimCSE-BERT-base, supervised, MLM": _supervised(_MLM),
}

COMPARISONS: Mapping[str, Comparison] = {
    comparison.name: comparison
    for comparison in (
        Comparison("table1", "Table 1: data augmentation", "dev", tuple(_table_1())),
        Comparison("table2", "Table 2: objectives and encoders", "dev", tuple(_table_2())),
        Comparison("table3", "Table 3: dropout probability", "dev", tuple(_table_3())),
        Comparison("table4", "Table 4: supervised datasets", "dev", tuple(_table_4())),
        Comparison("table5", "Table 5: STS", "sts", tuple(_models(PUBLISHED_STS, _OURS))),
        Comparison("table6", "Table 6: pooling", "dev", tuple(_table_6())),
        Comparison("table7", "Table 7: hard negatives", "dev", tuple(_table_7())),
        Comparison(
            "table8",
            "Table 8: nearest captions",
            "neighbours",
            (Row("SBERT-base", Elsewhere(), {}), Row("supervised SimCSE", _supervised(), {})),
        ),
        Comparison("tableB", "Tables B.2, B.3: aggregation", "sts", tuple(_table_b())),
        Comparison("tableD1", "Table D.1: temperature", "dev", tuple(_table_d1())),
        Comparison("tableD2", "Table D.2: MLM", "dev and transfer", tuple(_table_d2())),
        Comparison(
            "tableE1",
            "Table E.1: transfer tasks",
            "transfer",
            tuple(_models(PUBLISHED_TRANSFER, _TRANSFER)),
        ),
        Comparison("figure2", "Figure 2: along training", "path", tuple(_figure_2())),
        Comparison("figure3", "Figure 3: models", "geometry", tuple(_figure_3())),
        Comparison("figureF", "Figure F.1: singular values", "geometry", tuple(_singular_values())),
        Comparison("figureG", "Figure G.1: cosines", "geometry", tuple(_cosines())),
        Comparison("batch", "Appendix A: batch and learning rate", "dev", tuple(_batch())),
    )
}
