"""`simcse report` on what is recorded on SQLite: a run, a sweep, models, and what is none."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient

from pipelines.paper.published import PUBLISHED_STS
from simcse.encoder import SentenceEncoder
from simcse.evaluation import STS_SUITE, evaluate
from simcse.evaluation.sts_files import read_tsv
from simcse_platform.sweep.space import parse
from simcse_platform.sweep.sweep import SearchPlan, TrialResult
from simcse_platform.tracking.champions import promote
from simcse_platform.tracking.location import tracking_uri
from simcse_platform.tracking.promotion import Comparison, Measured
from simcse_platform.tracking.registry import register_folder
from support.command_line import CommandLine
from support.recorded import record_run, record_sweep, run_settings, write_pairs

HOSTILE = "<script>alert(1)</script>"
NAME = "my-encoder"
SEARCH = ["objective.temperature=0.05,0.2", "optim.learning_rate=1e-5,1e-4"]


class Recorded:
    """A folder of runs with a run, a sweep and a registered model, all from one tiny encoder."""

    def __init__(self, folder: Path, encoder: Path) -> None:
        self.output, self.encoder = folder / "runs", encoder
        self.pairs = write_pairs(folder / "pairs.tsv", hostile=HOSTILE)
        run = run_settings(encoder, self.pairs)
        self.run = record_run(self.output, "mine", run)
        space = parse(SEARCH, run)
        points = [(t, r) for t in ("0.05", "0.2") for r in ("1e-5", "1e-4")]
        results = [
            TrialResult(
                name=f"sweep-{place}",
                assignments={"objective.temperature": t, "optim.learning_rate": r},
                status="failed" if place == 3 else "finished",
                reason=HOSTILE if place == 3 else "",
                rows=0 if place == 3 else 640,
                score=None if place == 3 else 70.0 - place,
                scores=None if place == 3 else {"dev_pairs_spearman": 70.0 - place},
                run_id=None,
            )
            for place, (t, r) in enumerate(points)
        ]
        plan = SearchPlan(sampler="grid")
        self.sweep = record_sweep(self.output, "sweep", run, space, plan, results)
        self.uri = tracking_uri(None, self.output)

    def artifact(self, run_id: str, folder: Path, name: str = "report.html") -> str:
        path = MlflowClient(self.uri).download_artifacts(run_id, name, str(folder))
        return Path(path).read_text()


@pytest.fixture(scope="module")
def recorded(tiny_encoder: Path, tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    return Recorded(tmp_path_factory.mktemp("recorded"), tiny_encoder)


def cells(text: str, caption: str) -> list[list[str]]:
    """The rows of the table with that caption, as they are read."""
    (table,) = (part for part in text.split("<table")[1:] if f"<caption>{caption}" in part)
    body = table[table.index("<tbody>") : table.index("</tbody>")]
    return [re.findall(r"<td.*?>(.*?)</td>", row) for row in body.split("<tr")[1:]]


def titles(text: str) -> list[str]:
    return re.findall(r"<h2.*?>(.*?)</h2>", text)


def test_the_page_of_a_run_tells_it_whole(
    simcse: CommandLine, recorded: Recorded, tmp_path: Path
) -> None:
    done = simcse(
        *("report", "mine", "--output", recorded.output, "--json", tmp_path / "report.json")
    )
    assert (done.code, done.err) == (0, "")
    file = recorded.run.path / "report.html"
    text, summary = file.read_text(), json.loads((recorded.run.path / "summary.json").read_text())
    assert titles(text) == [
        "The run",
        "Dev scores",
        "Curves",
        "Scores",
        "How the vectors lie",
        "Nearest neighbours",
        "Configuration",
        "Lineage",
    ]
    assert re.findall("<figcaption>(.*?)</figcaption>", text) == [
        "Loss",
        "Dev scores",
        "Uniformity of the dev sentences",
        "Alignment of the positive dev pairs",
        "Gradient norm",
        "Throughput",
        "Alignment against uniformity",
        "Singular values",
        "Cosines of pairs by their grade",
    ]
    best = summary["best"]["scores"]["dev_pairs_spearman"]
    assert cells(text, "x 100; best is") == [
        ["dev_pairs_spearman", f"{best - 20:.2f}", f"{best:.2f}", f"{best:.2f}"]
    ]
    assert cells(text, "Other sets") == [["pairs", "spearman", f"{best:.2f}"]]
    for fact in ("/data/corpus.txt (640 rows)", "720.0 rows/s, 6,480 tokens/s", "812 MiB"):
        assert f"<dd>{fact}</dd>" in text
    assert "<dd>90.0%</dd>" in text
    assert "<dd>2.0%</dd>" in text
    assert summary["run_id"] in text
    changed = {row[0]: row[1] for row in cells(text, "Settings that are not the defaults")}
    assert changed["optim.learning_rate"] == "0.0001"
    assert "epochs" not in changed
    assert "ee11" * 16 in text
    assert f"simcse report {recorded.run.path} --tasks sts" in text

    result = json.loads((tmp_path / "report.json").read_text())
    assert (result["kind"], result["html"], result["logged"]) == ("run", str(file), True)
    assert result["scores"]["tasks"]["pairs"]["spearman"]["all"] == pytest.approx(best)
    assert len(result["neighbours"]) == 5
    for example in result["neighbours"]:
        for neighbour in example["neighbours"]:
            assert f'<span class="cosine">{neighbour["cosine"]:.3f}</span>' in text
    assert recorded.artifact(summary["run_id"], tmp_path) == text


def test_what_people_wrote_stays_text(simcse: CommandLine, recorded: Recorded) -> None:
    for name in ("mine", "sweep"):
        assert simcse("report", name, "--output", recorded.output).code == 0
        text = (recorded.output / name / "report.html").read_text()
        assert text.count("<script>") == 1
        assert HOSTILE not in text
    assert "failed: &lt;script&gt;alert(1)&lt;/script&gt;" in text


def test_a_sentence_is_encoded_once(
    simcse: CommandLine, recorded: Recorded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoded: list[str] = []
    encode = SentenceEncoder.encode

    def counted(self: SentenceEncoder, sentences: list[str], **options: Any) -> Any:
        encoded.extend(sentences)
        return encode(self, sentences, **options)

    monkeypatch.setattr(SentenceEncoder, "encode", counted)
    done = simcse("report", recorded.run.path, "--html", tmp_path / "page.html")
    assert (done.code, done.err) == (0, "")
    assert len(encoded) == len(set(encoded)) == 56


def test_a_run_from_before_geometry_was_kept_is_measured_anew(
    simcse: CommandLine, recorded: Recorded, tmp_path: Path
) -> None:
    old = tmp_path / "runs" / "old"
    shutil.copytree(recorded.run.path, old)
    summary = json.loads((old / "summary.json").read_text())
    del summary["best"]["geometry"]
    (old / "summary.json").write_text(json.dumps(summary))
    assert simcse("report", "old", "--output", old.parent, "--tracking", recorded.uri).code == 0
    new = recorded.output / "mine" / "report.html"
    assert simcse("report", "mine", "--output", recorded.output).code == 0
    wanted = re.findall("<dt>(?:uniformity|effective rank)</dt><dd>(.*?)</dd>", new.read_text())
    found = (old / "report.html").read_text()
    assert re.findall("<dt>(?:uniformity|effective rank)</dt><dd>(.*?)</dd>", found) == wanted
    assert len(wanted) == 2


def test_a_record_out_of_reach_costs_the_curves_and_not_the_page(
    simcse: CommandLine, recorded: Recorded, tmp_path: Path
) -> None:
    moved = tmp_path / "moved" / "mine"
    shutil.copytree(recorded.run.path, moved)
    done = simcse("report", moved, "--json", tmp_path / "report.json")
    assert (done.code, done.err) == (0, "")
    database = moved.parent / "mlflow.db"
    why = f"there is no tracking database {database}: name it by --tracking"
    assert f"no curves and no artifact: {why}" in done.out
    assert not database.exists()
    text = (moved / "report.html").read_text()
    assert f"There are none: {why}." in text
    assert "<figcaption>Loss" not in text
    assert json.loads((tmp_path / "report.json").read_text())["logged"] is False


def test_test_sets_stand_beside_the_published_scores(
    simcse: CommandLine, recorded: Recorded, data_dir: Path, tmp_path: Path
) -> None:
    done = simcse(
        *("report", "mine", "--output", recorded.output, "--tasks", "SICKRelatedness,STS14"),
        *("--data", data_dir, "--html", tmp_path / "page.html", "--json", tmp_path / "page.json"),
    )
    assert (done.code, done.err) == (0, "")
    text = (tmp_path / "page.html").read_text()
    scores = json.loads((tmp_path / "page.json").read_text())["scores"]
    own, *others = cells(text, "STS: Spearman x 100")
    sick = f"{scores['tasks']['SICKRelatedness']['spearman']['all']:.2f}"
    assert own == ["mine", "-", "-", "-", "-", "-", "-", sick, "-"]
    assert [row[0] for row in others] == [*PUBLISHED_STS]
    for row, published in zip(others, PUBLISHED_STS.values(), strict=True):
        assert row[1:] == [f"{published[name]:.2f}" for name in (*STS_SUITE, "Avg.")]
    missing = f"STS14 is missing: {scores['missing_reasons']['STS14']}"
    assert f"{missing}." in text
    assert missing in done.out


def test_the_page_of_a_sweep_has_its_trials_and_the_best_run(
    simcse: CommandLine, recorded: Recorded, tmp_path: Path
) -> None:
    done = simcse(
        *("report", "sweep", "--output", recorded.output, "--json", tmp_path / "report.json")
    )
    assert (done.code, done.err) == (0, "")
    text = (recorded.sweep.path / "report.html").read_text()
    assert titles(text)[:5] == [
        "The sweep",
        "Trials",
        "Scores over the settings",
        "Best trial: sweep-0",
        "Dev scores",
    ]
    assert cells(text, "The best first") == [
        ["sweep-0", "0.05", "1e-5", "640", "70.00", "finished"],
        ["sweep-1", "0.05", "1e-4", "640", "69.00", "finished"],
        ["sweep-2", "0.2", "1e-5", "640", "68.00", "finished"],
        ["sweep-3", "0.2", "1e-4", "0", "-", "failed: &lt;script&gt;alert(1)&lt;/script&gt;"],
    ]
    figures = re.findall("<figcaption>(.*?)</figcaption>", text)
    assert figures[:2] == ["Dev score by setting", "Trials through their settings"]
    result = json.loads((tmp_path / "report.json").read_text())
    assert (result["kind"], result["best"], result["logged"]) == ("sweep", "sweep-0", True)
    assert recorded.artifact(result["run_id"], tmp_path) == text


def test_seeds_have_a_table_of_their_own(
    simcse: CommandLine, recorded: Recorded, tmp_path: Path
) -> None:
    run = run_settings(recorded.encoder, recorded.pairs)
    results = [
        TrialResult(
            name=f"seeds-{seed}",
            assignments={"seed": str(seed)},
            status="finished",
            score=score,
            scores={"dev_pairs_spearman": score},
        )
        for seed, score in ((1, 60.0), (2, 64.0))
    ]
    run = run.model_copy(update={"tracking": run.tracking.model_copy(update={"uri": recorded.uri})})
    record_sweep(tmp_path, "seeds", run, {}, SearchPlan(sampler="grid", seeds=2), results)
    shutil.move(tmp_path / "seeds-1", tmp_path / "gone")
    done = simcse("report", "seeds", "--output", tmp_path)
    assert (done.code, done.err) == (0, "")
    text = (tmp_path / "seeds" / "report.html").read_text()
    assert cells(text, "Dev score; the best mean first") == [
        ["2", "62.00", "2.83", "60.00", "64.00"]
    ]
    assert "There is nothing to show: the folder of seeds-2 is not there." in text


def test_the_page_of_a_registered_version_says_where_it_stands(
    simcse: CommandLine, recorded: Recorded, tmp_path: Path
) -> None:
    version = register_folder(recorded.uri, NAME, recorded.run.path / "best")
    place = f"models:/{NAME}@challenger"
    report = (
        *("report", place, "--output", recorded.output, "--tasks", recorded.pairs),
        *("--html", tmp_path / "page.html", "--json", tmp_path / "page.json"),
    )
    done = simcse(*report)
    assert (done.code, done.err) == (0, "")
    text = (tmp_path / "page.html").read_text()
    assert titles(text) == [
        "In the registry",
        "Scores",
        "How the vectors lie",
        "Nearest neighbours",
        "Description",
        "Lineage",
    ]
    assert "Nobody has tried to promote it." in text
    tags = dict(cells(text, "Tags of the version"))
    assert tags["pooling"] == "avg"
    assert (
        recorded.artifact(version.run_id, tmp_path, f"report-{NAME}-{version.version}.html") == text
    )

    def compare(champion: Path | None, challenger: Path) -> Comparison:
        return Comparison(
            champion=None,
            challenger=Measured(headlines={"STS12": 61.5}, samples={}),
            data_sha256={"STS12.csv": "00ff"},
        )

    promote(recorded.uri, NAME, compare=compare, cache=recorded.output / ".models")
    assert simcse(*report[:1], f"models:/{NAME}/1", *report[2:]).code == 0
    text = (tmp_path / "page.html").read_text()
    assert "<dt>aliases</dt><dd>champion</dd>" in text
    assert "<dt>last decision</dt><dd>promote: champion</dd>" in text
    assert "the first champion, average 61.50" in text
    wanted = evaluate(
        SentenceEncoder.load(recorded.run.path / "best"), [read_tsv(recorded.pairs, "test")[0]]
    )
    headline = f"{wanted.scores['pairs'].headline:.2f}"
    assert cells(text, "Other sets") == [["pairs", "spearman", headline]]


def test_a_model_folder_is_reported_where_the_command_runs(
    simcse: CommandLine, recorded: Recorded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = simcse("report", recorded.encoder, "--tasks", recorded.pairs, "--json", "r.json")
    # A plain encoder does not say how it is pooled.
    assert done.code == 2
    best = recorded.run.path / "best"
    done = simcse("report", best, "--tasks", recorded.pairs, "--json", "r.json")
    assert (done.code, done.err) == (0, "")
    result = json.loads((tmp_path / "r.json").read_text())
    assert (result["kind"], result["run_id"], result["logged"]) == ("model", None, False)
    assert result["html"] == str(tmp_path / "report.html")
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("what", ["run", "sweep"])
def test_what_is_not_finished_is_refused(simcse: CommandLine, tmp_path: Path, what: str) -> None:
    folder = tmp_path / "half"
    folder.mkdir()
    (folder / {"run": "run.yaml", "sweep": "sweep.yaml"}[what]).touch()
    refused = simcse("report", "half", "--output", tmp_path)
    assert refused.code == 2
    assert refused.error == (
        f"{what} half in {tmp_path} is not finished: repeat its command, which goes on with it, "
        "and report then"
    )


def test_what_is_nothing_is_refused(simcse: CommandLine, tmp_path: Path) -> None:
    refused = simcse("report", "nothing", "--output", tmp_path)
    assert refused.code == 2
    assert refused.error == (
        f"'nothing' is no run or sweep in {tmp_path}, no model folder and no models:/NAME@alias: "
        "check the name, or say by --output where runs are"
    )
    refused = simcse("report", tmp_path, "--tasks", "DemoPairs", "--html", tmp_path / "x.html")
    assert refused.error.startswith(f"model folder {tmp_path} has no config.json: ")


def test_damaged_files_are_named(simcse: CommandLine, recorded: Recorded, tmp_path: Path) -> None:
    for name, kind in (("mine", "run"), ("sweep", "sweep")):
        shutil.copytree(recorded.output / name, tmp_path / name)
        broken = tmp_path / name / {"run": "summary.json", "sweep": "trials.json"}[kind]
        broken.write_text("[{}]")
        refused = simcse("report", name, "--output", tmp_path)
        assert refused.code == 2
        if kind == "run":
            best = tmp_path / "mine" / "best"
            wanted = f"{broken} is damaged: report on the model folder {best} instead"
            assert refused.error == wanted
        else:
            assert refused.error.startswith(
                f"sweep sweep cannot be read from sweep.yaml and trials.json in {tmp_path / name} ("
            )
            assert refused.error.endswith(
                "): bring them back, or repeat its command under another --name"
            )


def test_results_need_files_of_their_own(simcse: CommandLine, tmp_path: Path) -> None:
    one = tmp_path / "one"
    refused = simcse("report", "mine", "--html", one, "--json", one)
    assert (refused.code, refused.error) == (
        2,
        f"--json and --html both name {one}: name two files",
    )
    refused = simcse("report", "mine", "--html", tmp_path)
    assert (refused.code, refused.error) == (2, f"--html {tmp_path} is a folder: name a file")
