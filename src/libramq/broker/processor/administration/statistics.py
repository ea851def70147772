"""GET_TOPIC_STATS_INFO, GET_CONSUME_STATS, GET_CONSUMER_CONNECTION_LIST and similar requests: the queues of a
topic and their units, the progress of one or all groups (less messages in flight), the connected clients, and
counts.

Upstream: AdminBrokerProcessor.java.
"""

from bisect import insort
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, Final

from libramq.broker.files.files import BrokerFiles
from libramq.broker.groups.consumer_clients import ConsumerClients
from libramq.broker.groups.group_health import GroupHealth
from libramq.broker.groups.group_lag import topics_read
from libramq.broker.groups.offset_commits import OffsetCommits
from libramq.broker.messages.throughput import Throughput
from libramq.codes import RequestCode, ResponseCode
from libramq.errors import broker_error
from libramq.filter.subscription import CLUSTERING, CONSUME_ACTIVELY, SubscriptionData
from libramq.formats.document import encode_body
from libramq.formats.tables import TopicConfig
from libramq.groups.consumer_group import Member
from libramq.groups.producer_group import ProducerGroups
from libramq.groups.protocol_groups import ForeignGroup
from libramq.kernel.connection import Connection
from libramq.kernel.work import Room, Work
from libramq.message.queue import MessageQueue
from libramq.pop.check_point import CheckPoint
from libramq.remoting import headers as h
from libramq.remoting.body import administration
from libramq.remoting.body import consumers as bodies
from libramq.remoting.body.cluster import GroupList, TopicList
from libramq.rpc.outcome import SUCCESS, Outcome, Reply, reply_rows
from libramq.rpc.request import Request, serves

#: Ours: 32 topics of a thousand queues, or 4,000 of eight, of one group or all; some 6 MB of reply.
QUEUES_MAX: Final = 32_768
#: Ours: memory of a group's progress in one queue until it is encoded; 700 bytes measured.
GROUP_BYTES: Final = 1024
#: The language shown for clients other than RocketMQ's; Java's tools know this one (LanguageCode).
_LANGUAGE: Final = "OTHER"
#: Ours: mqadmin requests ten units; each takes some 100 bytes of the reply.
UNITS_MAX: Final = 1_000

#: Check points by group, topic and queue.
Popped = dict[tuple[str, str, int], list[CheckPoint]]


