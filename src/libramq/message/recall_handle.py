"""The recall handle, by which a producer takes back a message that waits for its time: its form, and how long
one may be.

    base64 of: v1 | topic | broker name | time in ms | unique id        with spaces between

The broker answers the send of a timer message with it; the producer returns it with RECALL_MESSAGE.

Upstream: common/producer/RecallMessageHandle.java.
"""

import base64
import binascii
from typing import Final, NamedTuple

_VERSION: Final = "v1"
#: Ours: a handle names a topic, a broker, a time and a message.
HANDLE_BYTES_MAX: Final = 1024


class RecallHandle(NamedTuple):
    """The handle by which a producer recalls a timer message. time_ms: in the message's slot."""

    topic: str
    broker_name: str
    time_ms: str
    unique_key: str

    def encode(self) -> str:
        """Return the handle's text."""
        return base64.urlsafe_b64encode(" ".join((_VERSION, *self)).encode()).decode()


def decode_recall_handle(text: str) -> RecallHandle | None:
    """Return a handle; None if it is none, or too long: cut short, it would name another message."""
    if len(text) > HANDLE_BYTES_MAX:
        return None
    try:
        parts = base64.urlsafe_b64decode(text.encode()).decode().split(" ")
    except (binascii.Error, ValueError):
        parts = []
    if len(parts) < 5 or parts[0] != _VERSION:
        return None
    return RecallHandle(*parts[1:5])
