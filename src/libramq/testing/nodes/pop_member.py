"""The simulated member of a group that pops: the real network side of `PushConsumer(pop=True)`."""

from collections.abc import Sequence

from libramq.client.consuming import effects as fx
from libramq.client.consuming.handling.handler_result import HandlerOutcome
from libramq.client.consuming.ownership.owned_queue import Delivery
from libramq.client.consuming.pop.pop_network import PopNetwork
from libramq.clock import MonotonicMs
from libramq.testing.machine.dialer import SimulatedDialer
from libramq.testing.machine.seams import SimulatedTimers
from libramq.testing.nodes.consumer_node import MemberPlan, SimulatedConsumer, fail
from libramq.testing.world import World


class SimulatedPopMember(SimulatedConsumer):
    """One member; its clock is as wrong as any machine's."""

    def __init__(self, world: World, name: str, plan: MemberPlan, name_servers: Sequence[str]) -> None:
        self._arrived_ms: dict[Delivery, MonotonicMs] = {}
        super().__init__(world, name, plan, name_servers)

    def _new_network(self) -> PopNetwork:
        return PopNetwork(
            self.plan.settings,
            self.plan.subscriptions,
            name_server_addresses=self._name_server_addresses,
            dialer=SimulatedDialer(self._world.network, self.process),
            timers=SimulatedTimers(self.process),
            clock=self.process.clock,
            randomness=self._random,
            run=self,
            failed=fail,
        )

    def deliver(self, deliveries: Sequence[Delivery]) -> None:
        """Run handlers."""
        for delivery in deliveries:
            self._arrived_ms.setdefault(delivery, self._world.time.now_ms)
        self._handlers.deliver(deliveries)

    def notify(self, change: fx.QueueChange) -> None:
        """Ignore it: there are no queues."""

    def _handling_began(self, delivery: Delivery) -> None:
        for message in delivery.messages:
            arrived_ms = self._arrived_ms[delivery]
            where = message.topic, message.broker_name
            self._world.history.popped(self.group, *where, message.message_id, arrived_ms)

    def _handled(self, delivery: Delivery, outcome: HandlerOutcome) -> None:
        if outcome is HandlerOutcome.SUCCESS:
            for message in delivery.messages:
                self._world.history.note(self.name, f"success {message.message_id}")
                self._world.history.acknowledged(self.group, message.topic, message.message_id)
        if outcome is not HandlerOutcome.SKIPPED:
            del self._arrived_ms[delivery]
        self.network.handled([(delivery, outcome)])
