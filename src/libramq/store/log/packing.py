"""The packed batch: messages encoded as records and units, before anything is written.

Only numbers in a plan for each queue change here, so a batch that does not fit, or that the disk refuses, is
simply packed again or dropped. This is the broker's hottest loop: about three microseconds per message, which
is why it packs the record's head itself and creates no object but the result.

Upstream: store/MessageExtEncoder.java, CommitLog.DefaultAppendMessageCallback.
"""

import struct
import zlib
from collections.abc import Sequence

import msgspec

from libramq.clock import WallMs
from libramq.errors import InvalidMessage, InvalidName
from libramq.message.ids import HOST_V6_BYTES
from libramq.message.properties import PROPERTIES_BYTES_MAX
from libramq.message.record import topic_prefix
from libramq.message.record_head import HEADS, HOST_BITS
from libramq.message.sys_flag import BORN_HOST_V6, STORE_HOST_V6, TRANSACTION_PREPARED
from libramq.store.log.append import (
    MESSAGE_ILLEGAL,
    PROPERTIES_SIZE_EXCEEDED,
    AppendResult,
    AppendStatus,
    StoreMessage,
)
from libramq.store.queues.consume_queue import UNIT, ConsumeQueue
from libramq.store.queues.consume_queue_table import ConsumeQueueTable


class QueuePlan(msgspec.Struct):
    """The units that a batch will add to one queue."""

    queue: ConsumeQueue
    max_offset: int
    physical_end: int
    units: list[bytes]


class PackedBatch(msgspec.Struct, frozen=True):
    """Records that are ready to be written at one physical offset."""

    data: bytes
    plans: dict[tuple[str, int], QueuePlan]
    results: list[AppendResult]


def pack_batch(
    messages: Sequence[StoreMessage],
    queues: ConsumeQueueTable,
    *,
    physical_offset: int,
    store_timestamp_ms: WallMs,
    store_host: bytes,
    body_bytes_max: int,
) -> PackedBatch:
    """Return the records of messages as they will lie from `physical_offset` on."""
    store_bit = STORE_HOST_V6 if len(store_host) == HOST_V6_BYTES else 0
    plans: dict[tuple[str, int], QueuePlan] = {}
    parts: list[bytes] = []
    results: list[AppendResult] = []
    ok = AppendStatus.PUT_OK
    crc32, pack_unit = zlib.crc32, UNIT.pack
    for message in messages:
        body = message.body
        properties = message.properties_text
        if len(body) > body_bytes_max:
            results.append(MESSAGE_ILLEGAL)
            continue
        if len(properties) > PROPERTIES_BYTES_MAX:
            results.append(PROPERTIES_SIZE_EXCEEDED)
            continue
        if b"\0" in properties:  # To recovery it would look like a sector that was never written.
            results.append(MESSAGE_ILLEGAL)
            continue
        topic = message.topic
        key = (topic, message.queue_id)
        sys_flag = message.sys_flag & ~HOST_BITS | store_bit
        if len(message.born_host) == HOST_V6_BYTES:
            sys_flag |= BORN_HOST_V6
        try:
            plan = plans.get(key)
            if plan is None:
                queue = queues.get_or_create(topic, message.queue_id)
                plan = plans[key] = QueuePlan(queue, queue.max_offset, queue.last_physical_end, [])
            queued = not sys_flag & TRANSACTION_PREPARED  # As `is_queued`: neither prepared nor rollback.
            queue_offset = plan.max_offset if queued else 0
            magic, topic_bytes = topic_prefix(topic)
            head = HEADS[sys_flag & HOST_BITS]
            size = head.size + len(body) + len(topic_bytes) + 2 + len(properties)
            packed = head.pack(
                size, magic, crc32(body) & 0x7FFF_FFFF, message.queue_id, message.flag, queue_offset,
                physical_offset, sys_flag, message.born_timestamp_ms, message.born_host, store_timestamp_ms,
                store_host, message.reconsume_times, message.prepared_transaction_offset, len(body),
            )  # fmt: skip
            unit = pack_unit(physical_offset, size, message.tag_code)
        except (struct.error, UnicodeError, InvalidMessage, InvalidName):  # A number or name out of range.
            results.append(MESSAGE_ILLEGAL)
            continue
        parts += (packed, body, topic_bytes, len(properties).to_bytes(2), properties)
        results.append(AppendResult(ok, physical_offset, size, queue_offset, store_timestamp_ms, store_host))
        physical_offset += size
        if queued:
            plan.units.append(unit)
            plan.max_offset += 1
            plan.physical_end = physical_offset
    return PackedBatch(b"".join(parts), plans, results)
