from __future__ import annotations

import json
from pathlib import Path

import pytest
from rich.table import Table

from pipelines import console
from simcse.errors import UsageError


def test_json_is_written_whole_and_in_place_of_the_old(tmp_path: Path) -> None:
    file = tmp_path / "new" / "result.json"
    console.write_json(file, {"old": 1})
    console.write_json(file, {"name": "Größe", "score": 1.5})
    assert json.loads(file.read_text(encoding="utf-8")) == {"name": "Größe", "score": 1.5}
    assert file.read_bytes().endswith(b"}\n")
    assert [path.name for path in file.parent.iterdir()] == ["result.json"]
    console.write_json(None, {"nothing": "asked"})


def test_brackets_in_a_table_are_shown_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    table = Table("corpus")
    for cell in ("[/a/b.txt]", "[premise,entailed]", "[bold]x"):
        console.add_row(table, cell)
    console.console.print(table)
    shown = capsys.readouterr().out
    assert all(text in shown for text in ("[/a/b.txt]", "[premise,entailed]", "[bold]x"))


def test_json_that_cannot_be_written_leaves_the_old_file_and_nothing_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "result.json"
    file.write_text("old")

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", full)
        with pytest.raises(
            UsageError, match=rf"^--json {file} cannot be written: No space left on device$"
        ):
            console.write_json(file, {"new": 1})
    assert file.read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["result.json"]
    with pytest.raises(UsageError, match=r"cannot be written: Not a directory$"):
        console.write_json(file / "below" / "a.json", {})


def test_json_that_is_no_json_leaves_the_old_file(tmp_path: Path) -> None:
    file = tmp_path / "result.json"
    console.write_json(file, {"old": 1})
    with pytest.raises(TypeError):
        console.write_json(file, {"new": object()})
    assert json.loads(file.read_text()) == {"old": 1}


def test_lines_are_shown_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    text = "[bold]a.txt[/bold] :smile: " + "long " * 60
    console.say(text)
    assert capsys.readouterr().out == text + "\n"


def test_without_a_terminal_progress_is_a_line_now_and_then_and_one_for_every_note(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    monkeypatch.setattr(console.time, "monotonic", lambda: now)
    with console.progress_bar("train", 50) as show:
        show(1)
        show(2, "loss 0.5")
        show(3)
        now += 11
        show(4)
        show(5)
        show(50)
    with console.progress_bar("read") as show:
        now += 11
        show(7)
    assert capsys.readouterr().out.splitlines() == [
        "train 2/50 loss 0.5",
        "train 4/50",
        "train 50/50",
        "read 7",
    ]


def test_on_a_terminal_progress_is_a_bar_that_keeps_its_last_note(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setattr(console, "console", console.Console(force_terminal=True, width=120))
    with console.progress_bar("train", 50) as show:
        show(25, "loss 0.5")
        show(50)
    shown = capsys.readouterr().out
    assert "50/50" in shown
    assert shown.rindex("loss 0.5") > shown.index("50/50")
