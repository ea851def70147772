"""The nodes: a cluster's brokers as Kafka's clients see them, which of them are alive, their topics, and
which broker numbers new queues as partitions.

    every second, and when a client asks      ─► PEER_NODE to each other broker ─► known
    a topic's queues without a number         ─► the topic's numberer appends them; the others copy that

A topic's numberer is the broker that would coordinate a group of that name. The queues of absent brokers are
remembered.
"""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from libramq.broker.cluster.peer_brokers import PeerBrokers
from libramq.catalog.config_file import ConfigFile
from libramq.catalog.numbering import Numbering, Run, best
from libramq.catalog.topic_table import TopicTable
from libramq.clock import MonotonicMs
from libramq.errors import LibraError
from libramq.filesystem import FileSystem
from libramq.groups.cluster_view import coordinator_of
from libramq.kernel.effect import Thread
from libramq.kernel.parts import Kernel
from libramq.logs import get_logger
from libramq.message import names
from libramq.message.queue import MessageQueue
from libramq.remoting.body.kafka_cluster import NumberingsFile, PeerNode, PeerNodeBody
from libramq.rpc import peer_calls

log = get_logger(__name__)

FILE_NAME: Final = "kafkaPartitions.json"
#: Ours: how soon a topic changed elsewhere is known here if no client asks for it.
REFRESH_MS: Final = 1_000


class Node(NamedTuple):
    """Another broker. port: 0 if it does not serve Kafka's clients.

    has_answered: False if its state comes from our numberings only.
    """

    host: str
    port: int
    version: int
    topics: Mapping[str, int]
    numberings: Mapping[str, Numbering]
    has_answered: bool = True


