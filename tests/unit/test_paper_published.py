"""Published scores are what the paper has, written out here a second time."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import fmean

import pytest

from pipelines.paper.published import (
    AVERAGE,
    PUBLISHED_AGGREGATIONS,
    PUBLISHED_STS,
    PUBLISHED_TRANSFER,
)
from pipelines.paper.rows import COMPARISONS, STS_AVERAGE, STSB_DEV, TRANSFER_AVERAGE

# Their averages are not those of their own rows: the paper has both so.
OFF_IN_THE_PAPER = {"SBERT-base": 74.89, "BERT-base (avg.)": 84.94}


@pytest.mark.parametrize(
    ("table", "systems"),
    [(PUBLISHED_STS, 23), (PUBLISHED_AGGREGATIONS, 11), (PUBLISHED_TRANSFER, 21)],
)
def test_published_averages_are_those_of_their_rows(
    table: Mapping[str, Mapping[str, float]], systems: int
) -> None:
    assert len(table) == systems
    for label, scores in table.items():
        *by_set, average = scores.values()
        if OFF_IN_THE_PAPER.get(label) != average:
            assert fmean(by_set) == pytest.approx(average, abs=0.0051), label


STSB_DEV_SCORES = {
    "table1": {
        "none (unsupervised SimCSE)": 82.5,
        **{"crop 10%": 77.8, "crop 20%": 71.4, "crop 30%": 63.6},
        **{"word deletion 10%": 75.9, "word deletion 20%": 72.2, "word deletion 30%": 68.2},
        "delete one word": 75.9,
        "delete one word, without dropout": 74.2,
        "synonym replacement": 77.4,
        "MLM 15%": 62.2,
    },
    "table2": {
        "next sentence, one encoder": 67.1,
        "next sentence, two encoders": 68.9,
        "next 3 sentences, one encoder": 67.4,
        "next 3 sentences, two encoders": 68.8,
        "delete one word, one encoder": 75.9,
        "delete one word, two encoders": 73.1,
        "unsupervised SimCSE, one encoder": 82.5,
        "unsupervised SimCSE, two encoders": 80.7,
    },
    "table3": {
        **{"p = 0.0": 71.1, "p = 0.01": 72.6, "p = 0.05": 81.1, "p = 0.1": 82.5},
        **{"p = 0.15": 81.4, "p = 0.2": 80.5, "p = 0.5": 71.0, "fixed 0.1": 43.6},
    },
    "table4": {
        "unsupervised SimCSE (1m), full": 82.5,
        **{"QQP (134k), sample": 81.8, "QQP (134k), full": 81.8},
        **{"Flickr30k (318k), sample": 81.5, "Flickr30k (318k), full": 81.4},
        **{"ParaNMT (5m), sample": 79.7, "ParaNMT (5m), full": 78.7},
        **{"NLI entailment (314k), sample": 84.1, "NLI entailment (314k), full": 84.9},
        **{"NLI neutral (314k), sample": 82.6, "NLI neutral (314k), full": 82.9},
        **{"NLI contradiction (314k), sample": 77.5, "NLI contradiction (314k), full": 77.6},
        **{"NLI all (942k), sample": 81.7, "NLI all (942k), full": 81.9},
        "NLI entailment + hard negatives": 86.2,
        "NLI + ANLI (52k)": 85.0,
    },
    "table6": {
        "[CLS] with MLP, unsupervised": 81.7,
        "[CLS] with MLP, supervised": 86.2,
        "[CLS] with MLP (train), unsupervised": 82.5,
        "[CLS] with MLP (train), supervised": 85.8,
        "[CLS] without MLP, unsupervised": 80.9,
        "[CLS] without MLP, supervised": 86.2,
        "first-last avg., unsupervised": 81.2,
        "first-last avg., supervised": 86.1,
    },
    "table7": {
        "no hard negatives": 84.9,
        "contradiction, alpha 0.5": 86.1,
        "contradiction, alpha 1.0": 86.2,
        "contradiction, alpha 2.0": 86.2,
        "contradiction + neutral": 85.3,
    },
    "tableD1": {
        "dot product": 85.9,
        **{"temperature 0.001": 84.9, "temperature 0.01": 85.4, "temperature 0.05": 86.2},
        **{"temperature 0.1": 82.0, "temperature 1": 64.0},
    },
    "tableD2": {
        **{"without MLM": 86.2, "MLM, weight 0.01": 85.7},
        **{"MLM, weight 0.1": 85.7, "MLM, weight 1": 85.1},
    },
}


@pytest.mark.parametrize("name", STSB_DEV_SCORES)
def test_rows_measured_on_dev_have_the_papers_scores(name: str) -> None:
    published = {row.label: row.published[STSB_DEV] for row in COMPARISONS[name].rows}
    assert published == STSB_DEV_SCORES[name]


def test_table_d2_has_transfer_averages_too() -> None:
    rows = {row.label: row.published for row in COMPARISONS["tableD2"].rows}
    assert {label: scores[TRANSFER_AVERAGE] for label, scores in rows.items()} == {
        **{"without MLM": 85.8, "MLM, weight 0.01": 86.1},
        **{"MLM, weight 0.1": 86.2, "MLM, weight 1": 85.8},
    }


UNSUPERVISED, SUPERVISED = "SimCSE-BERT-base, unsupervised", "SimCSE-BERT-base, supervised"
STS = ("STS12", "STS13", "STS14", "STS15", "STS16", "STSBenchmark", "SICKRelatedness")
TRANSFER = ("MR", "CR", "SUBJ", "MPQA", "SST2", "TREC", "MRPC")


@pytest.mark.parametrize(
    ("table", "label", "sets", "scores"),
    [
        (PUBLISHED_STS, UNSUPERVISED, STS, (68.40, 82.41, 74.38, 80.91, 78.56, 76.85, 72.23)),
        (PUBLISHED_STS, SUPERVISED, STS, (75.30, 84.67, 80.19, 85.40, 80.82, 84.25, 80.39)),
        (
            *(PUBLISHED_AGGREGATIONS, "SBERT-base (first-last avg.), wmean", STS),
            (68.70, 74.37, 74.73, 79.65, 75.21, 77.63, 74.84),
        ),
        (
            *(PUBLISHED_TRANSFER, UNSUPERVISED, TRANSFER),
            (81.18, 86.46, 94.45, 88.88, 85.50, 89.80, 74.43),
        ),
        (
            *(PUBLISHED_TRANSFER, SUPERVISED, TRANSFER),
            (82.69, 89.25, 94.81, 89.59, 87.31, 88.40, 73.51),
        ),
    ],
)
def test_test_scores_are_the_papers_set_by_set(
    table: Mapping[str, Mapping[str, float]],
    label: str,
    sets: tuple[str, ...],
    scores: tuple[float, ...],
) -> None:
    found = dict(table[label])
    found.pop(AVERAGE)
    assert found == dict(zip(sets, scores, strict=True))


def test_simcse_has_the_papers_averages() -> None:
    sts = {label: scores[AVERAGE] for label, scores in PUBLISHED_STS.items() if "SimCSE" in label}
    assert sts == {
        **{UNSUPERVISED: 76.25, SUPERVISED: 81.57},
        **{UNSUPERVISED.replace("BERT", "RoBERTa"): 76.57},
        **{SUPERVISED.replace("BERT", "RoBERTa"): 82.52},
        "SimCSE-RoBERTa-large, unsupervised": 78.90,
        "SimCSE-RoBERTa-large, supervised": 83.76,
    }
    transfer = {label: PUBLISHED_TRANSFER[label][AVERAGE] for label in sts}
    assert transfer == {
        **{UNSUPERVISED: 85.81, SUPERVISED: 86.51},
        **{UNSUPERVISED.replace("BERT", "RoBERTa"): 84.84},
        **{SUPERVISED.replace("BERT", "RoBERTa"): 88.08},
        "SimCSE-RoBERTa-large, unsupervised": 86.11,
        "SimCSE-RoBERTa-large, supervised": 89.61,
    }
    with_mlm = {label: PUBLISHED_TRANSFER[f"{label}, MLM"][AVERAGE] for label in transfer}
    assert (with_mlm[UNSUPERVISED], with_mlm[SUPERVISED]) == (86.64, 86.86)
    wmean = [PUBLISHED_AGGREGATIONS[f"{label}, wmean"] for label in (UNSUPERVISED, SUPERVISED)]
    assert [scores[AVERAGE] for scores in wmean] == [76.46, 80.41]


def test_figure_3_has_the_numbers_in_its_brackets() -> None:
    in_brackets = {
        "BERT-base (first-last avg.)": 56.7,
        "BERT-base-flow": 66.6,
        "BERT-base-whitening": 66.3,
        "SimCSE-BERT-base, unsupervised": 76.3,
        "SBERT-base": 74.9,
        "SBERT-base-flow": 76.6,
        "SBERT-base-whitening": 77.0,
        "SimCSE-BERT-base, supervised": 81.6,
        "next 3 sentences": 63.1,
    }
    published = {row.label: row.published[STS_AVERAGE] for row in COMPARISONS["figure3"].rows}
    # They are rounded to one decimal there.
    assert published == pytest.approx(in_brackets, abs=0.0501)
