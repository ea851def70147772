"""The topic pattern: an RE2 regular expression that must match a topic's whole name, with limits on its size.

RE2 does not backtrack, and the size of its program is limited, so no pattern makes matching expensive.
Compilation is limited as well: case-insensitive Unicode classes, which take 10 to 60 ms, are refused.

Upstream: RE2/J, with which the coordinator resolves SubscribedTopicRegex (KIP-848).
https://github.com/google/re2/wiki/Syntax.
"""

import re
from collections.abc import Iterable
from typing import Final

import re2

from libramq.errors import LibraError

#: Ours: the characters of a pattern.
LENGTH_MAX: Final = 1_000
#: Ours: the instructions of its program: `.{1,249}`, which matches any Kafka topic name, has 750. With a
#: thousand instructions a long name takes at most 0.7 ms.
PROGRAM_MAX: Final = 1_000
#: Ours: the memory of a program and of the automaton that RE2 derives from it while matching.
BYTES_MAX: Final = 64 * 1024
#: Ours: the Unicode classes in a pattern, at 50 µs each.
CLASSES_MAX: Final = 50
_CLASS: Final = re.compile(r"\\[pP]")
_IGNORES_CASE: Final = re.compile(r"\(\?[a-zA-Z]*i")


class InvalidPattern(LibraError):
    """A pattern is malformed or too large."""


class TopicPattern:
    """A pattern; raises InvalidPattern."""

    def __init__(self, pattern: str) -> None:
        if len(pattern) > LENGTH_MAX:
            raise InvalidPattern(f"a pattern has at most {LENGTH_MAX} characters")
        classes = len(_CLASS.findall(pattern))
        if classes > CLASSES_MAX or (classes and _IGNORES_CASE.search(pattern)):
            raise InvalidPattern(f"a pattern has \\p {CLASSES_MAX} times at most, and not with the flag i")
        options = re2.Options()
        options.encoding = re2.Options.Encoding.LATIN1
        options.max_mem = BYTES_MAX
        options.never_capture = True
        options.log_errors = False
        # Names are ASCII, so other characters are replaced by one that no name has and that sorts last in
        # ranges.
        text = "".join(each if each.isascii() else "\xff" for each in pattern)
        try:
            self._compiled = re2.compile(text.encode("latin-1"), options)
        except re2.error as error:
            raise InvalidPattern(error.args[0].decode(errors="replace")) from None
        if self._compiled.programsize > PROGRAM_MAX:
            raise InvalidPattern("the pattern is too large: it repeats too much, or lists too much")
        self.pattern = pattern

    def among(self, names: Iterable[str]) -> list[str]:
        """Return the names that match entirely."""
        return [name for name in names if name.isascii() and self._compiled.fullmatch(name.encode())]
