"""A page: one self-contained HTML file, in light and dark colours.

The templates beside this module render its parts, and escape everything that is not markup already.
"""

from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup


def page(title: str, subtitle: str, parts: Iterable[Markup]) -> str:
    """Return the complete HTML file."""
    return _environment().get_template("page.html").render(title=title, subtitle=subtitle, parts=list(parts))


def tiles(facts: Iterable[tuple[str, str]]) -> Markup:
    """Return tiles with the main numbers, given as (number, what it counts)."""
    return _render("tiles", list(facts))


def section(title: str, about: str, *parts: Markup) -> Markup:
    """Return a section: a heading, an explanation and its content."""
    return _render("section", title, about, parts)


def note(text: str) -> Markup:
    """Return a paragraph."""
    return _render("note", text)


def legend(entries: Iterable[tuple[str, str]]) -> Markup:
    """Return a legend of names and colours, given as (name, the class of its square)."""
    return _render("legend", list(entries))


def html_table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> Markup:
    """Return a table with column names; numbers are aligned right, None is a dash."""
    are_numbers = [
        bool(rows) and all(isinstance(row[index], int | float | None) for row in rows)
        for index in range(len(columns))
    ]
    return _render("table", columns, are_numbers, [[written(cell) for cell in row] for row in rows])


def figure(drawing: str, width: int, height: int, label: str) -> Markup:
    """Return an SVG drawing of elements with escaped text. label: describes it for screen readers."""
    return _render("figure", Markup(drawing), width, height, label)


def written(cell: object) -> str:
    """Return the text of a value in a table."""
    if cell is None:
        return "–"
    return f"{cell:,.0f}" if isinstance(cell, int | float) else str(cell)


def _render(macro: str, *values: Any) -> Markup:
    rendered: Markup = getattr(_parts(), macro)(*values)
    return rendered


@cache
def _environment() -> Environment:
    return Environment(loader=PackageLoader("libramq.report"), autoescape=True, undefined=StrictUndefined)


@cache
def _parts() -> Any:
    return _environment().get_template("parts.html").module
