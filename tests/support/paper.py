"""The paper's comparisons on stand-ins for text and evaluation sets."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from pipelines.paper import rows, runs
from pipelines.paper.measures import Bench
from pipelines.paper.rows import Trained
from pipelines.paper.runs import PlannedRows, Scale
from pipelines.paper.texts import NotAtHandError
from simcse.evaluation import EmbeddingTable, LoadedSets, Pairs, STSSet
from simcse.evaluation.geometry import GeometrySet
from simcse.evaluation.suite import GEOMETRY
from simcse_platform.config import TrainRun, override
from simcse_platform.ingest.manifest import MANIFEST, Manifest


class FilesByColumns:
    """`TrainingTexts` without preparing: a file with as many text columns as a row needs."""

    def __init__(self, folder: Path, lacking: str = "") -> None:
        self._folder, self._lacking = folder, lacking

    def settings(self, source: Trained, sample: int | None) -> tuple[str, ...]:
        if source.text == self._lacking:
            raise NotAtHandError(f"no {source.text}")
        if source.text == "sentences":
            return ()
        columns = {"documents": 1, "triplets": 3, "triplets-neutral": 4}
        names = "abcd"[: columns.get(source.text, 2)]
        file = self._folder / f"{source.text}.csv"
        file.write_text(",".join(names) + "\n" + ",".join(f"dog {n}" for n in names) + "\n")
        return (f"data.corpus={json.dumps([str(file)])}",)

    def sample_size(self) -> None:
        return None


def manifest_only(folder: Path, rows: int, *columns: str) -> Path:
    """What tells how large a prepared text is, without the text."""
    manifest = Manifest(
        content_key="k",
        rows=rows,
        columns=columns,
        shards=(),
        tokenizer_model="bert",
        tokenizer_fingerprint="f",
        max_length=32,
        dropped={},
        quarantined={},
        cut=0,
        lengths={},
    )
    folder.mkdir()
    (folder / MANIFEST).write_text(manifest.model_dump_json())
    return folder


def plan(
    name: str,
    scale: Scale,
    encoder: Path,
    corpus: Path,
    *assignments: str,
    lacking: str = "",
    leave_out: tuple[str, ...] = (),
) -> PlannedRows:
    comparison, folder = rows.find(name), corpus.parent
    user = runs.user_run(
        comparison, scale, str(encoder), [str(corpus)], folder, None, list(assignments)
    )
    texts = FilesByColumns(folder, lacking)
    return runs.plan_rows(
        comparison,
        scale,
        user,
        texts,  # type: ignore[arg-type]
        list(assignments),
        leave_out=leave_out,
    )


def run_of(planned: PlannedRows, label: str) -> TrainRun:
    point = planned.points[label]
    return override(planned.base, [f"{path}={text}" for path, text in point.items()])


class Lines:
    """Vectors of two numbers by sentence."""

    def __init__(self, vectors: Mapping[str, tuple[float, float]]) -> None:
        self._vectors = vectors

    def encode(self, sentences, *, progress=None):
        return np.array([self._vectors[sentence] for sentence in sentences], np.float32)


def sts_set(name: str, split: str = "dev") -> STSSet:
    one = Pairs(("a", "a", "b"), ("b", "c", "d"), np.array([5.0, 1.0, 3.0]))
    two = Pairs(("c", "b"), ("d", "c"), np.array([5.0, 0.0]))
    return STSSet(name=name, split=split, subsets={"one": one, "two": two})


GEOMETRY_SET = GeometrySet(
    Pairs(("a", "b", "b"), ("b", "c", "d"), np.array([5.0, 1.0, 3.0])), "dev"
)
EMBEDDER = Lines({"a": (1, 0), "b": (1, 0.4), "c": (0, 1), "d": (0.6, 1)})


STS_AT_HAND = ("STS12", "STSBenchmark")


def stand_in_sets(monkeypatch: pytest.MonkeyPatch, sts: tuple[str, ...] = STS_AT_HAND) -> None:
    """Put `sts_set` in place of every set that is asked for; of the STS sets, STS14 is missing."""

    def load(tasks, *, data, mode):
        names = [n for t in tasks for n in {"sts": sts, "transfer": ()}.get(t, [t])]
        sets = [GEOMETRY_SET if n == GEOMETRY else sts_set(n, mode) for n in names]
        missing = {"STS14": "no file"} if "sts" in tasks else {}
        return LoadedSets(sets, missing, dict.fromkeys(names, "ab"))

    monkeypatch.setattr("pipelines.evaluation_sets.load", load)


def bench(
    measure: str,
    monkeypatch: pytest.MonkeyPatch,
    captions: list[str] | None = None,
    *,
    sts: tuple[str, ...] = STS_AT_HAND,
):
    """A bench on stand-ins."""
    stand_in_sets(monkeypatch, sts)
    return Bench(
        measure,  # type: ignore[arg-type]
        dev_sets=LoadedSets([sts_set("STSBenchmark")], {}, {"STSBenchmark": "cd"}),
        data=None,
        captions=lambda: captions or [],
    )


def table():
    return EmbeddingTable(list("abcd"), EMBEDDER.encode("abcd"))
