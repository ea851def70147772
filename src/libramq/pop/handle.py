"""The handle: the text by which a consumer identifies a message that it popped.

        start offset · pop time · invisible time · revive queue · kind of topic · broker · queue · offset

Consumers send it back unchanged. Upstream: ExtraInfoUtil.java, MessageConst.PROPERTY_POP_CK.
"""

from typing import Final, NamedTuple

from libramq.errors import ConfigError

#: KeyBuilder.POP_ORDER_REVIVE_QUEUE: the message was popped in order, and has no check point.
ORDERED: Final = 999
#: Without the offset, which is also a field of the request.
_PARTS_MIN: Final = 7
#: Java's long has 19 digits and a sign.
_DIGITS_MAX: Final = 20
HANDLE_CHARACTERS_MAX: Final = 1024


class Handle(NamedTuple):
    """A popped message. kind: 0 its topic, 1 and 2 its group's retry topic (`names.pop_kind`)."""

    start_offset: int
    pop_time_ms: int
    invisible_ms: int
    revive_queue: int
    kind: str
    broker_name: str
    queue_id: int
    offset: int | None = None


def encode_handle(handle: Handle) -> str:
    """Return the text of a handle."""
    return " ".join(str(part) for part in handle if part is not None)


def decode_handle(text: str) -> Handle:
    """Parse a handle; raises ConfigError if it is invalid."""
    parts = text.split(" ") if len(text) <= HANDLE_CHARACTERS_MAX else []
    if len(parts) < _PARTS_MIN:
        raise ConfigError(
            f"extraInfo {text[:60]!r} names no popped message: send the property POP_CK as it came"
        )
    try:
        start, pop_time, invisible, revive, queue = (_number(parts[at]) for at in (0, 1, 2, 3, 6))
        offset = _number(parts[7]) if len(parts) > _PARTS_MIN else None
    except ValueError:
        raise ConfigError(f"extraInfo {text[:60]!r} has a part that is no number") from None
    return Handle(start, pop_time, invisible, revive, parts[4], parts[5], queue, offset)


def _number(text: str) -> int:
    if len(text) > _DIGITS_MAX:
        raise ValueError(text[:_DIGITS_MAX])
    return int(text)
