"""Offset resets at one broker: the request that sets an offset, depending on the broker's version, and the
resets that are refused.

    useServerSideResetOffset   the broker sets the offsets of all queues or of one (Apache's since 5.2)
    without it                 the broker makes the members set theirs, in all queues together; for a group
                               without members we commit the offsets

Upstream: AdminBrokerProcessor.resetOffset, Broker2Client.resetOffset,
DefaultMQAdminExtImpl.resetOffsetByTimestampOld.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, Final, TypeVar

from libramq.codes import ResponseCode
from libramq.errors import BrokerError, ConsumerNotOnline, FeatureNotSupported
from libramq.message.queue import MessageQueue
from libramq.remoting.command import Command, version_name
from libramq.rpc import admin_calls, broker_calls
from libramq.rpc.call import Call

T = TypeVar("T")
#: Makes a request at the broker.
Ask = Callable[[Call[Any]], Coroutine[Any, Any, Any]]

#: MQVersion.V5_2_0_SNAPSHOT.
_VERSION_5_2: Final = 452
_SERVER_SIDE: Final = "useServerSideResetOffset"
_CONFIG_ANSWERS: Final = frozenset(
    {ResponseCode.SUCCESS, ResponseCode.NO_PERMISSION, ResponseCode.REQUEST_CODE_NOT_SUPPORTED}
)


async def reset_topic(
    ask: Ask, group: str, topic: str, *, timestamp_ms: int, force: bool
) -> dict[MessageQueue, int]:
    """Set a group's offsets in all queues of a topic to a time (-1: the end)."""
    offsets: dict[MessageQueue, int]
    try:
        offsets = await ask(admin_calls.reset_offsets(group, topic, timestamp_ms=timestamp_ms, force=force))
    except BrokerError as error:
        if not _is_for_members(error) or await _is_online(ask, group):
            raise
        offsets = {}
        for queue in (await ask(admin_calls.topic_stats(topic))).offset_table:
            offset = await _offset_at(ask, queue, timestamp_ms)
            committed = await ask(broker_calls.query_consumer_offset(group, queue))
            if not force and committed is not None:
                offset = min(offset, committed)
            await ask(broker_calls.update_consumer_offset(group, queue, offset))
            offsets[queue] = offset
    return offsets


async def reset_topics(
    asks: Iterable[Ask], group: str, topic: str, *, timestamp_ms: int, force: bool
) -> dict[MessageQueue, int]:
    """Set a group's offsets in a topic at several brokers."""
    resets = [reset_topic(ask, group, topic, timestamp_ms=timestamp_ms, force=force) for ask in asks]
    return {queue: offset for lot in await asyncio.gather(*resets) for queue, offset in lot.items()}


async def reset_queue(
    ask: Ask, group: str, queue: MessageQueue, offset: int | None, *, timestamp_ms: int, where: str
) -> int:
    """Set a group's offset in one queue; raises FeatureNotSupported if the broker would reset all queues."""
    version = await _version_without_resets(ask)
    if version is None:
        call = admin_calls.reset_offsets(
            group, queue.topic, timestamp_ms=timestamp_ms, queue_id=queue.queue_id, offset=offset
        )
        reached: int = (await ask(call))[queue]
        return reached
    if await _is_online(ask, group):
        raise FeatureNotSupported(
            f"{where} answers as RocketMQ {version_name(version)}, without {_SERVER_SIDE}: with members "
            f"online it resets all queues of {queue.topic} together; stop group {group}, or reset the topic"
        )
    if offset is None:
        reached = await _offset_at(ask, queue, timestamp_ms)
    else:
        end = await ask(broker_calls.max_offset(queue))
        reached = min(max(offset, await ask(broker_calls.min_offset(queue))), end)
    await ask(broker_calls.update_consumer_offset(group, queue, reached))
    return reached


async def _offset_at(ask: Ask, queue: MessageQueue, timestamp_ms: int) -> int:
    at_end = timestamp_ms == -1
    call = broker_calls.max_offset(queue) if at_end else broker_calls.search_offset(queue, timestamp_ms)
    offset: int = await ask(call)
    return offset


async def _version_without_resets(ask: Ask) -> int | None:
    """Return the version of a broker that cannot set offsets itself; None for one that can."""
    call = admin_calls.BROKER_CONFIG

    def parse(reply: Command) -> tuple[int, dict[str, str]]:
        return reply.version, call.parse(reply) if reply.code == ResponseCode.SUCCESS else {}

    version, config = await ask(Call(call.code, parse, accepts=_CONFIG_ANSWERS))
    # Our broker and those of 5.0 lack the option, and the caller may not be allowed to read it.
    default = "true" if version >= _VERSION_5_2 else "false"
    return None if config.get(_SERVER_SIDE, default) == "true" else version


def _is_for_members(error: BrokerError) -> bool:
    """Return whether a reset failed because it needs members: there are none, or an offset is missing."""
    is_without_offset = error.response_code == ResponseCode.SYSTEM_ERROR and "not exist" in error.remark
    return isinstance(error, ConsumerNotOnline) or is_without_offset


async def _is_online(ask: Ask, group: str) -> bool:
    try:
        await ask(admin_calls.consumer_connection(group))
    except ConsumerNotOnline:
        return False
    return True
