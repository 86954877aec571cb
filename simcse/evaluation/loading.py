"""Evaluation sets by name, from a folder or from the hub."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from simcse.errors import UsageError
from simcse.evaluation.geometry import GeometrySet
from simcse.evaluation.hub import HubSource
from simcse.evaluation.protocol import EvaluationSet
from simcse.evaluation.sts import STSSet
from simcse.evaluation.sts_files import Layout, SentEvalLayout, TsvLayout, read_set, read_tsv
from simcse.evaluation.suite import (
    GEOMETRY,
    STS_SUITE,
    TRANSFER_SUITE,
    MissingSetError,
    Mode,
    Split,
    is_file,
    resolve_tasks,
    split_of,
)
from simcse.evaluation.transfer import TransferSet
from simcse.evaluation.transfer_files import read_transfer_set

Found = tuple[EvaluationSet, dict[str, str]]
"""A set and the SHA-256 of what it was read from."""


@dataclass(frozen=True, slots=True)
class LoadedSets:
    """What was found of the sets asked for."""

    sets: list[EvaluationSet]
    missing: dict[str, str]
    """Reason by name of a set that is not there."""
    sha256: dict[str, str]
    """Checksum of each file, by its path in its layout, or of each dataset of the hub."""


def load_sets(tasks: Sequence[str], *, data: Path | None, mode: Mode) -> LoadedSets:
    """The sets that `resolve_tasks` reads from tasks; null `data` means the hub.

    `data` is a folder in one of the layouts, or one that holds such folders as `sts/`,
    `sts_senteval/` and `transfer/`. The hub has the STS sets only. Raises `UsageError` for a wrong
    name, file or folder and `DataError` for a file with wrong content; a set of the literature that
    is not there is listed with its reason.
    """
    source = HubSource() if data is None else FolderSource(data)
    loaded = LoadedSets([], {}, {})
    for task in resolve_tasks(tasks, mode):
        try:
            found, sha256 = _load(source, task, mode)
        except MissingSetError as reason:
            loaded.missing[task] = str(reason)
            continue
        if any(_recorded_as(found) == _recorded_as(other) for other in loaded.sets):
            raise UsageError(
                f"two sets are called {found.name}, or are when they are recorded: rename {task}"
            )
        loaded.sets.append(found)
        loaded.sha256.update(sha256)
    return loaded


def _recorded_as(found: EvaluationSet) -> str:
    return re.sub(r"\W+", "_", found.name.lower())


def _load(source: HubSource | FolderSource, task: str, mode: Mode) -> Found:
    split = split_of(mode)
    if is_file(task):
        path = Path(task).expanduser()
        if not path.is_file():
            raise UsageError(f"there is no file {path}: a task that ends in .tsv is a path")
        return read_tsv(path, split)
    if task == GEOMETRY:
        benchmark, sha256 = source.read("STSBenchmark", split)
        return GeometrySet(benchmark.subsets[split], split), sha256
    if task in STS_SUITE:
        return source.read(task, split)
    if isinstance(source, HubSource):
        raise MissingSetError(
            f"the hub is asked for STS sets only: point --data at a folder that holds {task}"
        )
    return source.read_transfer(task, mode)


class FolderSource:
    """Reads sets from a folder; each from the first layout there that holds all of its files.

    Raises `UsageError` for a folder that holds no set at all.
    """

    def __init__(self, data: Path) -> None:
        if not data.is_dir():
            raise UsageError(
                f"there is no folder {data}: give the one that holds the evaluation sets"
            )
        self._data = data
        self._layouts: list[Layout] = [
            TsvLayout(data / "sts"),
            TsvLayout(data),
            SentEvalLayout(data / "sts_senteval"),
            SentEvalLayout(data),
        ]
        self._transfer_roots = [data / "transfer", data]
        names = (*STS_SUITE, *TRANSFER_SUITE)
        if not any(files[0].parent.is_dir() for name in names for files in self._places(name)):
            raise UsageError(
                f"{data} holds no evaluation set: give a folder that holds sts/, sts_senteval/ or "
                "transfer/, or that is one of them (with STS12/ ..., with STS/ and SICK/, or with "
                "MR/ ...)"
            )

    def read(self, name: str, split: Split) -> tuple[STSSet, dict[str, str]]:
        """An STS set and the SHA-256 of its files.

        Raises `MissingSetError` naming what is not there, as `read_transfer` does.
        """
        return read_set(self._layouts[self._complete_place(name, split)], name, split)

    def read_transfer(self, name: str, mode: Mode) -> tuple[TransferSet, dict[str, str]]:
        """A transfer task and the SHA-256 of its files."""
        return read_transfer_set(self._transfer_roots[self._complete_place(name)], name, mode)

    def _places(self, name: str, split: Split = "test") -> list[list[Path]]:
        """Files of a set in every place where it may be."""
        if name in TRANSFER_SUITE:
            return [[root / path for path in TRANSFER_SUITE[name]] for root in self._transfer_roots]
        return [
            [path for subset in STS_SUITE[name][split] for path in layout.files(name, subset)]
            for layout in self._layouts
        ]

    def _complete_place(self, name: str, split: Split = "test") -> int:
        places = self._places(name, split)
        for number, files in enumerate(places):
            if all(path.is_file() for path in files):
                return number
        begun = [files for files in places if files[0].parent.is_dir()]
        for absent in (path for files in begun for path in files if not path.is_file()):
            raise MissingSetError(f"there is no file {absent}")
        raise MissingSetError(f"there is no folder of {name} in {self._data}")
