"""The topic pattern: a regular expression of RE2's that the whole name of a topic has to fit; which are too
large.

RE2 never goes back in a name, and the size of its program is bounded, so that no pattern makes names
expensive.

Upstream: RE2/J, with which the coordinator resolves SubscribedTopicRegex (KIP-848).
https://github.com/google/re2/wiki/Syntax.
"""

from collections.abc import Iterable
from typing import Final

import re2

from libramq.errors import LibraError

#: Ours: the characters of a pattern.
LENGTH_MAX: Final = 1_000
#: Ours: the instructions of its program; a long name takes each of them 1 µs at most.
PROGRAM_MAX: Final = 255
#: Ours: of a program, and of the automaton that RE2 makes of it as names come.
BYTES_MAX: Final = 64 * 1024


class InvalidPattern(LibraError):
    """A pattern is malformed, or too large."""


class TopicPattern:
    """A pattern; raises InvalidPattern."""

    def __init__(self, pattern: str) -> None:
        if len(pattern) > LENGTH_MAX:
            raise InvalidPattern(f"a pattern has at most {LENGTH_MAX} characters")
        options = re2.Options()
        options.encoding = re2.Options.Encoding.LATIN1
        options.max_mem = BYTES_MAX
        options.never_capture = True
        options.log_errors = False
        # Names are ASCII: what is not stands for a character that none has.
        text = "".join(each if each.isascii() else "\0" for each in pattern)
        try:
            self._compiled = re2.compile(text.encode(), options)
        except re2.error as error:
            raise InvalidPattern(error.args[0].decode(errors="replace")) from None
        if self._compiled.programsize > PROGRAM_MAX:
            raise InvalidPattern("the pattern is too large: it repeats too much, or lists too much")
        self.pattern = pattern

    def among(self, names: Iterable[str]) -> list[str]:
        """Return the names that fit as a whole."""
        return [name for name in names if name.isascii() and self._compiled.fullmatch(name.encode())]
