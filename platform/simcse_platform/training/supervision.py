"""What the driver does while workers train: show progress, hear Ctrl-C, see machines leave."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress

from ray.exceptions import RayError
from ray.util.queue import Queue

from simcse.errors import SimcseError
from simcse_platform.errors import ClusterError

Show = Callable[[int, Mapping[str, float]], None]

_SECONDS_BETWEEN_LOOKS = 5.0


@contextmanager
def interruptible() -> Iterator[None]:
    """Ctrl-C raises `KeyboardInterrupt`: Ray's handler leaves by `SystemExit`, and stays behind.

    So does SIGTERM where it is to do the same: only Ray's handler waits for the workers' end.
    """
    if threading.current_thread() is not threading.main_thread():
        # Ray sets its handler in the main thread only.
        yield
        return
    handler, terminated = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    if terminated is signal.default_int_handler:
        signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    try:
        yield
    except SystemExit:
        raise KeyboardInterrupt from None
    finally:
        signal.signal(signal.SIGINT, handler)
        signal.signal(signal.SIGTERM, terminated)


@contextmanager
def shown(show: Show | None) -> Iterator[Queue | None]:
    """A queue whose entries `show` gets, in a thread of this process, until the block ends."""
    if show is None:
        yield None
        return
    queue = Queue(actor_options={"num_cpus": 0})

    def pass_on() -> None:
        # The queue may go with its machine; the run does not.
        with suppress(RayError):
            while (entry := queue.get()) is not None:
                show(*entry)

    thread = threading.Thread(target=pass_on, daemon=True)
    thread.start()
    try:
        yield queue
    finally:
        # Without waiting for it: a machine that does not answer keeps nobody.
        queue.actor.put.remote(None)  # type: ignore[attr-defined]
        thread.join(timeout=10)
        queue.shutdown()


@contextmanager
def enough_machines(check: Callable[[], object], timeout_s: float) -> Iterator[None]:
    """Ends the block with the error of `check` when it has failed for `timeout_s` on end.

    An elastic run without machines waits for some, and Ray lets it wait for ever. Only the main
    thread can be ended so; elsewhere the block runs unwatched.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    ended, lasting, main = threading.Event(), list[SimcseError](), threading.get_ident()
    handler = signal.getsignal(signal.SIGINT)
    if handler is signal.SIG_IGN:
        # A shell without job control starts what runs behind it with Ctrl-C ignored.
        signal.signal(signal.SIGINT, signal.default_int_handler)

    def watch() -> None:
        failing_since: float | None = None
        while not ended.wait(min(_SECONDS_BETWEEN_LOOKS, timeout_s)):
            try:
                check()
            except SimcseError as error:
                failing_since = failing_since or time.monotonic()
                if time.monotonic() - failing_since >= timeout_s:
                    lasting.append(error)
                    # A real signal, which also ends a wait outside Python.
                    return signal.pthread_kill(main, signal.SIGINT)
            except (OSError, RayError):
                # Not known at this look, such as while a file system does not answer.
                continue
            else:
                failing_since = None

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    except KeyboardInterrupt:
        if lasting:
            raise ClusterError(f"given up after {timeout_s:g} s: {lasting[0]}") from None
        raise
    finally:
        ended.set()
        thread.join()
        signal.signal(signal.SIGINT, handler)
