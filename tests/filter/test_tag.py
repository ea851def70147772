"""Tag expressions."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from libramq.errors import ConfigError
from libramq.filter.tag import EVERYTHING, EXPRESSION_LENGTH_MAX, TAGS_MAX, parse_tag_filter
from libramq.message.tags import java_hash, tag_code


@pytest.mark.parametrize("expression", [None, "", "*"])
def test_without_an_expression_everything_matches(expression):
    assert parse_tag_filter(expression) is EVERYTHING
    assert EVERYTHING.codes is None
    assert EVERYTHING.matches(None)
    assert EVERYTHING.matches("x")


@pytest.mark.parametrize(
    ("expression", "tags"),
    [
        ("a", {"a"}),
        ("a||b", {"a", "b"}),
        (" a || b ", {"a", "b"}),
        ("a||||b||", {"a", "b"}),
        ("a|b", {"a|b"}),
    ],
)
def test_tags_stand_between_double_bars(expression, tags):
    parsed = parse_tag_filter(expression)
    assert parsed.tags == tags
    assert parsed.codes == {java_hash(tag) for tag in tags}
    assert all(parsed.matches(tag) for tag in tags)
    assert not parsed.matches("other")
    assert not parsed.matches(None)


@pytest.mark.parametrize("expression", ["||", " || ", "||||"])
def test_separators_only_are_refused(expression):
    with pytest.raises(ConfigError, match="names no tag"):
        parse_tag_filter(expression)


def test_too_many_tags_are_refused():
    parse_tag_filter("||".join(f"t{n}" for n in range(TAGS_MAX)))
    with pytest.raises(ConfigError, match=str(TAGS_MAX)):
        parse_tag_filter("||".join(f"t{n}" for n in range(TAGS_MAX + 1)))


def test_a_longer_expression_than_allowed_is_refused():
    assert parse_tag_filter("x" * EXPRESSION_LENGTH_MAX).codes
    with pytest.raises(ConfigError, match="characters"):
        parse_tag_filter("x" * (EXPRESSION_LENGTH_MAX + 1))


def test_tags_with_equal_hashes_differ_in_their_text_only():
    parsed = parse_tag_filter("Aa")
    assert tag_code("BB") in parsed.codes
    assert not parsed.matches("BB")


@given(
    st.lists(
        st.text(st.characters(exclude_characters="|"), min_size=1).filter(str.strip), min_size=1, max_size=5
    )
)
def test_a_tag_that_matches_by_text_matches_by_hash(tags):
    parsed = parse_tag_filter("||".join(tags))
    for tag in parsed.tags:
        assert parsed.matches(tag)
        assert tag_code(tag) in parsed.codes or parsed.codes is None
