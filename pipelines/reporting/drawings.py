"""The drawings of a report's page, in one quiet style."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager

from cycler import cycler
from matplotlib import rc_context
from matplotlib.figure import Figure

from pipelines.reporting.gathering import GRADIENT_NORM, LOSS, ROWS_PER_S, RunReport, SweepReport
from pipelines.reporting.page import Drawing, drawing
from simcse import figures
from simcse.evaluation.geometry import GeometryNumbers
from simcse.figures import History
from simcse_platform.run_figures import ALIGNMENT, UNIFORMITY, draw, path_of
from simcse_platform.sweep.figures import sweep_figures

_INK, _LINE = "#4a4f57", "#9aa0a8"
_CURVE, _PLANE = (3.6, 2.3), (3.6, 2.8)
"""Inches: as wide as a telephone is, so that text stays as large there."""
_TITLES = {
    "alignment_uniformity": "Alignment against uniformity",
    "spectrum": "Singular values",
    "cosines": "Cosines of pairs by their grade",
    "heat_map": "Dev score by setting",
    "parallel_coordinates": "Trials through their settings",
}


def run_curves(report: RunReport) -> list[Drawing]:
    """What was measured along training, as far as it is on record."""
    histories = report.record.histories
    scores = {name: histories[name] for name in report.summary["dev"] if name in histories}
    wanted: list[tuple[str, Mapping[str, History], str]] = [
        ("Loss", _one(histories, LOSS), "loss"),
        ("Dev scores", scores, "score x 100"),
        ("Uniformity of the dev sentences", _one(histories, UNIFORMITY), "lower is better"),
        ("Alignment of the positive dev pairs", _one(histories, ALIGNMENT), "lower is better"),
        ("Gradient norm", _one(histories, GRADIENT_NORM), "before clipping"),
        ("Throughput", _one(histories, ROWS_PER_S), "rows a second"),
    ]
    with _style():
        return [
            _sized(title, figures.curves(lines, label=label), _CURVE)
            for title, lines, label in wanted
            if lines
        ]


def geometry_drawings(
    geometry: GeometryNumbers | None, histories: Mapping[str, History]
) -> list[Drawing]:
    """How vectors lie, and how they came there where that is on record."""
    with _style():
        drawn = draw(path_of(histories), geometry)
        return [_sized(_TITLES[name], figure, _PLANE) for name, figure in drawn.items()]


def sweep_drawings(report: SweepReport) -> list[Drawing]:
    """Scores over the space of a sweep."""
    with _style():
        drawn = sweep_figures(report.sweep.results, report.sweep.space)
        return [drawing(_TITLES[name], figure, wide=True) for name, figure in drawn.items()]


def _one(histories: Mapping[str, History], name: str) -> Mapping[str, History]:
    return {name: histories[name]} if name in histories else {}


def _sized(title: str, figure: Figure, inches: tuple[float, float]) -> Drawing:
    figure.set_size_inches(*inches)
    figure.set_layout_engine("constrained")
    return drawing(title, figure)


def _style() -> AbstractContextManager[None]:
    return rc_context(
        {
            "font.size": 9,
            "axes.edgecolor": _LINE,
            "axes.labelcolor": _INK,
            "axes.prop_cycle": cycler(color=["#1f6f8b", "#c8553d", "#6a994e", "#7b5ea7"]),
            "axes.spines.right": False,
            "axes.spines.top": False,
            "axes.titlesize": 9,
            "figure.facecolor": "none",
            "axes.facecolor": "none",
            "legend.frameon": False,
            "lines.linewidth": 1.6,
            "savefig.facecolor": "none",
            "text.color": _INK,
            "xtick.color": _LINE,
            "xtick.labelcolor": _INK,
            "ytick.color": _LINE,
            "ytick.labelcolor": _INK,
        }
    )
