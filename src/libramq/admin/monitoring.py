"""Monitoring: rates of topics and groups, consumer lag, and members that are stuck or differ from the others.

Upstream: tools/monitor/MonitorService.java, DefaultMonitorListener.java, body/ConsumerRunningInfo.java,
tools/command/stats/StatsAllSubCommand.java.
"""

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any, Final

from libramq.admin.operator import Operator
from libramq.errors import BrokerError, RemoteError
from libramq.filter.subscription import CONSUME_PASSIVELY
from libramq.message.properties import whole_number
from libramq.message.queue import MessageQueue
from libramq.remoting.body.administration import BrokerStatsData, BrokerStatsItem
from libramq.remoting.body.consumers import ConsumerRunningInfo, OffsetWrapper, TopicOffset
from libramq.remoting.headers import GROUP_GET_NUMS, TOPIC_PUT_NUMS
from libramq.rpc import admin_calls as calls

#: ConsumerRunningInfo.analyzeProcessQueue: a queue with messages is stuck if none was handled for this long.
STUCK_MS: Final = 60_000
#: ConsumerRunningInfo.analyzeSubscription: members may differ while they are deployed.
DEPLOYING_MS: Final = 120_000
_NONE: Final = BrokerStatsItem(sum=0, tps=0)


async def one_round(admin: Operator, now_ms: int) -> tuple[list[dict[str, Any]], list[str]]:
    """Return a row for each group and topic, and notices for an operator."""
    rows: list[dict[str, Any]] = []
    notices: list[str] = []
    ends: dict[str, dict[MessageQueue, TopicOffset]] = {}
    for group in await admin.groups():
        # Skip groups that never committed and deleted topics, as mqadmin does.
        with contextlib.suppress(RemoteError):
            offsets = dict(sorted((await admin.progress(group)).offsets.items()))
            for topic in dict.fromkeys(queue.topic for queue in offsets):
                if topic not in ends:
                    ends[topic] = await admin.topic_ends(topic)
                of_topic = {queue: offset for queue, offset in offsets.items() if queue.topic == topic}
                rows.append({"group": group, "topic": topic, **undone(of_topic, ends[topic])})
            notices += notices_of(group, await _members(admin, group), now_ms)
    return rows, notices


def undone(
    offsets: Mapping[MessageQueue, OffsetWrapper], ends: Mapping[MessageQueue, TopicOffset]
) -> dict[str, int]:
    """Return a group's lag in a topic, whose queues have these ends."""
    behind = [offset.behind for offset in offsets.values()]
    delays = [
        (ends[queue].last_update_timestamp if queue in ends else 0) - offset.last_timestamp
        for queue, offset in offsets.items()
        if offset.last_timestamp > 0
    ]
    return {
        "undone": sum(each for each in behind if each > 0),
        "undoneOfQueue": max(0, *behind, 0),
        "delayMs": max(0, *delays, 0),
    }


async def _members(admin: Operator, group: str) -> dict[str, ConsumerRunningInfo]:
    found: dict[str, ConsumerRunningInfo] = {}
    for address in await admin.brokers_of_group(group):
        with contextlib.suppress(RemoteError):  # The broker is away.
            connected = {one.client_id for one in await admin.connected(address, group)}
            for member in sorted(connected - set(found)):
                with contextlib.suppress(RemoteError):  # Left meanwhile, or no answer.
                    found[member] = await admin.ask(address, calls.running_info(group, member))
    return found


def notices_of(group: str, members: Mapping[str, ConsumerRunningInfo], now_ms: int) -> list[str]:
    """Return the problems of a group's push consumers."""
    pushed = {
        client_id: info
        for client_id, info in sorted(members.items())
        if info.properties.get("PROP_CONSUME_TYPE") == CONSUME_PASSIVELY
    }
    notices = []
    wanted = {
        frozenset((each.topic, each.sub_string, each.expression_type) for each in info.subscription_set)
        for info in pushed.values()
    }
    started = [info.properties.get("PROP_CONSUMER_START_TIMESTAMP", "") for info in pushed.values()]
    if len(wanted) > 1 and now_ms - (whole_number(started[0]) or 0) > DEPLOYING_MS:
        notices.append(f"group {group}: members' subscriptions differ")
    for client_id, info in pushed.items():
        is_orderly = info.properties.get("PROP_CONSUMEORDERLY") == "true"
        for queue, state in sorted(info.mq_table.items()):
            where = f"group {group}: {client_id}, queue {queue.queue_id} of {queue.topic}"
            idle_ms = now_ms - (state.last_consume_timestamp or now_ms)
            if is_orderly and not state.locked:
                notices.append(f"{where}: not locked for {now_ms - state.last_lock_timestamp} ms")
            elif not is_orderly and state.cached_msg_count > 0 and idle_ms > STUCK_MS:
                notices.append(f"{where}: nothing handled for {idle_ms} ms, perhaps it is blocked")
    return notices


async def rates(admin: Operator, topic: str) -> list[dict[str, Any]]:
    """Return a row for each group of a topic, one with group "" if there is none; no row if it was deleted.

    Rates are messages a second; counts are of a day.
    """
    try:
        brokers = await admin.brokers_of(topic)
        groups = await admin.groups_at(brokers, topic)
    except RemoteError:
        return []
    in_tps, in_day = await _total(admin, brokers, topic, TOPIC_PUT_NUMS)
    rows = []
    for group in groups or [""]:
        out_tps, out_day, behind = 0.0, 0, 0
        if group:
            out_tps, out_day = await _total(admin, brokers, f"{topic}@{group}", GROUP_GET_NUMS)
            behind = sum([await _behind(admin, address, group, topic) for address in brokers])
        rows.append(
            {
                "topic": topic,
                "group": group,
                "accumulation": max(behind, 0),
                "inTps": in_tps,
                "outTps": out_tps,
                "inMsg24Hour": in_day,
                "outMsg24Hour": out_day,
            }
        )
    return rows


async def _behind(admin: Operator, broker: str, group: str, topic: str) -> int:
    try:
        table = (await admin.ask(broker, calls.consume_stats(group, topic))).offset_table
    except BrokerError:
        return 0  # The group has not committed here.
    return sum(offset.behind for offset in table.values())


async def _total(admin: Operator, brokers: Sequence[str], key: str, name: str) -> tuple[float, int]:
    """Return a rate and a day's count, summed over brokers."""
    counted = [await stats_of(admin, address, key, name) for address in brokers]
    return sum(stats.stats_minute.tps for stats in counted), sum(map(day_of, counted))


async def stats_of(admin: Operator, broker: str, key: str, name: str = TOPIC_PUT_NUMS) -> BrokerStatsData:
    """Return a broker's statistics; zeros if it has none."""
    try:
        return await admin.ask(broker, calls.stats_data(name, key))
    except BrokerError:
        return BrokerStatsData(stats_minute=_NONE, stats_hour=_NONE, stats_day=_NONE)


def day_of(stats: BrokerStatsData) -> int:
    """Return the count of a day, or of the longest window that a freshly started broker has."""
    return stats.stats_day.sum or stats.stats_hour.sum or stats.stats_minute.sum


def first_number(text: str) -> float:
    """Return the first of a broker's rates over 10 s, 1 min and 10 min."""
    try:
        return float(text.split()[0])
    except (IndexError, ValueError):
        return 0.0
