"""Pictures of training runs and of how vectors lie (paper figures 2, 3, F.1 and G.1).

Every function returns a matplotlib figure, which `save_png` and `to_svg` turn into files and text.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
from matplotlib import colormaps, rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from simcse.evaluation.geometry import CosineHistogram

History = Sequence[tuple[int, float]]
"""Step and value, in the order of steps."""

_NO_METADATA = dict.fromkeys(["Creator", "Date", "Format", "Type"])
_ARROWS = 30
"""Along one path, at most."""
_ALIGNMENT, _UNIFORMITY = "alignment (lower is better)", "uniformity (lower is better)"


class PlacedModel(NamedTuple):
    """Where a model lies in figure 3."""

    uniformity: float
    alignment: float
    score: float | None
    """Of its STS sets, x 100; None where none was at hand."""


def save_png(figures: Mapping[str, Figure], folder: Path) -> None:
    """Each figure as `folder/NAME.png`; the folder is made where it is not there."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, figure in figures.items():
        figure.savefig(folder / f"{name}.png", dpi=120, bbox_inches="tight")


def to_svg(figure: Figure) -> str:
    """The figure as an `<svg>` element whose text is text, to stand in a page.

    The same figure gives the same text.
    """
    content = io.StringIO()
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "simcse"}):
        figure.savefig(content, format="svg", bbox_inches="tight", metadata=_NO_METADATA)
    text = content.getvalue()
    return text[text.index("<svg") :]


def curves(histories: Mapping[str, History], *, label: str) -> Figure:
    """Measurements over the steps of a run, one line each."""
    figure = Figure(figsize=(6, 3.6))
    axes = figure.subplots()
    for name, history in histories.items():
        steps, values = zip(*history, strict=True)
        axes.plot(steps, values, marker="." if len(steps) < 50 else None, label=name)
    axes.set(xlabel="step", ylabel=label)
    axes.locator_params("x", integer=True)
    axes.grid(visible=True, alpha=0.3)
    if len(histories) > 1:
        _legend(axes)
    return figure


def trajectories(paths: Mapping[str, Sequence[tuple[float, float]]]) -> Figure:
    """Uniformity against alignment along training, arrows in its direction (figure 2).

    Each path is a sequence of (uniformity, alignment).
    """
    figure = Figure(figsize=(6, 4.5))
    axes = figure.subplots()
    for shade, (name, path) in zip(_shades(len(paths)), paths.items(), strict=True):
        points = np.array(path)
        axes.plot(points[:, 0], points[:, 1], marker="o", markersize=3, color=shade, label=name)
        # Many arrows are a blot, and each takes longer than the whole line.
        for start, end in pairwise(points[:: 1 + len(points) // _ARROWS]):
            axes.annotate("", xy=end, xytext=start, arrowprops={"arrowstyle": "->", "color": shade})
    return _in_the_plane(figure, axes)


def models_in_the_plane(models: Mapping[str, PlacedModel], *, score: str) -> Figure:
    """Uniformity against alignment of models, coloured by their score (figure 3).

    `score` is what the score is called. A model without one is grey.
    """
    figure = Figure(figsize=(6.5, 4.5))
    axes = figure.subplots()
    if scored := [model for model in models.values() if model.score is not None]:
        uniformity, alignment, scores = zip(*scored, strict=True)
        points = axes.scatter(uniformity, alignment, c=scores, cmap="viridis")
        figure.colorbar(points, label=score)
    if bare := [model for model in models.values() if model.score is None]:
        uniformity, alignment, _ = zip(*bare, strict=True)
        axes.scatter(uniformity, alignment, color="grey")
    for name, model in models.items():
        place = (model.uniformity, model.alignment)
        text = name if model.score is None else f"{name} ({model.score:.1f})"
        axes.annotate(text, place, xytext=(5, 4), textcoords="offset points", fontsize=8)
    axes.margins(x=0.25, y=0.15)
    return _in_the_plane(figure, axes)


def spectra(singular_values: Mapping[str, Sequence[float]]) -> Figure:
    """Singular values of each model's vectors, the largest being 1 (figure F.1)."""
    figure = Figure(figsize=(6, 4))
    axes = figure.subplots()
    for name, values in singular_values.items():
        axes.plot(range(1, len(values) + 1), values, label=name)
    axes.set(xlabel="direction", ylabel="singular value", ylim=(0, 1.02))
    axes.grid(visible=True, alpha=0.3)
    _legend(axes)
    return figure


def cosine_histograms(histograms: Mapping[str, CosineHistogram]) -> Figure:
    """Cosines of pairs by their grade, a panel a model, the best grade above (figure G.1)."""
    figure = Figure(figsize=(3.6 * len(histograms) + 0.8, 4))
    panels = figure.subplots(1, len(histograms), squeeze=False, sharey=True)[0]
    for axes, (name, histogram) in zip(panels, histograms.items(), strict=True):
        edges = np.array(histogram["edges"])
        shades = _shades(len(histogram["counts"]))
        for base, (shade, counts) in enumerate(
            zip(shades, histogram["counts"].values(), strict=True)
        ):
            share = np.array(counts) / max(1, max(counts))
            axes.fill_between(
                edges, base, base + 0.9 * np.append(share, share[-1]), step="post", color=shade
            )
        axes.set(title=name, xlabel="cosine")
        axes.set_yticks(range(len(histogram["counts"])), histogram["counts"])
    panels[0].set_ylabel("grade")
    return figure


def _in_the_plane(figure: Figure, axes: Axes) -> Figure:
    axes.set(xlabel=_UNIFORMITY, ylabel=_ALIGNMENT)
    axes.grid(visible=True, alpha=0.3)
    if axes.get_legend_handles_labels()[0]:
        _legend(axes)
    return figure


def _legend(axes: Axes) -> None:
    # Above the lines: a free place among them is searched for in minutes where there are many.
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=2, frameon=False)


def _shades(count: int) -> np.ndarray:
    """So many colours that are told apart in print as well."""
    shades: np.ndarray = colormaps["viridis"](np.linspace(0, 0.85, max(1, count)))
    return shades
