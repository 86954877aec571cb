"""What an evaluation says: averages, JSON, the original's tables, Markdown."""

from __future__ import annotations

import json

import pytest

from simcse.evaluation import (
    STS_SUITE,
    TRANSFER_SUITE,
    Evaluation,
    Scores,
    average,
    evaluation_report,
    printed_average,
    render_markdown,
    render_tables,
)


def _scores(*headlines: float) -> dict[str, Scores]:
    return {
        name: Scores(headline, "spearman", {"pairs": 1})
        for name, headline in zip(STS_SUITE, headlines, strict=False)
    }


def test_the_report_has_every_number_and_says_what_is_missing() -> None:
    scores = {name: Scores(float(i), "spearman", {"pairs": i}) for i, name in enumerate(STS_SUITE)}
    scores["MR"] = Scores(76.0, "accuracy", {"accuracy": 76.0})
    seconds = {"embedding": 2.0} | dict.fromkeys(scores, 0.5)
    missing = {"CR": "no file"}
    report = evaluation_report(
        "m", "test", "avg", Evaluation(scores, seconds), missing, {"a.tsv": "00"}
    )
    assert json.loads(json.dumps(report)) == {
        "model": "m",
        "mode": "test",
        "pooling": "avg",
        "tasks": {name: {"pairs": i} for i, name in enumerate(STS_SUITE)}
        | {"MR": {"accuracy": 76.0}},
        "avg": 3.0,
        "avg_printed": 3.0,
        "avg_transfer": None,
        "avg_transfer_printed": None,
        "missing": ["CR"],
        "missing_reasons": {"CR": "no file"},
        "data_sha256": {"a.tsv": "00"},
        "seconds": seconds,
    }


def test_an_average_is_of_a_whole_suite_or_null() -> None:
    scores = _scores(*range(7))
    assert average(scores, STS_SUITE) == printed_average(scores, STS_SUITE) == 3.0
    del scores["STS16"]
    assert average(scores, STS_SUITE) is printed_average(scores, STS_SUITE) is None
    assert average(scores, TRANSFER_SUITE) is None


def test_the_printed_average_is_that_of_scores_with_two_decimals() -> None:
    # The mean is 70.004; that of 70.01 and six times 70.00 is 70.0014.
    scores = _scores(70.0064, *[70.0036] * 6)
    assert average(scores, STS_SUITE) == pytest.approx(70.004)
    assert printed_average(scores, STS_SUITE) == 70.0
    # Each is rounded up, so that the average is as well.
    scores = _scores(*[70.0051] * 6, 70.0301)
    assert f"{average(scores, STS_SUITE):.3f}" == "70.009"
    assert printed_average(scores, STS_SUITE) == 70.01
    scores = _scores(*[81.575] * 7)
    assert printed_average(scores, STS_SUITE) == float(f"{81.575:.2f}")


def test_tables_have_two_decimals_and_say_what_is_missing() -> None:
    scores = {"STSBenchmark": Scores(82.0349, "spearman", {})}
    missing = {"STS12": "there is no file x"}
    assert render_tables(scores, missing, "test").splitlines() == [
        "------ test ------",
        "+-------+--------------+------+",
        "| STS12 | STSBenchmark | Avg. |",
        "+-------+--------------+------+",
        "|   -   |    82.03     |  -   |",
        "+-------+--------------+------+",
        "STS12 is missing: there is no file x",
    ]


def test_sts_transfer_and_all_else_have_tables_of_their_own() -> None:
    transfer = {name: Scores(80.0, "accuracy", {}) for name in TRANSFER_SUITE}
    scores = transfer | {"my": Scores(50.0, "spearman", {})} | _scores(*[70.0] * 7)
    assert render_tables(scores, {}, "fasttest").splitlines() == [
        "------ fasttest ------",
        "+-------+-------+-------+-------+-------+--------------+-----------------+-------+",
        "| STS12 | STS13 | STS14 | STS15 | STS16 | STSBenchmark | SICKRelatedness | Avg.  |",
        "+-------+-------+-------+-------+-------+--------------+-----------------+-------+",
        "| 70.00 | 70.00 | 70.00 | 70.00 | 70.00 |    70.00     |      70.00      | 70.00 |",
        "+-------+-------+-------+-------+-------+--------------+-----------------+-------+",
        "+-------+-------+-------+-------+-------+-------+-------+-------+",
        "|  MR   |  CR   | SUBJ  | MPQA  | SST2  | TREC  | MRPC  | Avg.  |",
        "+-------+-------+-------+-------+-------+-------+-------+-------+",
        "| 80.00 | 80.00 | 80.00 | 80.00 | 80.00 | 80.00 | 80.00 | 80.00 |",
        "+-------+-------+-------+-------+-------+-------+-------+-------+",
        "+-------+",
        "|  my   |",
        "+-------+",
        "| 50.00 |",
        "+-------+",
    ]


def test_dev_scores_of_sts_have_no_average_and_those_of_transfer_have() -> None:
    scores = {name: Scores(80.0, "spearman", {}) for name in ("STSBenchmark", "SICKRelatedness")}
    scores |= {name: Scores(70.0, "accuracy", {}) for name in TRANSFER_SUITE}
    lines = render_tables(scores, {}, "dev").splitlines()
    assert lines[2] == "| STSBenchmark | SICKRelatedness |"
    assert lines[7].endswith("| MRPC  | Avg.  |")
    assert lines[9].endswith("| 70.00 | 70.00 |")


def test_markdown_has_the_same_tables() -> None:
    scores = {"CR": Scores(82.156, "accuracy", {}), "STS12": Scores(72.37, "spearman", {})}
    missing = {"MR": "there is no folder of MR in data"}
    assert render_markdown("minilm, test", scores, missing, "test") == (
        "## minilm, test\n\n"
        "| STS12 | Avg. |\n| ---: | ---: |\n| 72.37 | - |\n\n"
        "| MR | CR | Avg. |\n| ---: | ---: | ---: |\n| - | 82.16 | - |\n\n"
        "- MR is missing: there is no folder of MR in data\n"
    )
