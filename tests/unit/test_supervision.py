"""The watch over machines that have left, by the main thread's clock."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from itertools import chain, cycle

import pytest

from simcse_platform.errors import ClusterError
from simcse_platform.training import supervision
from simcse_platform.training.supervision import enough_machines


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
        pytest.raises(
            ClusterError, match=r"^for 0.3 s machines have been missing: the cluster has 1 CPU$"
        ),
        enough_machines(missing, 0.3),
    ):
        time.sleep(30)
    assert 0.3 <= time.monotonic() - start < 10


def test_machines_that_come_back_in_time_end_nothing() -> None:
    answers = chain([missing] * 5, [lambda: None], cycle([missing] * 5 + [lambda: None]))
    with enough_machines(lambda: next(answers)(), 0.5):
        time.sleep(1.2)


@pytest.mark.usefixtures("ctrl_c")
def test_ctrl_c_stays_ctrl_c() -> None:
    with pytest.raises(KeyboardInterrupt), enough_machines(lambda: None, 0.3):
        raise KeyboardInterrupt


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
