"""Printable text: what messages, clients and brokers send, made safe for a terminal; times in this machine's
zone.

A terminal executes control sequences: they can hide lines, rename its window, or type on the user's behalf.
All text from others is printed through here.
"""

import re
import time
from typing import Final

#: The second set of control characters, further line ends, and characters that reverse the writing direction.
_CONTROLS: Final = "\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069"
_OBEYED: Final = re.compile(f"[\x00-\x08\x0a-\x1f{_CONTROLS}]")
_OBEYED_IN_JSON: Final = re.compile(f"[{_CONTROLS}]")  # JSON escapes the first set by itself.


def printable(text: str) -> str:
    """Return a text as one line without effects on a terminal: control characters are escaped."""
    return _OBEYED.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def printable_json(text: str) -> str:
    """Return equal JSON without effects on a terminal."""
    return _OBEYED_IN_JSON.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def time_text(timestamp_ms: int) -> str:
    """Return a time in this machine's zone; a dash for none."""
    at = time.localtime(timestamp_ms / 1000)
    return time.strftime("%Y-%m-%d %H:%M:%S", at) if timestamp_ms > 0 else "–"
