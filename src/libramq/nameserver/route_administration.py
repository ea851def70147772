"""Administration of routes: queries, and changes that last until the broker registers its topics again.

Upstream: RouteInfoManager.operateWritePermOfBroker, registerTopic, getUnitTopics and their kin.
"""

from collections.abc import Callable, Sequence

import msgspec

from libramq.codes import ResponseCode
from libramq.errors import broker_error
from libramq.formats.route import BrokerData, QueueData
from libramq.formats.tables import FLAG_UNIT, FLAG_UNIT_SUBSCRIPTION, PERM_READ, PERM_WRITE
from libramq.kernel.work import Work
from libramq.nameserver.bounds import NAME_LENGTH_MAX, QUEUES_PER_TOPIC_MAX, TOPICS_MAX
from libramq.nameserver.records import RouteTables


def is_unit(flags: int) -> bool:
    """Return whether a topic belongs to a unit."""
    return flags & FLAG_UNIT != 0


def has_unit_subscription(flags: int) -> bool:
    """Return whether consumers of a unit read a topic."""
    return flags & FLAG_UNIT_SUBSCRIPTION != 0


def has_foreign_unit_subscription(flags: int) -> bool:
    """Return whether consumers of a unit read a topic that belongs to none."""
    return has_unit_subscription(flags) and not is_unit(flags)


def flagged(tables: RouteTables, topics: Sequence[str], wanted: Callable[[int], bool]) -> list[str]:
    """Return the topics whose flags at their first broker match."""
    found = []
    for topic in topics:
        name = next(iter(tables.topics.get(topic, ())), None)
        broker = tables.brokers.get(name) if name is not None else None
        if broker is not None and topic in broker.queues and wanted(broker.queues[topic].topic_sys_flag):
            found.append(topic)
    return found


def set_writable(tables: RouteTables, broker_name: str, *, writable: bool) -> Work[int]:
    """Change the write permission of all topics of a broker; return their number.

    Adding it sets perm 6, whatever it was before, as Apache's name server does.
    """
    broker = tables.brokers.get(broker_name)
    if broker is None:
        return 0
    count = 0
    for topic in list(broker.queues):
        queues = broker.queues.get(topic)
        if queues is not None:  # It may have been deleted meanwhile.
            perm = PERM_READ | PERM_WRITE if writable else queues.perm & ~PERM_WRITE
            broker.queues[topic] = msgspec.structs.replace(queues, perm=perm)
            count += 1
            yield None
    return count


def register_topic(tables: RouteTables, topic: str, queue_datas: Sequence[QueueData]) -> None:
    """Give a topic a route at known brokers; nothing changes if one of them is not known."""
    if not 0 < len(topic) <= NAME_LENGTH_MAX or not topic.isprintable():
        raise broker_error(
            ResponseCode.SYSTEM_ERROR,
            f"the topic {topic[:40]!r} is empty, unprintable or over {NAME_LENGTH_MAX} characters",
        )
    if topic not in tables.topics and len(tables.topics) >= TOPICS_MAX:
        raise broker_error(ResponseCode.SYSTEM_ERROR, f"over {TOPICS_MAX} topics")
    for queues in queue_datas:
        for count in (queues.read_queue_nums, queues.write_queue_nums):
            if not 0 <= count <= QUEUES_PER_TOPIC_MAX:
                raise broker_error(
                    ResponseCode.SYSTEM_ERROR,
                    f"topic {topic} has {count} queues; 0 to {QUEUES_PER_TOPIC_MAX} are allowed",
                )
    if any(queues.broker_name not in tables.brokers for queues in queue_datas):
        return  # Apache's name server answers success, too.
    for queues in queue_datas:
        tables.brokers[queues.broker_name].queues[topic] = queues
        tables.topics.setdefault(topic, {})[queues.broker_name] = None


def member_group(tables: RouteTables, cluster: str, broker_name: str) -> BrokerData:
    """Return the addresses of a broker name, none if it is not known."""
    broker = tables.brokers.get(broker_name)
    addresses = dict(sorted(broker.addresses.items())) if broker is not None else {}
    return BrokerData(cluster=cluster, broker_name=broker_name, broker_addrs=addresses)
