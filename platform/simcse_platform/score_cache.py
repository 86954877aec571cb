"""Scores of a model on data that were computed before. n: items of a set."""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from simcse.evaluation import EvaluationSet, Scores
from simcse.evaluation.significance import ItemMean, RankCorrelation, Sample
from simcse_platform import provenance
from simcse_platform.storage import write_atomically

_KINDS: Mapping[str, type[ItemMean | RankCorrelation]] = {
    "mean": ItemMean,
    "correlation": RankCorrelation,
}


class ScoreCache:
    """One file in a folder: what one model scored on one choice of sets.

    Its name is made of the content of model, data and sets, and of the versions of the code and its
    libraries, so that none of them can change unseen.
    """

    def __init__(
        self,
        folder: Path,
        *,
        model: Path,
        sets: Sequence[EvaluationSet],
        data_sha256: Mapping[str, str],
    ) -> None:
        digest = hashlib.sha256(provenance.source_hash().encode())
        for file in sorted(path for path in model.rglob("*") if path.is_file()):
            digest.update(f"{file.relative_to(model).as_posix()}\0".encode())
            with file.open("rb") as content:
                digest.update(hashlib.file_digest(content, "sha256").digest())
        items = [[found.name, found.split, list(found.sentences())] for found in sets]
        facts = [items, sorted(data_sha256.items()), sorted(provenance.versions().items())]
        digest.update(json.dumps(facts).encode())
        self._path = folder / f"{digest.hexdigest()}.npz"

    def read(self) -> dict[str, Scores] | None:
        """The scores, or None when there are none that can be read."""
        try:
            with self._path.open("rb") as content, np.load(content, allow_pickle=False) as file:
                entries = json.loads(str(file["entries"]))
                return {
                    entry["name"]: Scores(
                        headline=entry["headline"],
                        measure=entry["measure"],
                        numbers=entry["numbers"],
                        sample=_sample(entry["kind"], file, number),
                    )
                    for number, entry in enumerate(entries)
                }
        except (OSError, EOFError, LookupError, TypeError, ValueError, zipfile.BadZipFile):
            return None

    def write(self, scores: Mapping[str, Scores]) -> None:
        """Keep the scores, in one move."""
        arrays: dict[str, Any] = {}
        entries = []
        for number, (name, found) in enumerate(scores.items()):
            kind = next((k for k, t in _KINDS.items() if isinstance(found.sample, t)), None)
            entries.append(
                {
                    "name": name,
                    "headline": found.headline,
                    "measure": found.measure,
                    "numbers": found.numbers,
                    "kind": kind,
                }
            )
            if kind is not None:
                for field in _fields(kind):
                    arrays[f"{number}.{field}"] = getattr(found.sample, field)
        content = io.BytesIO()
        np.savez(content, entries=np.array(json.dumps(entries)), **arrays)
        write_atomically(self._path, content.getvalue())


def _sample(kind: str | None, file: Mapping[str, np.ndarray], number: int) -> Sample | None:
    if kind is None:
        return None
    return _KINDS[kind](*(file[f"{number}.{field}"] for field in _fields(kind)))


def _fields(kind: str) -> list[str]:
    return list(_KINDS[kind].__dataclass_fields__)
