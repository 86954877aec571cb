"""The lease, over a tag in this process."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from simcse_platform.tracking import lease as module
from simcse_platform.tracking.lease import lease


class MemoryTag:
    """A tag that is slow to read and to write, as one on a server is."""

    def __init__(self) -> None:
        self.text: str | None = None

    def read(self) -> str | None:
        time.sleep(0.001)
        return self.text

    def write(self, text: str) -> None:
        time.sleep(0.001)
        self.text = text

    def clear(self) -> None:
        self.text = None


def test_one_of_many_holds_the_lease_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_SETTLE_SECONDS", 0.1)
    tag, inside, most = MemoryTag(), 0, 0

    def work(name: str) -> None:
        nonlocal inside, most
        with lease(tag, name):
            inside += 1
            most = max(most, inside)
            time.sleep(0.05)
            inside -= 1

    with ThreadPoolExecutor() as threads:
        list(threads.map(work, "abcd"))
    assert most == 1
    assert tag.text is None


def test_a_lease_taken_over_by_another_is_left_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_SETTLE_SECONDS", 0.0)
    tag = MemoryTag()
    with lease(tag, "slow"):
        assert tag.text is not None
        assert tag.text.startswith("slow ")
        tag.text = "another"
    assert tag.text == "another"
