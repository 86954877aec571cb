"""The paper's rows: published numbers as they were, and a run for each row that is ours."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean

import numpy as np
import pytest

from pipelines import demo_data
from pipelines.paper import results, rows, runs
from pipelines.paper.measures import Bench, Finding, Outcome, draw, of_path
from pipelines.paper.models import RowModels
from pipelines.paper.published import (
    PUBLISHED_AGGREGATIONS,
    PUBLISHED_STS,
    PUBLISHED_TRANSFER,
)
from pipelines.paper.rows import COMPARISONS, STSB_DEV, Elsewhere, Row, Trained
from pipelines.paper.runs import PlannedRows, Scale
from pipelines.paper.texts import GivenTexts, NotAtHandError
from simcse import metrics
from simcse.encoder import SentenceEncoder
from simcse.errors import UsageError
from simcse.evaluation import LoadedSets, Pairs, STSSet
from simcse.whitening import Whitening
from simcse_platform.config import TrainRun, override
from simcse_platform.storage import RunFolder
from simcse_platform.sweep.execute import FinishedSweep
from simcse_platform.sweep.sweep import TrialResult
from support.command_line import CommandLine

# Their averages are not those of their own rows: the paper has both so.
OFF_IN_THE_PAPER = {"SBERT-base": 74.89, "BERT-base (avg.)": 84.94}


@pytest.mark.parametrize(
    ("table", "systems"),
    [(PUBLISHED_STS, 23), (PUBLISHED_AGGREGATIONS, 10), (PUBLISHED_TRANSFER, 21)],
)
def test_published_averages_are_those_of_their_rows(
    table: Mapping[str, Mapping[str, float]], systems: int
) -> None:
    assert len(table) == systems
    for label, scores in table.items():
        *by_set, average = scores.values()
        if OFF_IN_THE_PAPER.get(label) != average:
            assert fmean(by_set) == pytest.approx(average, abs=0.0051), label


def test_there_is_every_comparison_with_as_many_rows_as_the_paper_has() -> None:
    counts = {name: len(comparison.rows) for name, comparison in COMPARISONS.items()}
    assert counts == {
        **{"table1": 11, "table2": 8, "table3": 8, "table4": 17, "table5": 23, "table6": 8},
        **{"table7": 5, "table8": 2, "tableB": 10, "tableD1": 6, "tableD2": 4, "tableE1": 21},
        **{"figure2": 4, "figure3": 9, "figureF": 6, "figureG": 6, "batch": 12},
    }
    for comparison in COMPARISONS.values():
        labels = [row.label for row in comparison.rows]
        assert len(set(labels)) == len(labels)


class FilesByColumns:
    """`TrainingTexts` without preparing: a file with as many text columns as a row needs."""

    def __init__(self, folder: Path, lacking: str = "") -> None:
        self._folder, self._lacking = folder, lacking

    def settings(self, source: Trained, sample: int | None) -> tuple[str, ...]:
        if source.text == self._lacking:
            raise NotAtHandError(f"no {source.text}")
        if source.text == "sentences":
            return ()
        columns = {"documents": 1, "triplets": 3, "triplets-neutral": 4}
        names = "abcd"[: columns.get(source.text, 2)]
        file = self._folder / f"{source.text}.csv"
        file.write_text(",".join(names) + "\n" + ",".join(f"dog {n}" for n in names) + "\n")
        return (f"data.corpus={json.dumps([str(file)])}",)

    def sample_size(self) -> None:
        return None


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    file = tmp_path / "corpus.txt"
    file.write_text("a dog\n")
    return file


def plan(
    name: str,
    scale: Scale,
    encoder: Path,
    corpus: Path,
    *assignments: str,
    lacking: str = "",
    leave_out: tuple[str, ...] = (),
) -> PlannedRows:
    comparison, folder = rows.find(name), corpus.parent
    user = runs.user_run(
        comparison, scale, str(encoder), [str(corpus)], folder, None, list(assignments)
    )
    texts = FilesByColumns(folder, lacking)
    return runs.plan_rows(
        comparison,
        scale,
        user,
        texts,  # type: ignore[arg-type]
        list(assignments),
        leave_out=leave_out,
    )


def run_of(planned: PlannedRows, label: str) -> TrainRun:
    point = planned.points[label]
    return override(planned.base, [f"{path}={text}" for path, text in point.items()])


# Rows that need what the tiny encoder, a plain text or this machine does not have.
UNORDERED = "does not keep the order of its documents"
NO_MLM_HEAD = "masked-language"
NO_WORDNET = "wordnet"


@pytest.mark.parametrize("name", COMPARISONS)
@pytest.mark.parametrize("scale", ["paper", "small"])
def test_every_row_that_is_trained_has_a_run_that_can_begin(
    tiny_encoder: Path, corpus: Path, name: str, scale: Scale
) -> None:
    planned = plan(name, scale, tiny_encoder, corpus)
    for row in COMPARISONS[name].rows:
        if not isinstance(row.source, Trained):
            assert row.label not in planned.points | planned.notes
        elif (note := planned.notes.get(row.label)) is None:
            run_of(planned, row.label)
        elif row.source.text == "documents":
            assert UNORDERED in note
        elif any("synonyms" in text for text in row.source.settings):
            assert NO_WORDNET in note
        else:
            assert any("masked_language" in text for text in row.source.settings), row.label
            assert NO_MLM_HEAD in note
    assert planned.points


def test_a_scale_is_the_papers_own_or_as_many_rows_for_every_batch(
    tiny_encoder: Path, corpus: Path
) -> None:
    for scale in ("paper", "small"):
        planned = plan("batch", scale, tiny_encoder, corpus)  # type: ignore[arg-type]
        assert len(planned.points) == 12
        for label in planned.points:
            run = run_of(planned, label)
            _, batch, _, rate = label.replace(",", "").split()
            assert (run.global_batch_size, run.optim.learning_rate) == (int(batch), float(rate))
            if scale == "paper":
                assert (run.max_steps, run.epochs) == (None, 1)
            else:
                assert run.global_batch_size * (run.max_steps or 0) == runs.SMALL_ROWS
    supervised = run_of(plan("table7", "paper", tiny_encoder, corpus), "contradiction, alpha 2.0")
    assert supervised.objective.hard_negative_alpha == 2.0
    assert (supervised.global_batch_size, supervised.epochs) == (512, 3)
    assert (supervised.optim.learning_rate, supervised.encoder.head) == (5e-5, "always")
    assert supervised.encoder.model == str(tiny_encoder)


def test_rows_of_the_dropout_table_differ_in_dropout_alone(
    tiny_encoder: Path, corpus: Path
) -> None:
    planned = plan("table3", "small", tiny_encoder, corpus)
    found = {
        label: (run.encoder.dropout, run.views.allow_equal_views, run.views.fixed_dropout_mask)
        for label in planned.points
        for run in [run_of(planned, label)]
    }
    assert found == {
        "p = 0.0": (0, True, False),
        **{f"p = {rate}": (rate, False, False) for rate in (0.01, 0.05, 0.1, 0.15, 0.2, 0.5)},
        "fixed 0.1": (0.1, False, True),
    }
    # The first row is the base, which the others differ from in nothing else.
    assert planned.points["p = 0.0"] == {}
    differing = {path for point in planned.points.values() for path in point}
    assert differing == {
        *("encoder.dropout", "views.allow_equal_views", "views.fixed_dropout_mask")
    }


def test_a_supervised_table_is_not_about_the_sentences(tiny_encoder: Path, corpus: Path) -> None:
    base = plan("tableD1", "paper", tiny_encoder, corpus).base
    assert base.data.corpus == (str(corpus.parent / "triplets.csv"),)
    assert base.encoder.head == "always"


def test_the_users_settings_have_the_last_word_but_on_what_is_compared(
    tiny_encoder: Path, corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pooled = ("encoder.pooling=avg", "encoder.head=none", "max_steps=7")
    planned = plan("table7", "paper", tiny_encoder, corpus, *pooled)
    for label in planned.points:
        run = run_of(planned, label)
        assert (run.encoder.pooling, run.encoder.head, run.max_steps) == ("avg", "none", 7)
    # What is relative is so to where the command was given.
    monkeypatch.chdir(tiny_encoder.parent)
    named = plan("table3", "small", tiny_encoder, corpus, f"encoder.model={tiny_encoder.name}")
    assert run_of(named, "p = 0.2").encoder.model == str(tiny_encoder)
    for name, assignment in (
        ("tableD1", "objective.temperature=0.1"),
        ("table3", "encoder.dropout=0.2"),
        ("batch", "global_batch_size=32"),
        ("figure2", "dev.every=250"),
    ):
        path = assignment.partition("=")[0]
        with pytest.raises(
            UsageError, match=rf"^{path} is what {name} compares: leave it out of --set$"
        ):
            plan(name, "small", tiny_encoder, corpus, assignment)
    with pytest.raises(UsageError, match=r"^data.corpus differs between rows: name sentences by"):
        plan("table3", "small", tiny_encoder, corpus, "data.corpus=[x.txt]")


def test_a_row_whose_text_is_not_at_hand_says_so_and_no_row_at_all_is_an_error(
    tiny_encoder: Path, corpus: Path
) -> None:
    planned = plan("table6", "small", tiny_encoder, corpus, lacking="triplets")
    assert set(planned.notes.values()) == {"no triplets"}
    assert len(planned.points) == len(planned.notes) == 4
    with pytest.raises(UsageError, match=r"^no row of tableD1 can be trained: no triplets$"):
        plan("tableD1", "small", tiny_encoder, corpus, lacking="triplets")
    # A row that the user names a model for is not trained, and others may need no training.
    named = plan(
        "table6", "small", tiny_encoder, corpus, leave_out=("[CLS] with MLP, unsupervised",)
    )
    assert len(named.points) == 7
    plan("figureF", "small", tiny_encoder, corpus, lacking="triplets")


class Lines:
    """Vectors of two numbers by sentence."""

    def __init__(self, vectors: Mapping[str, tuple[float, float]]) -> None:
        self._vectors = vectors

    def encode(self, sentences, *, progress=None):
        return np.array([self._vectors[sentence] for sentence in sentences], np.float32)


def sts_set(name: str, split: str = "dev") -> STSSet:
    one = Pairs(("a", "a", "b"), ("b", "c", "d"), np.array([5.0, 1.0, 3.0]))
    two = Pairs(("c", "b"), ("d", "c"), np.array([5.0, 0.0]))
    return STSSet(name=name, split=split, subsets={"one": one, "two": two})


EMBEDDER = Lines({"a": (1, 0), "b": (1, 0.4), "c": (0, 1), "d": (0.6, 1)})


def bench(measure: str, monkeypatch: pytest.MonkeyPatch, captions: list[str] | None = None):
    """With `sts_set` in place of every set that is asked for, and STS14 missing."""

    def load(tasks, *, data, mode):
        names = {"sts": ["STS12", "STSBenchmark"], "transfer": [], "geometry": []}[tasks[0]]
        return LoadedSets(
            [sts_set(n, mode) for n in names], {"STS14": "no file"}, dict.fromkeys(names, "ab")
        )

    monkeypatch.setattr("pipelines.evaluation_sets.load", load)
    return Bench(
        measure,  # type: ignore[arg-type]
        dev_sets=LoadedSets([sts_set("STSBenchmark")], {}, {"STSBenchmark": "cd"}),
        data=None,
        captions=lambda: captions or [],
    )


def test_models_are_measured_by_the_aggregation_of_their_row(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = bench("sts", monkeypatch)
    assert found.missing == {"STS14": "no file"}
    assert found.data_sha256 == {"STS12": "ab", "STSBenchmark": "ab"}
    numbers = sts_set("STS12").score(_table()).numbers["spearman"]
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


def _table():
    from simcse.evaluation import EmbeddingTable

    return EmbeddingTable(list("abcd"), EMBEDDER.encode("abcd"))


def test_a_dev_score_has_the_papers_name_only_on_the_papers_set(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = bench("dev", monkeypatch)
    assert found.kind == "dev"
    row = Row("x", Elsewhere(), {})
    want = sts_set("STSBenchmark").score(_table()).headline
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


LISTS = {
    **{name: [] for name in ("documents", "triplets", "paraphrases", "captions")},
    "nli": ["nli.tsv"],
}


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["tabel3"], "there is no comparison 'tabel3': did you mean table3? There are table1, "),
        (
            ["table8", "--model", "SBERT=x"],
            "--model 'SBERT=x' names no row of table8: write ROW=MODEL, ROW being one of "
            "SBERT-base; supervised SimCSE",
        ),
        (["table3"], "there is nothing to train on: give --corpus PATH or set data.corpus"),
        (["table8", "--scale", "small"], "no captions: give --captions"),
    ],
)
def test_what_cannot_be_reproduced_is_said_before_anything_begins(
    simcse: CommandLine,
    monkeypatch: pytest.MonkeyPatch,
    tiny_encoder: Path,
    tmp_path: Path,
    arguments: list[str],
    error: str,
) -> None:
    text = tmp_path / "sentences.txt"
    text.write_text("a dog\n")
    monkeypatch.setattr(demo_data, "minilm_folder", lambda: tiny_encoder)
    monkeypatch.setattr(demo_data, "sentences_path", lambda: text)
    monkeypatch.setattr(demo_data, "sentences_file", lambda: text)
    monkeypatch.chdir(tmp_path)
    failed = simcse("reproduce", *arguments, "--set", "dev.tasks=[DemoPairs]")
    assert failed.error.startswith(error)
    assert not (tmp_path / "runs").exists()


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
    outcome = made.outcome(first)
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


def test_pictures_leave_out_rows_without_what_they_show() -> None:
    for name in ("figure2", "figure3", "figureF", "figureG"):
        comparison = rows.find(name)
        bare = [Outcome(row=row, found=[Finding({STSB_DEV: 1.0})]) for row in comparison.rows]
        assert draw(comparison, bare) == {}
