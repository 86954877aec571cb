"""Pictures of a run, made of its record and its summary."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure

from simcse import figures
from simcse.evaluation.geometry import GeometryNumbers
from simcse.figures import History
from simcse_platform.tracking.mlflow_reader import metric_histories

FIGURES_FOLDER = "figures"
UNIFORMITY, ALIGNMENT = "dev_uniformity", "dev_alignment"


def run_figures(uri: str, run_id: str, summary: Mapping[str, Any]) -> dict[str, Figure]:
    """`draw` for a run as the server has it. Raises `TrackingError`."""
    return draw(trajectory(uri, run_id), summary["best"].get("geometry"))


def draw(
    path: Sequence[tuple[float, float]], geometry: GeometryNumbers | None
) -> dict[str, Figure]:
    """By name: the way through the plane of uniformity and alignment, spectrum and cosines.

    Each only where the run was scored on what it needs, graded pairs.
    """
    drawn = {}
    if path:
        drawn["alignment_uniformity"] = figures.trajectories({"along training": path})
    if geometry is not None:
        best = "best model"
        drawn["spectrum"] = figures.spectra({best: geometry["spectrum"]["singular_values"]})
        drawn["cosines"] = figures.cosine_histograms({best: geometry["cosines"]})
    return drawn


def trajectory(uri: str, run_id: str) -> list[tuple[float, float]]:
    """`path_of` a run as the server has it. Raises `TrackingError`."""
    return path_of(metric_histories(uri, run_id, [UNIFORMITY, ALIGNMENT]))


def path_of(histories: Mapping[str, History]) -> list[tuple[float, float]]:
    """(uniformity, alignment) at every evaluation of a run; empty where one is unknown."""
    aligned = dict(histories.get(ALIGNMENT, ()))
    uniform = histories.get(UNIFORMITY, ())
    return [(value, aligned[step]) for step, value in uniform if step in aligned]
