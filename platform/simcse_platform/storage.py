"""A run's folder, on a file system that every machine of the run shares."""

from __future__ import annotations

import re
import shutil
import tempfile
import uuid
from dataclasses import dataclass
from pathlib import Path

from simcse.errors import UsageError

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

    def publish(self, folder: Path, name: str) -> None:
        """Copy a folder here as `name`, in place of one that is there."""
        self.path.mkdir(parents=True, exist_ok=True)
        new, old = (self.path / f".{name}.{uuid.uuid4().hex}" for _ in range(2))
        try:
            shutil.copytree(folder, new)
            if (self.path / name).exists():
                (self.path / name).rename(old)
            new.rename(self.path / name)
        finally:
            shutil.rmtree(new, ignore_errors=True)
        shutil.rmtree(old, ignore_errors=True)