class Nodes:
    """All brokers of the cluster, as Kafka's clients see them."""

    def __init__(
        self,
        topics: TopicTable,
        peers: PeerBrokers,
        kernel: Kernel,
        filesystem: FileSystem,
        store_path: str,
    ) -> None:
        self.broker_name = topics.broker_name
        self._topics = topics
        self._peers = peers
        self._kernel = kernel
        self._file = ConfigFile(filesystem, Path(store_path) / "config" / FILE_NAME)
        self._numberings: dict[str, Numbering] = {}
        self._host, self._port = "", 0
        self._version = int(kernel.clock.wall_ms())
        #: Grows whenever the result of `topics` may have changed.
        self.topics_version = 0
        self._waiting: list[Callable[[], None]] = []
        self._requested = 0
        self._is_saving = self._is_unsaved = False
        #: The state at the last complete settling: the brokers, and those that had answered.
        self._settled: object = None
        #: Topics changed since then, here or elsewhere.
        self._unsettled: set[str] = set()
        self._due = kernel.deadlines.new(self._poll, "Kafka nodes")
        #: The other brokers that have answered, including absent ones; and absent ones that missed deletions.
        self.known: dict[str, Node] = {}
        #: Their state before topics were deleted, until they answer: one that does not may have them still.
        self._before: dict[str, Node] = {}
        self.view = peers.view
        topics.observe(self._topic_changed)

    def load(self) -> None:
        """Read the numberings; waits for the disk. Raises StoreCorrupt if the file cannot be read."""
        saved = self._file.load(NumberingsFile)
        if saved is not None:
            self._numberings = dict(saved.numberings)

    def serve(self, host: str, port: int) -> None:
        """Set this broker's address for Kafka's clients, and begin to follow the other brokers."""
        self._host, self._port = host, port
        self._version += 1
        self._poll(self._kernel.clock.monotonic_ms())

    # For clients.

    @property
    def is_alone(self) -> bool:
        """Return whether no other broker has ever been seen.

        Then no other broker can have numbered a queue, and no numbering is written: partitions are queue ids.
        """
        return not self.known and not self._peers.links

    def live(self) -> dict[str, tuple[str, int]]:
        """Return the addresses of the brokers that serve Kafka's clients now, by name."""
        found = {self.broker_name: (self._host, self._port)}
        for name in self.view.names:
            node = self.known.get(name)
            if node is not None and node.port:
                found[name] = (node.host, node.port)
        return found

    def is_linked(self, broker_name: str) -> bool:
        """Return whether a broker is this one or connected."""
        link = self._peers.links.get(broker_name)
        return broker_name == self.broker_name or (link is not None and link.is_linked)

    def topics(self) -> list[str]:
        """Return the names of the topics of all brokers, sorted."""
        own = (config.topic_name for config in self._topics)
        return sorted(
            {*filter(is_visible, own), *(each for node in self.known.values() for each in node.topics)}
        )

    def counts(self, topic: str) -> dict[str, int]:
        """Return the number of a topic's queues at each broker."""
        config = self._topics.get(topic)
        counts = {self.broker_name: config.read_queue_nums} if config is not None else {}
        for name, node in self.known.items():
            count = node.topics.get(topic)
            if count:
                counts[name] = count
        return counts

    def holders(self, topic: str) -> set[str]:
        """Return the brokers that have queues of a topic, or may have some and have not answered yet.

        The numbering lists brokers absent since before our start, unless a kill came before it was saved.
        """
        unanswered = (name for name in self._peers.links if not self._has_answered(name))
        return {*self.counts(topic), *self.numbering(topic).counts(), *unanswered}

    def numbering(self, topic: str) -> Numbering:
        """Return the numbering of a topic's queues, without those that have no number yet."""
        counts = self.counts(topic)
        known = self._numberings.get(topic)
        if len(counts) == 1:
            ((name, count),) = counts.items()
            # Another broker may have queues unknown here; then the topic waits for its numberer.
            is_whole = self.is_alone if known is None else known.counts().get(name, 0) >= count
            if is_whole and (known is None or known.counts().keys() <= {name}):
                return Numbering((Run(name, count),))  # Also after a decrease of the queues.
        return known if counts and known is not None else Numbering()

    def is_settled(self, topic: str) -> bool:
        """Return whether all known queues of a topic have numbers."""
        return self.numbering(topic).covers(self.counts(topic))

    def place(self, topic: str, partition: int) -> MessageQueue | None:
        """Return a partition's queue, at any broker, or None if there is no such partition."""
        if self._numbers_itself(topic):
            return MessageQueue(topic, self.broker_name, partition)
        place = self.numbering(topic).place(partition)
        return MessageQueue(topic, *place) if place is not None else None

    def partition(self, queue: MessageQueue) -> int | None:
        """Return the partition of a queue, or None if it has no number yet."""
        if self._numbers_itself(queue.topic):
            return queue.queue_id
        return self.numbering(queue.topic).partition(queue.broker_name, queue.queue_id)

    def _numbers_itself(self, topic: str) -> bool:
        """Return whether there are no other brokers; after a restart they may not have answered yet."""
        return self.is_alone and topic not in self._numberings

    def refresh(self, done: Callable[[], None]) -> None:
        """Query all other brokers for changes; `done` is called once they have answered or failed."""
        self._waiting.append(done)
        if not self._requested:
            self._ask_all()

    # Other brokers.

    def answer(self, version: int) -> PeerNode:
        """Answer another broker's query. version: what it already knows."""
        if version == self._version:
            return PeerNode(version=version, host=self._host, port=self._port)
        topics = {config.topic_name: config.read_queue_nums for config in self._topics}
        return PeerNode(
            version=self._version,
            host=self._host,
            port=self._port,
            topics={name: count for name, count in topics.items() if is_visible(name)},
            numberings=self._numberings,
        )

    def adopt(self, topic: str, numbering: Numbering) -> None:
        """Take the numbering of a topic being created, if it is better than the known one."""
        self._unsettled.add(topic)
        self._keep(topic, numbering)

    def forget(self, topic: str) -> None:
        """Drop the numbering of a deleted topic, and the state of it at other brokers, until they answer."""
        numbered = self._numberings.get(topic, Numbering()).counts()
        for name in numbered.keys() - {self.broker_name} - self.known.keys() - self._before.keys():
            self._before[name] = self._numbered_at(name)
        for name, node in self.known.items():
            count = node.topics.get(topic) or numbered.get(name)
            if count:
                before = self._before.get(name, node)
                self._before[name] = before._replace(version=0, topics={**before.topics, topic: count})
                rest = {each: count for each, count in node.topics.items() if each != topic}
                numberings = {each: value for each, value in node.numberings.items() if each != topic}
                # Version 0: the next answer counts even if nothing has changed there meanwhile.
                self.known[name] = node._replace(version=0, topics=rest, numberings=numberings)
                self.topics_version += 1
        self._unsettled.add(topic)
        self._drop(topic)

    def _numbered_at(self, name: str) -> Node:
        """Return a broker that has not answered since our start, with the queues in our numberings."""
        numberings = {topic: each for topic, each in self._numberings.items() if name in each.counts()}
        topics = {topic: each.counts()[name] for topic, each in numberings.items()}
        return Node("", 0, 0, topics, numberings, has_answered=False)

    def _has_answered(self, name: str) -> bool:
        return name in self.known and self.known[name].has_answered

    def _ask_all(self) -> None:
        waiting, self._waiting = self._waiting, []
        brokers = list(self._peers.links)
        self._requested = len(brokers)

        def finish() -> None:
            for name in self._before.keys() - self._peers.links.keys():
                self._restore(name)
            self._settle()
            for done in waiting:
                done()
            if self._waiting and not self._requested:
                self._ask_all()

        def answered(name: str, outcome: PeerNode | LibraError) -> None:
            self._requested -= 1
            if isinstance(outcome, LibraError):
                self._restore(name)
            else:
                self._take(name, outcome)
            if not self._requested:
                finish()

        if not brokers:  # The last one may have left the cluster during the query.
            finish()
        for name in brokers:
            known = self.known.get(name)
            body = PeerNodeBody(
                broker_name=self.broker_name, version=known.version if known is not None else 0
            )
            self._peers.ask_broker(name, peer_calls.ask_node(body), partial(answered, name))

    def _restore(self, name: str) -> None:
        """Restore the state of a broker before topics were deleted: it does not answer."""
        node = self._before.pop(name, None)
        if node is not None:
            self.known[name] = node
            self._unsettled.update(node.topics)
            self.topics_version += 1

    def _take(self, name: str, body: PeerNode) -> None:
        known = self.known.get(name)
        if body.topics is None:  # If topics were deleted meanwhile, this does not tell whether it has them.
            if known is not None:
                self.known[name] = known._replace(host=body.host, port=body.port)
            return
        self._before.pop(name, None)
        before = known or Node("", 0, 0, {}, {})
        renumbered = (topic for topic, _ in body.numberings.items() ^ before.numberings.items())
        changed = (topic for topic, _ in body.topics.items() ^ before.topics.items())
        self.known[name] = Node(body.host, body.port, body.version, body.topics, body.numberings)
        self._unsettled.update(renumbered, changed)
        self.topics_version += 1

    def _settle(self) -> None:
        """Adopt the numberings of other brokers, and number the topics that are ours to number."""
        has_all = all(map(self._has_answered, self._peers.links))
        state = (self.view.names, self.view.is_known, has_all, sorted(self.known))
        if not self.known:
            self._unsettled.clear()
            return
        topics = self._unsettled
        if state != self._settled:
            topics = {*self.topics(), *self._numberings}
        self._settled, self._unsettled = state, set()
        for topic in sorted(topics):
            if not is_visible(topic) and topic not in self._numberings:
                continue
            counts = self.counts(topic)
            if not counts:
                if has_all:
                    self._drop(topic)
                continue
            theirs = [node.numberings[topic] for node in self.known.values() if topic in node.numberings]
            own = self._numberings.get(topic)
            found = best([*theirs, *([own] if own is not None else [])]) or Numbering()
            is_numberer = coordinator_of(topic, self.view.names) == self.broker_name
            if has_all and not found.covers(counts) and self.view.is_known and is_numberer:
                found = found.extended(counts)
            if found.runs:
                self._keep(topic, found)

    def _keep(self, topic: str, numbering: Numbering) -> None:
        known = self._numberings.get(topic)
        if known is None or (known != numbering and best([known, numbering]) == numbering):
            self._numberings[topic] = numbering
            self._changed()

    def _drop(self, topic: str) -> None:
        if self._numberings.pop(topic, None) is not None:
            self._changed()

    def _topic_changed(self, topic: str) -> None:
        self._version += 1
        self.topics_version += 1
        self._unsettled.add(topic)

    def _changed(self) -> None:
        self._version += 1
        self._is_unsaved = True
        if not self._is_saving:
            self._save()

    def _save(self) -> None:
        self._is_saving, self._is_unsaved = True, False
        content = NumberingsFile(numberings=dict(self._numberings))
        self._kernel.effects.run(Thread.DISK, partial(self._file.save, content), self._saved)

    def _saved(self, outcome: object) -> None:
        self._is_saving = False
        if isinstance(outcome, Exception):
            # The other brokers have the numbering, and the next poll saves it again.
            self._is_unsaved = True
            log.warning("partition numbers could not be saved", reason=str(outcome))
        elif self._is_unsaved:
            self._save()

    def _poll(self, now_ms: MonotonicMs) -> None:
        self._due.at(now_ms + REFRESH_MS)
        if self._is_unsaved and not self._is_saving:
            self._save()
        if not self._requested:
            self.refresh(lambda: None)


def is_visible(name: str) -> bool:
    """Return whether Kafka's clients see a topic: neither internal ones nor those of RocketMQ's groups."""
    return not names.is_system_topic(name) and not name.startswith((names.RETRY_PREFIX, names.DLQ_PREFIX))
