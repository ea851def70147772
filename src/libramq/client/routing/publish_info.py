"""The publish info of a topic: which queues of a route, or of its order configuration, are writable, and
which are readable.

Upstream: impl/producer/TopicPublishInfo.java, MQClientInstance.topicRouteData2TopicPublishInfo.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from libramq.errors import RemoteProtocolError
from libramq.formats.route import QueueData, TopicRouteData
from libramq.formats.tables import PERM_READ, PERM_WRITE
from libramq.message.queue import MessageQueue

#: Ours: how many queues of one topic a broker may claim; upstream's system topic BenchmarkTest has 1024.
QUEUES_MAX: Final = 65_536
#: Ours: for how many pairs of topic and broker a process keeps the queues for its next client.
SHARED_MAX: Final = 256


@dataclass(frozen=True, slots=True)
class TopicPublishInfo:
    """The queues of a topic in route order. ordered: the name server fixed them (orderTopicConf)."""

    queues: tuple[MessageQueue, ...]
    ordered: bool = False


def publish_info(topic: str, route: TopicRouteData) -> TopicPublishInfo:
    """Return the queues to send to: writable, at brokers with a master."""
    if route.order_topic_conf:
        return TopicPublishInfo(tuple(_ordered_queues(topic, route.order_topic_conf)), ordered=True)
    masters = {broker.broker_name for broker in route.broker_datas if broker.master_address}
    return TopicPublishInfo(
        tuple(
            queue
            for data in sorted(route.queue_datas, key=_broker_name)
            if data.perm & PERM_WRITE and data.broker_name in masters
            for queue in _queues(topic, data.broker_name, data.write_queue_nums)
        )
    )


def subscribe_queues(topic: str, route: TopicRouteData) -> tuple[MessageQueue, ...]:
    """Return the queues to read from: readable, including those of slaves without a master."""
    return tuple(
        queue
        for data in sorted(route.queue_datas, key=_broker_name)
        if data.perm & PERM_READ
        for queue in _queues(topic, data.broker_name, data.read_queue_nums)
    )


def as_template(route: TopicRouteData, queue_count_max: int) -> TopicRouteData:
    """Return the template topic's route as that of a topic to be created on the first send."""
    return TopicRouteData(
        broker_datas=route.broker_datas,
        queue_datas=[_narrowed(data, queue_count_max) for data in route.queue_datas],
    )


def _narrowed(data: QueueData, queue_count_max: int) -> QueueData:
    count = min(queue_count_max, data.read_queue_nums)
    return QueueData(
        broker_name=data.broker_name,
        read_queue_nums=count,
        write_queue_nums=count,
        perm=data.perm,
        topic_sys_flag=data.topic_sys_flag,
    )


def _ordered_queues(topic: str, text: str) -> list[MessageQueue]:
    queues: list[MessageQueue] = []
    for pair in text.split(";"):
        broker_name, _, count = pair.partition(":")
        if not broker_name or not count.isdecimal() or len(count) > 5:
            raise RemoteProtocolError(f"the order of topic {topic} reads {text!r}, not broker:count;…")
        queues += _queues(topic, broker_name, int(count))
    return queues


@lru_cache(maxsize=SHARED_MAX)
def _queues(topic: str, broker_name: str, count: int) -> tuple[MessageQueue, ...]:
    """Return a topic's queues at a broker; the clients of a process share them."""
    if count > QUEUES_MAX:
        raise RemoteProtocolError(f"a route with {count} queues at one broker; {QUEUES_MAX} are allowed")
    return tuple(MessageQueue(topic, broker_name, queue_id) for queue_id in range(count))


def _broker_name(data: QueueData) -> str:
    return data.broker_name
