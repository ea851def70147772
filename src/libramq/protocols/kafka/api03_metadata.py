"""Metadata (3): the brokers, and the topics that a client may see, created on first use if that is allowed.

If a topic is unknown here, or some of its queues have no numbers yet, the other brokers are queried first.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache, partial
from typing import Final

from libramq.auth.authorizer import Authorizer, is_permitted, require_permission
from libramq.auth.operation import Locate, Send
from libramq.broker.cluster.kafka.nodes import is_visible
from libramq.broker.config import BrokerConfig
from libramq.broker.messages.creation_rate import CreationRate
from libramq.catalog.numbering import Numbering
from libramq.catalog.topic_attributes import attributes_of
from libramq.catalog.topic_table import TopicTable
from libramq.clock import Clock
from libramq.errors import BrokerError, InvalidName
from libramq.kernel.connection import Connection, Principal
from libramq.logs import BoundedLog, get_logger
from libramq.message import names
from libramq.protocols.kafka.answers import Slot, serves
from libramq.protocols.kafka.node import NO_LEADER, NO_TOPIC_ID, KafkaNodes, TopicIds, id_of
from libramq.protocols.kafka.refusals import code_of
from libramq.wire.kafka.apis import metadata as wire
from libramq.wire.kafka.error_code import ErrorCode
from libramq.wire.kafka.record_batch import LEADER_EPOCH

log = get_logger(__name__)

#: Ours: topics that are described at once, in a few milliseconds; more on a thread.
AT_ONCE_MAX: Final = 64
#: Ours: partitions that are described at once, at 2 µs each; more on a thread.
PARTITIONS_AT_ONCE_MAX: Final = 1_000
#: Ours: partitions in one answer, 2.6 MB; further topics get an error. A Kafka broker has a few thousand.
#: Without a limit, 50,000 topics of 4,096 queues each would make an answer of 5 GB.
PARTITIONS_MAX: Final = 100_000
#: Ours: characters of a refused name in a line of the log.
NAMED_CHARACTERS_MAX: Final = 256

#: A topic and the numbering of its queues.
Described = tuple[str, Numbering]


class CreationOnUse:
    """Creates topics that a client names, as a RocketMQ producer's first send does."""

    def __init__(
        self, config: BrokerConfig, topics: TopicTable, creations: CreationRate, clock: Clock
    ) -> None:
        self._topics = topics
        self._creations = creations
        self._clock = clock
        self._queues = config.default_topic_queue_nums
        self._attributes = attributes_of(config.kafka_queue_type)
        self._warn = BoundedLog(log.warning, clock.monotonic_ms)

    def refused(self, name: str, connection: Connection) -> None:
        """Log an invalid topic name: some clients hide the refusal from their programs."""
        self._warn(
            "a Kafka client requests a topic with an invalid name",
            topic=name[:NAMED_CHARACTERS_MAX],
            client=connection.address,
            remedy="use letters, digits, _ and -: RocketMQ's names have no dots",
        )

    def create(self, name: str, connection: Connection) -> None:
        """Create a topic; raises BrokerError if that is not allowed."""
        self._topics.for_send(
            name,
            names.AUTO_CREATE_TOPIC,
            self._queues,
            self._clock.wall_ms(),
            before_creation=partial(self._creations.take, connection, name, self._clock.monotonic_ms()),
            attributes=self._attributes,
        )


