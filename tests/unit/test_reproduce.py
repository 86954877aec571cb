"""A comparison for which nothing has to be trained, from the command line to its record."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path

import pytest

from pipelines.paper.rows import COMPARISONS
from simcse.encoder import SentenceEncoder
from support.command_line import CommandLine, Outcome
from support.paper import stand_in_sets


class Measured:
    """`reproduce figureG` with a model for every row, in a folder of its own."""

    def __init__(self, simcse: CommandLine, tiny_encoder: Path, folder: Path) -> None:
        self._simcse = simcse
        corpus, model = folder / "corpus.txt", folder / "model"
        corpus.write_text("a dog\n")
        SentenceEncoder.load(tiny_encoder, pooling="avg").save(model)
        self.runs = folder / "runs"
        self._arguments = [
            *("--encoder", tiny_encoder, "--corpus", corpus, "--output", self.runs),
            *("--set", "dev.tasks=[DemoPairs]"),
        ]
        for row in COMPARISONS["figureG"].rows:
            self._arguments += ["--model", f"{row.label}={model}"]

    def __call__(self, *arguments: object) -> Outcome:
        return self._simcse("reproduce", "figureG", *self._arguments, *arguments)


@pytest.fixture
def measured(
    simcse: CommandLine, monkeypatch: pytest.MonkeyPatch, tiny_encoder: Path, tmp_path: Path
) -> Measured:
    stand_in_sets(monkeypatch)
    monkeypatch.setattr("simcse_platform.runtime.connect", lambda _: nullcontext())
    return Measured(simcse, tiny_encoder, tmp_path)


@pytest.mark.parametrize(
    ("arguments", "name"), [((), "reproduce-figureG"), (("--name", "mine"), "mine")]
)
def test_the_record_lies_in_a_folder_of_its_own(
    measured: Measured, arguments: tuple[str, ...], name: str
) -> None:
    # The same command again replaces what it left.
    for _ in range(2):
        shown = measured(*arguments)
        assert shown.code == 0, shown.err
        folder = measured.runs / name / "comparison"
        assert shown.out.endswith(f"\nrecorded in {folder}\n")
        assert {file.name for file in folder.iterdir()} == {"figureG.json", "figureG.png"}
        kept = json.loads((folder / "figureG.json").read_text())
        assert [row["seeds"] for row in kept["rows"]] == [1] * 6
        assert {path.name for path in measured.runs.iterdir()} == {name}


def test_a_folder_that_holds_something_else_is_left_as_it_is(measured: Measured) -> None:
    (measured.runs / "mine").mkdir(parents=True)
    (measured.runs / "mine" / "sweep.yaml").write_text("base: {}\n")
    assert measured("--name", "mine").error == (
        f"{measured.runs / 'mine'} exists and holds more than a comparison: choose another --name"
    )
    assert [file.name for file in (measured.runs / "mine").iterdir()] == ["sweep.yaml"]
