"""Statistics: how much a topic takes in, and how much each of its groups takes out.

Upstream: tools/command/stats/StatsAllSubCommand.java.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

from libramq.admin.operator import Operator
from libramq.errors import BrokerError, RemoteError
from libramq.remoting.body.administration import BrokerStatsData
from libramq.rpc import admin_calls as calls

#: Stats.java.
TOPIC_PUT_NUMS: Final = "TOPIC_PUT_NUMS"
GROUP_GET_NUMS: Final = "GROUP_GET_NUMS"


class Rates(NamedTuple):
    """A topic and one of its groups ("": it has none): messages a second, and in a day."""

    topic: str
    group: str
    behind: int
    in_tps: float
    out_tps: float
    in_a_day: int
    out_a_day: int


async def rates(admin: Operator, topic: str) -> list[Rates]:
    """Return the rates of a topic with each of its groups; nothing if it was deleted just now."""
    try:
        brokers = await admin.brokers_of(topic)
        groups = await admin.groups_at(brokers, topic)
    except RemoteError:
        return []
    in_tps, in_a_day = await _total(admin, brokers, TOPIC_PUT_NUMS, topic)
    found = []
    for group in groups:
        out_tps, out_a_day = await _total(admin, brokers, GROUP_GET_NUMS, f"{topic}@{group}")
        behind = sum([await _behind(admin, address, group, topic) for address in brokers])
        found.append(Rates(topic, group, max(behind, 0), in_tps, out_tps, in_a_day, out_a_day))
    return found or [Rates(topic, "", 0, in_tps, 0.0, in_a_day, 0)]


async def _behind(admin: Operator, broker: str, group: str, topic: str) -> int:
    try:
        table = (await admin.ask(broker, calls.consume_stats(group, topic))).offset_table
    except BrokerError:
        return 0  # The group has not committed here.
    return sum(offset.behind for offset in table.values())


async def _total(admin: Operator, brokers: Sequence[str], name: str, key: str) -> tuple[float, int]:
    found = [await stats_of(admin, address, name, key) for address in brokers]
    counted = [stats for stats in found if stats is not None]
    return sum(stats.stats_minute.tps for stats in counted), sum(map(day_of, counted))


async def stats_of(admin: Operator, broker: str, name: str, key: str) -> BrokerStatsData | None:
    """Return what a broker counts; None where it has not counted anything."""
    try:
        return await admin.ask(broker, calls.stats_data(name, key))
    except BrokerError:
        return None


def day_of(stats: BrokerStatsData) -> int:
    """Return the count of a day; of the longest window there is, for a broker that was just started."""
    return stats.stats_day.sum or stats.stats_hour.sum or stats.stats_minute.sum
