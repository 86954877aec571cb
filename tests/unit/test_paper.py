"""The paper's rows, and a run for each row that is ours."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pipelines import demo_data
from pipelines.paper import runs
from pipelines.paper.rows import COMPARISONS, Trained
from pipelines.paper.runs import Scale
from simcse.errors import UsageError
from support.command_line import CommandLine
from support.paper import FilesByColumns, manifest_only, plan, run_of


def test_every_comparison_has_the_papers_rows_but_those_left_out_on_purpose() -> None:
    counts = {name: len(comparison.rows) for name, comparison in COMPARISONS.items()}
    assert counts == {
        **{"table1": 11, "table2": 8, "table3": 8, "table4": 17, "table5": 23, "table6": 8},
        **{"table7": 5, "table8": 2, "tableB": 11, "tableD1": 6, "tableD2": 4, "tableE1": 21},
        **{"figure2": 4, "figure3": 9, "figureF": 8, "figureG": 6, "batch": 12},
    }
    for comparison in COMPARISONS.values():
        labels = [row.label for row in comparison.rows]
        assert len(set(labels)) == len(labels)


def test_only_the_singular_values_are_of_flow_too() -> None:
    systems = {name: [row.label for row in COMPARISONS[name].rows] for name in COMPARISONS}
    flow = ["BERT-base-flow", "SBERT-base-flow"]
    assert [label for label in systems["figureF"] if label not in systems["figureG"]] == flow
    assert systems["figureF"] == systems["figure3"][:-1]


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    file = tmp_path / "corpus.txt"
    file.write_text("a dog\n")
    return file


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
    # All rows of figure 2 are measured as often, which is not what it compares.
    often = plan("figure2", "small", tiny_encoder, corpus, "dev.every=3")
    assert {run_of(often, label).dev.every for label in often.points} == {3}
    for name, assignment in (
        ("tableD1", "objective.temperature=0.1"),
        ("table3", "encoder.dropout=0.2"),
        ("batch", "global_batch_size=32"),
        ("figure2", "views.positive=crop"),
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


def test_a_row_says_how_large_its_text_is_whatever_the_papers_was(
    tiny_encoder: Path, corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    columns = ("sent0", "sent1", "hard_neg")
    triplets = manifest_only(corpus.parent / "triplets", 275_601, *columns)

    def settings(_: FilesByColumns, source: Trained, sample: int | None) -> tuple[str, ...]:
        if source.text == "sentences":
            return ()
        taken = columns[:2] if source.text == "entailment" else columns
        return (f"data.corpus={json.dumps([str(triplets)])}", f"data.columns={json.dumps(taken)}")

    monkeypatch.setattr(FilesByColumns, "settings", settings)
    sizes = plan("table4", "paper", tiny_encoder, corpus).sizes
    assert sizes["unsupervised SimCSE (1m), full"] == ""
    pairs = "its text has 275,601 pairs of the given triplets"
    assert sizes["NLI entailment (314k), full"] == pairs
    assert sizes["NLI entailment + hard negatives"] == "its text has 275,601 triplets"
    assert plan("table7", "paper", tiny_encoder, corpus).sizes["no hard negatives"] == pairs


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
