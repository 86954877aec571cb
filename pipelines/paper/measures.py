"""What is measured of the models in the paper's tables and figures."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, cast

import numpy as np

from pipelines import evaluation_sets
from pipelines.evaluate import score
from pipelines.paper.published import AVERAGE
from pipelines.paper.rows import (
    STS_AVERAGE,
    STSB_DEV,
    TRANSFER_AVERAGE,
    Aggregation,
    Comparison,
    Measure,
    Row,
)
from simcse import figures
from simcse.evaluation import (
    STS_SUITE,
    TRANSFER_SUITE,
    Embedder,
    EmbeddingTable,
    EvaluationSet,
    LoadedSets,
    Mode,
    Scores,
)
from simcse.evaluation.geometry import GeometryNumbers
from simcse.evaluation.neighbours import Example, nearest
from simcse.evaluation.sts import STSNumbers
from simcse.evaluation.suite import GEOMETRY

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_QUERIES, _NEIGHBOURS = 2, 3
_PLANE = ("uniformity", "alignment")


@dataclass(frozen=True, slots=True)
class Finding:
    """What one model gives a row."""

    numbers: Mapping[str, float] = field(default_factory=dict)
    """By column."""
    geometry: GeometryNumbers | None = None
    neighbours: Sequence[Example] = ()
    path: Sequence[tuple[float, float]] = ()
    """(uniformity, alignment) along training."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """A row with what was found for it."""

    row: Row
    found: Sequence[Finding] = ()
    """One a seed, the best by dev first."""
    note: str = ""
    """Why there is none, or what to know of it."""
    failure: str = ""
    """Why a model could not be trained or measured."""
    runs: Sequence[str] = ()
    """Names of the runs that trained its models."""

    def mean(self) -> dict[str, float]:
        """By column, over seeds."""
        return {name: fmean(values) for name, values in self._by_column().items()}

    def deviation(self) -> dict[str, float]:
        """Sample standard deviation by column, where there are several seeds."""
        if len(self.found) < 2:
            return {}
        return {name: float(np.std(v, ddof=1)) for name, v in self._by_column().items()}

    def _by_column(self) -> dict[str, list[float]]:
        """Columns that every seed has."""
        columns = self.found[0].numbers if self.found else {}
        return {
            name: [one.numbers[name] for one in self.found]
            for name in columns
            if all(name in one.numbers for one in self.found)
        }


class Bench:
    """The sets of a comparison, loaded once, on which its models are measured."""

    def __init__(
        self,
        measure: Measure,
        *,
        dev_sets: LoadedSets,
        data: Path | None,
        captions: Callable[[], list[str]],
    ) -> None:
        def load(task: str, mode: Mode) -> LoadedSets:
            return evaluation_sets.load([task], data=data, mode=mode)

        self.kind = measure
        match measure:
            case "dev" | "path":
                self._loaded = [dev_sets]
            case "sts" | "transfer":
                self._loaded = [load(measure, "test")]
            case "dev and transfer":
                self._loaded = [dev_sets, load("transfer", "dev")]
            case "geometry":
                self._loaded = [load(GEOMETRY, "dev"), load("sts", "test")]
            case "neighbours":
                self._loaded = []
        self._dev = [found.name for found in dev_sets.sets]
        self._captions = captions() if measure == "neighbours" else []

    @property
    def missing(self) -> dict[str, str]:
        """Sets that are not at hand, and why."""
        return {name: why for loaded in self._loaded for name, why in loaded.missing.items()}

    @property
    def data_sha256(self) -> dict[str, str]:
        return {name: digest for loaded in self._loaded for name, digest in loaded.sha256.items()}

    @property
    def sets(self) -> list[EvaluationSet]:
        return [found for loaded in self._loaded for found in loaded.sets]

    def measure(self, embedder: Embedder, row: Row) -> Finding:
        """What the comparison shows of a model."""
        if self.kind == "neighbours":
            # Queries are captions themselves, as in the paper.
            table = EmbeddingTable(self._captions, embedder.encode(self._captions))
            among = len(self._captions)
            return Finding(
                neighbours=nearest(table, queries=_QUERIES, count=_NEIGHBOURS, among=among)
            )
        return self.read(self.score(embedder, row), row)

    def score(self, embedder: Embedder, row: Row) -> Mapping[str, Scores]:
        """A model's scores on all sets."""
        return score(embedder, self.sets, label=row.label).scores

    def read(self, scores: Mapping[str, Scores], row: Row) -> Finding:
        """What the comparison shows of scores."""
        geometry = cast(GeometryNumbers, scores[GEOMETRY].numbers) if GEOMETRY in scores else None
        return Finding(self._numbers(scores, geometry, row.aggregation), geometry)

    def of_dev(self, score: float) -> dict[str, float]:
        """A mean dev score under the name of its column."""
        stsb = self._dev == ["STSBenchmark"]
        return {STSB_DEV if stsb else f"{' + '.join(self._dev)} dev": score}

    def _numbers(
        self,
        scores: Mapping[str, Scores],
        geometry: GeometryNumbers | None,
        aggregation: Aggregation,
    ) -> dict[str, float]:
        sts = {n: _aggregated(scores[n], aggregation) for n in STS_SUITE if n in scores}
        transfer = {n: scores[n].headline for n in TRANSFER_SUITE if n in scores}
        match self.kind:
            case "dev" | "path":
                return self.of_dev(fmean(scores[name].headline for name in self._dev))
            case "sts":
                return sts | _average(sts, len(STS_SUITE), AVERAGE)
            case "transfer":
                return transfer | _average(transfer, len(TRANSFER_SUITE), AVERAGE)
            case "dev and transfer":
                dev = self.of_dev(fmean(scores[name].headline for name in self._dev))
                return dev | _average(transfer, len(TRANSFER_SUITE), TRANSFER_AVERAGE)
            case "geometry":
                lies = {} if geometry is None else _uniformity_and_alignment(geometry)
                return lies | _average(sts, len(STS_SUITE), STS_AVERAGE)
            case "neighbours":
                raise AssertionError


