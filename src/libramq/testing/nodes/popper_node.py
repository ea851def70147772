"""The simulated popper: a member of a group that pops one topic, at every master in turn.

It acknowledges some messages and forgets others, like a killed member; forgotten messages become visible to
all members again after their invisible time.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final

from libramq.client.consuming import effects as fx
from libramq.client.consuming.consumer_network import ConsumerNetwork
from libramq.client.consuming.handling.handler_result import HandlerOutcome
from libramq.client.consuming.queues.owned_queue import Delivery
from libramq.client.popping.popped import ack_call, messages_of
from libramq.clock import MonotonicMs
from libramq.errors import LibraError, RemoteError
from libramq.message.message import MessageExt
from libramq.remoting.headers import PopMessageHeader
from libramq.rpc.pop_calls import PopReply, pop_message
from libramq.testing.happening import Happening
from libramq.testing.machine.network import SimulatedDialer, ask, simulated_remotes
from libramq.testing.machine.process import Process
from libramq.testing.machine.seams import SimulatedTimers
from libramq.testing.nodes.broker_node import SimulatedBroker
from libramq.testing.nodes.consumer_node import MemberPlan, SimulatedConsumer, fail
from libramq.testing.world import World


class SimulatedPopMember(SimulatedConsumer):
    """One push consumer that pops; its clock is as inexact as any machine's."""

    def __init__(self, world: World, name: str, plan: MemberPlan, name_servers: Sequence[str]) -> None:
        self._arrived_ms: dict[Delivery, MonotonicMs] = {}
        super().__init__(world, name, plan, name_servers)

    def _new_network(self) -> ConsumerNetwork:
        return ConsumerNetwork(
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
        """Ignore changes: a popping member owns no queues."""

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


#: The interval between pops.
POP_EVERY_MS: Final = 250
#: The most messages in a pop.
MESSAGES_MAX: Final = 16
#: Invisible times of popped messages; some end while a master is gone, others later.
INVISIBLE_MS: Final = (2_000, 5_000, 9_000)
LONG_INVISIBLE_MS: Final = 30_000
FORGOTTEN_CHANCE: Final = 0.3
#: The longest time of a handler; slow ones take long enough for a slave to act.
HANDLING_MS_MAX: Final = 1_500
SLOW_MS_MAX: Final = 8_000
SLOW_CHANCE: Final = 0.2
IN_ORDER_MS_MAX: Final = 300
#: An acknowledgement this close to the end of the invisible time may be too late on another clock.
LATE_MS: Final = 500
#: For messages popped at a slave: the master may hand them out again unless all earlier ones are done.
NEVER_MS: Final = MonotonicMs(0)


class SimulatedPopper:
    """One popping member. slaves: by masters' names; it asks one of them if the master does not answer.

    in_order: a queue's next messages come only once the previous ones are acknowledged or visible again.
    """

    def __init__(
        self,
        world: World,
        topic: str,
        masters: Sequence[SimulatedBroker],
        slaves: Mapping[str, Sequence[SimulatedBroker]],
        *,
        in_order: bool = False,
        invisible_ms: Sequence[int] = INVISIBLE_MS,
    ) -> None:
        self.name = f"{'orderly-' if in_order else ''}popper-{topic}"
        self.group = f"{'ORDERLY-' if in_order else ''}POPPERS-{topic}"
        self._world = world
        self.topic = topic
        self._masters, self._slaves = masters, slaves
        self._in_order, self._invisible_ms = in_order, invisible_ms
        self._random = world.stream(self.name)
        self._forgets = True
        self.process = Process(self.name, world.time, clock=world.clock(self.name))
        self.process.start()
        self._remotes = simulated_remotes(world.network, self.process)
        self.process.after(0, self._pop_next)

    def stop_forgetting(self) -> None:
        """Acknowledge everything from now on."""
        self._forgets = False

    def _slave_of(self, master: SimulatedBroker) -> SimulatedBroker | None:
        """Return the slave that acts for a master, if any: the first one running, else the first."""
        slaves = self._slaves.get(master.name, ())
        return next((each for each in slaves if each.process.is_alive), slaves[0] if slaves else None)

    def _pop_next(self) -> None:
        master = self._random.choice(self._masters)
        slave = self._slave_of(master)
        header = PopMessageHeader(
            consumer_group=self.group,
            topic=self.topic,
            queue_id=-1,
            max_msg_nums=MESSAGES_MAX,
            invisible_time=self._random.choice(self._invisible_ms),
            poll_time=0,
            init_mode=0,
            order=self._in_order or None,
            # At first as in our clients, later as in Apache's.
            lb_max_msg_nums=MESSAGES_MAX if self._forgets else None,
        )
        in_time_ms = self._world.time.now_ms + header.invisible_time - LATE_MS

        def answered(reply: PopReply | LibraError) -> None:
            if isinstance(reply, RemoteError) and slave is not None:
                ask(self._remotes, slave.address, pop_message(header), popped_at_slave)
            else:
                self._popped(master, reply, in_time_ms)

        def popped_at_slave(reply: PopReply | LibraError) -> None:
            if not isinstance(reply, LibraError) and reply.body:
                self._world.history.happened(Happening.POPPED_AT_SLAVE, self.topic)
            self._popped(master, reply, NEVER_MS)

        ask(self._remotes, master.address, pop_message(header), answered)
        self.process.after(POP_EVERY_MS, self._pop_next)

    def _popped(self, master: SimulatedBroker, reply: PopReply | LibraError, in_time_ms: MonotonicMs) -> None:
        if isinstance(reply, LibraError) or not reply.body:
            return
        if self._in_order:
            self._world.history.happened(Happening.POPPED_IN_ORDER, self.topic)
        for message in messages_of(reply, master.name, self.topic):
            self._world.history.popped(
                self.group, self.topic, master.name, message.message_id, self._world.time.now_ms
            )
            if not self._forgets or self._random.random() >= FORGOTTEN_CHANCE:
                self.process.after(
                    self._handling_ms(), partial(self._acknowledge, master, message, in_time_ms)
                )

    def _handling_ms(self) -> int:
        if self._in_order:  # A slow message would make all following ones come again.
            return self._random.randint(1, IN_ORDER_MS_MAX)
        is_slow = self._random.random() < SLOW_CHANCE
        return self._random.randint(1, SLOW_MS_MAX if is_slow else HANDLING_MS_MAX)

    def _acknowledge(self, master: SimulatedBroker, message: MessageExt, in_time_ms: MonotonicMs) -> None:
        """Acknowledge a message, at its master's slave if the master does not answer."""
        call = ack_call(self.group, message)
        slave = self._slave_of(master)
        is_in_time = self._world.time.now_ms < in_time_ms

        def acknowledged(by: str, outcome: object) -> None:
            # Without a response it may be done, or may come again.
            taken_by = by if is_in_time and not isinstance(outcome, LibraError) else None
            self._world.history.acknowledged(self.group, self.topic, message.message_id, taken_by)

        def answered(outcome: object) -> None:
            if isinstance(outcome, RemoteError) and slave is not None:
                ask(self._remotes, slave.address, call, partial(acknowledged_at_slave, slave.name))
            else:
                acknowledged(master.name, outcome)

        def acknowledged_at_slave(by: str, outcome: object) -> None:
            if not isinstance(outcome, LibraError):
                self._world.history.happened(Happening.ACKNOWLEDGED_AT_SLAVE, message.message_id)
            acknowledged(by, outcome)

        ask(self._remotes, master.address, call, answered)
