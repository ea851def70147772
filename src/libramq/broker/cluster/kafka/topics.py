"""Topics of all brokers: a topic that a Kafka client creates, extends or deletes is changed at every broker
(PEER_TOPIC), and the client gets the outcome of all.

CreateTopics ─► numbers for all queues ─► this broker, PEER_TOPIC to the others ─► answered by all
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple

import msgspec

from libramq.broker.cluster.kafka.nodes import Nodes
from libramq.broker.cluster.peer_brokers import PeerBrokers
from libramq.broker.groups.removal import Removal
from libramq.catalog.numbering import Numbering
from libramq.catalog.topic_table import TopicTable
from libramq.clock import Clock
from libramq.errors import InvalidName, LibraError
from libramq.formats.tables import TopicConfig
from libramq.remoting.body.kafka_cluster import PeerTopicBody
from libramq.rpc import peer_calls


class TopicChange(NamedTuple):
    """The outcome of a change. made: the number of brokers that made it."""

    failures: list[Exception]
    made: int = 0


class ClusterTopics:
    """Changes topics at all brokers; a broker without others changes its own."""

    def __init__(
        self,
        nodes: Nodes,
        topics: TopicTable,
        removal: Removal,
        peers: PeerBrokers,
        clock: Clock,
    ) -> None:
        self._name = nodes.broker_name
        self._nodes = nodes
        self._topics = topics
        self._removal = removal
        self._peers = peers
        self._clock = clock

    def change(
        self,
        topic: str,
        queues: Mapping[str, int],
        numbering: Numbering,
        done: Callable[[TopicChange], None],
        *,
        attributes: Mapping[str, str] | None = None,
    ) -> None:
        """Set the number of queues at each broker, 0 deletes; `done` is called once all have answered.

        attributes: used if the topic is new.
        """
        attributes = dict(attributes or {})
        failures: list[Exception] = []
        waiting = {name for name in queues if name != self._name}

        def answered(name: str, outcome: LibraError | None) -> None:
            if isinstance(outcome, LibraError):
                failures.append(outcome)
            waiting.discard(name)
            if not waiting:
                finish()

        def finish() -> None:
            done(TopicChange(failures, len(queues) - len(failures)))

        if self._name in queues:
            try:
                self.apply(topic, queues[self._name], numbering, attributes)
            except (LibraError, InvalidName) as refused:
                done(TopicChange([refused]))
                return
        if not waiting:
            finish()
            return
        for name in sorted(waiting):
            body = PeerTopicBody(
                broker_name=self._name,
                topic=topic,
                queues=queues[name],
                numbering=numbering,
                attributes=attributes,
            )
            self._peers.ask_broker(name, peer_calls.change_topic(body), partial(answered, name))

    def apply(self, topic: str, queues: int, numbering: Numbering, attributes: Mapping[str, str]) -> None:
        """Make a change at this broker; raises BrokerError or InvalidName if the topic is refused."""
        wall_ms = self._clock.wall_ms()
        known = self._topics.get(topic)
        if not queues:
            if known is not None:
                self._removal.remove_topic(topic, wall_ms)
            self._nodes.forget(topic)
            return
        config = known or TopicConfig(topic_name=topic, attributes=dict(attributes))
        changed = msgspec.structs.replace(config, read_queue_nums=queues, write_queue_nums=queues)
        self._topics.check(changed)
        if changed != known:
            self._topics.put(changed, wall_ms)
        if numbering.runs:
            self._nodes.adopt(topic, numbering)
