"""One HTML page that needs nothing but itself: sections of blocks in, text out.

What a block holds is text and is escaped; only drawings are markup, made by `simcse.figures`.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from matplotlib.figure import Figure

from simcse.evaluation.neighbours import Example
from simcse.figures import to_svg

_ASSETS = Path(__file__).parents[1] / "assets"
_NATURAL = re.compile(r'<svg [^>]*?width="([\d.]+)pt"')
_REFERENCES = re.compile(r'(\bid="|url\(#|href="#)')
_PX_PER_PT = 4 / 3


@dataclass(frozen=True)
class Cell:
    """Of a table: what is read, and what its column is sorted by where that is a number."""

    text: str
    value: float | None = None
    numeric: bool = False
    """Whether it stands in a column of numbers, set to the right."""


@dataclass(frozen=True)
class Table:
    """Rows that are sorted by a click on the header of a column."""

    kind: ClassVar = "table"
    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    marked: str = ""
    """First cell of the row that stands out."""


@dataclass(frozen=True)
class Facts:
    """Names and what they are."""

    kind: ClassVar = "facts"
    items: Mapping[str, str]


@dataclass(frozen=True)
class Note:
    """A paragraph."""

    kind: ClassVar = "note"
    text: str
    command: str = ""
    """What the reader may type, at its end."""


@dataclass(frozen=True)
class Source:
    """Text as it stands in a file, behind a fold."""

    kind: ClassVar = "source"
    title: str
    text: str


@dataclass(frozen=True)
class Examples:
    """Sentences with their neighbours."""

    kind: ClassVar = "examples"
    items: Sequence[Example]


@dataclass(frozen=True)
class Drawing:
    """A figure as markup."""

    title: str
    svg: Markup
    wide: bool
    """Whether it takes the whole width of the page."""


@dataclass(frozen=True)
class Drawings:
    """Figures beside each other."""

    kind: ClassVar = "drawings"
    items: Sequence[Drawing]


Block = Table | Facts | Note | Source | Examples | Drawings


@dataclass(frozen=True)
class Section:
    title: str
    blocks: Sequence[Block]
    opens: bool = False
    """Whether it begins a part of the page, to which the sections after it belong."""

    @property
    def anchor(self) -> str:
        return _slug(self.title)


@dataclass(frozen=True, kw_only=True)
class Page:
    kind: str
    """What it is about, such as "training run"."""
    name: str
    headline: Mapping[str, str]
    """The few numbers that are seen first."""
    sections: Sequence[Section]
    written: str
    """When and by what."""


def render(page: Page) -> str:
    """The page as HTML."""
    environment = Environment(
        loader=FileSystemLoader(_ASSETS),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    script = (_ASSETS / "report.js").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return environment.get_template("report.html").render(
        page=page,
        style=Markup((_ASSETS / "report.css").read_text(encoding="utf-8")),
        script=Markup(script),
        script_hash=f"sha256-{digest}",
    )


def number(value: float | None, digits: int = 2) -> Cell:
    """A cell with a number, rounded for reading and sorted by all its digits."""
    if value is None or not math.isfinite(value):
        return Cell("-" if value is None else str(value), numeric=True)
    return Cell(f"{value:,.{digits}f}", float(value), numeric=True)


def by_name(items: Mapping[str, object]) -> str:
    """Names and what belongs to them, in a line."""
    return ", ".join(f"{name} {item}" for name, item in items.items())


def as_json(tree: object) -> str:
    """As it would stand in a file."""
    return json.dumps(tree, indent=2, ensure_ascii=False)


def drawing(title: str, figure: Figure, *, wide: bool = False) -> Drawing:
    """A figure that may shrink by a quarter on a small screen; its text stays legible."""
    svg = to_svg(figure)
    found = _NATURAL.match(svg)
    assert found is not None, svg[:200]
    width = float(found[1]) * _PX_PER_PT
    # Ids are those of the page, on which other drawings have the same ones.
    svg = _REFERENCES.sub(rf"\1{_slug(title)}-", svg)
    opening = Markup('<svg role="img" aria-label="{}" style="min-width: {}px; max-width: {}px" ')
    opening = opening.format(title, round(0.75 * width), round(1.2 * width))
    return Drawing(title, opening + Markup(svg.removeprefix("<svg ")), wide)


def _slug(title: str) -> str:
    return re.sub(r"\W+", "-", title.lower()).strip("-")
