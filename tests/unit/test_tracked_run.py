"""A tracked run on its way to another process."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path

from simcse_platform.tracking.spool import Spool
from simcse_platform.tracking.tracked_run import TrackedRun


def test_a_process_that_only_unpickles_it_loads_no_mlflow(tmp_path: Path) -> None:
    run = TrackedRun("http://there", "0" * 32, tmp_path / "spool.jsonl")
    program = (
        "import pickle, sys\n"
        "run = pickle.load(sys.stdin.buffer)\n"
        "assert 'mlflow' not in sys.modules\n"
        "run.open().log_metrics({'loss': 0.5}, 3)\n"
        "assert 'mlflow' in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", program], input=pickle.dumps(run), check=True)
    assert Spool(run.spool).last_steps() == {"loss": 3}
