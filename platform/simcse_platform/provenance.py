"""What a result was made with: source, versions, commit."""

from __future__ import annotations

import hashlib
import importlib.metadata
import platform
import subprocess
from functools import cache
from pathlib import Path

import simcse
import simcse_platform

LIBRARIES = ("torch", "transformers", "ray", "deepspeed", "mlflow")


@cache
def source_hash() -> str:
    """sha256 over the Python files of `simcse` and `simcse_platform` as this process runs them.

    Workers compare theirs with the driver's: a shipped tree beside an installed one can mix two
    versions without a word.
    """
    digest = hashlib.sha256()
    for package in (simcse, simcse_platform):
        assert package.__file__ is not None
        root = Path(package.__file__).parent
        for path in sorted(root.rglob("*.py")):
            digest.update(f"{package.__name__}/{path.relative_to(root).as_posix()}\0".encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()


def versions() -> dict[str, str]:
    """Versions of Python and of the libraries that decide results."""
    return {
        "python": platform.python_version(),
        **{library: importlib.metadata.version(library) for library in LIBRARIES},
    }


def git_commit() -> str | None:
    """The commit of the checkout that this code runs from, if it is one."""
    assert simcse.__file__ is not None
    file = Path(simcse.__file__)

    def git(*arguments: str) -> str:
        done = subprocess.run(
            ["git", *arguments], cwd=file.parent, capture_output=True, text=True, check=True
        )
        return done.stdout.strip()

    try:
        # A package installed below somebody's checkout is not of that checkout.
        git("ls-files", "--error-unmatch", file.name)
        return git("rev-parse", "HEAD")
    except (OSError, subprocess.CalledProcessError):
        return None
