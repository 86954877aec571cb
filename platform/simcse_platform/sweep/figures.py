"""Pictures of a sweep. V: values of a setting, T: trials."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from statistics import fmean

import numpy as np
from matplotlib import colormaps
from matplotlib.figure import Figure

from simcse_platform.sweep.space import Choice, Space
from simcse_platform.sweep.sweep import TrialResult


def sweep_figures(results: Sequence[TrialResult], space: Space) -> dict[str, Figure]:
    """By name: a heat map where two settings are lists, and parallel coordinates."""
    scored = [result for result in results if result.score is not None]
    figures = {}
    lists = [path for path, dimension in space.items() if isinstance(dimension, Choice)]
    if len(lists) == 2 == len(space):
        figures["heat_map"] = _heat_map(scored, space)
    if space and len(scored) > 1:
        figures["parallel_coordinates"] = _parallel_coordinates(scored, space)
    return figures


def _heat_map(results: Sequence[TrialResult], space: Space) -> Figure:
    (down, across), (rows, columns) = zip(
        *((path, d.values) for path, d in space.items() if isinstance(d, Choice)), strict=True
    )
    # The mean where there are several seeds, not a number where no trial has a score.
    scores = defaultdict[tuple[int, int], list[float]](list)
    for result in results:
        place = rows.index(result.assignments[down]), columns.index(result.assignments[across])
        scores[place].append(result.score or 0.0)
    scores_VV = np.full((len(rows), len(columns)), np.nan)
    for place, found in scores.items():
        scores_VV[place] = fmean(found)
    figure = Figure(figsize=(1.5 + 1.2 * len(columns), 1.2 + 0.8 * len(rows)))
    axes = figure.subplots()
    image = axes.imshow(scores_VV, cmap="viridis", aspect="auto")
    axes.set(xlabel=across, ylabel=down, title="best dev score")
    axes.set_xticks(range(len(columns)), columns)
    axes.set_yticks(range(len(rows)), rows)
    middle = np.nanmean(scores_VV) if results else 0
    for (row, column), score in np.ndenumerate(scores_VV):
        text = "none" if np.isnan(score) else f"{score:.2f}"
        color = "black" if score > middle else "white" if not np.isnan(score) else "black"
        axes.text(column, row, text, ha="center", va="center", color=color)
    figure.colorbar(image)
    return figure


def _parallel_coordinates(results: Sequence[TrialResult], space: Space) -> Figure:
    """A line a trial through its value of each setting, coloured and ended by its score."""
    scores_T = np.array([result.score for result in results], np.float64)
    axes_of: dict[str, tuple[np.ndarray, list[str]]] = {}
    for path in space:
        texts = [result.assignments[path] for result in results]
        axes_of[path] = _heights(texts)
    axes_of["dev score"] = _scaled(scores_T), [f"{scores_T.min():.2f}", f"{scores_T.max():.2f}"]
    figure = Figure(figsize=(2.2 * len(axes_of) + 1, 4))
    axes = figure.subplots()
    shades = colormaps["viridis"](_scaled(scores_T))
    heights_TA = np.stack([heights_T for heights_T, _ in axes_of.values()], axis=1)
    for line_A, shade in zip(heights_TA, shades, strict=True):
        axes.plot(range(len(axes_of)), line_A, color=shade, marker="o")
    for place, (_, labels) in enumerate(axes_of.values()):
        for height, label in zip(np.linspace(0, 1, len(labels)), labels, strict=True):
            axes.annotate(label, (place, height), xytext=(4, 4), textcoords="offset points")
    axes.set_xticks(range(len(axes_of)), list(axes_of))
    axes.set_yticks([])
    return figure


def _heights(texts: Sequence[str]) -> tuple[np.ndarray, list[str]]:
    """Of each value between 0 and 1, and what the ends or steps are called.

    Numbers stand in their order, a step apart: those that are searched differ by factors.
    """

    def key(text: str) -> tuple[int, float, str]:
        try:
            return 0, float(text), text
        except ValueError:
            return 1, 0.0, text

    labels = sorted(set(texts), key=key)
    steps = max(1, len(labels) - 1)
    shown = labels if len(labels) <= 8 else [labels[0], labels[-1]]
    return np.array([labels.index(text) / steps for text in texts]), shown


def _scaled(value_T: np.ndarray) -> np.ndarray:
    span = np.ptp(value_T)
    return (value_T - value_T.min()) / span if span else np.ones_like(value_T)
