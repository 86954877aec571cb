"""Evaluation sets by name, from a folder or from the hub."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from simcse.errors import UsageError
from simcse.evaluation.hub import HubSource
from simcse.evaluation.protocol import EvaluationSet
from simcse.evaluation.sts_files import Layout, SentEvalLayout, TsvLayout, read_set
from simcse.evaluation.suite import STS_SUITE, MissingSetError, Split, resolve_tasks


@dataclass(frozen=True, slots=True)
class LoadedSets:
    """What was found of the sets asked for."""

    sets: list[EvaluationSet]
    missing: dict[str, str]
    """Reason by name of a set that is not there."""
    sha256: dict[str, str]
    """Checksum of each file, by its path in its layout, or of each dataset of the hub."""


def load_sts(names: Sequence[str], *, data: Path | None, mode: Split) -> LoadedSets:
    """One split of the sets named, as `resolve_tasks` reads names; null `data` means the hub.

    `data` is a folder in either layout, or one that holds such folders as `sts/` and
    `sts_senteval/`. Raises `UsageError` for a wrong name or folder and `DataError` for a file with
    wrong content; a set that is not there is listed with its reason.
    """
    source = HubSource() if data is None else FolderSource(data)
    loaded = LoadedSets([], {}, {})
    for name in resolve_tasks(names, mode):
        try:
            found, sha256 = source.read(name, mode)
        except MissingSetError as reason:
            loaded.missing[name] = str(reason)
        else:
            loaded.sets.append(found)
            loaded.sha256.update(sha256)
    return loaded


class FolderSource:
    """Reads sets from a folder; each from the first layout there that holds all of its files.

    Raises `UsageError` for a folder that holds no set at all.
    """

    def __init__(self, data: Path) -> None:
        if not data.is_dir():
            raise UsageError(f"there is no folder {data}: give the one that holds the STS sets")
        self._data = data
        self._layouts: list[Layout] = [
            TsvLayout(data / "sts"),
            TsvLayout(data),
            SentEvalLayout(data / "sts_senteval"),
            SentEvalLayout(data),
        ]
        if not any(layout.folder(name).is_dir() for layout in self._layouts for name in STS_SUITE):
            raise UsageError(
                f"{data} holds no STS set: give a folder that holds sts/ or sts_senteval/, or that "
                "is one of them (with STS12/ ..., or with STS/ and SICK/)"
            )

    def read(self, name: str, split: Split) -> tuple[EvaluationSet, dict[str, str]]:
        """A set and the SHA-256 of its files. Raises `MissingSetError` naming what is not there."""
        first_absent: Path | None = None
        for layout in self._layouts:
            if not layout.folder(name).is_dir():
                continue
            subsets = STS_SUITE[name][split]
            files = [path for subset in subsets for path in layout.files(name, subset)]
            absent = [path for path in files if not path.is_file()]
            if not absent:
                return read_set(layout, name, split)
            first_absent = first_absent or absent[0]
        if first_absent:
            raise MissingSetError(f"there is no file {first_absent}")
        raise MissingSetError(f"there is no folder of {name} in {self._data}")
