"""The simulated popper: a member of a group that pops one topic, at every master in turn.

Some messages it acknowledges, some it forgets, as a member that is killed does; those are visible again to
all members once their invisible time is over.
"""

from collections.abc import Sequence
from functools import partial
from typing import Final

from libramq.client.popping.popped import ack_header, messages_of
from libramq.errors import LibraError
from libramq.message.message import MessageExt
from libramq.remoting.pop_headers import PopMessageHeader
from libramq.rpc.asking import ask
from libramq.rpc.pop_calls import PopReply, ack_message, pop_message
from libramq.testing.machine.dialer import simulated_remotes
from libramq.testing.machine.process import Process
from libramq.testing.nodes.broker_node import SimulatedBroker
from libramq.testing.world import World

#: How often it pops, and how many messages at most.
POP_EVERY_MS: Final = 250
MESSAGES_MAX: Final = 16
#: For how long what it pops is invisible: some times are over while a master is gone, some are not.
INVISIBLE_MS: Final = (2_000, 5_000, 9_000)
FORGOTTEN_CHANCE: Final = 0.3
#: How long a handler takes.
HANDLING_MS_MAX: Final = 1_500


class SimulatedPopper:
    """One member. masters: of which it pops."""

    def __init__(self, world: World, topic: str, masters: Sequence[SimulatedBroker]) -> None:
        self.name = f"popper-{topic}"
        self.group = f"POPPERS-{topic}"
        self._world = world
        self.topic = topic
        self._masters = masters
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
        header = PopMessageHeader(
            consumer_group=self.group,
            topic=self.topic,
            queue_id=-1,
            max_msg_nums=MESSAGES_MAX,
            invisible_time=self._random.choice(INVISIBLE_MS),
            poll_time=0,
            init_mode=0,
        )
        ask(self._remotes, master.address, pop_message(header), partial(self._popped, master))
        self.process.after(POP_EVERY_MS, self._pop_next)

    def _popped(self, master: SimulatedBroker, reply: PopReply | LibraError) -> None:
        if isinstance(reply, LibraError) or not reply.body:
            return
        for message in messages_of(reply, master.name):
            if not self._forgets or self._random.random() >= FORGOTTEN_CHANCE:
                done = partial(self._acknowledge, master, message)
                self.process.after(self._random.randint(1, HANDLING_MS_MAX), done)

    def _acknowledge(self, master: SimulatedBroker, message: MessageExt) -> None:
        """Acknowledge a message once."""

        def acknowledged(outcome: object) -> None:
            # Without an answer it is done, or comes again.
            self._world.history.acknowledged(self.group, self.topic, message.message_id)

        ask(self._remotes, master.address, ack_message(ack_header(self.group, message)), acknowledged)
