"""The version of the group protocol between members, coordinators and brokers, and which versions are
refused.

        request   lbVersion, an ext field: its version; missing: 1, as 0.1.0 writes
        answer    in the version of its request
        refusal   VERSION_NOT_SUPPORTED, lbVersion: the highest that this program supports

Additions that a reader may ignore, such as a new field, need no new version; those it must understand do. A
program supports every version from VERSION_MIN to VERSION, so that brokers and members can be upgraded one by
one, and writes the other side's version: 1 until an answer has named a higher one. While VERSION is 1, it
writes 1.
"""

from collections.abc import Mapping
from typing import Final

#: 1: LibraMQ 0.1.0 and 0.2.0.
VERSION: Final = 1
VERSION_MIN: Final = 1
VERSION_FIELD: Final = "lbVersion"


def version_refusal(name: str, ext: Mapping[str, str]) -> str | None:
    """Return why a request's version is not supported, or None if it is."""
    written = ext.get(VERSION_FIELD)
    if written is None:
        return None if VERSION_MIN == 1 else _refusal(name, "1")
    if written.isascii() and written.isdigit() and VERSION_MIN <= int(written[:9]) <= VERSION:
        return None
    return _refusal(name, written[:9])


def _refusal(name: str, written: str) -> str:
    known = str(VERSION) if VERSION == VERSION_MIN else f"{VERSION_MIN} to {VERSION}"
    return f"{name} is written in version {written} of the group protocol; this broker reads {known}"
