"""Invariants of delayed messages: delay levels, timer messages and transactions.

While a master is gone, its acting slave sends them to another master, so they may end up at any broker.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import TYPE_CHECKING

from libramq.client.consuming.handling.handler_result import HandlerOutcome
from libramq.client.consuming.queues.owned_queue import Delivery
from libramq.clock import MonotonicMs
from libramq.message import names
from libramq.testing.happening import Happening
from libramq.testing.history import HandlingMember
from libramq.testing.invariants.consumption import is_abandoned
from libramq.testing.invariants.invariant import Invariant, messages_at
from libramq.testing.invariants.slaves import OfPairs

if TYPE_CHECKING:
    from libramq.testing.cluster import Cluster


class DelayedMessagesArrive(Invariant):
    """Check that every group consumes every acknowledged delayed message, wherever it was delivered.

    Under ASYNC_FLUSH a power cut may lose the message at its own master and its copy at any broker, and
    members may already have read past the offset of a later copy. So after a power cut nothing more is
    checked.
    """

    name = "every acknowledged delayed message is eventually consumed"
    within_ms = 60_000  # As in ConsumedAtLeastOnce; and a master waits 30 s for its slaves.

    def __init__(self, cluster: "Cluster") -> None:
        super().__init__(cluster)
        #: Message ids by topic.
        self._awaited: dict[str, set[str]] = defaultdict(set)
        self._consumed: dict[str, set[str]] = defaultdict(set)

    def deferred(self, broker: str, topic: str, message_id: str, requested_ms: MonotonicMs) -> None:
        cluster = self.cluster
        is_deleted = any(cluster.was_deleted_at(each, topic, requested_ms) for each in cluster.brokers)
        if not is_deleted and (cluster.is_sync or not cluster.cuts_ms):
            self._awaited[topic].add(message_id)

    def broker_died(self, name: str, durable_to: int | None) -> None:
        if durable_to is not None and not self.cluster.is_sync:
            self._awaited.clear()

    def topic_deleted(self, name: str, topic: str) -> None:
        self._awaited.pop(topic, None)

    def handled(self, member: HandlingMember, delivery: Delivery, outcome: HandlerOutcome) -> None:
        if outcome is HandlerOutcome.SUCCESS or is_abandoned(member, delivery):
            message_ids = {message.message_id for message in delivery.messages}
            if not message_ids <= self._consumed[member.audience]:
                self.progressed_ms = self.cluster.now_ms
            self._consumed[member.audience] |= message_ids

    def unmet(self) -> Iterator[str]:
        for member in self.cluster.alive():
            for topic in () if member.is_broadcasting else member.topics:
                for message_id in sorted(self._awaited[topic] - self._consumed[member.audience]):
                    yield f"{member.audience} never consumed {message_id} of {topic}, which waited"


class DelayedMessagesComeOnce(OfPairs):
    """Check that a delayed message is delivered only once, by its own master or by another one.

    More precisely as often as it was stored: producers repeat unacknowledged sends, and so does an acting
    slave when another master does not answer. A killed broker may itself deliver the timer messages of its
    last seconds twice (`docs/duplicates.md`). And a slave repeats any delivery or transaction end that it had
    not yet copied when its master was killed.
    """

    name = "a delayed message is delivered once, by any broker"

    def __init__(self, cluster: "Cluster") -> None:
        super().__init__(cluster)
        self._sent_to: dict[str, str] = {}
        self._topics: set[str] = set()

    def deferred(self, broker: str, topic: str, message_id: str, requested_ms: MonotonicMs) -> None:
        self._sent_to[message_id] = broker
        self._topics.add(topic)

    def finish(self) -> None:
        timers = Counter(message_id for _, message_id, _ in self._messages(names.TIMER_TOPIC))
        waited = timers + Counter(message_id for _, message_id, _ in self._messages(names.SCHEDULE_TOPIC))
        half_messages = {message_id for _, message_id, _ in self._messages(names.TRANS_HALF_TOPIC)}
        waited += Counter(half_messages)  # An unanswered check stores it again.
        for topic in sorted(self._topics):
            placed = self._messages(topic)
            delivered = [(broker, message_id) for broker, message_id, _ in placed]
            for broker, message_id, place in placed:
                if self.may_repeat(broker, place):
                    waited[message_id] += 1
                if self._sent_to.get(message_id, broker) != broker:
                    is_timed = message_id not in half_messages
                    what = Happening.ESCAPED if is_timed else Happening.PASSED_ON
                    self.cluster.world.history.happened(what, message_id)
            counts = Counter(message_id for _, message_id in delivered if message_id not in timers) + Counter(
                message_id for _, message_id in {*delivered} if message_id in timers
            )
            for message_id, count in counts.items():
                if self._is_judged and message_id in self._sent_to and count > waited[message_id]:
                    times = f"waited {waited[message_id]} times, and was delivered {count} times"
                    self.broken(f"{message_id} of {topic} {times}")

    def _messages(self, topic: str) -> list[tuple[str, str, int]]:
        """Return broker, id and physical offset of a topic's messages, except retries."""
        return [
            (broker, message.message_id, message.physical_offset)
            for broker, message in messages_at(self.cluster, topic)
            if not message.reconsume_times
        ]
