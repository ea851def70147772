"""Statistics: how much a topic takes in, and how much each of its groups takes out.

Upstream: tools/command/stats/StatsAllSubCommand.java.
"""

from collections.abc import Sequence
from typing import Any, Final

from libramq.admin.operator import Operator
from libramq.errors import BrokerError, RemoteError
from libramq.remoting.body.administration import BrokerStatsData, BrokerStatsItem
from libramq.rpc import admin_calls as calls

#: Stats.java.
TOPIC_PUT_NUMS: Final = "TOPIC_PUT_NUMS"
GROUP_GET_NUMS: Final = "GROUP_GET_NUMS"
_NONE: Final = BrokerStatsItem(sum=0, tps=0)


async def rates(admin: Operator, topic: str) -> list[dict[str, Any]]:
    """Return a row for a topic with each of its groups ("": it has none); none if it was deleted just now.

    Rates are messages a second; the numbers are those of a day.
    """
    try:
        brokers = await admin.brokers_of(topic)
        groups = await admin.groups_at(brokers, topic)
    except RemoteError:
        return []
    taken_in = await _total(admin, brokers, TOPIC_PUT_NUMS, topic)
    rows = []
    for group in groups or [""]:
        taken_out, behind = (0.0, 0), 0
        if group:
            taken_out = await _total(admin, brokers, GROUP_GET_NUMS, f"{topic}@{group}")
            behind = sum([await _behind(admin, address, group, topic) for address in brokers])
        numbers = (max(behind, 0), taken_in[0], taken_out[0], taken_in[1], taken_out[1])
        names = ("accumulation", "inTps", "outTps", "inMsg24Hour", "outMsg24Hour")
        rows.append({"topic": topic, "group": group} | dict(zip(names, numbers, strict=True)))
    return rows


async def _behind(admin: Operator, broker: str, group: str, topic: str) -> int:
    try:
        table = (await admin.ask(broker, calls.consume_stats(group, topic))).offset_table
    except BrokerError:
        return 0  # The group has not committed here.
    return sum(offset.behind for offset in table.values())


async def _total(admin: Operator, brokers: Sequence[str], name: str, key: str) -> tuple[float, int]:
    counted = [await stats_of(admin, address, name, key) for address in brokers]
    return sum(stats.stats_minute.tps for stats in counted), sum(map(day_of, counted))


async def stats_of(admin: Operator, broker: str, name: str, key: str) -> BrokerStatsData:
    """Return what a broker counts; zeros where it has not counted anything."""
    try:
        return await admin.ask(broker, calls.stats_data(name, key))
    except BrokerError:
        return BrokerStatsData(stats_minute=_NONE, stats_hour=_NONE, stats_day=_NONE)


def day_of(stats: BrokerStatsData) -> int:
    """Return the count of a day; of the longest window there is, for a broker that was just started."""
    return stats.stats_day.sum or stats.stats_hour.sum or stats.stats_minute.sum


def first_number(text: str) -> float:
    """Return the first of a broker's rates over 10 s, 1 min and 10 min."""
    try:
        return float(text.split()[0])
    except (IndexError, ValueError):
        return 0.0
