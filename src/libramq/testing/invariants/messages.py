"""Invariants of stored messages: acknowledged ones survive, no offset has two, rolled-back ones stay hidden,
retries are exact.
"""

from collections import defaultdict
from typing import TYPE_CHECKING

from libramq.broker.broker import Broker
from libramq.client.consuming.handling.handler_result import HandlerOutcome
from libramq.client.consuming.queues.owned_queue import Delivery
from libramq.clock import WallMs
from libramq.message.names import retry_topic
from libramq.message.queue import MessageQueue
from libramq.testing.happening import Happening
from libramq.testing.history import HandlingMember, StoredMessage
from libramq.testing.invariants.invariant import Invariant, dead_letters, ids_by_offset

if TYPE_CHECKING:
    from libramq.testing.cluster import Cluster


class AcknowledgedMessageSurvives(Invariant):
    """Check that every acknowledged message survives a restart of the broker.

    Under ASYNC_FLUSH a power cut may lose unflushed messages; a kill never loses any.
    """

    name = "an acknowledged message is readable after recovery"

    def __init__(self, cluster: "Cluster") -> None:
        super().__init__(cluster)
        #: broker → queue → offset → (physical offset, message id)
        self._stored: dict[str, dict[MessageQueue, dict[int, tuple[int, str]]]] = defaultdict(
            lambda: defaultdict(dict)
        )

    def stored(self, message: StoredMessage) -> None:
        queue, offset, physical_offset, message_id, requested_ms = message
        if self.cluster.may_have_lost(queue.broker_name, requested_ms):
            return
        if self.cluster.was_deleted(queue, requested_ms):
            return
        before = self._stored[queue.broker_name][queue].setdefault(offset, (physical_offset, message_id))
        if before[1] != message_id:
            self.broken(f"{queue}:{offset} was acknowledged for {before[1]} and again for {message_id}")

    def broker_died(self, name: str, durable_to: int | None) -> None:
        if durable_to is None or self.cluster.is_sync:
            return
        for messages in self._stored[name].values():
            for offset in [at for at, (physical, _) in messages.items() if physical >= durable_to]:
                del messages[offset]

    def topic_deleted(self, name: str, topic: str) -> None:
        stored = self._stored[name]
        for queue in [queue for queue in stored if queue.topic == topic]:
            del stored[queue]

    def broker_recovered(self, name: str, broker: Broker) -> None:
        for queue, messages in self._stored[name].items():
            found = ids_by_offset(broker, queue.topic, queue.queue_id)
            for offset, (_, message_id) in messages.items():
                if found.get(offset) != message_id:
                    self.broken(
                        f"{queue}:{offset} was acknowledged for {message_id} and is now {found.get(offset)}"
                    )
            # A topic created again in the last half second may be lost in a power cut.
            if broker.topics.get(queue.topic) is None and not self.cluster.was_deleted(queue):
                self.broken(f"{name} does not know the topic {queue.topic} any more")

    def finish(self) -> None:
        for name, node in self.cluster.brokers.items():
            if node.broker is not None:
                self.broker_recovered(name, node.broker)


class OneMessageAnOffset(Invariant):
    """Check that all readers of an offset get the same message: none may read one that can still be lost."""

    name = "all readers of an offset see one message"

    def __init__(self, cluster: "Cluster") -> None:
        super().__init__(cluster)
        self._seen: dict[MessageQueue, dict[int, str]] = defaultdict(dict)

    def broker_died(self, name: str, durable_to: int | None) -> None:
        if durable_to is not None and not self.cluster.is_sync:
            for queue in [queue for queue in self._seen if queue.broker_name == name]:
                del self._seen[queue]

    def topic_deleted(self, name: str, topic: str) -> None:
        for queue in [q for q in self._seen if (q.broker_name, q.topic) == (name, topic)]:
            del self._seen[queue]

    def delivered(self, member: HandlingMember, delivery: Delivery) -> None:
        seen = self._seen[delivery.owned.queue]
        lost_until_ms = int(self.cluster.cuts_wall_ms.get(delivery.owned.queue.broker_name, WallMs(0)))
        for message in delivery.messages:
            if message.store_timestamp_ms <= lost_until_ms and not self.cluster.is_sync:
                continue
            stored_ms = WallMs(message.store_timestamp_ms)
            if self.cluster.was_stored_before_deletion(delivery.owned.queue, stored_ms):
                continue
            before = seen.setdefault(message.queue_offset, message.message_id)
            if before != message.message_id:
                where = f"{delivery.owned.queue}:{message.queue_offset}"
                self.broken(f"{where} was {before} and is {message.message_id} for {member.name}")


