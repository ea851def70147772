"""GET_BROKER_CONSUME_STATS, GET_ALL_PRODUCER_INFO, QUERY_CONSUME_QUEUE, VIEW_BROKER_STATS_DATA: all groups,
all producers, a queue's units, counts.

Upstream: AdminBrokerProcessor.java.
"""

from typing import Final

from libramq.broker.config import BrokerConfig
from libramq.broker.files.files import BrokerFiles
from libramq.broker.groups.consumer_clients import ConsumerClients
from libramq.broker.groups.offset_commits import OffsetCommits
from libramq.broker.messages.throughput import Throughput
from libramq.broker.processor.stored_times import Popped, consume_offsets, popped_unfinished
from libramq.codes import RequestCode, ResponseCode
from libramq.errors import broker_error
from libramq.formats.document import encode_body
from libramq.formats.tables import TopicConfig
from libramq.groups.producer_group import ProducerGroups
from libramq.kernel.connection import Connection
from libramq.kernel.work import Room, Work
from libramq.message.queue import MessageQueue
from libramq.remoting import headers as h
from libramq.remoting.body import administration as bodies
from libramq.remoting.body.consumers import ConsumeStats, OffsetWrapper
from libramq.rpc.outcome import SUCCESS, Outcome, Reply, reply_rows
from libramq.rpc.request import Request, serves

#: Ours: queues of all groups in one reply, of some 200 bytes each.
QUEUES_MAX: Final = 32_768
#: Ours: what the progress of a group takes until it is encoded, if it reads a queue; 700 bytes measured.
GROUP_BYTES: Final = 1024
#: Ours: mqadmin asks for ten units; a unit takes some 100 bytes of the reply.
UNITS_MAX: Final = 1_000


