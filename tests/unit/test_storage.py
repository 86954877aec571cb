from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from simcse.errors import UsageError
from simcse_platform.storage import RunFolder, check_writable, write_atomically


def contents(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): path.read_text()
        for path in folder.rglob("*")
        if path.is_file()
    }


def model(folder: Path, text: str) -> Path:
    (folder / "inner").mkdir(parents=True)
    (folder / "config.json").write_text(text)
    (folder / "inner" / "weights").write_text(text)
    return folder


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "/a", ".hidden", "-x", "a b", "ä", "a\n"])
def test_a_name_that_is_no_plain_file_name_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match=r"^--name is .*: use letters, digits, dots, dashes, unde"):
        RunFolder.of(str(tmp_path), name)


@pytest.mark.parametrize("output", ["s3://bucket/runs", "file:///tmp/runs"])
def test_an_output_that_is_no_folder_is_refused(output: str) -> None:
    with pytest.raises(UsageError, match=rf"^--output is '{output}': name a folder that all mach"):
        RunFolder.of(output, "run")


def test_the_folder_means_the_same_in_every_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/me")
    folder = RunFolder.of("runs", "a.b_c-1")
    assert folder.path == tmp_path.resolve() / "runs" / "a.b_c-1"
    assert folder.name == "a.b_c-1"
    assert RunFolder.of("~/runs", "a").path == Path("/home/me/runs/a")
    assert list(tmp_path.iterdir()) == []


def test_text_is_replaced_in_one_move(tmp_path: Path) -> None:
    folder = RunFolder.of(str(tmp_path / "runs"), "run")
    folder.write_text("run.yaml", "old")
    folder.write_text("run.yaml", "nëw")
    assert (folder.path / "run.yaml").read_text(encoding="utf-8") == "nëw"
    assert [path.name for path in folder.path.iterdir()] == ["run.yaml"]


def test_text_that_cannot_be_written_leaves_the_old_file_and_nothing_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "new" / "note.json"
    write_atomically(file, "old")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(OSError, match="No space left"):
        write_atomically(file, "new")
    assert contents(tmp_path) == {"new/note.json": "old"}


def test_what_is_published_takes_the_place_of_what_was_there(tmp_path: Path) -> None:
    folder = RunFolder.of(str(tmp_path / "runs"), "run")
    folder.publish(model(tmp_path / "first", "1"), "best")
    (folder.path / "best" / "only_in_the_first").touch()
    folder.publish(model(tmp_path / "second", "2"), "best")
    assert contents(folder.path) == {"best/config.json": "2", "best/inner/weights": "2"}
    assert contents(tmp_path / "second") == {"config.json": "2", "inner/weights": "2"}


def test_publishing_that_fails_leaves_what_was_there_and_nothing_half_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = RunFolder.of(str(tmp_path / "runs"), "run")
    second = model(tmp_path / "second", "2")
    copied: list[str] = []

    def copy_one_file(source: str, target: str, **_: object) -> None:
        if copied:
            raise OSError(28, "No space left on device")
        copied.append(target)
        Path(target).write_bytes(Path(source).read_bytes())

    monkeypatch.setattr(shutil, "copyfile", copy_one_file)
    with pytest.raises(OSError, match="No space left"):
        folder.publish(second, "best")
    assert list(folder.path.iterdir()) == []

    monkeypatch.undo()
    folder.publish(model(tmp_path / "first", "1"), "best")
    monkeypatch.setattr(shutil, "copyfile", copy_one_file)
    with pytest.raises(OSError, match="No space left"):
        folder.publish(second, "best")
    assert contents(folder.path) == {"best/config.json": "1", "best/inner/weights": "1"}
    assert [path.name for path in folder.path.iterdir()] == ["best"]


def test_a_folder_is_made_and_tried_before_it_is_needed(tmp_path: Path) -> None:
    check_writable(tmp_path / "a" / "b")
    assert list((tmp_path / "a" / "b").iterdir()) == []
    (tmp_path / "file").touch()
    for folder, reason in (("file", "File exists"), ("file/below", "Not a directory")):
        with pytest.raises(
            UsageError,
            match=rf"^nothing can be written into {tmp_path / folder} \({reason}\): name another",
        ):
            check_writable(tmp_path / folder)
