"""Invariants of messages that handlers get: order, redelivery only with a cause, at-least-once delivery."""

from collections import defaultdict
from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar

from libramq.client.consuming.handling.handler_result import HandlerOutcome
from libramq.client.consuming.queues.owned_queue import Delivery, OwnedQueue
from libramq.clock import WallMs
from libramq.message.queue import MessageQueue
from libramq.testing.happening import Happening
from libramq.testing.history import HandlingMember, StoredMessage
from libramq.testing.invariants.invariant import Invariant

if TYPE_CHECKING:
    from libramq.testing.cluster import Cluster

_Ownership = tuple[str, MessageQueue, OwnedQueue]


def _ownership(member: HandlingMember, delivery: Delivery) -> _Ownership:
    owned = delivery.owned
    return member.name, owned.queue, owned


def is_abandoned(member: HandlingMember, delivery: Delivery) -> bool:
    """Return whether a failure of these messages is final: they become dead letters or are dropped."""
    return member.is_broadcasting or delivery.messages[0].reconsume_times >= member.retries_max


class OrderWithinOwner(Invariant):
    """Check that an owner gets a queue's messages in order, without gaps."""

    name = "an owner gets the messages of a queue in order, without gaps"

    def __init__(self, cluster: "Cluster") -> None:
        super().__init__(cluster)
        self._next: dict[_Ownership, int] = {}

    def delivered(self, member: HandlingMember, delivery: Delivery) -> None:
        key = _ownership(member, delivery)
        expected = self._next.get(key, delivery.owned.cursor.start_offset)
        for message in delivery.messages:
            if message.queue_offset > expected:
                self.broken(f"{member.name} gets {key[1]}:{message.queue_offset} before {expected}")
            expected = max(expected, message.queue_offset + 1)
        self._next[key] = expected


class OneAtATimeInOrder(Invariant):
    """Check that an orderly queue has one running handler at a time, and consecutive portions."""

    name = "an orderly owner handles one portion of a queue at a time"

    def __init__(self, cluster: "Cluster") -> None:
        super().__init__(cluster)
        self._running: dict[_Ownership, Delivery] = {}
        #: Where the next portion may begin: after the last one, or at messages that could not be sent back.
        self._next: dict[_Ownership, set[int]] = {}

    def handling_began(self, member: HandlingMember, delivery: Delivery) -> None:
        if not member.is_orderly:
            return
        key, first = _ownership(member, delivery), delivery.messages[0].queue_offset
        if key in self._running:
            self.broken(f"{member.name} handles {key[1]}:{first} while another portion is running")
        expected = self._next.get(key, {delivery.owned.cursor.start_offset})
        if first not in expected:
            self.broken(f"{member.name} handles {key[1]}:{first} instead of {sorted(expected)}")
        self._running[key] = delivery

    def handled(self, member: HandlingMember, delivery: Delivery, outcome: HandlerOutcome) -> None:
        if member.is_orderly:
            key = _ownership(member, delivery)
            self._running.pop(key, None)
            after = delivery.messages[-1].queue_offset + 1
            if outcome is HandlerOutcome.SUCCESS:
                self._next[key] = {after}
            elif is_abandoned(member, delivery):
                self._next[key] = {delivery.messages[0].queue_offset, after}


class DuplicatesAreExplained(Invariant):
    """Check that a consumed message is redelivered only after a fault or, among members that allocate for
    themselves, to another owner; never to the same owner."""

    name = "a consumed message is redelivered only for a reason"

    def __init__(self, cluster: "Cluster") -> None:
        super().__init__(cluster)
        self._consumed: dict[tuple[str, MessageQueue], dict[int, _Ownership]] = defaultdict(dict)
        self._is_disturbed = False
        self.count = 0

    def disturbed(self, what: str) -> None:
        self._is_disturbed = True

    def broker_died(self, name: str, durable_to: int | None) -> None:
        if durable_to is not None and not self.cluster.is_sync:  # Offsets may be reassigned.
            for key in [key for key in self._consumed if key[1].broker_name == name]:
                del self._consumed[key]

    def handled(self, member: HandlingMember, delivery: Delivery, outcome: HandlerOutcome) -> None:
        if outcome is not HandlerOutcome.SUCCESS:
            return
        key = _ownership(member, delivery)
        consumed = self._consumed[member.audience, key[1]]
        if self.cluster.was_deleted(key[1]):
            return  # Offsets now refer to other messages.
        for message in delivery.messages:
            before = consumed.setdefault(message.queue_offset, key)
            if before is key:
                continue
            self.count += 1
            self.cluster.world.history.happened(Happening.REPEATED, member.audience)
            where = f"{key[1]}:{message.queue_offset}"
            if before == key:
                self.broken(f"{member.name} consumed {where} twice while it owned the queue")
            if self.cluster.hands_over_cleanly(member.group) and not self._is_disturbed:
                self.broken(f"{before[0]} consumed {where}, and {member.name} again")


