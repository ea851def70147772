"""Printable text: text from messages, clients and brokers, made safe for a terminal; times in the local zone.

A terminal executes control sequences: they can hide lines, rename its window, or type on the user's behalf.
All foreign text is printed through this module.
"""

import re
import time
from typing import Final

#: The C1 control characters, further line separators, and bidirectional controls.
_CONTROLS: Final = "\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069"
_OBEYED: Final = re.compile(f"[\x00-\x08\x0a-\x1f{_CONTROLS}]")
_OBEYED_IN_JSON: Final = re.compile(f"[{_CONTROLS}]")  # JSON escapes C0 itself.


def printable(text: str) -> str:
    """Return a text as one line that is safe on a terminal: control characters are escaped."""
    return _OBEYED.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def printable_json(text: str) -> str:
    """Return equivalent JSON that is safe on a terminal."""
    return _OBEYED_IN_JSON.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def time_text(timestamp_ms: int) -> str:
    """Return a time in the local zone; a dash for 0."""
    at = time.localtime(timestamp_ms / 1000)
    return time.strftime("%Y-%m-%d %H:%M:%S", at) if timestamp_ms > 0 else "–"
