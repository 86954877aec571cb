"""The watch over machines that have left, by the main thread's clock."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from itertools import chain, cycle
from typing import Any

import pytest

from simcse_platform.errors import ClusterError
from simcse_platform.training import supervision
from simcse_platform.training.supervision import enough_machines, interruptible


@pytest.fixture(autouse=True)
def look_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervision, "_SECONDS_BETWEEN_LOOKS", 0.02)


def missing() -> None:
    raise ClusterError("the cluster has 1 CPU")


@pytest.fixture(params=[signal.default_int_handler, signal.SIG_IGN], ids=["raised", "ignored"])
def ctrl_c(request: pytest.FixtureRequest) -> Iterator[None]:
    """Ctrl-C as a shell hands it on, to what runs in front of it and to what runs behind it."""
    handler = signal.signal(signal.SIGINT, request.param)
    yield
    assert signal.getsignal(signal.SIGINT) is request.param
    signal.signal(signal.SIGINT, handler)


@pytest.mark.usefixtures("ctrl_c")
def test_a_cluster_that_stays_too_small_ends_the_wait() -> None:
    start = time.monotonic()
    with (
        pytest.raises(ClusterError, match=r"^given up after 0.3 s: the cluster has 1 CPU$"),
        enough_machines(missing, 0.3),
    ):
        time.sleep(30)
    assert 0.3 <= time.monotonic() - start < 10


def test_machines_that_come_back_in_time_end_nothing() -> None:
    answers = chain([missing] * 5, [lambda: None], cycle([missing] * 5 + [lambda: None]))
    with enough_machines(lambda: next(answers)(), 0.5):
        time.sleep(1.2)


@pytest.mark.usefixtures("ctrl_c")
def test_a_look_that_fails_does_not_end_the_watch() -> None:
    def unknown() -> None:
        raise OSError("stale")

    answers = chain([unknown, missing, unknown], cycle([missing]))
    with (
        pytest.raises(ClusterError, match=r"^given up after 0.3 s: the cluster has 1 CPU$"),
        enough_machines(lambda: next(answers)(), 0.3),
    ):
        time.sleep(30)


@pytest.mark.usefixtures("ctrl_c")
def test_ctrl_c_stays_ctrl_c() -> None:
    with pytest.raises(KeyboardInterrupt), enough_machines(lambda: None, 0.3):
        raise KeyboardInterrupt


@pytest.mark.parametrize("handler", [signal.default_int_handler, signal.SIG_DFL])
def test_sigterm_takes_the_way_of_ctrl_c_where_it_is_to_end_a_command_alike(handler: Any) -> None:
    waited: list[int] = []

    def as_ray_does(number: int, frame: object) -> None:
        waited.append(number)
        raise SystemExit

    alike = handler is signal.default_int_handler

    @interruptible()
    def end() -> None:
        signal.signal(signal.SIGINT, as_ray_does)
        assert (signal.getsignal(signal.SIGTERM) is handler) is not alike
        signal.raise_signal(signal.SIGTERM if alike else signal.SIGINT)

    before = signal.signal(signal.SIGTERM, handler), signal.getsignal(signal.SIGINT)
    try:
        with pytest.raises(KeyboardInterrupt):
            end()
        assert waited == [signal.SIGINT]
        assert signal.getsignal(signal.SIGTERM) is handler
        assert signal.getsignal(signal.SIGINT) is before[1]
    finally:
        signal.signal(signal.SIGTERM, before[0])


def test_another_thread_is_not_watched() -> None:
    ended = threading.Event()

    def work() -> None:
        with enough_machines(missing, 0.05):
            time.sleep(0.3)
        ended.set()

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert ended.is_set()