class Statistics:
    """The processor of tools' queries.

    instances: the names of a group's static members, by client id. address: this broker's.
    """

    def __init__(
        self,
        *,
        files: BrokerFiles,
        offsets: OffsetCommits,
        consumers: ConsumerClients,
        producers: ProducerGroups[Connection],
        health: GroupHealth,
        throughput: Throughput,
        instances: Callable[[str], Mapping[str, str]],
        address: str,
    ) -> None:
        self._address = address
        self._broker_name = consumers.broker_name
        self._tables, self._topics, self._store = files.tables, files.tables.topics, files.store
        self._groups = files.tables.groups
        self._offsets = offsets
        self._consumers = consumers
        self._producers = producers
        self._health = health
        self._throughput = throughput
        self._instances = instances
        self._foreign = consumers.foreign
        self._in_flight = files.pop.in_flight

    @serves(RequestCode.GET_TOPIC_STATS_INFO)
    def topic_stats(self, request: Request) -> Work[Outcome]:
        """Return the first and last offsets of a topic's queues."""
        header: h.TopicHeader = request.header
        topic, table = header.topic, {}
        for queue_id in range(self._topics.require(topic).write_queue_nums):
            minimum = self._store.min_offset(topic, queue_id)
            maximum = self._store.max_offset(topic, queue_id)
            last_ms = (yield from self._store.stored_ms(topic, queue_id, maximum - 1)) if maximum else 0
            table[MessageQueue(topic, self._broker_name, queue_id)] = bodies.TopicOffset(
                min_offset=minimum, max_offset=maximum, last_update_timestamp=max(0, last_ms)
            )
            yield None
        puts = self._throughput.puts_per_second(topic)
        return reply_rows(lambda: bodies.TopicStatsTable(offset_table=table, topic_put_tps=puts), len(table))

    @serves(RequestCode.GET_CONSUME_STATS)
    def consume_stats(self, request: Request) -> Work[Outcome]:
        """Return a group's offsets in each queue of the topics it reads."""
        header: h.ConsumeStatsHeader = request.header
        group = header.consumer_group
        if header.topic:
            topics: list[str] = [header.topic]
        elif header.topic_list:
            # A topic named several times is processed once.
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
        table: dict[MessageQueue, bodies.OffsetWrapper] = {}
        popped = yield from self._popped_unfinished(group)
        gets = 0.0
        for config in known:
            gets += self._throughput.gets_per_second(group, config.topic_name)
            queue_ids = self._queue_ids(group, config)
            table |= yield from self._progress(group, config.topic_name, queue_ids, popped)
        return reply_rows(lambda: bodies.ConsumeStats(offset_table=table, consume_tps=gets), len(table))

    def _queue_ids(self, group: str, config: TopicConfig) -> Iterator[int]:
        """Yield a topic's queues, and its former queues that a group has not read completely."""
        yield from range(config.read_queue_nums)
        for queue_id, offset in sorted(self._offsets.offsets(group, config.topic_name).items()):
            if queue_id >= config.read_queue_nums:
                first = self._store.min_offset(config.topic_name, queue_id)
                if self._store.max_offset(config.topic_name, queue_id) > max(offset, first):
                    yield queue_id

    @serves(RequestCode.GET_BROKER_CONSUME_STATS)
    def all_consume_stats(self, request: Request) -> Work[Outcome]:
        """Return the progress of every group, topic by topic."""
        header: h.BrokerConsumeStatsHeader = request.header
        yield Room(len(self._groups) * GROUP_BYTES)
        found: list[dict[str, list[bodies.ConsumeStats]]] = []
        popped = yield from self._popped_unfinished()
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
                table = yield from self._progress(
                    group, topic.topic_name, range(topic.write_queue_nums), popped
                )
                gets = self._throughput.gets_per_second(group, topic.topic_name)
                stats.append(bodies.ConsumeStats(offset_table=table, consume_tps=gets))
                total_diff += sum(each.broker_offset - each.consumer_offset for each in table.values())
                total_inflight += sum(each.pull_offset - each.consumer_offset for each in table.values())
            found.append({group: stats})
        body = administration.ConsumeStatsList(
            consume_stats_list=found,
            broker_addr=self._address,
            total_diff=total_diff,
            total_inflight_diff=total_inflight,
        )
        return reply_rows(lambda: body, queue_count + len(found))

    def _read_by(self, group: str, *, ordered_only: bool) -> list[TopicConfig]:
        """Return the topics that a group has read, and still subscribes to if members are connected."""
        online = self._consumers.group(group)
        subscribed = online.subscriptions if online is not None else {}
        topics = (self._topics.get(topic) for topic in sorted(self._offsets.topics_read(group)))
        return [
            topic
            for topic in topics
            if topic is not None
            and (topic.order or not ordered_only)
            and (not subscribed or topic.topic_name in subscribed)
        ]

    def _progress(
        self, group: str, topic: str, queue_ids: Iterable[int], popped: Popped
    ) -> Work[dict[MessageQueue, bodies.OffsetWrapper]]:
        """Return a group's offsets in queues of a topic."""
        table = {}
        for queue_id in queue_ids:
            queue = MessageQueue(topic, self._broker_name, queue_id)
            table[queue] = yield from self._progress_in(group, queue, popped)
            yield None
        return table

    def _progress_in(self, group: str, queue: MessageQueue, popped: Popped) -> Work[bodies.OffsetWrapper]:
        """Return a group's progress in one queue.

        A group that pops commits soon after its pops, so messages in flight are subtracted from its offset:
        they are pulled, but not consumed. If a group's position is unknown, tools get the first message's
        offset, as from Apache's broker, and the flag that it is unknown.
        """
        topic, queue_id = queue.topic, queue.queue_id
        store, offsets = self._store, self._offsets
        end, first = store.max_offset(topic, queue_id), store.min_offset(topic, queue_id)
        begin = offsets.read_from(group, topic, queue_id)
        pulled = offsets.pull_offsets.get(group, topic, queue_id)
        # Deleted messages do not count as lag: the group continues with the first existing one.
        offset = max(begin or 0, first)
        read_ms = (yield from store.stored_ms(topic, queue_id, offset - 1)) if offset else 0
        before = behind = 0
        for each in popped.get((group, topic, queue_id), ()):
            count = len(each.diffs) - each.done.bit_count()
            if each.start_offset < offset:
                before += count
            else:
                behind += count
            yield None
        return bodies.OffsetWrapper(
            broker_offset=end,
            consumer_offset=max(0, offset - before),
            pull_offset=max(offset + behind, pulled or 0),
            last_timestamp=max(0, read_ms),
            is_unknown=True if begin is None and end > first else None,
        )

    def _popped_unfinished(self, group: str | None = None) -> Work[Popped]:
        """Return the check points of a group, or of all, that are not acknowledged."""
        popped: Popped = {}
        if group is None or self._in_flight.count_of(group):
            for each in list(self._in_flight):
                if group in (None, each.group):
                    popped.setdefault((each.group, each.topic, each.queue_id), []).append(each)
                yield None
        return popped

    @serves(RequestCode.GET_CONSUMER_CONNECTION_LIST)
    def consumer_connections(self, request: Request) -> Work[Outcome]:
        """Return the connected members of a consumer group, and its problems."""
        header: h.GroupHeader = request.header
        group = self._consumers.group(header.consumer_group)
        foreign = self._foreign.get(header.consumer_group)
        if foreign is not None:
            return reply_rows(partial(_foreign_connections, foreign), len(foreign.members))
        if group is None:
            # Its coordinator may be a broker without its topics.
            if diagnoses := self._diagnoses(header.consumer_group):
                return Reply(body=encode_body(bodies.ConsumerConnection(diagnoses=diagnoses)))
            return Reply(
                ResponseCode.CONSUMER_NOT_ONLINE, f"the consumer group[{header.consumer_group}] not online"
            )
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

    @serves(RequestCode.GET_ALL_PRODUCER_INFO)
    def all_producers(self, request: Request) -> Work[Outcome]:
        """Return the connected producers of all groups."""
        wall_ms, monotonic_ms = request.wall_ms, request.monotonic_ms
        data: dict[str, list[administration.ProducerInfo]] = {}
        for group in self._producers.names():
            for member in self._producers.members(group):
                info = administration.ProducerInfo(
                    client_id=member.client_id,
                    remote_ip=member.peer.address,
                    language=member.language,
                    version=member.version,
                    last_update_timestamp=int(wall_ms) - (monotonic_ms - member.heartbeat_at_ms),
                )
                data.setdefault(group, []).append(info)
                yield None
        return reply_rows(lambda: administration.ProducerTable(data=data), sum(map(len, data.values())))

    @serves(RequestCode.QUERY_CONSUME_QUEUE)
    def consume_queue(self, request: Request) -> Outcome:
        """Return units of a queue: where its messages lie in the log, with their tag codes."""
        header: h.ConsumeQueueHeader = request.header
        topic, queue_id = header.topic, header.queue_id
        if not self._store.has_queue(topic, queue_id):
            return Reply(ResponseCode.SYSTEM_ERROR, f"{queue_id}@{topic} is not exist!")
        subscription, remark = None, None
        if header.consumer_group:
            group = self._consumers.group(header.consumer_group)
            subscription = group.subscriptions.get(topic) if group is not None else None
            remark = None if subscription else f"{header.consumer_group}@{topic} is not online!"
        units = self._store.queue_units(topic, queue_id, header.index, max(0, min(header.count, UNITS_MAX)))
        body = administration.ConsumeQueueReply(
            subscription_data=subscription,
            filter_data=remark,
            queue_data=[
                administration.ConsumeQueueData(physic_offset=offset, physic_size=size, tags_code=code)
                for offset, size, code in units
            ],
            max_queue_index=self._store.max_offset(topic, queue_id),
            min_queue_index=self._store.min_offset(topic, queue_id),
        )
        return Reply(body=encode_body(body))

    @serves(RequestCode.VIEW_BROKER_STATS_DATA)
    def stats_data(self, request: Request) -> Outcome:
        """Return how many messages a topic got, or a group was sent, in the last minute, hour and day."""
        header: h.StatsDataHeader = request.header
        counted = self._throughput.windows(_counted(header.stats_name, header.stats_key))
        if counted is None:
            remark = f"The stats <{header.stats_name}> <{header.stats_key}> not exist"
            return Reply(ResponseCode.SYSTEM_ERROR, remark)
        minute, hour, day = (
            administration.BrokerStatsItem(sum=window.messages, tps=window.per_second) for window in counted
        )
        body = administration.BrokerStatsData(stats_minute=minute, stats_hour=hour, stats_day=day)
        return Reply(body=encode_body(body))

    @serves(RequestCode.RESET_MASTER_FLUSH_OFFSET)
    def reset_master_flush_offset(self, request: Request) -> Outcome:
        """Accept the request: as in Apache's broker, a master has nothing to reset."""
        return SUCCESS


