"""The packed batch: messages encoded as records and units, before anything is written.

Only numbers in a plan for each queue change here, so a batch that does not fit, or that the disk refuses, is
simply packed again or dropped. These are the broker's hottest loops: two to three microseconds a message,
less in a run, which is why they pack the record's head themselves and create no object but the result.

Upstream: store/MessageExtEncoder.java, CommitLog.DefaultAppendMessageCallback.
"""

import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

import msgspec

from libramq.clock import WallMs
from libramq.errors import InvalidMessage, InvalidName
from libramq.message.checksum import crc32
from libramq.message.ids import HOST_V6_BYTES
from libramq.message.properties import INNER_NUM, PROPERTIES_BYTES_MAX, find_property
from libramq.message.record import host_bits, topic_prefix
from libramq.message.record_head import HEADS, HOST_BITS
from libramq.message.sys_flag import BORN_HOST_V6, INNER_BATCH, STORE_HOST_V6, TRANSACTION_PREPARED
from libramq.store.log.append import (
    MESSAGE_ILLEGAL,
    PROPERTIES_SIZE_EXCEEDED,
    AppendResult,
    AppendStatus,
    StoreMessage,
)
from libramq.store.log.message_run import MessageRun, RunResult, run_of_one
from libramq.store.queues.batch_consume_queue import batch_tail
from libramq.store.queues.consume_queue import UNIT, ConsumeQueue
from libramq.store.queues.consume_queue_table import ConsumeQueueTable
from libramq.store.queues.light_queues import LIGHT_QUEUE_ID, MARK, numbered, takes_part, without_numbers

_OK: Final = AppendStatus.PUT_OK
_NUM: Final = INNER_NUM.encode()


class QueuePlan(msgspec.Struct):
    """The units that a batch will add to one queue.

    is_batch: it is a queue of batches. is_light: its messages count under their own topic.
    """

    queue: ConsumeQueue
    max_offset: int
    physical_end: int
    units: list[bytes]
    is_batch: bool = False
    is_light: bool = False


Plans = dict[tuple[str, int], QueuePlan]
#: Units for light queues, by their names, with the physical offsets after the records.
_Light = dict[str, list[tuple[bytes, int]]]


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
            place = _Place(physical_offset, store_timestamp_ms, store_host, body_bytes_max)
            results.append(_pack_run(message, queues, plans, parts, place))
            physical_offset += results[-1].size
            message_count += len(message.items) - 1
            continue
        body, properties = message.body, message.properties_text
        if len(properties) > PROPERTIES_BYTES_MAX or len(body) > body_bytes_max or b"\0" in properties:
            results.append(_illegal(properties))
            continue
        topic, _ = key = (message.topic, message.queue_id)
        sys_flag = message.sys_flag & ~HOST_BITS | store_bit
        if len(message.born_host) == HOST_V6_BYTES:
            sys_flag |= BORN_HOST_V6
        try:
            plan = plans.get(key) or _new_plan(plans, queues, key)
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


def _illegal(properties: bytes) -> AppendResult:
    """Return the refusal of a message that is too long, or has a NUL in its properties.

    That would look to recovery like a sector that was never written.
    """
    return PROPERTIES_SIZE_EXCEEDED if len(properties) > PROPERTIES_BYTES_MAX else MESSAGE_ILLEGAL


def _of_batches(message: StoreMessage, queue_offset: int, *, may_be: bool) -> bytes:
    """Return the properties of a message in a queue of batches; InvalidMessage if it may not be in one."""
    properties = _based(message.properties_text, queue_offset, may_be=may_be)
    if message.sys_flag & INNER_BATCH and find_property(properties, _NUM) != b"%d" % message.count:
        raise InvalidMessage("an inner batch does not say how many messages it has")
    return properties


def _based(properties: bytes, queue_offset: int, *, may_be: bool) -> bytes:
    """Return the properties of a record of a queue of batches; InvalidMessage if it may not be in one."""
    if not may_be:
        raise InvalidMessage("an inner batch is stored in queues of batches only, and in no transaction")
    separator = b"" if not properties or properties.endswith(b"\x02") else b"\x02"
    based = b"%b%bINNER_BASE\x01%d\x02" % (properties, separator, queue_offset)
    if len(based) > PROPERTIES_BYTES_MAX:
        raise InvalidMessage(f"{len(based)} bytes of properties; at most {PROPERTIES_BYTES_MAX} fit")
    return based


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


class _Place(NamedTuple):
    """Where a run is stored, and when, and the most that a body may have."""

    physical_offset: int
    store_timestamp_ms: WallMs
    store_host: bytes
    body_bytes_max: int


