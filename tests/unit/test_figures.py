"""The pictures show the numbers they are given."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from matplotlib.colors import to_rgba

from simcse import figures
from simcse.evaluation.geometry import describe
from simcse.evaluation.protocol import EmbeddingTable
from simcse.evaluation.sts import Pairs
from simcse.figures import PlacedModel


def test_curves_and_spectra_are_lines_through_their_values() -> None:
    drawn = figures.curves({"loss": [(1, 2.0), (3, 1.5)], "other": [(1, 1.0)]}, label="nats")
    axes = drawn.axes[0]
    assert [line.get_xydata().tolist() for line in axes.lines] == [[[1, 2.0], [3, 1.5]], [[1, 1]]]
    assert axes.get_ylabel() == "nats"
    axes = figures.spectra({"start": [1.0, 0.5, 0.1]}).axes[0]
    assert axes.lines[0].get_xydata().tolist() == [[1, 1.0], [2, 0.5], [3, 0.1]]


def test_a_trajectory_has_an_arrow_for_each_step_on_its_way() -> None:
    drawn = figures.trajectories({"a": [(-1.0, 0.2), (-2.0, 0.25), (-2.5, 0.2)], "b": [(0.0, 1.0)]})
    axes = drawn.axes[0]
    assert axes.lines[0].get_xydata().tolist() == [[-1.0, 0.2], [-2.0, 0.25], [-2.5, 0.2]]
    arrows = [(tuple(arrow.xyann), tuple(arrow.xy)) for arrow in axes.texts]
    assert arrows == [((-1.0, 0.2), (-2.0, 0.25)), ((-2.0, 0.25), (-2.5, 0.2))]


def test_models_lie_at_their_numbers_coloured_by_their_score_or_grey_without() -> None:
    drawn = figures.models_in_the_plane(
        {
            "start": PlacedModel(-1.5, 0.2, 60.0),
            "unscored": PlacedModel(-2.0, 0.3, None),
            "trained": PlacedModel(-2.5, 0.25, 76.25),
        },
        score="STS avg.",
    )
    axes, bar = drawn.axes
    scored, bare = axes.collections
    assert scored.get_offsets().tolist() == [[-1.5, 0.2], [-2.5, 0.25]]
    assert scored.get_array().tolist() == [60.0, 76.25]
    assert bare.get_offsets().tolist() == [[-2.0, 0.3]]
    assert bare.get_facecolor().tolist() == [[*to_rgba("grey")]]
    labels = ["start (60.0)", "unscored", "trained (76.2)"]
    assert [text.get_text() for text in axes.texts] == labels
    assert bar.get_ylabel() == "STS avg."


def test_cosines_have_a_band_a_grade() -> None:
    pairs = Pairs(("a", "b"), ("b", "c"), np.array([0.0, 5.0]))
    vectors = np.array([[1.0, 0.0], [0.0, 1.0], [0.1, 1.0]], np.float32)
    cosines = describe(pairs, EmbeddingTable(["a", "b", "c"], vectors))["cosines"]
    axes = figures.cosine_histograms({"one": cosines, "two": cosines}).axes
    assert [panel.get_title() for panel in axes] == ["one", "two"]
    bands = axes[0].collections
    assert len(bands) == 5
    tops = [band.get_paths()[0].vertices[:, 1].max() for band in bands]
    assert tops == pytest.approx([0.9, 1, 2, 3, 4.9])


def test_files_and_svg(tmp_path: Path) -> None:
    def drawn() -> str:
        return figures.to_svg(figures.curves({"loss": [(0, 1.0), (1, 0.5)]}, label="loss in nats"))

    svg = drawn()
    assert svg == drawn()
    root = ElementTree.fromstring(svg)
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    assert "loss in nats" in "".join(root.itertext())
    figures.save_png({"loss": figures.curves({"loss": [(0, 1.0)]}, label="loss")}, tmp_path / "new")
    content = (tmp_path / "new" / "loss.png").read_bytes()
    assert content.startswith(b"\x89PNG")


def test_no_legend_looks_for_a_free_place(monkeypatch: pytest.MonkeyPatch) -> None:
    def search(*_: object) -> None:
        raise AssertionError("it takes minutes where there are many points")

    monkeypatch.setattr("matplotlib.legend.Legend._find_best_position", search)
    figures.to_svg(figures.curves({"a": [(0, 1.0)], "b": [(0, 2.0)]}, label="loss"))
    figures.to_svg(figures.spectra({"a": [1.0, 0.5]}))
    figures.to_svg(figures.trajectories({"a": [(-1.0, 0.2), (-2.0, 0.25)]}))
