"""The topic pattern: a regular expression of RE2's that the whole name of a topic has to fit; which are too
large.

RE2 never goes back in a name, and the size of its program is bounded, so that no pattern makes names
expensive. Nor is one to compile: classes of Unicode without regard to case take 10 to 60 ms, and are refused.

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
#: Ours: the instructions of its program: `.{1,249}`, any name that Kafka knows, has 750. A long name takes
#: a thousand 0.7 ms at most.
PROGRAM_MAX: Final = 1_000
#: Ours: of a program, and of the automaton that RE2 makes of it as names come.
BYTES_MAX: Final = 64 * 1024
#: Ours: the classes of Unicode, of 50 µs each.
CLASSES_MAX: Final = 50
_CLASS: Final = re.compile(r"\\[pP]")
_IGNORES_CASE: Final = re.compile(r"\(\?[a-zA-Z]*i")


class InvalidPattern(LibraError):
    """A pattern is malformed, or too large."""


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
        # Names are ASCII: what is not stands for a character that none has, behind all others in ranges.
        text = "".join(each if each.isascii() else "\xff" for each in pattern)
        try:
            self._compiled = re2.compile(text.encode("latin-1"), options)
        except re2.error as error:
            raise InvalidPattern(error.args[0].decode(errors="replace")) from None
        if self._compiled.programsize > PROGRAM_MAX:
            raise InvalidPattern("the pattern is too large: it repeats too much, or lists too much")
        self.pattern = pattern

    def among(self, names: Iterable[str]) -> list[str]:
        """Return the names that fit as a whole."""
        return [name for name in names if name.isascii() and self._compiled.fullmatch(name.encode())]
