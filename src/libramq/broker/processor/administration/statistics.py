"""GET_TOPIC_STATS_INFO, GET_CONSUME_STATS, GET_CONSUMER_CONNECTION_LIST and their kin: queues of a topic,
progress of a group, who is connected.

Upstream: AdminBrokerProcessor.java.
"""

from bisect import insort
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final

from libramq.broker.files.files import BrokerFiles
from libramq.broker.groups.consumer_clients import ConsumerClients
from libramq.broker.groups.group_health import GroupHealth
from libramq.broker.groups.group_lag import topics_read
from libramq.broker.groups.offset_commits import OffsetCommits
from libramq.broker.messages.throughput import Throughput
from libramq.broker.processor.groups.foreign_groups import foreign_connections
from libramq.broker.processor.stored_times import consume_offsets, popped_unfinished, stored_ms
from libramq.codes import RequestCode, ResponseCode
from libramq.formats.document import encode_body
from libramq.formats.tables import TopicConfig
from libramq.groups.consumer_group import ConsumerGroup, Member
from libramq.groups.producer_group import ProducerGroups
from libramq.kernel.work import Work
from libramq.message.queue import MessageQueue
from libramq.remoting import headers as h
from libramq.remoting.body import consumers as bodies
from libramq.remoting.body.cluster import GroupList, TopicList
from libramq.rpc.outcome import Outcome, Reply, reply_rows
from libramq.rpc.request import Request, serves
from libramq.transport.server import Peer

#: Ours: 32 topics of a thousand queues, or 4,000 of eight; some 6 MB of reply.
QUEUES_MAX: Final = 32_768