class RolledBackStaysHidden(Invariant):
    """Check that no member gets a message of a rolled-back transaction from any broker."""

    name = "a message whose transaction is rolled back is never delivered"

    def __init__(self, cluster: "Cluster") -> None:
        super().__init__(cluster)
        self._rolled_back: set[str] = set()

    def rolled_back(self, message_id: str) -> None:
        self._rolled_back.add(message_id)

    def delivered(self, member: HandlingMember, delivery: Delivery) -> None:
        for message in delivery.messages:
            if message.message_id in self._rolled_back:
                self.broken(f"{member.name} gets {message.message_id} of {delivery.owned.queue}")


_Key = tuple[str, str]


class RetriesAreExact(Invariant):
    """Check that a message in its n-th redelivery has failed n times, and finally becomes a dead letter.

    Orderly attempts are not checked, because they are counted only in the owner's memory. A broadcasting
    member makes only one attempt.
    """

    name = "a message is retried as often as it failed, and becomes a dead letter after the last attempt"
    within_ms = 60_000  # As in ConsumedAtLeastOnce.

    def __init__(self, cluster: "Cluster") -> None:
        super().__init__(cluster)
        self._is_disturbed = False
        self._failed: dict[_Key, set[int]] = defaultdict(set)
        #: Messages whose last attempt failed (True), or finally succeeded at another member (False).
        self._is_dead: dict[_Key, bool] = {}

    def disturbed(self, what: str) -> None:
        self._is_disturbed = True

    def handled(self, member: HandlingMember, delivery: Delivery, outcome: HandlerOutcome) -> None:
        if member.is_orderly or member.is_broadcasting:
            return
        is_retry = delivery.owned.queue.topic == retry_topic(member.group)
        for message in delivery.messages:
            key, times = (member.group, message.message_id), message.reconsume_times
            # Messages that cannot be sent back are retried locally without a limit.
            is_due = times <= member.retries_max or self._is_disturbed
            if (is_retry and not times) or not is_due or (times and times - 1 not in self._failed[key]):
                failed = sorted(self._failed[key])
                self.broken(f"{member.name} retries {key[1]} for attempt {times}; it has failed in {failed}")
            if times:
                self.cluster.world.history.happened(Happening.RETRIED, key[1])
            if outcome is not HandlerOutcome.SUCCESS:
                self._failed[key].add(times)
            if times >= member.retries_max:
                # A member that froze and lost the queue may fail after the next owner has succeeded.
                self._is_dead[key] = self._is_dead.get(key, True) and outcome is not HandlerOutcome.SUCCESS
                self.progressed_ms = self.cluster.now_ms  # May come late if there are many duplicates.
            elif outcome is HandlerOutcome.SUCCESS and key in self._is_dead:
                # It could not be sent back and failed again locally; the next owner got it with its stored
                # count.
                self._is_dead[key] = False

    def is_met(self) -> bool:
        return not self._missing()

    def finish(self) -> None:
        missing = self._missing()
        if missing:
            self.broken(f"{missing} failed for the last time, but are not dead letters")
        in_order = {member.group for member in self.cluster.members if member.is_orderly}
        for group, letters in self._dead_letters().items():
            for message_id in sorted(letters):
                if (group, message_id) not in self._is_dead and group not in in_order:
                    self.broken(f"{message_id} is a dead letter of {group}, but has attempts left")
                self.cluster.world.history.happened(Happening.DEAD, message_id)

    def _missing(self) -> list[_Key]:
        dead = [key for key, is_dead in self._is_dead.items() if is_dead]
        if not dead or (not self.cluster.is_sync and self.cluster.cuts_ms):
            return []
        letters = self._dead_letters()
        return [key for key in dead if key[1] not in letters[key[0]]]

    def _dead_letters(self) -> dict[str, set[str]]:
        return {
            group: {message_id for _, message_id in dead_letters(self.cluster, group)}
            for group in self.cluster.subscriptions()
        }
