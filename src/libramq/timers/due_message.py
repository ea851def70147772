"""The due message: the form in which a timer message is stored again when it is due, and the properties it
loses.

It is complete except for the time of delivery, so it can be prepared before the slot is due.

Upstream: TimerMessageStore.convert.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

from libramq.catalog.destinations import Destinations
from libramq.clock import WallMs
from libramq.message import properties as p
from libramq.message.ids import encode_host
from libramq.message.message import MessageExt
from libramq.message.tags import tag_code
from libramq.store.log.append import StoreMessage
from libramq.timers.timer_log import TimerUnit

#: Left out if the properties would be too long: better than losing the message.
_EXPENDABLE: Final = (p.TIMER_ENQUEUE_MS, p.TIMER_DEQUEUE_MS, p.TIMER_ROLL_TIMES)
#: The size of the property made by `delivered_at`, with room for 20 digits.
_DELIVERED_BYTES_MAX: Final = len(p.TIMER_DEQUEUE_MS) + 22


#: Ours: a body of this size doubles the cost of a prepared message.
BODY_COST_BYTES: Final = 16 << 10


class DueMessage(NamedTuple):
    """A message of a slot.

    physical_offset: of its waiting record. stored: for its own topic, or for the timers' topic again;
    complete after `stored_at`. queue_id: the one it was sent to; None if it goes on waiting in a later slot.
    text: its properties without the time of delivery. has_room: whether that fits as well. rolled_key: see
    the function. cost: 1, plus more for a large body.
    """

    physical_offset: int
    stored: StoreMessage
    real_topic: str | None
    unique_key: str | None
    queue_id: int | None
    text: bytes
    has_room: bool
    rolled_key: str | None
    cost: int

    @property
    def deletion_key(self) -> str:
        """Return the key by which a deletion refers to it."""
        return f"{self.real_topic}+{self.unique_key}"


def stored_at(
    due: Sequence[DueMessage], delivered_at: bytes, destinations: Destinations
) -> list[StoreMessage]:
    """Complete messages for storing. delivered_at: the property with the time of delivery."""
    queue_ids: dict[tuple[str, int], int] = {}
    messages = []
    for each in due:
        stored = each.stored
        if each.has_room:
            stored.properties_text = each.text + delivered_at
        sent_to = each.queue_id
        if sent_to is not None:
            key = (stored.topic, sent_to)
            queue_id = queue_ids.get(key)
            if queue_id is None:
                queue_id = queue_ids[key] = destinations.queue_for(*key)
            stored.queue_id = queue_id
        messages.append(stored)
    return messages


def prepare(message: MessageExt, unit: TimerUnit, roll_window_ms: int) -> DueMessage:
    """Prepare a message for storing when its slot is due."""
    properties = dict(message.properties)
    real_topic, queue_id = properties.get(p.REAL_TOPIC), None
    properties.pop(p.TIMER_DEQUEUE_MS, None)
    properties[p.TIMER_ENQUEUE_MS] = str(unit.written_ms)
    if unit.rolls:
        times = p.whole_number(properties.get(p.TIMER_ROLL_TIMES, ""), digits_max=9) or 0
        properties[p.TIMER_ROLL_TIMES] = str(times + 1)
    else:
        queue_id = p.whole_number(properties.get(p.REAL_QUEUE_ID, ""), digits_max=9) or 0
    text = p.encode_properties(properties)
    has_room = len(text) + _DELIVERED_BYTES_MAX <= p.PROPERTIES_BYTES_MAX
    if not has_room:
        text = p.encode_properties({k: v for k, v in properties.items() if k not in _EXPENDABLE})
    stored = StoreMessage(
        message.topic if unit.rolls else real_topic or message.topic,
        message.queue_id,
        message.body,
        text,
        tag_code(properties.get(p.TAGS)),
        message.flag,
        message.sys_flag,
        message.born_timestamp_ms,
        encode_host(message.born_host),
        message.reconsume_times,
    )
    return DueMessage(
        message.physical_offset, stored, real_topic, properties.get(p.UNIQ_KEY), queue_id, text, has_room,
        rolled_key(message, roll_window_ms), 1 + len(message.body) // BODY_COST_BYTES,
    )  # fmt: skip


def delivered_at(wall_ms: WallMs) -> bytes:
    """Return the encoded property with the time of delivery."""
    return p.encode_properties({p.TIMER_DEQUEUE_MS: str(int(wall_ms))})


def rolled_key(message: MessageExt, roll_window_ms: int) -> str | None:
    """Return the key that a message shares with its rolled copy; None if its wait is too short for a roll.

    A promoted slave collects both again, without knowing their slots. Recalls have no key, because repeating
    one does no harm; nor do messages without a unique key.
    """
    properties = message.properties
    unique_key = properties.get(p.UNIQ_KEY)
    if unique_key is None or p.TIMER_DEL_UNIQKEY in properties:
        return None
    if p.TIMER_ROLL_TIMES not in properties:
        out_ms = p.whole_number(properties.get(p.TIMER_OUT_MS, ""))
        if out_ms is None or out_ms - message.store_timestamp_ms < roll_window_ms:
            return None
    return f"{properties.get(p.REAL_TOPIC)}+{properties.get(p.TIMER_OUT_MS)}+{unique_key}"
