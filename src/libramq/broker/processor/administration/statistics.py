"""GET_TOPIC_STATS_INFO, GET_CONSUME_STATS, connection lists: the state of topics and groups.

Upstream: AdminBrokerProcessor.java.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Final

import msgspec

from libramq.broker.files.files import BrokerFiles
from libramq.broker.groups.consumer_clients import ConsumerClients
from libramq.broker.groups.group_health import GroupHealth
from libramq.broker.groups.offset_commits import OffsetCommits
from libramq.broker.metrics.throughput import Throughput
from libramq.broker.processor.groups.foreign_groups import foreign_connections
from libramq.broker.processor.messages.stored_times import consume_offsets, stored_ms
from libramq.codes import RequestCode, ResponseCode
from libramq.formats.document import encode_body
from libramq.formats.tables import TopicConfig
from libramq.groups.consumer_group import ConsumerGroup, Member
from libramq.groups.producer_group import ProducerGroups
from libramq.kernel.work import Work
from libramq.message.queue import MessageQueue
from libramq.remoting.body.consumers import (
    ClientConnection,
    ConsumerConnection,
    ConsumeStats,
    GroupDiagnosis,
    OffsetWrapper,
    ProducerConnection,
    TopicOffset,
    TopicStatsTable,
)
from libramq.remoting.body.route import GroupList, TopicList
from libramq.remoting.headers import (
    ConsumeStatsHeader,
    GroupByNameHeader,
    GroupHeader,
    ProducerConnectionHeader,
    TopicHeader,
)
from libramq.rpc.outcome import Outcome, Reply, reply_encoded
from libramq.rpc.request import Processor, Request
from libramq.transport.server_connection import Peer

#: Ours: queues of a reply that is encoded on the loop, in 4 µs each.
QUEUES_INLINE_MAX: Final = 256
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
        self._topics, self._store = files.tables.topics, files.store
        self._offsets = offsets
        self._consumers = consumers
        self._producers = producers
        self._health = health
        self._throughput = throughput
        self._instances = instances
        self._foreign = consumers.foreign

    def processors(self) -> Mapping[int, Processor]:
        """Return the requests that it serves."""
        return {
            RequestCode.GET_TOPIC_STATS_INFO: self.topic_stats,
            RequestCode.GET_CONSUME_STATS: self.consume_stats,
            RequestCode.GET_CONSUMER_CONNECTION_LIST: self.consumer_connections,
            RequestCode.GET_PRODUCER_CONNECTION_LIST: self.producer_connections,
            RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: self.topic_consumers,
            RequestCode.QUERY_TOPICS_BY_CONSUMER: self.group_topics,
        }

    def topic_stats(self, request: Request) -> Outcome:
        """Return the first and last offsets of a topic's queues."""
        header: TopicHeader = request.header
        config = self._topics.require(header.topic)
        return self._topic_stats(config.topic_name, config.write_queue_nums)

    def _topic_stats(self, topic: str, queue_count: int) -> Work[Outcome]:
        table = {}
        for queue_id in range(queue_count):
            minimum = self._store.min_offset(topic, queue_id)
            maximum = self._store.max_offset(topic, queue_id)
            last_ms = (yield from stored_ms(self._store, topic, queue_id, maximum - 1)) if maximum else 0
            table[MessageQueue(topic, self._broker_name, queue_id)] = TopicOffset(
                min_offset=minimum, max_offset=maximum, last_update_timestamp=max(0, last_ms)
            )
            yield None
        puts = self._throughput.puts_per_second(topic)
        return _encoded(TopicStatsTable(offset_table=table, topic_put_tps=puts), len(table))

    def consume_stats(self, request: Request) -> Outcome:
        """Return a group's offsets in each queue of the topics it reads."""
        header: ConsumeStatsHeader = request.header
        group = header.consumer_group
        if header.topic:
            topics: Iterable[str] = [header.topic]
        elif header.topic_list:
            # A topic that is named several times is processed once.
            topics = dict.fromkeys(topic for topic in header.topic_list.split(";") if topic)
        else:
            subscribed, foreign = self._consumers.group(group), self._foreign.get(group)
            topics = sorted(
                self._offsets.topics_of_group(group)
                | (set(subscribed.subscriptions) if subscribed else set())
                | (set(foreign.topics) if foreign else set())
            )
        known = [config for topic in topics if (config := self._topics.get(topic)) is not None]
        queue_count = sum(config.read_queue_nums for config in known)
        if queue_count > QUEUES_MAX:
            return Reply(
                ResponseCode.INVALID_PARAMETER,
                f"{queue_count} queues in {len(known)} topics; {QUEUES_MAX} are allowed, ask topic by topic",
            )
        return self._consume_stats(group, known)

    def _consume_stats(self, group: str, topics: Sequence[TopicConfig]) -> Work[Outcome]:
        table: dict[MessageQueue, OffsetWrapper] = {}
        gets = 0.0
        for config in topics:
            gets += self._throughput.gets_per_second(group, config.topic_name)
            committed = self._offsets.offsets(group, config.topic_name)
            for queue_id in self._queue_ids(config, committed):
                queue = MessageQueue(config.topic_name, self._broker_name, queue_id)
                table[queue] = yield from consume_offsets(
                    self._store, self._offsets, group, queue, committed.get(queue_id, 0)
                )
                yield None
        return _encoded(ConsumeStats(offset_table=table, consume_tps=gets), len(table))

    def _queue_ids(self, config: TopicConfig, committed: Mapping[int, int]) -> Iterator[int]:
        """Yield a topic's queues, and those that it has no more where a group has not read all."""
        yield from range(config.read_queue_nums)
        for queue_id, offset in sorted(committed.items()):
            if queue_id >= config.read_queue_nums:
                first = self._store.min_offset(config.topic_name, queue_id)
                if self._store.max_offset(config.topic_name, queue_id) > max(offset, first):
                    yield queue_id

    def consumer_connections(self, request: Request) -> Outcome:
        """Return the connected members of a consumer group, and its problems."""
        header: GroupHeader = request.header
        group = self._consumers.group(header.consumer_group)
        foreign = self._foreign.get(header.consumer_group)
        if foreign is not None:
            return Reply(body=encode_body(foreign_connections(foreign)))
        if group is None:
            return Reply(
                ResponseCode.CONSUMER_NOT_ONLINE, f"the consumer group[{header.consumer_group}] not online"
            )
        body = ConsumerConnection(
            connection_set=self._members(group),
            subscription_table=dict(group.subscriptions),
            consume_type=group.consume_type,
            message_model=group.message_model,
            consume_from_where=group.consume_from_where,
            diagnoses=[
                GroupDiagnosis(kind=diagnosis.kind, about=diagnosis.about, text=diagnosis.text)
                for diagnosis in self._health.of(group.name)
            ],
        )
        return Reply(body=encode_body(body))

    def _members(self, group: ConsumerGroup[Peer]) -> list[ClientConnection]:
        instances = self._instances(group.name)
        queues: defaultdict[str, dict[str, dict[str, list[int]]]] = defaultdict(dict)
        for queue, client_id in sorted(self._consumers.rebalances.owners(group.name).items()):
            here = queues[client_id].setdefault(queue.topic, {self._broker_name: []})
            here[self._broker_name].append(queue.queue_id)
        return [
            msgspec.structs.replace(
                one, instance=instances.get(one.client_id), queues=queues.get(one.client_id, {})
            )
            for one in _connections(group.members.values())
        ]

    def producer_connections(self, request: Request) -> Outcome:
        """Return the connected members of a producer group."""
        header: ProducerConnectionHeader = request.header
        members = self._producers.members(header.producer_group)
        if not members:
            return Reply(ResponseCode.SYSTEM_ERROR, f"the producer group[{header.producer_group}] not exist")
        return Reply(body=encode_body(ProducerConnection(connection_set=_connections(members))))

    def topic_consumers(self, request: Request) -> Outcome:
        """Return the groups that read a topic."""
        header: TopicHeader = request.header
        groups = self._offsets.groups_of_topic(header.topic) | set(self._consumers.groups_of(header.topic))
        return Reply(body=encode_body(GroupList(group_list=sorted(groups))))

    def group_topics(self, request: Request) -> Outcome:
        """Return the topics that a group reads."""
        header: GroupByNameHeader = request.header
        topics = self._offsets.topics_of_group(header.group)
        return Reply(body=encode_body(TopicList(topic_list=sorted(topics))))


def _encoded(body: TopicStatsTable | ConsumeStats, queue_count: int) -> Outcome:
    """Return the reply, encoded on a thread if it is large."""
    if queue_count <= QUEUES_INLINE_MAX:
        return Reply(body=encode_body(body))
    return reply_encoded(partial(encode_body, body))


def _connections(members: Iterable[Member[Peer]]) -> list[ClientConnection]:
    return [
        ClientConnection(
            client_id=member.client_id,
            client_addr=member.peer.address,
            language=member.language,
            version=member.version,
        )
        for member in members
    ]
