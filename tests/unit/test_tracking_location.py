"""Where runs are recorded."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from simcse.errors import UsageError
from simcse_platform.tracking.location import author, tracking_uri, without_password


def test_the_default_is_sqlite_in_the_output_whatever_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert tracking_uri(None, Path("out")) == f"sqlite:///{tmp_path}/out/mlflow.db"
    assert tracking_uri("sqlite:///my.db", Path("out")) == f"sqlite:///{tmp_path}/my.db"


def test_a_tilde_is_the_users_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    assert tracking_uri("sqlite:///~/x.db", Path("out")) == "sqlite:////home/me/x.db"
    assert tracking_uri(None, Path("~/out")) == "sqlite:////home/me/out/mlflow.db"


@pytest.mark.parametrize(("name", "found"), [("a?b", "?"), ("50%20off", "%")])
def test_a_path_that_no_sqlite_address_can_have_is_refused(
    tmp_path: Path, name: str, found: str
) -> None:
    message = rf"{re.escape(name)}.* holds '{re.escape(found)}', .*: choose another --output, or"
    with pytest.raises(UsageError, match=message):
        tracking_uri(None, tmp_path / name)
    with pytest.raises(UsageError, match=message):
        tracking_uri(f"sqlite:///{tmp_path}/{name}/mlflow.db", tmp_path)
    assert tracking_uri(None, tmp_path / "a #ü b") == f"sqlite:///{tmp_path}/a #ü b/mlflow.db"


def test_a_server_is_taken_as_it_is_on_any_number_of_nodes() -> None:
    uri = "http://mlflow.example:5000"
    assert tracking_uri(uri, Path("out"), num_nodes=3) == uri


@pytest.mark.parametrize("configured", [None, "sqlite:////shared/mlflow.db"])
def test_sqlite_on_several_nodes_is_refused_naming_the_option(configured: str | None) -> None:
    with pytest.raises(UsageError, match=r"2 nodes .* set tracking\.uri to an MLflow server"):
        tracking_uri(configured, Path("out"), num_nodes=2)


@pytest.mark.parametrize("configured", ["./mlruns", "file:///mlruns", "mysql://db/x"])
def test_what_is_neither_sqlite_nor_a_server_is_refused(configured: str) -> None:
    with pytest.raises(UsageError, match=r"tracking\.uri is .*http://host:port"):
        tracking_uri(configured, Path("out"))


@pytest.mark.parametrize(
    ("uri", "shown"),
    [
        ("http://me:secret@mlflow:5000/x", "http://mlflow:5000/x"),
        ("http://me:p@ss@mlflow", "http://mlflow"),
        ("postgresql://me:secret@db/mlflow", "postgresql://db/mlflow"),
        ("http://mlflow/a@b", "http://mlflow/a@b"),
        ("sqlite:////home/a@b/mlflow.db", "sqlite:////home/a@b/mlflow.db"),
    ],
)
def test_a_password_is_not_shown(uri: str, shown: str) -> None:
    assert without_password(uri) == shown


def test_what_is_refused_is_named_without_its_password() -> None:
    with pytest.raises(UsageError, match=r"^tracking\.uri is 'postgresql://db/mlflow': give") as no:
        tracking_uri("postgresql://me:secret@db/mlflow", Path("out"))
    assert "secret" not in str(no.value)


def test_a_user_without_a_name_is_named_by_number(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_name() -> str:
        raise KeyError("getpwuid(): uid not found: 1234")

    monkeypatch.setattr("getpass.getuser", no_name)
    assert author().startswith("uid ")
