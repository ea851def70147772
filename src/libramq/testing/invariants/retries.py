"""Invariants of messages whose handler fails."""

from collections import defaultdict
from typing import TYPE_CHECKING

from libramq.client.consuming.handling.handler_result import HandlerOutcome
from libramq.client.consuming.ownership.owned_queue import Delivery
from libramq.message.names import dlq_topic, retry_topic
from libramq.message.queue import MessageQueue
from libramq.testing.invariants.invariant import Invariant
from libramq.testing.invariants.messages import messages_in
from libramq.testing.scenarios.happening import Happening

if TYPE_CHECKING:
    from libramq.testing.cluster import Cluster
    from libramq.testing.nodes.consumer_node import SimulatedConsumer

_Key = tuple[str, str]


class RetriesAreExact(Invariant):
    """Check that a message in its n-th redelivery has failed n times, and ends among the dead letters.

    Orderly attempts are counted in the owner's memory, and prove nothing; a broadcasting member makes a
    single attempt.
    """

    name = "a message is tried again as often as it failed, and becomes a dead letter after the last time"
    within_ms = 60_000  # As ConsumedAtLeastOnce.

    def __init__(self, cluster: "Cluster") -> None:
        super().__init__(cluster)
        self._is_disturbed = False
        self._failed: dict[_Key, set[int]] = defaultdict(set)
        #: Messages whose last attempt failed (True), or succeeded at last, at another member.
        self._is_dead: dict[_Key, bool] = {}

    def disturbed(self, what: str) -> None:
        self._is_disturbed = True

    def handled(self, member: "SimulatedConsumer", delivery: Delivery, outcome: HandlerOutcome) -> None:
        if member.is_orderly or member.is_broadcasting:
            return
        is_retry = delivery.owned.queue.topic == retry_topic(member.group)
        for message in delivery.messages:
            key, times = (member.group, message.message_id), message.reconsume_times
            # Messages that cannot be sent back are retried locally, as often as necessary.
            is_due = times <= member.retries_max or self._is_disturbed
            if (is_retry and not times) or not is_due or (times and times - 1 not in self._failed[key]):
                failed = sorted(self._failed[key])
                self.broken(f"{member.name} tries {key[1]} again, number {times}; it failed at {failed}")
            if times:
                self.cluster.world.history.happened(Happening.RETRIED, key[1])
            if outcome is not HandlerOutcome.SUCCESS:
                self._failed[key].add(times)
            if times >= member.retries_max:
                # One that was frozen and lost its queue may fail after the next owner has succeeded.
                self._is_dead[key] = self._is_dead.get(key, True) and outcome is not HandlerOutcome.SUCCESS
                self.progressed_ms = self.cluster.now_ms  # With many duplicates, it may come late.
            elif outcome is HandlerOutcome.SUCCESS and key in self._is_dead:
                # It could not be sent back, and failed again locally; the next owner had it as stored.
                self._is_dead[key] = False

    def is_met(self) -> bool:
        return not self._missing()

    def finish(self) -> None:
        missing = self._missing()
        if missing:
            self.broken(f"{missing} failed for the last time, and are no dead letters")
        in_order = {member.group for member in self.cluster.members if member.is_orderly}
        for group, letters in self._dead_letters().items():
            for message_id in sorted(letters):
                if (group, message_id) not in self._is_dead and group not in in_order:
                    self.broken(f"{message_id} is a dead letter of {group}, and may be tried again")
                self.cluster.world.history.happened(Happening.DEAD, message_id)

    def _missing(self) -> list[_Key]:
        dead = [key for key, is_dead in self._is_dead.items() if is_dead]
        if not dead or (not self.cluster.is_sync and self.cluster.cuts_ms):
            return []
        letters = self._dead_letters()
        return [key for key in dead if key[1] not in letters[key[0]]]

    def _dead_letters(self) -> dict[str, set[str]]:
        return {
            group: {
                message_id
                for node in self.cluster.brokers.values()
                if node.broker is not None
                for message_id in messages_in(
                    node.broker, MessageQueue(dlq_topic(group), node.name, 0)
                ).values()
            }
            for group in self.cluster.subscriptions()
        }
