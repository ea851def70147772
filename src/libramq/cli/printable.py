"""The printable text: what messages, clients and brokers say, on its way to a terminal.

A terminal obeys what it is sent: it may be told to hide lines, to rename its window, or to type on the user's
behalf. Whatever comes from others is printed through here.
"""

import re
from typing import Final

#: Control characters of the second set, line ends beyond them, and what reverses the direction of writing.
_CONTROLS: Final = "\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069"
_OBEYED: Final = re.compile(f"[\x00-\x08\x0a-\x1f{_CONTROLS}]")
_OBEYED_IN_JSON: Final = re.compile(f"[{_CONTROLS}]")  # JSON escapes the first set by itself.


def printable(text: str) -> str:
    """Return a text as one line that a terminal only shows: what it would obey is spelt out."""
    return _OBEYED.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def printable_json(text: str) -> str:
    """Return JSON that a terminal only shows and that means the same."""
    return _OBEYED_IN_JSON.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
