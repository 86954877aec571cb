from __future__ import annotations

import errno
import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from safetensors import SafetensorError

from simcse.errors import SimcseError, UsageError
from simcse_platform.errors import CheckpointError, PassingError, StorageError
from simcse_platform.storage import (
    RunFolder,
    append_line,
    check_writable,
    scratch_folder,
    write_atomically,
    written,
)


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


@pytest.mark.parametrize("published", [False, True])
def test_what_a_killed_process_left_of_publishing_is_put_right(
    tmp_path: Path, published: bool
) -> None:
    folder = RunFolder(tmp_path / "run")
    folder.publish(model(tmp_path / "first", "1"), "best")
    best = folder.path / "best"
    model(folder.path / ".best.b.new", "half")
    if published:
        model(folder.path / ".best.a.old", "0")
    else:
        # Killed between the two moves.
        best.rename(folder.path / ".best.a.old")
    folder.recover("best")
    assert contents(folder.path) == {"best/config.json": "1", "best/inner/weights": "1"}
    assert [path.name for path in folder.path.iterdir()] == ["best"]


_OWNER = """
import sys, time
from pathlib import Path
from simcse_platform.storage import RunFolder
with RunFolder(Path(sys.argv[1])).owned():
    print("owned", flush=True)
    time.sleep(60)
"""


def test_a_run_has_one_owner_and_a_killed_one_makes_way(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    command = [sys.executable, "-c", _OWNER, str(folder.path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == "owned\n"
        message = (
            rf"^run run is being trained already \(process {owner.pid} on .*\): wait for its end"
        )
        with pytest.raises(UsageError, match=message), folder.owned():
            pytest.fail("two owners")
        owner.kill()
    with folder.owned():
        pass
    with folder.owned():
        pass


_SCRATCH = """
import time
from simcse_platform.storage import scratch_folder
with scratch_folder() as folder:
    (folder / "weights").touch()
    print(folder, flush=True)
    time.sleep(60)
"""


def test_what_a_killed_process_left_in_scratch_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with subprocess.Popen(
        [sys.executable, "-c", _SCRATCH],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"TMPDIR": str(tmp_path)},
    ) as process:
        assert process.stdout is not None
        other = Path(process.stdout.readline().strip())
        assert other.parent == tmp_path
        long_ago = time.time() - 3600
        os.utime(other, (long_ago, long_ago))
        with scratch_folder() as own:
            assert set(tmp_path.iterdir()) == {own, other}
        process.kill()
    # One that has just been made may not have its lock yet.
    os.utime(other)
    with scratch_folder():
        assert other.exists()
    os.utime(other, (long_ago, long_ago))
    with scratch_folder():
        assert not other.exists()
    inside = tmp_path / "cache"
    inside.mkdir()
    with scratch_folder(inside) as own:
        assert own.parent == inside
    assert list(tmp_path.rglob("*")) == [inside]


def test_where_there_are_no_locks_scratch_is_used_and_nothing_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_locks(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", no_locks)
    with scratch_folder(tmp_path) as one:
        long_ago = time.time() - 3600
        os.utime(one, (long_ago, long_ago))
        with scratch_folder(tmp_path) as other:
            assert {one, other} == set(tmp_path.iterdir())
    assert list(tmp_path.iterdir()) == []


def test_a_file_of_the_name_of_a_run_is_named(tmp_path: Path) -> None:
    (tmp_path / "run").touch()
    with (
        pytest.raises(UsageError, match=r"run is a file: choose another --name, or another --out"),
        RunFolder(tmp_path / "run").owned(),
    ):
        pytest.fail("owned")


@pytest.mark.parametrize(
    ("error", "kind", "way_out"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), CheckpointError, "make room in"),
        (OSError(errno.EDQUOT, "Disk quota exceeded"), CheckpointError, "make room in"),
        (PermissionError(errno.EACCES, "Permission denied"), CheckpointError, "see to"),
        (OSError("[Errno 30] Error writing bytes. Detail: read-only"), CheckpointError, "see to"),
        (SafetensorError("No space left on device (os error 28)"), CheckpointError, "make room in"),
        (OSError(errno.ESTALE, "Stale file handle"), StorageError, "see to"),
        (SafetensorError("I/O error: (os error 5)"), StorageError, "see to"),
        (OSError("connection lost"), StorageError, "see to"),
    ],
)
def test_what_cannot_be_written_is_tried_again_unless_it_would_fail_again(
    error: Exception, kind: type[SimcseError], way_out: str
) -> None:
    with (
        pytest.raises(
            SimcseError, match=rf"^the result cannot be written .*: {way_out} the temp"
        ) as e,
        written("the result"),
    ):
        raise error
    assert type(e.value) is kind
    assert isinstance(e.value, PassingError) == (kind is StorageError)


def test_a_line_takes_the_place_of_one_that_was_cut_off(tmp_path: Path) -> None:
    file = tmp_path / "new" / "lines"
    append_line(file, "first")
    with file.open("a") as cut:
        cut.write("sec")
    append_line(file, "second")
    append_line(file, "third")
    assert file.read_text() == "first\nsecond\nthird\n"
    file.write_text("only a be")
    append_line(file, "beginning")
    assert file.read_text() == "beginning\n"


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
