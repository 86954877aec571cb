"""`simcse evaluate` as a user runs it: tables, JSON and Markdown of one evaluation."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from simcse.evaluation import TRANSFER_SUITE
from support.command_line import CommandLine


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """CR, whose classes have words of their own."""
    for path, count in TRANSFER_SUITE["CR"].items():
        file = tmp_path / "data" / "transfer" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        said = "fine good" if path.endswith("pos") else "bad broken"
        file.write_text("".join(f"{said} {i % 40}\n" for i in range(count)))
    return tmp_path / "data"


@pytest.fixture
def own(tmp_path: Path) -> Path:
    file = tmp_path / "my.tsv"
    rows = ("9\tA dog runs.\tA dog is running.", "1\tA dog runs.\tStocks fell.", "4\tRain.\tSnow.")
    file.write_text("score\tsentence1\tsentence2\n" + "".join(f"{row}\n" for row in rows))
    return file


def test_one_evaluation_is_shown_and_written_twice(
    simcse: CommandLine, tiny_encoder: Path, data: Path, own: Path, tmp_path: Path
) -> None:
    evaluated = simcse(
        *("evaluate", tiny_encoder, "--pooling", "avg", "--mode", "fasttest", "--data", data),
        *("--tasks", f"CR,SUBJ,{own}", "--json", tmp_path / "out.json"),
        *("--markdown", tmp_path / "out.md"),
    )
    assert (evaluated.code, evaluated.err) == (0, "")
    report = json.loads((tmp_path / "out.json").read_text())
    assert report["tasks"]["CR"].keys() == {"examples", "dev_accuracy", "accuracy"}
    assert report["tasks"]["CR"]["examples"] == 3775
    assert report["tasks"]["CR"]["accuracy"] > 99
    assert report["tasks"]["my"]["pairs"] == 3
    assert report["missing_reasons"] == {"SUBJ": f"there is no folder of SUBJ in {data}"}
    assert (report["mode"], report["avg"], report["avg_transfer"]) == ("fasttest", None, None)
    assert report["seconds"].keys() == {"embedding", "CR", "my"}
    assert report["data_sha256"].keys() == {"CR/custrev.pos", "CR/custrev.neg", "my.tsv"}
    accuracy, spearman = (
        f"{score:.2f}"
        for score in (report["tasks"]["CR"]["accuracy"], report["tasks"]["my"]["spearman"]["all"])
    )
    assert evaluated.out.splitlines()[-12:] == [
        "------ fasttest ------",
        f"+-{'-' * len(accuracy)}-+------+------+",
        f"| {'CR':^{len(accuracy)}} | SUBJ | Avg. |",
        f"+-{'-' * len(accuracy)}-+------+------+",
        f"| {accuracy} |  -   |  -   |",
        f"+-{'-' * len(accuracy)}-+------+------+",
        f"+-{'-' * len(spearman)}-+",
        f"| {'my':^{len(spearman)}} |",
        f"+-{'-' * len(spearman)}-+",
        f"| {spearman} |",
        f"+-{'-' * len(spearman)}-+",
        f"SUBJ is missing: there is no folder of SUBJ in {data}",
    ]
    assert (tmp_path / "out.md").read_text() == (
        f"## {tiny_encoder}, fasttest, pooling avg\n\n"
        f"| CR | SUBJ | Avg. |\n| ---: | ---: | ---: |\n| {accuracy} | - | - |\n\n"
        f"| my |\n| ---: |\n| {spearman} |\n\n"
        f"- SUBJ is missing: there is no folder of SUBJ in {data}\n"
    )


def test_geometry_compares_no_models(simcse: CommandLine, tmp_path: Path) -> None:
    refused = simcse("promote", "name", "--tasks", "geometry", "--output", tmp_path)
    assert refused.code == 2
    assert refused.error == (
        "geometry describes vectors and ranks no models, but a promotion compares on every set of "
        "--tasks"
    )


def test_a_result_that_cannot_be_written_is_refused_before_the_work(
    simcse: CommandLine, own: Path, tmp_path: Path
) -> None:
    for option in ("--json", "--markdown"):
        refused = simcse("evaluate", "no-model", "--tasks", own, option, tmp_path)
        assert refused.code == 2
        assert refused.error == f"{option} {tmp_path} is a folder: name a file"
