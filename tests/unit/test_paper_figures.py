"""The pictures of a comparison show what was measured of its rows."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure

from pipelines.paper import rows
from pipelines.paper.measures import Finding, Outcome, draw
from pipelines.paper.rows import STSB_DEV
from simcse.evaluation import STS_SUITE, EmbeddingTable
from simcse.evaluation.geometry import GeometryNumbers
from support.paper import EMBEDDER, GEOMETRY_SET, STS_AT_HAND, Lines, bench

EMBEDDERS = (EMBEDDER, Lines({"a": (1, 0.1), "b": (0.9, 0.4), "c": (1, -0.2), "d": (-0.6, 1)}))
"""Of the first two rows; the others have no model."""


def drawn(
    name: str, monkeypatch: pytest.MonkeyPatch, sts: tuple[str, ...] = STS_AT_HAND
) -> tuple[Figure, Mapping[str, Finding]]:
    """The picture of a comparison, and what was found for its rows."""
    comparison, found = rows.find(name), bench("geometry", monkeypatch, sts=sts)
    outcomes = [Outcome(row=row, note="not made here") for row in comparison.rows]
    for place, embedder in enumerate(EMBEDDERS):
        row = comparison.rows[place]
        outcomes[place] = Outcome(row=row, found=[found.measure(embedder, row)])
    [(key, figure)] = draw(comparison, outcomes).items()
    assert key == name
    return figure, {one.row.label: one.found[0] for one in outcomes if one.found}


def geometries() -> list[GeometryNumbers]:
    """How the vectors of both lie, measured without the bench."""
    tables = [EmbeddingTable([*"abcd"], one.encode("abcd")) for one in EMBEDDERS]
    return [GEOMETRY_SET.score(table).numbers for table in tables]


LABELS = ["BERT-base (first-last avg.)", "BERT-base-flow"]


@pytest.mark.parametrize(
    ("sts", "score"), [(STS_AT_HAND, "mean of 2"), (tuple(STS_SUITE), "STS avg.")]
)
def test_figure_3_places_models_by_their_geometry_under_the_name_of_their_score(
    monkeypatch: pytest.MonkeyPatch, sts: tuple[str, ...], score: str
) -> None:
    figure, found = drawn("figure3", monkeypatch, sts)
    axes, bar = figure.axes
    points = axes.collections[0]
    want = [[one["uniformity"], one["alignment"]] for one in geometries()]
    assert np.array(points.get_offsets()) == pytest.approx(np.array(want))
    scores = [one.numbers[score] for one in found.values()]
    assert points.get_array().tolist() == scores
    assert bar.get_ylabel() == score
    assert [text.get_text() for text in axes.texts] == [
        f"{label} ({value:.1f})" for label, value in zip(LABELS, scores, strict=True)
    ]


def test_figure_3_is_drawn_without_any_test_set(monkeypatch: pytest.MonkeyPatch) -> None:
    figure, _ = drawn("figure3", monkeypatch, sts=())
    [axes] = figure.axes
    [points] = axes.collections
    want = [[one["uniformity"], one["alignment"]] for one in geometries()]
    assert np.array(points.get_offsets()) == pytest.approx(np.array(want))
    assert points.get_facecolor().tolist() == [[*to_rgba("grey")]]
    assert [text.get_text() for text in axes.texts] == LABELS


def test_figure_f_has_the_singular_values_of_each_row(monkeypatch: pytest.MonkeyPatch) -> None:
    [axes] = drawn("figureF", monkeypatch)[0].axes
    assert [line.get_label() for line in axes.lines] == LABELS
    for line, numbers in zip(axes.lines, geometries(), strict=True):
        assert line.get_ydata() == pytest.approx(numbers["spectrum"]["singular_values"])


def test_figure_g_has_a_panel_of_cosines_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    panels = drawn("figureG", monkeypatch)[0].axes
    assert [panel.get_title() for panel in panels] == [
        *("BERT-base (first-last avg.)", "BERT-base-whitening")
    ]
    for panel, numbers in zip(panels, geometries(), strict=True):
        edges, counts = numbers["cosines"]["edges"], numbers["cosines"]["counts"]
        for base, (band, in_class) in enumerate(
            zip(panel.collections, counts.values(), strict=True)
        ):
            corners = band.get_paths()[0].vertices
            high = {x for x, y in corners if y > base + 0.5}
            classes = np.flatnonzero(in_class)
            assert high == {edges[i] for one in classes for i in (one, one + 1)}


def test_pictures_leave_out_rows_without_what_they_show() -> None:
    for name in ("figure2", "figure3", "figureF", "figureG"):
        comparison = rows.find(name)
        bare = [Outcome(row=row, found=[Finding({STSB_DEV: 1.0})]) for row in comparison.rows]
        assert draw(comparison, bare) == {}
    # Without positive pairs there is no alignment.
    plane = rows.find("figure3")
    half = [Outcome(row=row, found=[Finding({"uniformity": -1.0})]) for row in plane.rows]
    assert draw(plane, half) == {}