def _pack_run(
    run: MessageRun, queues: ConsumeQueueTable, plans: Plans, parts: list[bytes], place: _Place
) -> AppendResult:
    """Add the records of a run to `parts`, its units to `plans`; nothing if one of its messages is illegal.

    What a message is checked for is as in `pack_batch`; what all have in common is done once.
    """
    first, store_timestamp_ms, store_host, body_bytes_max = place
    topic, queue_id, items, sys_flag, born_ms, born_host, times, prepared_offset = run
    sys_flag = sys_flag & ~HOST_BITS | host_bits(born_host, store_host)
    if sys_flag & (TRANSACTION_PREPARED | INNER_BATCH) or not items:  # What is in a run is queued.
        return MESSAGE_ILLEGAL
    packed: list[bytes] = []
    units: list[bytes] = []
    light: _Light = {}
    has_light = queues.has_light
    positions: list[int] = []
    pack_unit, pack_head = UNIT.pack, HEADS[sys_flag & HOST_BITS].pack
    physical_offset = first
    try:
        plan = plans.get((topic, queue_id)) or _new_plan(plans, queues, (topic, queue_id))
        magic, topic_bytes = topic_prefix(topic)
        is_batch = plan.is_batch
        queue_offset, around = plan.max_offset, HEADS[sys_flag & HOST_BITS].size + len(topic_bytes) + 2
        for flag, body, properties, tag_code in items:
            names: Sequence[str] = ()
            if has_light and MARK in properties:
                properties, names = _numbered_light(run, properties, queues, plans, light)
            if is_batch:
                properties = _based(properties, queue_offset, may_be=True)
            body_bytes, properties_bytes = len(body), len(properties)
            is_long = properties_bytes > PROPERTIES_BYTES_MAX or body_bytes > body_bytes_max
            if is_long or b"\0" in properties:
                return _illegal(properties)
            size = around + body_bytes + properties_bytes
            packed += (
                pack_head(
                    size, magic, crc32(body) & 0x7FFF_FFFF, queue_id, flag, queue_offset, physical_offset,
                    sys_flag, born_ms, born_host, store_timestamp_ms, store_host, times,
                    prepared_offset, body_bytes,
                ),
                body, topic_bytes, properties_bytes.to_bytes(2), properties,
            )  # fmt: skip
            unit = pack_unit(physical_offset, size, tag_code)
            units.append(unit + batch_tail(store_timestamp_ms, queue_offset, 1) if is_batch else unit)
            positions.append(physical_offset)
            physical_offset += size
            queue_offset += 1
            for name in names:
                light.setdefault(name, []).append((unit, physical_offset))
    except (struct.error, UnicodeError, InvalidMessage, InvalidName):  # As for a message alone.
        return MESSAGE_ILLEGAL
    size = physical_offset - first
    result = RunResult(_OK, first, size, plan.max_offset, store_timestamp_ms, store_host, positions)
    parts += packed
    plan.units += units
    plan.max_offset, plan.physical_end = queue_offset, physical_offset
    _add_light(plans, light)
    return result


def _numbered_light(
    run: MessageRun, properties: bytes, queues: ConsumeQueueTable, plans: Plans, light: _Light
) -> tuple[bytes, Sequence[str]]:
    """Return properties with the message's numbers in the light queues that they name, and these.

    light: units that are not in the plans yet.
    """
    if not takes_part(run.topic):
        return without_numbers(properties), ()

    def next_number(name: str) -> int:
        key = name, LIGHT_QUEUE_ID
        plan = plans.get(key)
        if plan is None:
            queues.require_room_for_light(name)
            plan = _new_plan(plans, queues, key)
        plan.is_light = True
        return plan.max_offset + len(light.get(name, ()))

    try:
        return numbered(properties, next_number)
    except InvalidName:  # No directory can have that name, or there are too many.
        return without_numbers(properties), ()


def _add_light(plans: Plans, light: _Light) -> None:
    """Add units to the plans of light queues."""
    for name, units in light.items():
        plan = plans[name, LIGHT_QUEUE_ID]
        plan.units += [unit for unit, _ in units]
        plan.max_offset += len(units)
        plan.physical_end = units[-1][1]


def _new_plan(plans: Plans, queues: ConsumeQueueTable, key: tuple[str, int]) -> QueuePlan:
    queue = queues.get_or_create(*key)
    plan = plans[key] = QueuePlan(queue, queue.max_offset, queue.last_physical_end, [], queue.is_batch)
    return plan
