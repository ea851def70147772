"""The network side of a push consumer over POP: performs the effects of its core.

Upstream: MQClientAPIImpl.popMessageAsync, ackMessageAsync, changeInvisibleTimeAsync.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Unpack

import msgspec

from libramq.client.beginning import Begun
from libramq.client.consuming import effects as fx
from libramq.client.consuming.consumer_settings import ConsumerSettings
from libramq.client.consuming.member_network import MemberNetwork, Seams, log_failure
from libramq.client.consuming.pop.pop_consumer_core import PopConsumerCore
from libramq.client.consuming.work import WorkInHand
from libramq.clock import MonotonicMs
from libramq.errors import InvalidState
from libramq.filter.subscription import Selector
from libramq.message.queue import MessageQueue


class PopNetwork(MemberNetwork):
    """The membership of a consumer that pops."""

    def __init__(
        self,
        settings: ConsumerSettings,
        subscriptions: Mapping[str, Selector],
        **seams: Unpack[Seams],
    ) -> None:
        clock, failed = seams["clock"], seams.get("failed", log_failure)
        self._round_trips_ms: dict[str, int] = {}  # The shortest, by address.
        self.core = core = PopConsumerCore(
            settings, subscriptions, clock.monotonic_ms, failed, self._round_trips_ms
        )
        super().__init__(settings, subscriptions, core, **seams)

    def assignment(self) -> list[MessageQueue]:
        """Return its queues: none."""
        return []

    def work(self) -> WorkInHand:
        """Return what the consumer has in hand."""
        return WorkInHand.of_deliveries(self.core.holding.deliveries)

    def ask(self, ask: fx.Ask[Any]) -> None:
        """Make a request, and measure how long its answer takes."""
        sent_ms = self._clock.monotonic_ms()

        def measured(outcome: Any, now_ms: MonotonicMs) -> fx.Effects:
            took_ms = now_ms - sent_ms
            self._round_trips_ms[ask.address] = min(took_ms, self._round_trips_ms.get(ask.address, took_ms))
            return ask.done(outcome, now_ms)

        super().ask(msgspec.structs.replace(ask, done=measured))

    def pause(self, queues: Sequence[MessageQueue] | None) -> None:
        """Start no more handlers."""
        _refuse(queues)
        self._perform(self.core.pause(self._clock.monotonic_ms()))

    def resume(self, queues: Sequence[MessageQueue] | None) -> None:
        """Continue."""
        _refuse(queues)
        self._perform(self.core.resume(self._clock.monotonic_ms()))

    def hook_done(self, change: fx.QueueChange) -> None:
        """Do nothing: no queue is revoked."""

    def _began(self, begun: Begun) -> None:
        self.core.began(begun, self._beginning)


def _refuse(queues: Sequence[MessageQueue] | None) -> None:
    if queues is not None:
        raise InvalidState("a consumer that pops owns no queues: pause() and resume() without any")
