"""The invariant: a named rule that receives all facts and reports violations. Also reads brokers' stores."""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, ClassVar, NoReturn

from libramq.clock import MonotonicMs
from libramq.message.message import MessageExt
from libramq.message.names import dlq_topic
from libramq.message.record import decode_records
from libramq.store.reading.read import ReadStatus
from libramq.testing.history import Violation, Watcher

if TYPE_CHECKING:
    from libramq.broker.broker import Broker
    from libramq.testing.cluster import Cluster


class Invariant(Watcher):
    """One rule of one simulation."""

    #: The text printed on a violation.
    name: ClassVar[str]
    #: How soon after the last fault, or the last progress since, `is_met` must hold.
    within_ms: ClassVar[int] = 0

    def __init__(self, cluster: "Cluster") -> None:
        self.cluster = cluster
        #: When progress was last made: while there is progress, the deadline is extended.
        self.progressed_ms = MonotonicMs(0)

    def step(self) -> None:
        """Check the cluster after a step."""

    def unmet(self) -> Iterable[str]:
        """Check liveness: yield the reasons why the expected state is not reached after the last fault."""
        return ()

    def is_met(self) -> bool:
        """Return whether the expected state is reached."""
        return next(iter(self.unmet()), None) is None

    def finish(self) -> None:
        """Check the cluster at the end."""
        for what in self.unmet():
            self.broken(what)

    def broken(self, what: str) -> NoReturn:
        """Report a violation."""
        raise Violation(self.name, what)


def messages_in(
    broker: "Broker", topic: str, queue_id: int, start: int = 0, end: int | None = None
) -> list[MessageExt]:
    """Return a queue's messages from `start` to `end`; by default all readable ones."""
    store, found = broker.store, list[MessageExt]()
    end = store.max_offset(topic, queue_id) if end is None else end
    offset = max(start, store.min_offset(topic, queue_id))
    while offset < end:
        result = store.read(topic, queue_id, offset, 256)
        if result.status is ReadStatus.FOUND:
            found += decode_records(b"".join(result.data))
        if result.next_offset <= offset:
            break
        offset = result.next_offset
    return [message for message in found if message.queue_offset < end]


def ids_by_offset(broker: "Broker", topic: str, queue_id: int) -> dict[int, str]:
    """Return the id of every message of a queue, by its offset."""
    return {each.queue_offset: each.message_id for each in messages_in(broker, topic, queue_id)}


def messages_at(cluster: "Cluster", topic: str) -> Iterator[tuple[str, MessageExt]]:
    """Yield every message of a topic, with its broker."""
    for name, node in cluster.brokers.items():
        if (broker := node.broker) is not None:
            for queue_id in broker.store.queue_ids(topic):
                for message in messages_in(broker, topic, queue_id):
                    yield name, message


def dead_letters(cluster: "Cluster", group: str) -> set[tuple[str, str]]:
    """Return broker and id of a group's dead letters."""
    return {(broker, message.message_id) for broker, message in messages_at(cluster, dlq_topic(group))}
