"""Topic patterns: they match what Python's expressions match, in bounded time, or are refused."""

import random
import re

import pytest

from libramq.groups.modern.topic_pattern import InvalidPattern, TopicPattern

NAMES = (
    "a",
    "b",
    "ab",
    "aab",
    "abab",
    "orders",
    "orders-eu",
    "orders-us-1",
    "ORDERS",
    "orders_2024-11",
    "x.y",
    "0",
    "42",
    "a{2}",
    "a-b",
    "]",
    "^",
    "%RETRY%g",
    "abcabc",
    "aaaa",
)


@pytest.mark.parametrize(
    "pattern",
    [
        "a",
        "ab",
        "a*",
        "a+b",
        "a?b",
        "(ab)*",
        "(?:ab)+",
        "(?P<n>ab)c?",
        "orders-(eu|us)(-.*)?",
        "^orders.*",
        "orders$",
        "^a|^b",
        "^^a$$",
        "a^",
        "$a",
        r"orders\-eu",
        r"\d+",
        r"\w+",
        r"\W",
        r"\S*",
        r"[a-z]+",
        "[^a]+",
        "[]a]",
        "[^]a]+",
        "[a-]+",
        r"[\w-]+",
        r"[\d]+",
        "a{2}",
        "a{1,2}b",
        "a{2,}",
        "a{2",
        "a*?",
        "a+?b",
        "(a|ab)(c|bcd)?.*",
        "",
        "|a",
        "a|",
        "(a*)*",
        "((a|b)*)+",
        r"\x61b",
        r".+\.y",
        ".*a.*b.*",
        "[%|]RETRY%.*",
        "(?i)ORDERS",
        "(?i)[o-r]rders",
        "(?s)a.*",
        r"\Aab\z",
        "(|a)b",
        "a{0}b",
    ],
)
def test_names_fit_as_in_python(pattern: str):
    as_python = pattern.replace(r"\z", r"\Z")
    expected = [name for name in NAMES if re.fullmatch(as_python, name, re.ASCII)]
    assert TopicPattern(pattern).among(NAMES) == expected


@pytest.mark.parametrize("seed", range(20))
def test_random_patterns_fit_as_in_python(seed: int):
    rng = random.Random(seed)

    def make(depth: int) -> str:
        if depth == 0:
            return rng.choice(["a", "b", ".", "[ab]", "[^a]", "^", "$", ""])
        kind = rng.randrange(4)
        if kind == 0:
            return make(depth - 1) + make(depth - 1)
        if kind == 1:
            return f"(?:{make(depth - 1)}|{make(depth - 1)})"
        if kind == 2:
            return f"(?:{make(depth - 1)}){rng.choice(['*', '+', '?', '{1,2}'])}"
        return make(depth - 1)

    names = ["".join(rng.choice("ab") for _ in range(length)) for length in range(7) for _ in range(6)]
    for _ in range(60):
        pattern = make(rng.randrange(1, 5))
        expected = [name for name in names if re.fullmatch(pattern.replace("$", r"\Z"), name)]
        assert TopicPattern(pattern).among(names) == expected, pattern


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        (r"\Qa.b\E+", ["a.b", "a.bb"]),
        (r"[[:alpha:]]+", ["axb", "a", "b"]),
        (r"[[:^alpha:]]+", []),
        (r"\Q\Ea", ["a"]),
        (r"\pL\b", ["a", "b"]),
        ("(?i:A)[^é]?B?", ["a"]),
        ("é?a", ["a"]),
        ("[a-é]", ["a", "b"]),
        ("[A-Za-z0-9._-]{1,64}", ["a.b", "axb", "a.bb", "a", "b"]),
        ("a.{0,248}", ["a.b", "axb", "a.bb", "a"]),
    ],
)
def test_what_python_does_not_have(pattern: str, names: list[str]):
    assert TopicPattern(pattern).among(["a.b", "axb", "a.bb", "a", "b"]) == names


@pytest.mark.parametrize(
    "pattern",
    [
        "(",
        ")",
        "a)",
        "(a",
        "[",
        "[a",
        "[z-a]",
        "[é-z]",
        "*",
        "+a",
        "a**",
        "a*{2}",
        "(?=a)",
        "(?!a)",
        "(?<=a)",
        "(?P=n)",
        r"\1",
        "\\",
        "a{3,2}",
        "a{1001}",
        r"\xg",
        "[[:no:]]",
        "(?Pa)",
        "x" * 1_001,
    ],
)
def test_what_is_malformed_is_refused(pattern: str):
    with pytest.raises(InvalidPattern):
        TopicPattern(pattern)


@pytest.mark.parametrize(
    "pattern",
    [
        "((a{100}){100}){100}",
        "(()){1000}{1000}",
        "((){1000}){1000}",
        "((((a?){30}){30}){30}){30}",
        "[ab]{900}[ac]{900}",
        "(?i)" + r"\pL" * 330,
        r"a(?s-i:b)(?mi:\p{Any})",
        r"\PL" * 330,
    ],
)
def test_what_would_take_long_is_refused(pattern: str):
    with pytest.raises(InvalidPattern):
        TopicPattern(pattern)


def test_no_pattern_makes_a_name_expensive():
    """A backtracking engine needs hours for this."""
    assert not TopicPattern("(a*)*(a|aa)+(.*a)*b").among(["a" * 127])
    assert not TopicPattern("(a+)+" * 5 + "b").among(["a" * 127])
    assert not TopicPattern("(a|b)*a(a|b){20}c").among(["ab" * 63] * 1_000)