def _connection(member: Member[Connection], **others: Any) -> bodies.ClientConnection:
    return bodies.ClientConnection(
        client_id=member.client_id,
        client_addr=member.peer.address,
        language=member.language,
        version=member.version,
        **others,
    )


def _counted(name: str, key: str) -> str | tuple[str, str] | None:
    """Return the key of a throughput: a topic, or a group and a topic; None for other statistics."""
    if name == h.TOPIC_PUT_NUMS:
        return key
    topic, at, group = key.partition("@")
    return (group, topic) if name == h.GROUP_GET_NUMS and at else None


def _foreign_connections(group: ForeignGroup) -> bodies.ConsumerConnection:
    """Return the members of a group of another protocol."""
    return bodies.ConsumerConnection(
        connection_set=[
            bodies.ClientConnection(
                client_id=member.member_id,
                client_addr=member.address,
                language=_LANGUAGE,
                version=0,
                instance=member.instance,
                queues=_by_topic(member.queues),
            )
            for member in group.members
        ],
        subscription_table={topic: SubscriptionData(topic=topic, sub_string="*") for topic in group.topics},
        consume_type=CONSUME_ACTIVELY,
        message_model=CLUSTERING,
        protocol=group.protocol,
        generation=group.generation,
        strategy=group.strategy,
    )


def _by_topic(queues: Iterable[MessageQueue]) -> dict[str, dict[str, list[int]]]:
    found: dict[str, dict[str, list[int]]] = {}
    for queue in sorted(queues):
        found.setdefault(queue.topic, {}).setdefault(queue.broker_name, []).append(queue.queue_id)
    return found