class Inspection:
    """The processor of operators' questions about all of a broker."""

    def __init__(
        self,
        *,
        config: BrokerConfig,
        files: BrokerFiles,
        offsets: OffsetCommits,
        clients: ConsumerClients,
        producers: ProducerGroups[Connection],
        throughput: Throughput,
    ) -> None:
        self._address = config.address
        self._topics, self._groups, self._store = files.tables.topics, files.tables.groups, files.store
        self._offsets = offsets
        self._clients = clients
        self._producers = producers
        self._throughput = throughput
        self._in_flight = files.pop.in_flight

    @serves(RequestCode.GET_BROKER_CONSUME_STATS)
    def consume_stats(self, request: Request) -> Work[Outcome]:
        """Return the progress of every group, topic by topic."""
        header: h.BrokerConsumeStatsHeader = request.header
        yield Room(len(self._groups) * GROUP_BYTES)
        found: list[dict[str, list[ConsumeStats]]] = []
        popped = yield from popped_unfinished(self._in_flight)
        queue_count = total_diff = total_inflight = 0
        for group in [config.group_name for config in self._groups]:
            yield None
            stats = []
            for topic in self._read_by(group, ordered_only=header.is_order):
                queue_count += topic.write_queue_nums
                if queue_count > QUEUES_MAX:
                    raise broker_error(
                        ResponseCode.INVALID_PARAMETER,
                        f"over {QUEUES_MAX} queues of groups; ask group by group (GET_CONSUME_STATS)",
                    )
                yield None
                table = yield from self._offset_table(group, topic, popped)
                gets = self._throughput.gets_per_second(group, topic.topic_name)
                stats.append(ConsumeStats(offset_table=table, consume_tps=gets))
                total_diff += sum(each.broker_offset - each.consumer_offset for each in table.values())
                total_inflight += sum(each.pull_offset - each.consumer_offset for each in table.values())
            found.append({group: stats})
        body = bodies.ConsumeStatsList(
            consume_stats_list=found,
            broker_addr=self._address,
            total_diff=total_diff,
            total_inflight_diff=total_inflight,
        )
        return reply_rows(lambda: body, queue_count + len(found))

    def _read_by(self, group: str, *, ordered_only: bool) -> list[TopicConfig]:
        """Return the topics that a group has read, and still subscribes to if members are connected."""
        online = self._clients.group(group)
        subscribed = online.subscriptions if online is not None else {}
        topics = (self._topics.get(topic) for topic in sorted(self._offsets.topics_read(group)))
        return [
            topic
            for topic in topics
            if topic is not None
            and (topic.order or not ordered_only)
            and (not subscribed or topic.topic_name in subscribed)
        ]

    def _offset_table(
        self, group: str, topic: TopicConfig, popped: Popped
    ) -> Work[dict[MessageQueue, OffsetWrapper]]:
        committed = self._offsets.offsets(group, topic.topic_name)
        table = {}
        for queue_id in range(topic.write_queue_nums):
            queue = MessageQueue(topic.topic_name, self._clients.broker_name, queue_id)
            table[queue] = yield from consume_offsets(
                self._store, self._offsets, group, queue, committed.get(queue_id), popped
            )
            yield None
        return table

    @serves(RequestCode.GET_ALL_PRODUCER_INFO)
    def all_producers(self, request: Request) -> Work[Outcome]:
        """Return the connected producers of all groups."""
        wall_ms, monotonic_ms = request.wall_ms, request.monotonic_ms
        data: dict[str, list[bodies.ProducerInfo]] = {}
        for group in self._producers.names():
            for member in self._producers.members(group):
                info = bodies.ProducerInfo(
                    client_id=member.client_id,
                    remote_ip=member.peer.address,
                    language=member.language,
                    version=member.version,
                    last_update_timestamp=int(wall_ms) - (monotonic_ms - member.heartbeat_at_ms),
                )
                data.setdefault(group, []).append(info)
                yield None
        return reply_rows(lambda: bodies.ProducerTable(data=data), sum(map(len, data.values())))

    @serves(RequestCode.QUERY_CONSUME_QUEUE)
    def consume_queue(self, request: Request) -> Outcome:
        """Return units of a queue: where its messages lie in the log, with their tag codes."""
        header: h.ConsumeQueueHeader = request.header
        topic, queue_id = header.topic, header.queue_id
        if not self._store.has_queue(topic, queue_id):
            return Reply(ResponseCode.SYSTEM_ERROR, f"{queue_id}@{topic} is not exist!")
        subscription, remark = None, None
        if header.consumer_group:
            group = self._clients.group(header.consumer_group)
            subscription = group.subscriptions.get(topic) if group is not None else None
            remark = None if subscription else f"{header.consumer_group}@{topic} is not online!"
        units = self._store.queue_units(topic, queue_id, header.index, max(0, min(header.count, UNITS_MAX)))
        body = bodies.ConsumeQueueReply(
            subscription_data=subscription,
            filter_data=remark,
            queue_data=[
                bodies.ConsumeQueueData(physic_offset=offset, physic_size=size, tags_code=code)
                for offset, size, code in units
            ],
            max_queue_index=self._store.max_offset(topic, queue_id),
            min_queue_index=self._store.min_offset(topic, queue_id),
        )
        return Reply(body=encode_body(body))

    @serves(RequestCode.VIEW_BROKER_STATS_DATA)
    def stats_data(self, request: Request) -> Outcome:
        """Return how many messages a topic got, or a group, in the last minute, hour and day."""
        header: h.StatsDataHeader = request.header
        counted = self._throughput.windows(_counted(header.stats_name, header.stats_key))
        if counted is None:
            remark = f"The stats <{header.stats_name}> <{header.stats_key}> not exist"
            return Reply(ResponseCode.SYSTEM_ERROR, remark)
        minute, hour, day = (
            bodies.BrokerStatsItem(sum=window.messages, tps=window.per_second) for window in counted
        )
        body = bodies.BrokerStatsData(stats_minute=minute, stats_hour=hour, stats_day=day)
        return Reply(body=encode_body(body))

    @serves(RequestCode.RESET_MASTER_FLUSH_OFFSET)
    def reset_master_flush_offset(self, request: Request) -> Outcome:
        """Accept it: a master has nothing to reset, as with Apache's."""
        return SUCCESS


def _counted(name: str, key: str) -> str | tuple[str, str] | None:
    """Return what the throughput counts: a topic, or a group and a topic; None for other statistics."""
    if name == h.TOPIC_PUT_NUMS:
        return key
    topic, at, group = key.partition("@")
    return (group, topic) if name == h.GROUP_GET_NUMS and at else None
