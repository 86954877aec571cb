"""A run's folder, on a file system that every machine of the run shares."""

from __future__ import annotations

import errno
import fcntl
import os
import re
import shutil
import socket
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from safetensors import SafetensorError

from simcse.errors import UsageError
from simcse_platform.errors import CheckpointError, StorageError

LOCK = ".lock"
_SCRATCH = f"simcse-scratch-{socket.gethostname()}-"
"""What names of folders for files on their way begin with: locks are not seen by other machines."""
_SECONDS_UNTIL_LOCKED = 10
"""Far more than lie between the making of such a folder and its lock."""
_LASTING = {errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EPERM, errno.EROFS}
"""What the next attempt would meet again."""
# As Python, Arrow and safetensors write it into their messages.
_NUMBER = re.compile(r"(?:errno|os error) (\d+)", re.IGNORECASE)
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def check_writable(folder: Path) -> None:
    """Make `folder` if it is not there. Raises `UsageError` when nothing can be written into it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        raise UsageError(
            f"nothing can be written into {folder} ({error.strerror}): name another folder"
        ) from None


def write_atomically(path: Path, content: str | bytes) -> None:
    """Replace a file in one move; what fails leaves the old one, and nothing beside it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        temporary.write_bytes(content.encode() if isinstance(content, str) else content)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def append_line(path: Path, line: str) -> None:
    """One more line of a file, in place of what a process that was killed wrote of another."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+b") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(size - 1, 0))
        if file.read(1) not in (b"", b"\n"):
            file.seek(0)
            file.truncate(file.read().rfind(b"\n") + 1)
        file.write(line.encode() + b"\n")


@contextmanager
def scratch_folder(inside: Path | None = None) -> Iterator[Path]:
    """A temporary folder, inside another one than the system's if that is given.

    Those that killed processes have left beside it are removed.
    """
    parent = inside or Path(tempfile.gettempdir())
    for left in parent.glob(f"{_SCRATCH}*"):
        with suppress(OSError):
            if time.time() - left.stat().st_mtime > _SECONDS_UNTIL_LOCKED:
                with _locked(left):
                    shutil.rmtree(left)
    with tempfile.TemporaryDirectory(prefix=_SCRATCH, dir=parent) as folder, ExitStack() as held:
        # Where there are no locks, nothing that is left can be told from what is in use.
        with suppress(OSError):
            held.enter_context(_locked(Path(folder)))
        yield Path(folder)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Raises `OSError` when another process has it locked, and lives."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)


@contextmanager
def written(what: str) -> Iterator[None]:
    """What the system refuses to write becomes an error of the project with the way out.

    `CheckpointError` where another attempt would meet it again, such as on a full disk, else
    `StorageError`.
    """
    try:
        yield
    except (OSError, SafetensorError) as error:
        numbers = {int(number) for number in _NUMBER.findall(str(error))}
        numbers.add(getattr(error, "errno", None) or 0)
        full = numbers & {errno.ENOSPC, errno.EDQUOT} or "No space left" in str(error)
        kind = CheckpointError if full or numbers & _LASTING else StorageError
        way_out = "make room in" if full else "see to"
        raise kind(
            f"{what} cannot be written ({error}): {way_out} the temporary and the output folder, "
            "and run the same command again to go on from the last checkpoint"
        ) from error


@contextmanager
def read_again_later(path: Path) -> Iterator[None]:
    """What the system refuses to read becomes `StorageError`: it is not known what is there."""
    try:
        yield
    except OSError as error:
        raise StorageError(
            f"{path} cannot be read now ({error}): see to its storage, and run the same command "
            "again"
        ) from error


@dataclass(frozen=True)
class RunFolder:
    """Everything that outlives the processes of one run; nothing in it is ever half-written."""

    path: Path

    @classmethod
    def of(cls, output: str, name: str) -> RunFolder:
        """The folder of run `name` in `output`, resolved: workers have directories of their own."""
        if "://" in output:
            raise UsageError(
                f"--output is {output!r}: name a folder that all machines share, such as an NFS "
                "mount"
            )
        if not _NAME.fullmatch(name):
            raise UsageError(f"--name is {name!r}: use letters, digits, dots, dashes, underscores")
        return cls(Path(output).expanduser().resolve() / name)

    @property
    def name(self) -> str:
        return self.path.name

    def write_text(self, name: str, text: str) -> None:
        """Replace a file in one move."""
        write_atomically(self.path / name, text)

    @contextmanager
    def owned(self) -> Iterator[None]:
        """Keeps other processes out while the block runs; a killed one keeps nobody out.

        Raises `UsageError` when another has it. A file system without locks keeps nobody out.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except FileExistsError:
            raise UsageError(
                f"{self.path} is a file: choose another --name, or another --output"
            ) from None
        with (self.path / LOCK).open("a+", encoding="utf-8") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                file.seek(0)
                owner = file.read() or "elsewhere"
                raise UsageError(
                    f"run {self.name} is being trained already ({owner}): wait for its end, or "
                    "choose another --name"
                ) from None
            except OSError:
                pass
            file.truncate(0)
            file.write(f"process {os.getpid()} on {socket.gethostname()}")
            file.flush()
            yield

    def publish(self, folder: Path, name: str) -> None:
        """Copy a folder here as `name`, in place of one that is there."""
        self.path.mkdir(parents=True, exist_ok=True)
        token = uuid.uuid4().hex
        new, old = (self.path / f".{name}.{token}.{state}" for state in ("new", "old"))
        try:
            shutil.copytree(folder, new)
            if (self.path / name).exists():
                (self.path / name).rename(old)
            new.rename(self.path / name)
        finally:
            shutil.rmtree(new, ignore_errors=True)
        shutil.rmtree(old, ignore_errors=True)

    def recover(self, name: str) -> None:
        """Put right what a process left behind that was killed while it published `name`.

        No owner may be publishing; a leftover that goes by itself meanwhile is no fault.
        """
        for old in self.path.glob(f".{name}.*.old"):
            if not (self.path / name).exists():
                old.rename(self.path / name)
        for leftover in self.path.glob(f".{name}.*"):
            shutil.rmtree(leftover, ignore_errors=True)
