"""Tests of pages: text from brokers is escaped, and tables say what they contain."""

from markupsafe import Markup

from libramq.report.page import figure, html_table, legend, note, page, section, tiles

BAD = '<script>"&'
SHOWN = "&lt;script&gt;&#34;&amp;"


def test_every_text_is_escaped_once():
    parts = [
        tiles([(BAD, BAD)]),
        section(BAD, BAD, note(BAD)),
        legend([(BAD, "c0")]),
        html_table([BAD], [[BAD]]),
        figure("<line/>", 10, 10, BAD),
    ]
    whole = page(BAD, BAD, parts)
    assert "<script>" not in whole
    assert "&amp;lt;" not in whole
    assert whole.count(SHOWN) == 14
    assert "<line/>" in whole


def test_plain_text_is_escaped_everywhere():
    forgotten: Markup = BAD  # type: ignore[assignment]
    assert "<script>" not in page("t", "s", [section("t", "a", forgotten), forgotten])


def test_numbers_are_aligned_right_and_missing_ones_are_a_dash():
    table = html_table(("name", "count"), [("a", 1_234), ("b", None)])
    assert '<th scope="col">name</th><th scope="col" class="number">count</th>' in table
    assert '<td>a</td><td class="number">1,234</td>' in table
    assert '<td class="number">–</td>' in table
