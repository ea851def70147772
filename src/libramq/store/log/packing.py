"""The packed batch: messages encoded as records and units, before anything is written.

Only numbers in a plan for each queue change here, so a batch that does not fit, or that the disk refuses, is
simply packed again or dropped. These are the broker's hottest loops: two to three microseconds a message,
less in a run, which is why they pack the record's head themselves and create no object but the result.

Upstream: store/MessageExtEncoder.java, CommitLog.DefaultAppendMessageCallback.
"""

import struct
from collections.abc import Sequence
from typing import Final

import msgspec

from libramq.clock import WallMs
from libramq.errors import InvalidMessage, InvalidName
from libramq.message.checksum import crc32
from libramq.message.ids import HOST_V6_BYTES
from libramq.message.properties import INNER_NUM, PROPERTIES_BYTES_MAX, find_property
from libramq.message.record import topic_prefix
from libramq.message.record_head import HEADS, HOST_BITS
from libramq.message.sys_flag import BORN_HOST_V6, INNER_BATCH, STORE_HOST_V6, TRANSACTION_PREPARED
from libramq.store.log.append import (
    MESSAGE_ILLEGAL,
    AppendResult,
    AppendStatus,
    StoreMessage,
)
from libramq.store.log.message_run import MessageRun, run_of_one
from libramq.store.log.queue_plan import Plans, new_plan
from libramq.store.log.run_packing import Place, based, illegal, pack_run
from libramq.store.queues.batch_consume_queue import batch_tail
from libramq.store.queues.consume_queue import UNIT
from libramq.store.queues.consume_queue_table import ConsumeQueueTable
from libramq.store.queues.light_queues import MARK

_OK: Final = AppendStatus.PUT_OK
_NUM: Final = INNER_NUM.encode()


class PackedBatch(msgspec.Struct, frozen=True):
    """Records that are ready to be written at one physical offset."""

    data: bytes
    plans: Plans
    results: list[AppendResult]
    message_count: int


def pack_batch(
    messages: Sequence[StoreMessage | MessageRun],
    queues: ConsumeQueueTable,
    *,
    physical_offset: int,
    store_timestamp_ms: WallMs,
    store_host: bytes,
    body_bytes_max: int,
) -> PackedBatch:
    """Return the records of messages as they will lie from `physical_offset` on."""
    store_bit = STORE_HOST_V6 if len(store_host) == HOST_V6_BYTES else 0
    plans: Plans = {}
    parts: list[bytes] = []
    results: list[AppendResult] = []
    pack_unit, message_count = UNIT.pack, len(messages)
    for message in messages:
        if type(message) is MessageRun:
            place = Place(physical_offset, store_timestamp_ms, store_host, body_bytes_max)
            results.append(pack_run(message, queues, plans, parts, place))
            physical_offset += results[-1].size
            message_count += len(message.bodies) - 1
            continue
        body, properties = message.body, message.properties_text
        if len(properties) > PROPERTIES_BYTES_MAX or len(body) > body_bytes_max or b"\0" in properties:
            results.append(illegal(len(properties)))
            continue
        topic, _ = key = (message.topic, message.queue_id)
        sys_flag = message.sys_flag & ~HOST_BITS | store_bit
        if len(message.born_host) == HOST_V6_BYTES:
            sys_flag |= BORN_HOST_V6
        try:
            plan = plans.get(key) or new_plan(plans, queues, key)
            queued = not sys_flag & TRANSACTION_PREPARED  # As `is_queued`: neither prepared nor rollback.
            queue_offset = plan.max_offset if queued else 0
            if plan.is_batch or sys_flag & INNER_BATCH:
                properties = _of_batches(message, queue_offset, may_be=plan.is_batch and queued)
            magic, topic_bytes = topic_prefix(topic)
            head = HEADS[sys_flag & HOST_BITS]
            size = head.size + len(body) + len(topic_bytes) + 2 + len(properties)
            packed = head.pack(
                size, magic, crc32(body) & 0x7FFF_FFFF, message.queue_id, message.flag, queue_offset,
                physical_offset, sys_flag, message.born_timestamp_ms, message.born_host, store_timestamp_ms,
                store_host, message.reconsume_times, message.prepared_transaction_offset, len(body),
            )  # fmt: skip
            unit = pack_unit(physical_offset, size, message.tag_code)
            if plan.is_batch:
                unit += batch_tail(store_timestamp_ms, queue_offset, message.count)
        except (struct.error, UnicodeError, InvalidMessage, InvalidName):  # A number or name out of range.
            results.append(MESSAGE_ILLEGAL)
            continue
        parts += (packed, body, topic_bytes, len(properties).to_bytes(2), properties)
        results.append(AppendResult(_OK, physical_offset, size, queue_offset, store_timestamp_ms, store_host))
        physical_offset += size
        if queued:
            plan.units.append(unit)
            plan.max_offset += message.count
            plan.physical_end = physical_offset
            message_count += message.count - 1
    return PackedBatch(b"".join(parts), plans, results, message_count)


def _of_batches(message: StoreMessage, queue_offset: int, *, may_be: bool) -> bytes:
    """Return the properties of a message in a queue of batches; InvalidMessage if it may not be in one."""
    properties = based(message.properties_text, queue_offset, may_be=may_be)
    if message.sys_flag & INNER_BATCH and find_property(properties, _NUM) != b"%d" % message.count:
        raise InvalidMessage("an inner batch does not say how many messages it has")
    return properties


def with_light(messages: Sequence[StoreMessage | MessageRun]) -> list[StoreMessage | MessageRun]:
    """Return messages that name light queues as runs of one: those get their numbers there."""
    return [
        run_of_one(each)
        if type(each) is StoreMessage
        and MARK in each.properties_text
        and not each.sys_flag & TRANSACTION_PREPARED
        else each
        for each in messages
    ]
