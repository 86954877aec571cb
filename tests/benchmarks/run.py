"""Run benchmarks by name, or all of them: `python tests/benchmarks/run.py [NAME ...] [OPTION ...]`.

Options go to every benchmark named; `run.py NAME --help` lists those of one.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
NAMES = (
    "triplets",
    "sentences",
    "whole_platform",
    "loss_memory",
    "cached",
    "tokenise",
    "scoring",
    "corpus_memory",
)


def main(arguments: list[str]) -> int:
    """Exit code 1 when one of the benchmarks failed; the others run all the same."""
    count = next((i for i, word in enumerate(arguments) if word.startswith("-")), len(arguments))
    names, options = arguments[:count] or list(NAMES), arguments[count:]
    if late := set(options) & set(NAMES):
        sys.stderr.write(f"write {late.pop()} before the options\n")
        return 2
    if unknown := set(names) - set(NAMES):
        sys.stderr.write(f"there is no benchmark {unknown.pop()}: name {', '.join(NAMES)}\n")
        return 2
    roots = [str(ROOT / "tests"), str(ROOT), str(ROOT / "platform")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(roots)}
    codes = [
        subprocess.run(
            [sys.executable, "-m", f"benchmarks.{name}", *options], env=environment, check=False
        ).returncode
        for name in names
    ]
    return int(any(codes))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
