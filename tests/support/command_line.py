"""The command line in this process: what a user would type, see and get."""

from __future__ import annotations

import signal
import sys
from dataclasses import dataclass

import pytest

from pipelines.__main__ import main


@dataclass(frozen=True)
class Outcome:
    """What a command left on the terminal."""

    code: int
    out: str
    err: str

    @property
    def error(self) -> str:
        """The one line of a failed command, without its "error: "."""
        assert self.code != 0, self.out
        assert self.err.startswith("error: "), self.err
        assert self.err.count("\n") == 1, self.err
        return self.err.removeprefix("error: ").rstrip("\n")


class CommandLine:
    """`simcse("train", "--recipe", "demo")`, on a machine without a cluster or data at hand."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, capture: pytest.CaptureFixture[str]
    ) -> None:
        self._monkeypatch, self._capture = monkeypatch, capture
        for name in ("SIMCSE_DATA", "RAY_ADDRESS"):
            monkeypatch.delenv(name, raising=False)

    def __call__(self, *arguments: object) -> Outcome:
        self._monkeypatch.setattr(sys, "argv", ["simcse", *map(str, arguments)])
        self._capture.readouterr()
        # `main` has SIGTERM raise `KeyboardInterrupt`, which is not for the tests after this one.
        handler = signal.getsignal(signal.SIGTERM)
        try:
            code = main()
        finally:
            signal.signal(signal.SIGTERM, handler)
        return Outcome(code, *self._capture.readouterr())
