"""SIGTERM, by which schedulers end a command, while Ray is connected."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import os, signal, time
from simcse_platform import runtime

signal.signal(signal.SIGTERM, signal.default_int_handler)
stopped = 0
with runtime.connect(num_cpus=1, object_store_memory=80_000_000):
    for _ in range(2):
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(30)
        except KeyboardInterrupt:
            stopped += 1
print("stopped", stopped)
"""


def test_a_command_that_is_terminated_twice_hears_it_twice_and_says_nothing_else() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "stopped 2"
    assert "SIGTERM" not in done.stderr
