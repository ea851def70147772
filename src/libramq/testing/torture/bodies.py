"""The bodies of torture: each identifies its message, and every byte of it can be checked.

producer-serial- and a filler that follows from both
"""

from typing import Final, NamedTuple

#: Ours: from a line to a page of the disk.
BODY_BYTES_MAX: Final = 4_096
_FILLER: Final = bytes(range(256)) * (BODY_BYTES_MAX // 256 + 2)


class Identity(NamedTuple):
    """A message: its producer, and its number there."""

    producer: int
    serial: int


def body_of(identity: Identity) -> bytes:
    """Return the body of a message."""
    mixed = identity.serial * 7_919 + identity.producer * 104_729
    head = b"%d-%d-" % identity
    begin = mixed % 256
    return head + _FILLER[begin : begin + mixed % (BODY_BYTES_MAX - len(head))]


def identity_of(body: bytes) -> Identity | None:
    """Return which message a body is; None if it is none, or any byte of it is wrong."""
    parts = body.split(b"-", 2)
    if len(parts) < 3 or not (parts[0].isdigit() and parts[1].isdigit()):
        return None
    identity = Identity(int(parts[0]), int(parts[1]))
    return identity if body_of(identity) == body else None
