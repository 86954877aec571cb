"""The paper's rows: published numbers as they were, and a run for each row that is ours."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean

import numpy as np
import pytest

from pipelines import demo_data, settings
from pipelines.paper import results, rows, runs
from pipelines.paper.measures import Bench, Measured, Outcome, draw, of_path
from pipelines.paper.published import (
    PUBLISHED_AGGREGATIONS,
    PUBLISHED_STS,
    PUBLISHED_TRANSFER,
)
from pipelines.paper.rows import COMPARISONS, STSB_DEV, Elsewhere, Row, Trained
from pipelines.paper.runs import Scale
from pipelines.paper.texts import NotAtHandError
from simcse import metrics
from simcse.evaluation import LoadedSets, Pairs, STSSet
from simcse_platform.config import TrainRun, override
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

    def settings(self, source: Trained, smallest: int | None) -> tuple[str, ...]:
        if source.text == self._lacking:
            raise NotAtHandError(f"no {source.text}")
        columns = {"sentences": 1, "documents": 1, "triplets": 3, "triplets-neutral": 4}
        names = "abcd"[: columns.get(source.text, 2)]
        file = self._folder / f"{source.text}.csv"
        file.write_text(",".join(names) + "\n" + ",".join(f"dog {n}" for n in names) + "\n")
        return (f"data.corpus={json.dumps([str(file)])}",)

    def smallest(self, sources: object) -> None:
        return None


@pytest.fixture
def base(tiny_encoder: Path, tmp_path: Path) -> dict[Scale, TrainRun]:
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("a dog\n")
    scales: tuple[Scale, ...] = ("paper", "small")
    found = {}
    for scale in scales:
        resolved = runs.base_run(scale, str(tiny_encoder), [str(corpus)], tmp_path, None, [])
        found[scale] = resolved.run
    return found


def planned(name: str, scale: Scale, base: dict[Scale, TrainRun], folder: Path, lacking: str = ""):
    texts = FilesByColumns(folder, lacking)
    return runs.plan_rows(rows.find(name), scale, base[scale], texts, [])  # type: ignore[arg-type]


def run_of(point: Mapping[str, str], base: TrainRun) -> TrainRun:
    return override(base, [f"{path}={text}" for path, text in point.items()])


@pytest.mark.parametrize("name", COMPARISONS)
@pytest.mark.parametrize("scale", ["paper", "small"])
def test_every_row_that_is_trained_has_a_run_that_can_begin(
    base: dict[Scale, TrainRun], tmp_path: Path, name: str, scale: Scale
) -> None:
    plan = planned(name, scale, base, tmp_path)
    trained = {row.label for row in COMPARISONS[name].rows if isinstance(row.source, Trained)}
    assert plan.points.keys() | plan.notes.keys() == trained
    # What stops a row is that documents need a prepared corpus, and MLM an encoder with a head.
    for note in plan.notes.values():
        assert "keep the order of its documents" in note or "masked" in note or "wn" in note
    for point in plan.points.values():
        run_of(point, base[scale])


def test_a_scale_is_the_papers_own_or_as_many_rows_for_every_batch(
    base: dict[Scale, TrainRun], tmp_path: Path
) -> None:
    for scale in ("paper", "small"):
        for label, point in planned("batch", scale, base, tmp_path).points.items():
            run = run_of(point, base[scale])
            _, batch, _, rate = label.replace(",", "").split()
            assert (run.global_batch_size, run.optim.learning_rate) == (int(batch), float(rate))
            assert run.max_steps == (None if scale == "paper" else 1920 // int(batch))
    supervised = run_of(
        planned("table7", "paper", base, tmp_path).points["contradiction, alpha 2.0"], base["paper"]
    )
    assert supervised.objective.hard_negative_alpha == 2.0
    assert (supervised.global_batch_size, supervised.epochs) == (512, 3)
    assert (supervised.optim.learning_rate, supervised.encoder.head) == (5e-5, "always")
    assert supervised.encoder.model == base["paper"].encoder.model


def test_rows_of_the_dropout_table_differ_in_dropout_alone(
    base: dict[Scale, TrainRun], tmp_path: Path
) -> None:
    points = planned("table3", "small", base, tmp_path).points
    text = "data.corpus"
    assert {label: {k: v for k, v in p.items() if k != text} for label, p in points.items()} == {
        "p = 0.0": {"encoder.dropout": "0.0", "views.allow_equal_views": "true"},
        **{
            f"p = {rate}": {"encoder.dropout": str(rate)}
            for rate in (0.01, 0.05, 0.1, 0.15, 0.2, 0.5)
        },
        "fixed 0.1": {"encoder.dropout": "0.1", "views.fixed_dropout_mask": "true"},
    }


def test_a_row_whose_text_is_not_at_hand_says_so_and_no_row_at_all_is_an_error(
    base: dict[Scale, TrainRun], tmp_path: Path
) -> None:
    plan = planned("table6", "small", base, tmp_path, lacking="triplets")
    assert set(plan.notes.values()) == {"no triplets"}
    assert len(plan.points) == len(plan.notes) == 4
    with pytest.raises(
        settings.UsageError, match=r"^no row of tableD1 can be trained: no triplets$"
    ):
        planned("tableD1", "small", base, tmp_path, lacking="triplets")


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
    assert found.shows_dev_alone
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
    two = Outcome(row=row, models=[Measured({"a": 3.0}), Measured({"a": 1.0})])
    assert (two.mean(), two.deviation()) == ({"a": 2.0}, {"a": pytest.approx(2**0.5)})
    one = Outcome(row=row, models=[Measured({"a": 3.0})])
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
    outcomes = [Outcome(row=row, models=[measured]) for row in comparison.rows[:2]]
    axes = draw(comparison, outcomes)["figure2"].axes[0]
    assert [line.get_label() for line in axes.lines] == ["unsupervised SimCSE", "no dropout"]
    assert draw(rows.find("table3"), outcomes) == {}


def test_the_papers_numbers_stand_above_ours(
    base: dict[Scale, TrainRun],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    comparison = rows.find("table7")
    first, second, *others = comparison.rows
    outcomes = [
        Outcome(row=first, models=[Measured({STSB_DEV: 80.0}), Measured({STSB_DEV: 79.0})]),
        Outcome(row=second, note="no NLI data: give --nli or --triplets"),
        *(Outcome(row=row, note="not made here") for row in others),
    ]
    result = results.result_of(
        comparison, "small", base["small"], outcomes, bench("sts", monkeypatch)
    )
    assert json.loads(json.dumps(result)) == result
    assert result["rows"][0]["published"] == {STSB_DEV: 84.9}
    assert result["rows"][0]["ours"] == {STSB_DEV: 79.5}
    results.show(result)
    shown = capsys.readouterr().out
    assert "Table 7: hard negatives; ours: scaled down, not the paper's, on " in shown
    lines = [line.replace("│", " ").split() for line in shown.splitlines()]
    assert ["no", "hard", "negatives", "paper", "84.90"] in lines
    assert ["ours", "79.50", "±", "0.71"] in lines
    assert "not at hand, contradiction, alpha 0.5: no NLI data: give --nli or --triplets" in shown
    assert "not at hand, STS14: no file" in shown


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
