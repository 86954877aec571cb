"""Evaluation sets by name: those of the literature and the demo's own."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

from simcse.errors import UsageError
from simcse.evaluation import EvaluationSet, LoadedSets, Mode, load_sets
from simcse.evaluation.suite import GEOMETRY

DEMO_TASKS = ("DemoPairs", "DemoRetrieval")


def load(tasks: Sequence[str], *, data: Path | None, mode: Mode) -> LoadedSets:
    """The sets named; `data` is a folder with evaluation sets, and None means the hub.

    The demo's sets have one split, dev, and are found without `data`.
    """
    demo = [task for task in tasks if task in DEMO_TASKS]
    others = [task for task in tasks if task not in DEMO_TASKS]
    loaded = load_sets(others, data=data, mode=mode) if others else LoadedSets([], {}, {})
    for task in demo:
        evaluated, source = _demo_set(task)
        loaded.sets.append(evaluated)
        loaded.sha256[source.name] = hashlib.sha256(source.read_bytes()).hexdigest()
    return loaded


def load_all(tasks: Sequence[str], *, data: Path | None, mode: Mode, purpose: str) -> LoadedSets:
    """The sets named, none missing, to compare models by.

    `purpose` says in the `UsageError` what needs them.
    """
    if GEOMETRY in tasks:
        raise UsageError(f"{GEOMETRY} describes vectors and ranks no models, but {purpose}")
    loaded = load(tasks, data=data, mode=mode)
    for task, reason in loaded.missing.items():
        raise UsageError(
            f"{task} is missing ({reason}), but {purpose}: give its folder by --data, or name "
            "other sets, such as DemoPairs, which is always there"
        )
    return loaded


def add_geometry(loaded: LoadedSets, *, data: Path | None, purpose: str) -> None:
    """Add the set that describes how vectors lie, for a limit on it."""
    geometry = load([GEOMETRY], data=data, mode="test")
    for reason in geometry.missing.values():
        raise UsageError(f"{GEOMETRY} is missing ({reason}), but {purpose}: give --data")
    loaded.sets.extend(geometry.sets)
    loaded.sha256.update(geometry.sha256)


def _demo_set(task: str) -> tuple[EvaluationSet, Path]:
    from pipelines import demo_data

    if task == "DemoPairs":
        return demo_data.graded_pairs(), demo_data.GRADED_PAIRS
    summaries = demo_data.summaries_file()
    return demo_data.description_retrieval(summaries), summaries