class ConsumedAtLeastOnce(Invariant):
    """Check that in the end every group has consumed every acknowledged message that still exists.

    If ASYNC_FLUSH lost the end of a queue, offsets are reassigned, and a consumer that had read the lost
    messages skips the new ones at these offsets. Retry copies of messages may be lost in the same way at any
    broker: a member sends the copy to another broker if the message's own refuses it, for example because its
    disk is full.
    """

    name = "every acknowledged message is consumed"
    #: Whether to check broadcasting groups instead of clustering ones.
    is_broadcasting: ClassVar[bool] = False
    within_ms = 60_000  # A pull whose response was lost is repeated after 30 s (PULL_TIMEOUT_MS).

    def __init__(self, cluster: "Cluster") -> None:
        super().__init__(cluster)
        #: topic → message id → where it was acknowledged
        self._awaited: dict[str, dict[str, tuple[MessageQueue, int]]] = defaultdict(dict)
        self._consumed: dict[str, set[str]] = defaultdict(set)
        #: The highest end seen of each queue.
        self._ends: dict[MessageQueue, int] = defaultdict(int)
        #: The same before the last power cut.
        self._ends_before: dict[MessageQueue, int] = {}
        self._failed: set[str] = set()

    def stored(self, message: StoredMessage) -> None:
        queue, offset, physical_offset, message_id, requested_ms = message
        if self.cluster.may_have_lost(queue.broker_name, requested_ms):
            return
        if self.cluster.was_deleted(queue, requested_ms):
            return
        self._ends[queue] = max(self._ends[queue], offset + 1)
        if offset >= self._ends_before.get(queue, 0):
            self._awaited[queue.topic][message_id] = queue, physical_offset

    def delivered(self, member: HandlingMember, delivery: Delivery) -> None:
        queue = delivery.owned.queue
        self._ends[queue] = max(self._ends[queue], delivery.messages[-1].queue_offset + 1)
        cut_ms = self.cluster.cuts_wall_ms.get(queue.broker_name)
        if cut_ms is None or self.cluster.is_sync:
            return
        for message in delivery.messages:  # Fetched before the power cut, it may still be lost.
            if WallMs(message.store_timestamp_ms) <= cut_ms:
                end = max(self._ends_before.get(queue, 0), message.queue_offset + 1)
                self._ends_before[queue] = end

    def topic_deleted(self, name: str, topic: str) -> None:
        for queue in [q for q in self._ends if (q.broker_name, q.topic) == (name, topic)]:
            del self._ends[queue]
        awaited = self._awaited[topic]
        for message_id in [m for m, (queue, _) in awaited.items() if queue.broker_name == name]:
            del awaited[message_id]

    def broker_died(self, name: str, durable_to: int | None) -> None:
        if durable_to is None or self.cluster.is_sync:
            return
        for queue, end in self._ends.items():
            if queue.broker_name == name:
                self._ends_before[queue] = end
        for awaited in self._awaited.values():
            for message_id, (queue, physical_offset) in list(awaited.items()):
                if queue.broker_name == name and physical_offset >= durable_to:
                    del awaited[message_id]

    def handled(self, member: HandlingMember, delivery: Delivery, outcome: HandlerOutcome) -> None:
        message_ids = {message.message_id for message in delivery.messages}
        if outcome is HandlerOutcome.SUCCESS or is_abandoned(member, delivery):
            if not message_ids <= self._consumed[member.audience]:
                self.progressed_ms = self.cluster.now_ms
            self._consumed[member.audience] |= message_ids
        else:
            self._failed |= message_ids

    def unmet(self) -> Iterator[str]:
        audiences: dict[str, set[str]] = defaultdict(set)
        for member in self.cluster.alive():
            if member.is_broadcasting == self.is_broadcasting:
                audiences[member.audience].update(member.topics)
        lost_copies = self._failed if self.cluster.cuts_ms and not self.cluster.is_sync else ()
        for audience, topics in audiences.items():
            for topic in sorted(topics):
                for message_id, (queue, _) in self._awaited[topic].items():
                    if message_id not in self._consumed[audience] and message_id not in lost_copies:
                        yield f"{audience} never consumed {message_id} of {queue}"


class BroadcastReachesEverybody(ConsumedAtLeastOnce):
    """Check that every member of a broadcasting group gets every message, even if it was killed."""

    name = "every member of a broadcasting group gets every acknowledged message"
    is_broadcasting = True
