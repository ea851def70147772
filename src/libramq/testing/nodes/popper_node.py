"""The simulated popper: a member of a group that pops one topic, at every master in turn.

Some messages it acknowledges, some it forgets, as a member that is killed does; those are visible again to
all members once their invisible time is over.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final

from libramq.client.popping.popped import ack_header, messages_of
from libramq.errors import LibraError, RemoteError
from libramq.message.message import MessageExt
from libramq.remoting.pop_headers import PopMessageHeader
from libramq.rpc.asking import ask
from libramq.rpc.pop_calls import PopReply, ack_message, pop_message
from libramq.testing.machine.dialer import simulated_remotes
from libramq.testing.machine.process import Process
from libramq.testing.nodes.broker_node import SimulatedBroker
from libramq.testing.scenarios.happening import Happening
from libramq.testing.world import World

#: How often it pops, and how many messages at most.
POP_EVERY_MS: Final = 250
MESSAGES_MAX: Final = 16
#: For how long what it pops is invisible: some times are over while a master is gone, some are not.
INVISIBLE_MS: Final = (2_000, 5_000, 9_000)
FORGOTTEN_CHANCE: Final = 0.3
#: How long a handler takes; some take so long that a slave acts meanwhile.
HANDLING_MS_MAX: Final = 1_500
SLOW_MS_MAX: Final = 8_000
SLOW_CHANCE: Final = 0.2


class SimulatedPopper:
    """One member. masters: of which it pops; slaves: by their names, where it does so instead."""

    def __init__(
        self,
        world: World,
        topic: str,
        masters: Sequence[SimulatedBroker],
        slaves: Mapping[str, SimulatedBroker],
    ) -> None:
        self.name = f"popper-{topic}"
        self.group = f"POPPERS-{topic}"
        self._world = world
        self.topic = topic
        self._masters, self._slaves = masters, slaves
        self._random = world.stream(self.name)
        self._forgets = True
        self.process = Process(self.name, world.time, clock=world.clock(self.name))
        self.process.start()
        self._remotes = simulated_remotes(world.network, self.process)
        self.process.after(0, self._pop_next)

    def stop_forgetting(self) -> None:
        """Acknowledge everything from now on."""
        self._forgets = False

    def _pop_next(self) -> None:
        master = self._random.choice(self._masters)
        slave = self._slaves.get(master.name)
        header = PopMessageHeader(
            consumer_group=self.group,
            topic=self.topic,
            queue_id=-1,
            max_msg_nums=MESSAGES_MAX,
            invisible_time=self._random.choice(INVISIBLE_MS),
            poll_time=0,
            init_mode=0,
            lb_max_msg_nums=MESSAGES_MAX if self._forgets else None,  # As our clients do, and as Apache's.
        )

        def answered(reply: PopReply | LibraError) -> None:
            if isinstance(reply, RemoteError) and slave is not None:
                ask(self._remotes, slave.address, pop_message(header), popped_at_slave)
            else:
                self._popped(master, reply)

        def popped_at_slave(reply: PopReply | LibraError) -> None:
            if not isinstance(reply, LibraError) and reply.body:
                self._world.history.happened(Happening.POPPED_AT_SLAVE, self.topic)
            self._popped(master, reply)

        ask(self._remotes, master.address, pop_message(header), answered)
        self.process.after(POP_EVERY_MS, self._pop_next)

    def _popped(self, master: SimulatedBroker, reply: PopReply | LibraError) -> None:
        if isinstance(reply, LibraError) or not reply.body:
            return
        for message in messages_of(reply, master.name, self.topic):
            if not self._forgets or self._random.random() >= FORGOTTEN_CHANCE:
                is_slow = self._random.random() < SLOW_CHANCE
                handling_ms = self._random.randint(1, SLOW_MS_MAX if is_slow else HANDLING_MS_MAX)
                self.process.after(handling_ms, partial(self._acknowledge, master, message))

    def _acknowledge(self, master: SimulatedBroker, message: MessageExt) -> None:
        """Acknowledge a message, at its master's slave if the master does not answer."""
        call = ack_message(ack_header(self.group, message))
        slave = self._slaves.get(master.name)

        def acknowledged(outcome: object) -> None:
            # Without an answer it is done, or comes again.
            self._world.history.acknowledged(self.group, self.topic, message.message_id)

        def answered(outcome: object) -> None:
            if isinstance(outcome, RemoteError) and slave is not None:
                ask(self._remotes, slave.address, call, acknowledged_at_slave)
            else:
                acknowledged(outcome)

        def acknowledged_at_slave(outcome: object) -> None:
            if not isinstance(outcome, LibraError):
                self._world.history.happened(Happening.ACKNOWLEDGED_AT_SLAVE, message.message_id)
            acknowledged(outcome)

        ask(self._remotes, master.address, call, answered)
