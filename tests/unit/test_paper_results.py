"""From the paper's rows to their models, their numbers, and how both are shown."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from pipelines.paper import results, rows, runs
from pipelines.paper.measures import Bench, Finding, Outcome, draw, of_path
from pipelines.paper.models import RowModels
from pipelines.paper.rows import STSB_DEV, Elsewhere, Row
from pipelines.paper.texts import GivenTexts
from simcse import metrics
from simcse.encoder import SentenceEncoder
from simcse.evaluation import LoadedSets
from simcse.whitening import Whitening
from simcse_platform.storage import RunFolder
from simcse_platform.sweep.execute import FinishedSweep
from simcse_platform.sweep.sweep import TrialResult
from support.paper import EMBEDDER, Lines, bench, plan, sts_set, table


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    file = tmp_path / "corpus.txt"
    file.write_text("a dog\n")
    return file


def test_models_are_measured_by_the_aggregation_of_their_row(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = bench("sts", monkeypatch)
    assert found.missing == {"STS14": "no file"}
    assert found.data_sha256 == {"STS12": "ab", "STSBenchmark": "ab"}
    numbers = sts_set("STS12").score(table()).numbers["spearman"]
    for aggregation in ("all", "wmean"):
        row = Row("x", Elsewhere(), {}, aggregation)  # type: ignore[arg-type]
        measured = found.measure(EMBEDDER, row).numbers
        assert measured == pytest.approx(
            {
                "STS12": numbers[aggregation],
                "STSBenchmark": numbers[aggregation],
                "mean of 2": numbers[aggregation],
            }
        )
    assert numbers["all"] != numbers["wmean"]


def test_a_dev_score_has_the_papers_name_only_on_the_papers_set(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = bench("dev", monkeypatch)
    assert found.kind == "dev"
    row = Row("x", Elsewhere(), {})
    want = sts_set("STSBenchmark").score(table()).headline
    assert found.measure(EMBEDDER, row).numbers == pytest.approx({STSB_DEV: want})
    other = Bench(
        "dev",
        dev_sets=LoadedSets([sts_set("DemoPairs")], {}, {}),
        data=None,
        captions=list,
    )
    assert other.of_dev(70.0) == {"DemoPairs dev": 70.0}


def test_neighbours_are_the_nearest_captions_without_the_query(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    random = np.random.default_rng(0)
    captions = [f"caption {i}" for i in range(20)]
    vectors = {caption: tuple(random.normal(size=2)) for caption in captions}
    found = bench("neighbours", monkeypatch, captions)
    neighbours = found.measure(Lines(vectors), Row("x", Elsewhere(), {})).neighbours
    assert len(neighbours) == 2
    unit = metrics.unit_rows(np.array(list(vectors.values()), np.float32))
    for query, nearest in neighbours:
        cosines = {
            caption: float(unit[captions.index(query)] @ unit[place])
            for place, caption in enumerate(captions)
            if caption != query
        }
        best = sorted(cosines, key=lambda caption: -cosines[caption])[:3]
        assert [found.sentence for found in nearest] == best
        assert [found.cosine for found in nearest] == pytest.approx([cosines[c] for c in best])


def test_seeds_give_mean_and_deviation() -> None:
    row = Row("x", Elsewhere(), {})
    two = Outcome(row=row, found=[Finding({"a": 3.0}), Finding({"a": 1.0})])
    assert (two.mean(), two.deviation()) == ({"a": 2.0}, {"a": pytest.approx(2**0.5)})
    one = Outcome(row=row, found=[Finding({"a": 3.0})])
    assert (one.mean(), one.deviation()) == ({"a": 3.0}, {})
    assert Outcome(row=row, note="none").mean() == {}


def test_a_run_is_shown_by_its_score_and_both_ends_of_its_way() -> None:
    measured = of_path({STSB_DEV: 80.0}, [(-1.0, 0.2), (-2.0, 0.3)])
    assert measured.numbers == {
        STSB_DEV: 80.0,
        **{"uniformity start": -1.0, "alignment start": 0.2},
        **{"uniformity end": -2.0, "alignment end": 0.3},
    }
    comparison = rows.find("figure2")
    outcomes = [Outcome(row=row, found=[measured]) for row in comparison.rows[:2]]
    axes = draw(comparison, outcomes)["figure2"].axes[0]
    assert [line.get_label() for line in axes.lines] == ["unsupervised SimCSE", "no dropout"]
    assert draw(rows.find("table3"), outcomes) == {}


def test_the_papers_numbers_stand_above_ours(
    tiny_encoder: Path,
    corpus: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    comparison = rows.find("table7")
    first, second, third, *others = comparison.rows
    outcomes = [
        Outcome(row=first, found=[Finding({STSB_DEV: 80.0}), Finding({STSB_DEV: 79.0})]),
        Outcome(row=second, note="no NLI data: give --nli or --triplets"),
        Outcome(row=third, failure="the encoder has collapsed", runs=["table7-1234"]),
        *(Outcome(row=row, note="not made here") for row in others),
    ]
    given = GivenTexts(nli=("nli.tsv",))
    user = runs.user_run(comparison, "small", str(tiny_encoder), [str(corpus)], None, None, [])
    result = results.result_of(
        comparison, "small", user, ["max_steps=3"], given, outcomes, bench("sts", monkeypatch)
    )
    assert json.loads(json.dumps(result)) == {**result, "texts": {**result["texts"], **LISTS}}
    assert result["rows"][0]["published"] == {STSB_DEV: 84.9}
    assert result["rows"][0]["ours"] == {STSB_DEV: 79.5}
    assert result["rows"][2]["runs"] == ["table7-1234"]
    assert result["texts"]["nli"] == ("nli.tsv",)
    results.show(result)
    shown = capsys.readouterr().out
    where = "/".join(tiny_encoder.parts[-2:])
    assert f"ours: scaled down, not the paper's, and max_steps=3, on {where}\n" in shown
    lines = [line.replace("│", " ").split() for line in shown.splitlines()]
    assert ["no", "hard", "negatives", "paper", "84.90"] in lines
    assert ["ours", "79.50", "±", "0.71"] in lines
    assert "\ncontradiction, alpha 0.5: no NLI data: give --nli or --triplets\n" in shown
    assert "\nfailed: contradiction, alpha 1.0: the encoder has collapsed\n" in shown
    assert "STS14 is missing: no file" in shown


@pytest.mark.parametrize(("name", "note"), [("table5", "measured; "), ("figure3", "")])
def test_what_is_known_of_a_published_score_joins_the_note(
    tiny_encoder: Path,
    corpus: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    name: str,
    note: str,
) -> None:
    comparison, mistaken = rows.find(name), "BERT-base (first-last avg.)"
    outcomes = [Outcome(row=row, note=note.removesuffix("; ")) for row in comparison.rows]
    user = runs.user_run(comparison, "small", str(tiny_encoder), [str(corpus)], None, None, [])
    result = results.result_of(
        comparison, "small", user, [], GivenTexts(), outcomes, bench("sts", monkeypatch)
    )
    notes = {row["row"]: row["note"] for row in result["rows"]}
    said = notes.pop(mistaken)
    assert said.startswith(f"{note}the published average, 56.70, took the embedding layer")
    assert said.endswith("the authors' code gives 60.73")
    assert set(notes.values()) == {note.removesuffix("; ")}
    results.show(result)
    assert f"\n{mistaken}: {said}\n" in capsys.readouterr().out


LISTS = {
    **{name: [] for name in ("documents", "triplets", "paraphrases", "captions")},
    "nli": ["nli.tsv"],
}


class Stub:
    """A text source, of which only whitening is asked."""

    def __init__(self, sentences: list[str], *, of_nli: bool = False) -> None:
        self._found = sentences, of_nli

    def whitening(self, count: int) -> tuple[list[str], bool]:
        sentences, of_nli = self._found
        return sentences[:count], of_nli


def trial(name: str, seed: int, score: float | None, **assignments: str) -> TrialResult:
    return TrialResult(
        name=name,
        assignments={**assignments, "seed": str(seed)},
        status="failed" if score is None else "finished",
        reason="" if score is not None else "the encoder has collapsed",
        score=score,
        run_id=name,
    )


def row_models(
    tiny_encoder: Path,
    corpus: Path,
    found: Bench,
    *trials: TrialResult,
    named: Mapping[str, str] | None = None,
    sentences: Sequence[str] = (),
    name: str = "table3",
) -> RowModels:
    finished = FinishedSweep(RunFolder(corpus.parent / "runs" / "sweep"), "", "", trials, [])
    return RowModels(
        scale="small",
        texts=Stub(list(sentences)),  # type: ignore[arg-type]
        named=named or {},
        planned=plan(name, "small", tiny_encoder, corpus, lacking="triplets"),
        finished=finished,
        bench=found,
        output=corpus.parent,
        tracking=None,
    )


def test_a_trained_row_has_the_scores_of_its_seeds_and_says_which_failed(
    tiny_encoder: Path, corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, third, *_ = rows.find("table3").rows
    trials = [
        trial("a", 1, 80.0),
        trial("b", 2, 82.0),
        trial("c", 1, None, **planned_point(second, tiny_encoder, corpus)),
        trial("d", 1, 70.0, **planned_point(third, tiny_encoder, corpus)),
        trial("e", 2, None, **planned_point(third, tiny_encoder, corpus)),
    ]
    made = row_models(tiny_encoder, corpus, bench("dev", monkeypatch), *trials)
    sizes = {**made.planned.sizes, first.label: "its text has 3 pairs"}
    made = replace(made, planned=replace(made.planned, sizes=sizes))
    outcome = made.outcome(first)
    assert outcome.note == "its text has 3 pairs"
    assert [one.numbers for one in outcome.found] == [{STSB_DEV: 82.0}, {STSB_DEV: 80.0}]
    assert (outcome.failure, outcome.runs) == ("", ["a", "b"])
    outcome = made.outcome(second)
    assert (outcome.found, outcome.failure) == ([], "the encoder has collapsed")
    outcome = made.outcome(third)
    assert [one.numbers for one in outcome.found] == [{STSB_DEV: 70.0}]
    assert outcome.failure == "1 of 2 seeds: the encoder has collapsed"


def planned_point(row: Row, tiny_encoder: Path, corpus: Path) -> Mapping[str, str]:
    return plan("table3", "small", tiny_encoder, corpus).points[row.label]


def test_models_that_are_not_trained_are_measured_as_they_are(
    tiny_encoder: Path, corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    by_label = {row.label: row for row in rows.find("table5").rows}
    own = SentenceEncoder.load(tiny_encoder, pooling="avg")
    own.save(corpus.parent / "own")
    sentences = [f"the {a} {b}" for a in ("dog", "cat", "sea", "sun") for b in "abcdefghijklmno"]
    made = row_models(
        tiny_encoder,
        corpus,
        bench("sts", monkeypatch),
        named={
            "SBERT-base": str(corpus.parent / "own"),
            "IS-BERT-base": str(corpus.parent / "none"),
        },
        sentences=sentences,
        name="table5",
    )
    start = SentenceEncoder.load(tiny_encoder, pooling="avg_first_last")
    plain = made.outcome(by_label["BERT-base (first-last avg.)"])
    assert plain.found == [made.bench.measure(start, plain.row)]
    start.whitening = Whitening.fit(start.encode(sentences)).layer()
    whitened = made.outcome(by_label["BERT-base-whitening"])
    assert whitened.found[0].numbers == pytest.approx(
        dict(made.bench.measure(start, whitened.row).numbers)
    )
    assert whitened.note == "whitened on the corpus, for want of NLI sentences"
    named = made.outcome(by_label["SBERT-base"])
    assert named.found == [made.bench.measure(own, named.row)]
    absent = made.outcome(by_label["GloVe embeddings (avg.)"])
    assert (absent.found, absent.note) == ((), "not made here: name one by --model ROW=MODEL")
    lacking = made.outcome(by_label["SimCSE-BERT-base, supervised"])
    assert (lacking.found, lacking.note) == ((), "no triplets")
    # The error of one row is that row's.
    wrong = made.outcome(by_label["IS-BERT-base"])
    assert wrong.found == ()
    assert "none" in wrong.failure
    few = row_models(tiny_encoder, corpus, made.bench, sentences=["a", "b"], name="table5").outcome(
        by_label["BERT-base-whitening"]
    )
    assert few.failure.startswith("2 sentences are too few")


def test_a_trained_models_scores_are_kept(
    tiny_encoder: Path, corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = next(row for row in rows.find("table5").rows if "unsupervised" in row.label)
    found = bench("sts", monkeypatch)
    made = row_models(tiny_encoder, corpus, found, trial("a", 1, 80.0), name="table5")
    folder = corpus.parent / "runs" / "a" / "best"
    encoder = SentenceEncoder.load(tiny_encoder, pooling="cls_before_pooler")
    encoder.save(folder)
    want = found.measure(encoder, row)
    assert made.outcome(row).found == [want]
    monkeypatch.setattr(Bench, "score", None)
    assert made.outcome(row).found == [want]