class Metadata:
    """Answers Metadata."""

    def __init__(
        self, nodes: KafkaNodes, ids: TopicIds, creation: CreationOnUse, authorizer: Authorizer
    ) -> None:
        self._kafka_nodes = nodes
        self._nodes = nodes.cluster
        self._ids = ids
        self._creation = creation
        self._authorizer = authorizer

    @serves(wire.MetadataRequest)
    def describe(self, request: wire.MetadataRequest, slot: Slot) -> None:
        """Answer with the requested topics, or all; many of them in several turns."""
        assert slot.call is not None, "a request has a call"
        answer = partial(self._answer, slot)
        if request.topics is None or (not request.topics and slot.call.header.version == 0):
            slot.each(self._nodes.topics(), partial(self._listed, slot.principal), answer, AT_ONCE_MAX)
            return
        wanted = list({self._name_of(each) or each.topic_id: each for each in request.topics}.values())
        find = partial(self._found, slot, creates=request.allow_auto_topic_creation)

        def look(are_missing: Sequence[bool]) -> None:
            describe = partial(slot.each, wanted, find, answer, AT_ONCE_MAX)
            if any(are_missing):
                self._nodes.refresh(slot.guarded(describe))
            else:
                describe()

        slot.each(wanted, partial(self._is_missing, slot.principal), look, AT_ONCE_MAX)

    def _is_missing(self, principal: Principal, wanted: wire.MetadataRequestTopic) -> bool:
        """Return whether other brokers may know more of a topic.

        The time of the answer must not reveal topics that the principal may not look up: other brokers are
        never queried for their names, and always for their ids, as for an id that no topic has.
        """
        name = self._name_of(wanted)
        if name is None or not self._may_locate(name, principal):
            return not wanted.name
        return not (self._nodes.counts(name) and self._nodes.is_settled(name))

    def _listed(self, principal: Principal, name: str) -> Described | None:
        """Return a topic for the list of all; None if the list must not contain it."""
        if not is_visible(name) or not self._may_locate(name, principal):
            return None
        return name, self._nodes.numbering(name)

    def _found(
        self, slot: Slot, wanted: wire.MetadataRequestTopic, *, creates: bool
    ) -> "Described | wire.MetadataTopic":
        name = self._name_of(wanted)
        # As at Kafka's brokers, the id of a topic that the principal may not look up is unknown.
        if name is None or (wanted.name != name and not self._may_locate(name, slot.principal)):
            code = ErrorCode.UNKNOWN_TOPIC_ID
            return wire.MetadataTopic(name=None, topic_id=wanted.topic_id, error_code=code)
        return self._named(name, slot, creates=creates)

    def _answer(self, slot: Slot, results: Sequence["Described | wire.MetadataTopic | None"]) -> None:
        found = [each for each in results if each is not None]
        partitions = sum(each[1].size for each in found if isinstance(each, tuple))
        is_large = len(found) > AT_ONCE_MAX or partitions > PARTITIONS_AT_ONCE_MAX
        brokers = self._kafka_nodes.live()
        ids = {name: each.node_id for name, each in brokers.items()}
        every = {name for each in found if isinstance(each, tuple) for name in each[1].counts()}
        away = {name: self._kafka_nodes.node_id(name) for name in every - ids.keys()}
        slot.answer_with(
            lambda: wire.MetadataResponse(
                brokers=tuple(brokers.values()),
                cluster_id=self._kafka_nodes.cluster_id,
                controller_id=self._kafka_nodes.own_id,
                topics=tuple(_topics(found, ids, away)),
            ),
            is_large=is_large,
        )

    def _name_of(self, wanted: wire.MetadataRequestTopic) -> str | None:
        """Return the name of a topic; None if no topic has this id."""
        by_id = wanted.name is None or (not wanted.name and wanted.topic_id != NO_TOPIC_ID)  # As Kafka does.
        return self._ids.name_of(wanted.topic_id) if by_id else wanted.name

    def _may_locate(self, name: str, principal: Principal) -> bool:
        """Return whether a principal may look a topic up."""
        return is_permitted(self._authorizer, Locate(principal, name))

    def _named(self, name: str, slot: Slot, *, creates: bool) -> "Described | wire.MetadataTopic":
        if not names.is_valid_topic(name):
            self._creation.refused(name, slot.connection)
            return wire.MetadataTopic(name=name, error_code=ErrorCode.INVALID_TOPIC_EXCEPTION)
        try:
            require_permission(self._authorizer, Locate(slot.principal, name))
            exists = bool(self._nodes.counts(name))
            if not exists and creates:
                require_permission(self._authorizer, Send(slot.principal, name))
                self._creation.create(name, slot.connection)
                exists = True
        except (BrokerError, InvalidName) as refused:
            return wire.MetadataTopic(name=name, error_code=code_of(refused))
        if not exists or not is_visible(name):
            return wire.MetadataTopic(name=name, error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        numbering = self._nodes.numbering(name)
        if not numbering.runs:  # Its numberer has not answered; clients retry.
            return wire.MetadataTopic(name=name, error_code=ErrorCode.LEADER_NOT_AVAILABLE)
        return name, numbering


def _topics(
    found: Sequence["Described | wire.MetadataTopic"], ids: Mapping[str, int], away: Mapping[str, int]
) -> list[wire.MetadataTopic]:
    described = []
    left = PARTITIONS_MAX
    live, gone = tuple(sorted(ids.items())), tuple(sorted(away.items()))
    for each in found:
        if isinstance(each, wire.MetadataTopic):
            described.append(each)
            continue
        name, numbering = each
        left -= numbering.size
        if left < 0:
            described.append(wire.MetadataTopic(name=name, error_code=ErrorCode.UNKNOWN_SERVER_ERROR))
        else:
            partitions = _partitions(numbering, live, gone)
            described.append(wire.MetadataTopic(name=name, topic_id=id_of(name), partitions=partitions))
    return described


@lru_cache(maxsize=16)
def _partitions(
    numbering: Numbering, live: Sequence[tuple[str, int]], away: Sequence[tuple[str, int]]
) -> tuple[wire.MetadataPartition, ...]:
    """Return the partitions. live: ids of the brokers that serve Kafka's clients now; away: of the others."""
    leaders, ids = dict(live), {**dict(away), **dict(live)}
    return tuple(
        wire.MetadataPartition(
            error_code=ErrorCode.NONE if name in leaders else ErrorCode.LEADER_NOT_AVAILABLE,
            partition_index=index,
            leader_id=leaders.get(name, NO_LEADER),
            leader_epoch=LEADER_EPOCH,
            replica_nodes=(ids[name],),
            isr_nodes=(ids[name],) if name in leaders else (),
            offline_replicas=() if name in leaders else (ids[name],),
        )
        for index, (name, _) in enumerate(numbering.places())
    )