class Statistics:
    """The processor of tools' queries.

    instances: the names of a group's static members, by client id. foreign: groups of other protocols.
    """

    def __init__(
        self,
        *,
        files: BrokerFiles,
        offsets: OffsetCommits,
        consumers: ConsumerClients,
        producers: ProducerGroups[Peer],
        health: GroupHealth,
        throughput: Throughput,
        instances: Callable[[str], Mapping[str, str]],
    ) -> None:
        self._broker_name = consumers.broker_name
        self._tables, self._topics, self._store = files.tables, files.tables.topics, files.store
        self._offsets = offsets
        self._consumers = consumers
        self._producers = producers
        self._health = health
        self._throughput = throughput
        self._instances = instances
        self._foreign = consumers.foreign
        self._in_flight = files.pop.in_flight

    @serves(RequestCode.GET_TOPIC_STATS_INFO)
    def topic_stats(self, request: Request) -> Outcome:
        """Return the first and last offsets of a topic's queues."""
        header: h.TopicHeader = request.header
        config = self._topics.require(header.topic)
        return self._topic_stats(config.topic_name, config.write_queue_nums)

    def _topic_stats(self, topic: str, queue_count: int) -> Work[Outcome]:
        table = {}
        for queue_id in range(queue_count):
            minimum = self._store.min_offset(topic, queue_id)
            maximum = self._store.max_offset(topic, queue_id)
            last_ms = (yield from stored_ms(self._store, topic, queue_id, maximum - 1)) if maximum else 0
            table[MessageQueue(topic, self._broker_name, queue_id)] = bodies.TopicOffset(
                min_offset=minimum, max_offset=maximum, last_update_timestamp=max(0, last_ms)
            )
            yield None
        puts = self._throughput.puts_per_second(topic)
        return reply_rows(lambda: bodies.TopicStatsTable(offset_table=table, topic_put_tps=puts), len(table))

    @serves(RequestCode.GET_CONSUME_STATS)
    def consume_stats(self, request: Request) -> Outcome:
        """Return a group's offsets in each queue of the topics it reads."""
        header: h.ConsumeStatsHeader = request.header
        group = header.consumer_group
        if header.topic:
            topics: list[str] = [header.topic]
        elif header.topic_list:
            # A topic that is named several times is processed once.
            topics = [topic for topic in header.topic_list.split(";") if topic]
        else:
            topics = topics_read(group, self._offsets, self._consumers, self._tables)
        known = [config for topic in dict.fromkeys(topics) if (config := self._topics.get(topic)) is not None]
        queue_count = sum(config.read_queue_nums for config in known)
        if queue_count > QUEUES_MAX:
            return Reply(
                ResponseCode.INVALID_PARAMETER,
                f"{queue_count} queues in {len(known)} topics; {QUEUES_MAX} are allowed, ask topic by topic",
            )
        return self._consume_stats(group, known)

    def _consume_stats(self, group: str, topics: Sequence[TopicConfig]) -> Work[Outcome]:
        table: dict[MessageQueue, bodies.OffsetWrapper] = {}
        popped = yield from popped_unfinished(self._in_flight, group)
        gets = 0.0
        for config in topics:
            gets += self._throughput.gets_per_second(group, config.topic_name)
            committed = self._offsets.offsets(group, config.topic_name)
            for queue_id in self._queue_ids(config, committed):
                queue = MessageQueue(config.topic_name, self._broker_name, queue_id)
                table[queue] = yield from consume_offsets(
                    self._store, self._offsets, group, queue, committed.get(queue_id), popped
                )
                yield None
        return reply_rows(lambda: bodies.ConsumeStats(offset_table=table, consume_tps=gets), len(table))

    def _queue_ids(self, config: TopicConfig, committed: Mapping[int, int]) -> Iterator[int]:
        """Yield a topic's queues, and those that it has no more where a group has not read all."""
        yield from range(config.read_queue_nums)
        for queue_id, offset in sorted(committed.items()):
            if queue_id >= config.read_queue_nums:
                first = self._store.min_offset(config.topic_name, queue_id)
                if self._store.max_offset(config.topic_name, queue_id) > max(offset, first):
                    yield queue_id

    @serves(RequestCode.GET_CONSUMER_CONNECTION_LIST)
    def consumer_connections(self, request: Request) -> Outcome:
        """Return the connected members of a consumer group, and its problems."""
        header: h.GroupHeader = request.header
        group = self._consumers.group(header.consumer_group)
        foreign = self._foreign.get(header.consumer_group)
        if foreign is not None:
            return reply_rows(partial(foreign_connections, foreign), len(foreign.members))
        if group is None:
            # Its coordinator may be none of the brokers of its topics.
            if diagnoses := self._diagnoses(header.consumer_group):
                return Reply(body=encode_body(bodies.ConsumerConnection(diagnoses=diagnoses)))
            return Reply(
                ResponseCode.CONSUMER_NOT_ONLINE, f"the consumer group[{header.consumer_group}] not online"
            )
        return self._consumer_connections(group)

    def _consumer_connections(self, group: ConsumerGroup[Peer]) -> Work[Outcome]:
        instances = self._instances(group.name)
        queues: defaultdict[str, dict[str, dict[str, list[int]]]] = defaultdict(dict)
        for queue, client_id in self._consumers.rebalances.owners(group.name).items():
            here = queues[client_id].setdefault(queue.topic, {self._broker_name: []})
            insort(here[self._broker_name], queue.queue_id)
            yield None
        members = []
        for member in [*group.members.values()]:
            instance, owned = instances.get(member.client_id), queues.get(member.client_id, {})
            members.append(_connection(member, instance=instance, queues=dict(sorted(owned.items()))))
            yield None
        body = bodies.ConsumerConnection(
            connection_set=members,
            subscription_table=dict(group.subscriptions),
            consume_type=group.consume_type,
            message_model=group.message_model,
            consume_from_where=group.consume_from_where,
            diagnoses=self._diagnoses(group.name),
        )
        return reply_rows(lambda: body, len(members))

    def _diagnoses(self, group: str) -> list[bodies.GroupDiagnosis]:
        return [
            bodies.GroupDiagnosis(kind=each.kind, about=each.about, text=each.text)
            for each in self._health.of(group)
        ]

    @serves(RequestCode.GET_PRODUCER_CONNECTION_LIST)
    def producer_connections(self, request: Request) -> Work[Outcome]:
        """Return the connected members of a producer group."""
        header: h.ProducerConnectionHeader = request.header
        found = []
        for member in self._producers.members(header.producer_group):
            found.append(_connection(member))
            yield None
        if not found:
            return Reply(ResponseCode.SYSTEM_ERROR, f"the producer group[{header.producer_group}] not exist")
        return reply_rows(lambda: bodies.ProducerConnection(connection_set=found), len(found))

    @serves(RequestCode.QUERY_TOPIC_CONSUME_BY_WHO)
    def topic_consumers(self, request: Request) -> Outcome:
        """Return the groups that read a topic."""
        header: h.TopicHeader = request.header
        groups = self._offsets.groups_of_topic(header.topic) | set(self._consumers.groups_of(header.topic))
        return reply_rows(lambda: GroupList(group_list=sorted(groups)), len(groups))

    @serves(RequestCode.QUERY_TOPICS_BY_CONSUMER)
    def group_topics(self, request: Request) -> Outcome:
        """Return the topics that a group reads."""
        header: h.GroupByNameHeader = request.header
        topics = self._offsets.topics_of_group(header.group)
        return reply_rows(lambda: TopicList(topic_list=sorted(topics)), len(topics))


def _connection(member: Member[Peer], **others: Any) -> bodies.ClientConnection:
    return bodies.ClientConnection(
        client_id=member.client_id,
        client_addr=member.peer.address,
        language=member.language,
        version=member.version,
        **others,
    )
