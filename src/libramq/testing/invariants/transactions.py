"""The invariant of transactions; that committed messages arrive is one of those of messages that wait."""

from typing import TYPE_CHECKING

from libramq.client.consuming.ownership.owned_queue import Delivery
from libramq.testing.invariants.invariant import Invariant

if TYPE_CHECKING:
    from libramq.testing.cluster import Cluster
    from libramq.testing.nodes.consumer_node import SimulatedConsumer


class RolledBackStaysHidden(Invariant):
    """Check that no member gets a message whose transaction is rolled back, from whichever broker."""

    name = "a message whose transaction is rolled back is never delivered"

    def __init__(self, cluster: "Cluster") -> None:
        super().__init__(cluster)
        self._rolled_back: set[str] = set()

    def rolled_back(self, message_id: str) -> None:
        self._rolled_back.add(message_id)

    def delivered(self, member: "SimulatedConsumer", delivery: Delivery) -> None:
        for message in delivery.messages:
            if message.message_id in self._rolled_back:
                self.broken(f"{member.name} gets {message.message_id} of {delivery.owned.queue}")
