"""What holds for the repository as a whole: layout, arrows, the built wheel."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
PACKAGES = {
    "simcse": ROOT / "simcse",
    "simcse_platform": ROOT / "platform" / "simcse_platform",
    "pipelines": ROOT / "pipelines",
}
IMPORTERS = {
    "ray": {
        "simcse_platform/runtime.py",
        "simcse_platform/ingest/prepare.py",
        "simcse_platform/ingest/stream.py",
        "simcse_platform/sweep/concurrency.py",
        "simcse_platform/sweep/leftovers.py",
        "simcse_platform/sweep/sweep.py",
        "simcse_platform/sweep/trial.py",
        "simcse_platform/training/supervision.py",
        "simcse_platform/training/trainer.py",
        "simcse_platform/training/worker.py",
    },
    "deepspeed": {"simcse_platform/training/zero.py"},
    "faiss": {"simcse/index_faiss.py"},
    "mlflow": {
        "simcse_platform/tracking/champions.py",
        "simcse_platform/tracking/mlflow_model.py",
        "simcse_platform/tracking/mlflow_reader.py",
        "simcse_platform/tracking/mlflow_session.py",
        "simcse_platform/tracking/mlflow_tracker.py",
        "simcse_platform/tracking/pyfunc_model.py",
        "simcse_platform/tracking/registry.py",
        "simcse_platform/tracking/system_metrics.py",
    },
}
MAX_LINES = 400
LINT_IMPORTS = Path(sys.executable).with_name("lint-imports")


def _run(
    *command: str | Path, cwd: Path = ROOT, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, cwd=cwd, env=os.environ | (env or {}), capture_output=True, text=True, check=False
    )


def _files(folder: Path, pattern: str = "*") -> Iterator[Path]:
    """Files below `folder`, but for Python's caches."""
    return (p for p in folder.rglob(pattern) if p.is_file() and p.parent.name != "__pycache__")


def _sources() -> Iterator[tuple[str, ast.Module]]:
    """Name from its package on, such as "simcse/losses.py", and syntax tree of each module."""
    for folder in PACKAGES.values():
        for path in _files(folder, "*.py"):
            yield path.relative_to(folder.parent).as_posix(), ast.parse(path.read_text())


def _imported(tree: ast.Module) -> set[str]:
    """Top-level names of every package that a module imports, in functions too."""
    nodes = list(ast.walk(tree))
    plain = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    origins = {node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module}
    return {name.partition(".")[0] for name in plain | origins}


def _is_call_of(node: ast.AST, dotted: str) -> bool:
    return isinstance(node, ast.Call) and ast.unparse(node.func) == dotted


# Layout


def test_platform_at_the_root_is_the_standard_librarys() -> None:
    done = _run(sys.executable, "-c", "import platform; print(platform.system())")
    assert done.stdout.strip() == os.uname().sysname, done.stderr


def test_neither_the_source_root_nor_a_folder_of_tests_is_a_package() -> None:
    assert not (ROOT / "platform" / "__init__.py").exists()
    assert not list(_files(ROOT / "tests", "__init__.py"))


def test_no_folder_of_tests_is_named_like_a_package() -> None:
    folders = {p.name for p in (ROOT / "tests").rglob("*") if p.is_dir()}
    assert not folders & ({"platform"} | PACKAGES.keys())


def test_git_ignores_no_folder_by_its_bare_name() -> None:
    # "data/" would hide a package of that name from git, from the wheel and from Ray's upload.
    patterns = (ROOT / ".gitignore").read_text().split()
    assert not [pattern for pattern in patterns if pattern[0].isalnum()]


def test_modules_are_short() -> None:
    lengths = {
        path.relative_to(ROOT).as_posix(): len(path.read_text().splitlines())
        for folder in [*PACKAGES.values(), ROOT / "tests"]
        for path in _files(folder, "*.py")
    }
    assert not {name: lines for name, lines in lengths.items() if lines > MAX_LINES}


def test_cluster_holds_no_python_and_ships_the_source_root() -> None:
    assert not list(_files(ROOT / "cluster", "*.py"))
    runtime_env = yaml.safe_load((ROOT / "cluster" / "runtime_env.yaml").read_text())
    assert runtime_env["env_vars"]["PYTHONPATH"] == "platform"


# Arrows


def test_import_contracts_are_kept() -> None:
    done = _run(LINT_IMPORTS, "--no-cache")
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    ("module", "forbidden"),
    [
        ("simcse/losses.py", "ray"),
        ("simcse/losses.py", "simcse_platform.runtime"),
        ("platform/simcse_platform/runtime.py", "pipelines"),
    ],
)
def test_import_against_the_arrows_is_named(module: str, forbidden: str, tmp_path: Path) -> None:
    for entry in ("simcse", "platform", "pipelines"):
        shutil.copytree(ROOT / entry, tmp_path / entry)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    with (tmp_path / module).open("a") as file:
        file.write(f"\nimport {forbidden}\n")

    path = os.pathsep.join([str(tmp_path), str(tmp_path / "platform")])
    done = _run(LINT_IMPORTS, "--no-cache", cwd=tmp_path, env={"PYTHONPATH": path})

    importer = module.removeprefix("platform/").removesuffix(".py").replace("/", ".")
    assert done.returncode == 1
    assert f"{importer} -> {forbidden}" in done.stdout


@pytest.mark.parametrize("library", IMPORTERS)
def test_library_is_imported_where_it_belongs_only(library: str) -> None:
    importers = {name for name, tree in _sources() if library in _imported(tree)}
    assert importers <= IMPORTERS[library]


def test_ray_is_initialised_in_one_module() -> None:
    callers = {
        name
        for name, tree in _sources()
        if any(_is_call_of(node, "ray.init") for node in ast.walk(tree))
    }
    assert callers <= {"simcse_platform/runtime.py"}


def test_command_line_starts_without_the_heavy_libraries() -> None:
    heavy = ["datasets", "deepspeed", "mlflow", "pandas", "ray", "scipy", "torch", "transformers"]
    program = (
        f"import sys, pipelines.__main__; print(*(name for name in {heavy} if name in sys.modules))"
    )
    done = _run(sys.executable, "-c", program)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == []


# Wheel and lock


def test_wheel_holds_the_three_packages_and_nothing_else(tmp_path: Path) -> None:
    done = _run(
        sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", tmp_path, ROOT
    )
    assert done.returncode == 0, done.stdout + done.stderr
    with zipfile.ZipFile(next(tmp_path.glob("*.whl"))) as wheel:
        names = {name for name in wheel.namelist() if ".dist-info/" not in name}

    assert names == {
        path.relative_to(folder.parent).as_posix()
        for folder in PACKAGES.values()
        for path in _files(folder)
    }
    assert {f"{package}/py.typed" for package in PACKAGES} <= names
    assert any(name.startswith("pipelines/assets/") for name in names)


def test_lock_pins_every_dependency_within_its_bounds() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = (ROOT / "requirements.lock").read_text().splitlines()
    pins = dict(line.split("==") for line in lines if not line.startswith("#"))
    locked = {canonicalize_name(name): version for name, version in pins.items()}

    required = [*project["dependencies"], *chain(*project["optional-dependencies"].values())]
    for requirement in map(Requirement, required):
        version = locked[canonicalize_name(requirement.name)]
        assert version in requirement.specifier, f"{requirement} is locked at {version}"
