"""A page: one HTML file that needs nothing else, in light and in dark."""

from collections.abc import Iterable, Sequence
from html import escape
from typing import Final

STYLE: Final = """
:root{--paper:#fcfcfb;--ink:#1d1f24;--soft:#666b76;--rule:#e3e4e8;--tile:#f2f2f0;
--c0:#2f6db5;--c1:#d9822b;--c2:#3a9a6b;--c3:#b8438f;--c4:#8d7ad6;--c5:#c0392b;--c6:#4aa3b8;--c7:#8a8f3c}
@media(prefers-color-scheme:dark){:root{--paper:#16181d;--ink:#e8e9ec;--soft:#9aa0ac;--rule:#2c3038;--tile:#1f222a;
--c0:#6aa5e8;--c1:#efa65c;--c2:#63c494;--c3:#e07fbd;--c4:#b0a1f0;--c5:#ef7c6f;--c6:#7cc9db;--c7:#b9bf62}}
*{box-sizing:border-box}
body{margin:0 auto;max-width:980px;padding:40px 30px 80px;background:var(--paper);color:var(--ink);
font:15px/1.5 system-ui,-apple-system,"Segoe UI",sans-serif}
h1{font-size:27px;margin:0;letter-spacing:-.01em}h2{font-size:18px;margin:44px 0 2px}
p{margin:2px 0 12px;color:var(--soft)}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(118px,1fr));gap:10px;margin:24px 0}
.tiles div{background:var(--tile);border-radius:8px;padding:11px 12px}
.tiles b{display:block;font-size:19px;font-weight:600;font-variant-numeric:tabular-nums}
.tiles span{color:var(--soft);font-size:13px}
svg{width:100%;height:auto;display:block;font:12px system-ui,sans-serif}
svg text{fill:var(--soft)}svg .name{text-anchor:end;fill:var(--ink)}svg .tick{text-anchor:middle}
svg .hint{font-size:11px;paint-order:stroke;stroke:var(--paper);stroke-width:5px}
.grid{stroke:var(--rule)}.whisker{stroke:var(--soft);stroke-width:1.5}
.c0{fill:var(--c0);background:var(--c0)}.c1{fill:var(--c1);background:var(--c1)}
.c2{fill:var(--c2);background:var(--c2)}.c3{fill:var(--c3);background:var(--c3)}
.c4{fill:var(--c4);background:var(--c4)}.c5{fill:var(--c5);background:var(--c5)}
.c6{fill:var(--c6);background:var(--c6)}.c7{fill:var(--c7);background:var(--c7)}
.soft{opacity:.35}.dot{opacity:.72}
.line{fill:none;stroke-width:2}
.line.c0{stroke:var(--c0)}.line.c1{stroke:var(--c1)}.line.c2{stroke:var(--c2)}.line.c3{stroke:var(--c3)}
.line.c4{stroke:var(--c4)}.line.c5{stroke:var(--c5)}.line.c6{stroke:var(--c6)}.line.c7{stroke:var(--c7)}
.legend{display:flex;flex-wrap:wrap;gap:4px 18px;font-size:13px}
.legend i{display:inline-block;width:10px;height:10px;border-radius:2px;margin-right:6px}
svg .cell{text-anchor:middle;fill:var(--ink);font-size:12px}svg .end{text-anchor:end}
.hollow{fill:var(--paper)!important;stroke-width:2.5}.hollow.c0{stroke:var(--c0)}.hollow.c5{stroke:var(--c5)}
.scroll{overflow-x:auto}table{border-collapse:collapse;width:100%;font-size:13.5px}
th,td{border-bottom:1px solid var(--rule);padding:6px 12px 6px 0}
td:first-child{white-space:nowrap}th{vertical-align:bottom;text-align:left;font-weight:500;color:var(--soft)}
.number{text-align:right;font-variant-numeric:tabular-nums}
th:last-child,td:last-child{padding-right:0}
@media(max-width:700px){body{padding:24px 16px 60px}.scroll>svg{width:760px}}
"""


def page(title: str, subtitle: str, parts: Iterable[str]) -> str:
    """The whole file."""
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{escape(title)}</title><style>{STYLE}</style></head><body>"
        f"<h1>{escape(title)}</h1><p>{escape(subtitle)}</p>{''.join(parts)}</body></html>\n"
    )


def tiles(facts: Iterable[tuple[str, str]]) -> str:
    """Numbers that are read first: (number, what it counts)."""
    shown = "".join(
        f"<div><b>{escape(number)}</b><span>{escape(what)}</span></div>" for number, what in facts
    )
    return f'<div class="tiles">{shown}</div>'


def section(title: str, about: str, *parts: str) -> str:
    """A heading, a sentence that says how to read what follows, and what follows."""
    return f"<h2>{escape(title)}</h2><p>{escape(about)}</p>{''.join(parts)}"


def html_table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Rows under their names; numbers stand right, nothing is a dash."""
    head = "".join(f"<th{_class(rows, index)}>{escape(name)}</th>" for index, name in enumerate(columns))
    body = "".join(
        "<tr>"
        + "".join(f"<td{_class(rows, index)}>{_cell(cell)}</td>" for index, cell in enumerate(row))
        + "</tr>"
        for row in rows
    )
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _class(rows: Sequence[Sequence[object]], index: int) -> str:
    is_number = all(row[index] is None or isinstance(row[index], int | float) for row in rows)
    return ' class="number"' if rows and is_number else ""


def _cell(value: object) -> str:
    if value is None:
        return "–"
    return f"{value:,.0f}" if isinstance(value, int | float) else escape(str(value))
