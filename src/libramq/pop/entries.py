"""The entries of POP's journal: check points and acknowledgements in Apache's form; their message limit.

        ck      the messages taken by one pop from one queue, and until when they are invisible to others
        ack     one message of a check point is done
        bAck    several messages are done

Each is the JSON body of a message with that tag. Names are Apache's short ones, in its order.
Upstream: store/pop/PopCheckPoint.java, AckMsg.java, BatchAckMsg.java, PopAckConstants.java.
"""

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from libramq.errors import RemoteProtocolError

CHECK_POINT_TAG: Final = "ck"
ACK_TAG: Final = "ack"
BATCH_ACK_TAG: Final = "bAck"
#: A check point's bit map is a 32-bit int.
MESSAGES_MAX: Final = 32


class CheckPointEntry(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    omit_defaults=False,
    rename={
        "bit_map": "bm",
        "broker_name": "bn",
        "group": "c",
        "diffs": "d",
        "invisible_ms": "it",
        "count": "n",
        "pop_time_ms": "pt",
        "queue_id": "q",
        "revive_offset": "ro",
        "re_puts": "rp",
        "start_offset": "so",
        "topic": "t",
    },
):
    """A check point. diffs: its messages' offsets from `start_offset`; if empty, the next `count` offsets."""

    bit_map: int = 0
    broker_name: str | None = None
    group: str
    diffs: list[int] | None = None
    invisible_ms: int
    count: int = 0
    pop_time_ms: int
    queue_id: int
    revive_offset: int = 0
    re_puts: str | None = None
    start_offset: int
    topic: str


class AckEntry(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    omit_defaults=True,
    rename={
        "offset": "ao",
        "offsets": "aol",
        "broker_name": "bn",
        "group": "c",
        "pop_time_ms": "pt",
        "queue_id": "q",
        "start_offset": "so",
        "topic": "t",
    },
):
    """An acknowledgement of one or several messages. It identifies its check point."""

    offset: int | None = None
    offsets: list[int] | None = None
    broker_name: str | None = None
    group: str
    pop_time_ms: int
    queue_id: int
    start_offset: int
    topic: str


Entry = CheckPointEntry | AckEntry

_encode = msgspec.json.Encoder().encode
_DECODERS: Final[Mapping[str, msgspec.json.Decoder[Any]]] = {
    CHECK_POINT_TAG: msgspec.json.Decoder(CheckPointEntry),
    ACK_TAG: msgspec.json.Decoder(AckEntry),
    BATCH_ACK_TAG: msgspec.json.Decoder(AckEntry),
}


def encode_entry(entry: Entry) -> bytes:
    """Return the body of an entry's message."""
    return _encode(entry)


def decode_entry(tag: str | None, body: bytes) -> Entry | None:
    """Decode a message's entry; None if its tag is not one of POP's. Raises RemoteProtocolError."""
    decoder = _DECODERS.get(tag or "")
    if decoder is None:
        return None
    try:
        entry: Entry = decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RemoteProtocolError(f"an entry of POP with tag {tag}: {error}") from None
    if (
        isinstance(entry, CheckPointEntry)
        and not 0 <= max(entry.count, len(entry.diffs or ())) <= MESSAGES_MAX
    ):
        raise RemoteProtocolError(f"a check point of {entry.count} messages; {MESSAGES_MAX} are allowed")
    return entry


def unique_key(entry: Entry) -> str:
    """Return the UNIQ_KEY of an entry's message (PopMessageProcessor.genCkUniqueId and its kin)."""
    if isinstance(entry, CheckPointEntry):
        offset, tag = entry.start_offset, CHECK_POINT_TAG
    else:
        offset, tag = -1 if entry.offset is None else entry.offset, ACK_TAG
    return (
        f"{entry.topic}@{entry.queue_id}@{offset}@{entry.group}@{entry.pop_time_ms}@{entry.broker_name}@{tag}"
    )


def tag_of(entry: Entry) -> str:
    """Return the tag of an entry's message."""
    if isinstance(entry, CheckPointEntry):
        return CHECK_POINT_TAG
    return ACK_TAG if entry.offsets is None else BATCH_ACK_TAG
