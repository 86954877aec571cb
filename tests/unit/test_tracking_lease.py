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


class SlowTag(MemoryTag):
    """The same tag through a connection on which writing takes a while."""

    def __init__(self, tag: MemoryTag, seconds: float) -> None:
        self._tag, self._seconds = tag, seconds

    def read(self) -> str | None:
        return self._tag.read()

    def write(self, text: str) -> None:
        time.sleep(self._seconds)
        self._tag.write(text)

    def clear(self) -> None:
        self._tag.clear()


def test_a_lease_that_was_written_late_waits_for_who_held_it_by_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_SETTLE_SECONDS", 0.1)
    monkeypatch.setattr(module, "LEASE_SECONDS", 1.0)
    tag, inside, together = MemoryTag(), set[str](), []

    def work(name: str, own: MemoryTag, seconds: float) -> None:
        with lease(own, name):
            inside.add(name)
            together.append(len(inside))
            time.sleep(seconds)
            inside.remove(name)

    with ThreadPoolExecutor() as threads:
        late = threads.submit(work, "late", SlowTag(tag, 0.3), 0.0)
        quick = threads.submit(work, "quick", tag, 0.7)
        late.result(timeout=30)
        quick.result(timeout=30)
    assert together == [1, 1]
    assert tag.text is None


def test_an_interrupted_wait_leaves_no_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    tag = MemoryTag()

    def interrupt(seconds: float) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(module.time, "sleep", interrupt)
        patch.setattr(MemoryTag, "read", lambda self: self.text)
        patch.setattr(MemoryTag, "write", lambda self, text: setattr(self, "text", text))
        with pytest.raises(KeyboardInterrupt), lease(tag, "me"):
            raise AssertionError
    assert tag.text is None


def test_a_lease_taken_over_by_another_is_left_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_SETTLE_SECONDS", 0.1)
    tag = MemoryTag()
    with lease(tag, "slow"):
        assert tag.text is not None
        assert tag.text.startswith("slow ")
        tag.text = "another"
    assert tag.text == "another"
