from __future__ import annotations

import os
import socket
import time
from pathlib import Path

import pytest
import ray

from simcse.errors import DataError
from simcse_platform import runtime
from simcse_platform.errors import ClusterError


@pytest.fixture
def unconnected(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As if no test had started Ray, on a machine without a token."""
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("RAY_ADDRESS", "RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        # Set first, so that what `connect` writes is undone too.
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)


@pytest.mark.usefixtures("unconnected")
def test_a_cluster_that_does_not_answer_is_named_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{closed.getsockname()[1]}"
        monkeypatch.setenv("RAY_ADDRESS", address)
        start = time.monotonic()
        with (
            pytest.raises(ClusterError, match=rf"^no Ray cluster answers at {address} \("),
            runtime.connect(),
        ):
            pass
    assert time.monotonic() - start < 10


@pytest.mark.usefixtures("unconnected")
def test_authentication_is_never_left_to_ray(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    refused = pytest.raises(ClusterError)
    with refused, runtime.connect("127.0.0.1:1"):
        pass
    assert os.environ.pop("RAY_AUTH_MODE") == "disabled"
    (tmp_path / ".ray").mkdir()
    (tmp_path / ".ray" / "auth_token").write_text("secret")
    with refused, runtime.connect("127.0.0.1:1"):
        pass
    assert os.environ.pop("RAY_AUTH_MODE") == "token"
    assert os.environ.pop("RAY_AUTH_TOKEN_PATH") == str(tmp_path / ".ray" / "auth_token")
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    with refused, runtime.connect("127.0.0.1:1"):
        pass
    assert os.environ["RAY_AUTH_MODE"] == "disabled"


def test_the_cause_of_a_failure_is_found_at_any_depth() -> None:
    error = DataError("a.txt:3 is wrong")
    wrapped = RuntimeError("task failed")
    wrapped.__cause__ = ValueError("in between")
    wrapped.__cause__.__context__ = error
    assert runtime.cause(wrapped) is error
    assert runtime.cause(error) is error
    assert runtime.cause(RuntimeError("nothing of ours")) is None