def of_path(dev: Mapping[str, float], path: Sequence[tuple[float, float]]) -> Finding:
    """A run by its best dev score and where its way through the plane began and ended."""
    numbers = dict(dev)
    if path:
        for place, point in (("start", path[0]), ("end", path[-1])):
            numbers |= {f"{n} {place}": value for n, value in zip(_PLANE, point, strict=True)}
    return Finding(numbers, path=path)


def _aggregated(scores: Scores, aggregation: Aggregation) -> float:
    """Spearman in an aggregation; a set whose subsets are one, or unknown, has `all` alone."""
    numbers = cast(STSNumbers, scores.numbers)["spearman"]
    found = numbers["wmean"] if aggregation == "wmean" else numbers["all"]
    return numbers["all"] if found is None else found


def _average(scores: Mapping[str, float], of: int, name: str) -> dict[str, float]:
    """The mean under `name`; over fewer sets it is called so, since it compares with none."""
    if not scores:
        return {}
    return {name if len(scores) == of else f"mean of {len(scores)}": fmean(scores.values())}


def _uniformity_and_alignment(geometry: GeometryNumbers) -> dict[str, float]:
    alignment = geometry["alignment"]
    aligned = {} if alignment is None else {"alignment": alignment}
    return {"uniformity": geometry["uniformity"], **aligned}


def draw(comparison: Comparison, outcomes: Sequence[Outcome]) -> dict[str, Figure]:
    """The paper's picture of the best seed of each row that has what it shows."""
    first = {outcome.row.label: outcome.found[0] for outcome in outcomes if outcome.found}
    paths = {label: one.path for label, one in first.items() if one.path}
    lie = {label: one.geometry for label, one in first.items() if one.geometry is not None}
    placed = {label: one.numbers for label, one in first.items() if {*_PLANE} <= {*one.numbers}}
    match comparison.name:
        case "figure2" if paths:
            return {"figure2": figures.trajectories(paths)}
        case "figure3" if placed:
            # The one number beside those of the plane, if any STS set was at hand.
            score = next((n for one in placed.values() for n in one if n not in _PLANE), "")
            models = {
                label: figures.PlacedModel(one["uniformity"], one["alignment"], one.get(score))
                for label, one in placed.items()
            }
            return {"figure3": figures.models_in_the_plane(models, score=score)}
        case "figureF" if lie:
            values = {label: found["spectrum"]["singular_values"] for label, found in lie.items()}
            return {"figureF": figures.spectra(values)}
        case "figureG" if lie:
            cosines = {label: found["cosines"] for label, found in lie.items()}
            return {"figureG": figures.cosine_histograms(cosines)}
    return {}
