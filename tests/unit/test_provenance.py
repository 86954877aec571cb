"""What a result was made with."""

from __future__ import annotations

import importlib.metadata
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

import simcse
import simcse_platform
from simcse_platform import provenance


@pytest.fixture
def hash_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    """The source hash of the packages under a folder of `tmp_path`, made if it is not there."""

    def of(name: str) -> str:
        for package in (simcse, simcse_platform):
            folder = tmp_path / name / package.__name__
            if not folder.exists():
                (folder / "inner").mkdir(parents=True)
                (folder / "__init__.py").write_text("")
                (folder / "inner" / "module.py").write_text("x = 1\n")
            monkeypatch.setattr(package, "__file__", str(folder / "__init__.py"))
        return provenance.source_hash.__wrapped__()

    return of


def test_the_same_sources_have_the_same_hash_wherever_they_lie(
    hash_of: Callable[[str], str], tmp_path: Path
) -> None:
    before = hash_of("here")
    (tmp_path / "here" / "simcse" / "py.typed").write_text("no source")
    assert hash_of("here") == hash_of("there") == before


@pytest.mark.parametrize("package", ["simcse", "simcse_platform"])
def test_a_changed_moved_or_added_source_changes_the_hash(
    hash_of: Callable[[str], str], tmp_path: Path, package: str
) -> None:
    hashes = {hash_of("plain")}
    for name in ("changed", "moved", "added"):
        hash_of(name)
    (tmp_path / "changed" / package / "inner" / "module.py").write_text("x = 2\n")
    shutil.move(tmp_path / "moved" / package / "inner" / "module.py", tmp_path / "moved" / package)
    (tmp_path / "added" / package / "other.py").write_text("")
    hashes |= {hash_of(name) for name in ("changed", "moved", "added")}
    assert len(hashes) == 4


def test_the_hash_of_this_process_is_a_sha256() -> None:
    assert len(bytes.fromhex(provenance.source_hash())) == 32


def test_versions_are_those_installed() -> None:
    versions = provenance.versions()
    assert list(versions) == ["python", "torch", "transformers", "ray", "deepspeed", "mlflow"]
    assert versions["torch"] == importlib.metadata.version("torch")


def git(folder: Path, *arguments: str) -> str:
    identity = ("-c", "user.name=t", "-c", "user.email=t@example.org")
    done = subprocess.run(
        ["git", *identity, *arguments], cwd=folder, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


@pytest.fixture
def package_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The package's first file, as if installed below a checkout of something else."""
    file = tmp_path / "venv" / "simcse" / "__init__.py"
    file.parent.mkdir(parents=True)
    file.write_text("")
    (tmp_path / "theirs.txt").write_text("")
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "add", "theirs.txt")
    git(tmp_path, "commit", "--quiet", "--message", "theirs")
    monkeypatch.setattr(simcse, "__file__", str(file))
    return file


def test_a_checkout_has_its_commit(package_file: Path) -> None:
    git(package_file.parent, "add", ".")
    git(package_file.parent, "commit", "--quiet", "--message", "ours")
    assert provenance.git_commit() == git(package_file.parent, "rev-parse", "HEAD")


def test_a_package_installed_below_another_checkout_has_no_commit(package_file: Path) -> None:
    assert provenance.git_commit() is None


def test_without_a_checkout_or_without_git_there_is_no_commit(
    package_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.rmtree(tmp_path / ".git")
    assert provenance.git_commit() is None
    monkeypatch.setenv("PATH", "")
    assert provenance.git_commit() is None
