"""The page of a report says what it is given, and needs nothing else."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from math import nan, pi

from pipelines.reporting.page import (
    Cell,
    Drawings,
    Examples,
    Facts,
    Note,
    Page,
    Section,
    Source,
    Table,
    drawing,
    number,
    render,
)
from simcse import figures
from simcse.evaluation.neighbours import Example, Neighbour

HOSTILE = '<script>alert("x")</script> & "quotes"'


class Read(HTMLParser):
    """What a browser finds: elements with their attributes, and the text of cells."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text.append(data)

    def count(self, tag: str) -> int:
        return sum(found == tag for found, _ in self.elements)


def page(*sections: Section, name: str = "mine") -> str:
    return render(
        Page(
            kind="training run",
            name=name,
            headline={"steps": "1,000"},
            sections=sections,
            written="Written today.",
        )
    )


def everything(text: str) -> str:
    """A page with `text` in every place that takes text."""
    return page(
        Section(
            text,
            [
                Facts({text: text}),
                Note(text),
                Table(text, [text, "score"], [[Cell(text), number(pi)]], marked=text),
                Source(text, text),
                Examples([Example(text, (Neighbour(text, 0.5),))]),
                Drawings([drawing(text, figures.curves({text: [(0, 1.0)]}, label=text))]),
            ],
        ),
        name=text,
    )


def test_text_stays_text_wherever_it_stands() -> None:
    plain, hostile = Read(everything("plain")), Read(everything(HOSTILE))
    assert [tag for tag, _ in hostile.elements] == [tag for tag, _ in plain.elements]
    assert hostile.count("script") == 1
    assert sum(HOSTILE in text for text in hostile.text) >= 10


def test_a_number_is_rounded_for_the_eye_and_whole_for_the_order() -> None:
    rows = [
        [Cell("a"), number(pi)],
        [Cell("b"), number(None)],
        [Cell("c"), number(12345.678, 1)],
        [Cell("d"), number(nan)],
    ]
    cells = re.findall(
        r"<td(?: class=\"number\")?(?: data-value=\"(.*?)\")?>(.*?)</td>",
        page(Section("Scores", [Table("x", ["model", "score"], rows)])),
    )
    assert cells == [
        ("", "a"),
        (repr(pi), "3.14"),
        ("", "b"),
        ("", "-"),
        ("", "c"),
        ("12345.678", "12,345.7"),
        ("", "d"),
        ("", "nan"),
    ]


def test_nothing_is_fetched_from_anywhere() -> None:
    text = everything("plain")
    for tag, attributes in Read(text).elements:
        assert tag not in {"iframe", "object", "embed", "base", "audio", "video", "form"}
        for name in ("src", "href", "xlink:href", "action", "srcset"):
            assert (attributes.get(name) or "#").startswith(("#", "data:")), (tag, attributes)
    assert not re.search(r"@import|url\((?!#)", text)
    assert "default-src 'none'" in text


def test_each_id_is_there_once_and_each_reference_leads_to_one() -> None:
    def drawn(title: str) -> Drawings:
        lines = {"one": [(0, 1.0), (1, 2.0)], "two": [(0, 2.0), (1, 1.0)]}
        return Drawings([drawing(title, figures.curves(lines, label="loss"))])

    text = page(Section("A", [drawn("First")]), Section("B", [drawn("Second")]))
    ids = re.findall(r'\bid="(.*?)"', text)
    assert len(ids) == len(set(ids))
    references = re.findall(r'href="#(.*?)"|url\(#(.*?)\)', text)
    assert {one or other for one, other in references} <= set(ids)


def test_the_same_page_has_the_same_text() -> None:
    assert everything("plain") == everything("plain")


def test_every_section_is_in_the_contents() -> None:
    text = page(Section("Dev scores", []), Section("Nearest neighbours", []))
    for anchor in ("dev-scores", "nearest-neighbours"):
        assert f'href="#{anchor}"' in text
        assert f'<section id="{anchor}"' in text
    assert "1,000" in text
