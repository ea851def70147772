"""The routing of signals: from the part that returned one to the part that it concerns."""

from typing import assert_never

from libramq.client.consuming import signals as sg
from libramq.client.consuming.parts import Parts
from libramq.client.consuming.signals import Steps
from libramq.clock import MonotonicMs


class SignalRouting:
    """Passes signals on."""

    def __init__(self, parts: Parts) -> None:
        self._presence = parts.presence
        self._locking = parts.locking
        self._rebalancing = parts.rebalancing
        self._coordination = parts.coordination
        self._deadlines = parts.deadlines

    def rebalance(self, now_ms: MonotonicMs) -> Steps:
        """Begin a round, unless a coordinator allocates."""
        if self._coordination.allocates:
            return self._rebalancing.begin(now_ms)
        self._rebalancing.abandon()
        return []

    def pass_on(self, signal: sg.Signal, now_ms: MonotonicMs, *, is_running: bool) -> Steps:
        """Return what follows from a signal; a consumer that stops begins no round."""
        match signal:
            case sg.LockWanted():
                self._locking.want(signal)
            case sg.Unlocked():
                self._locking.unlocked(signal)
            case sg.QueueReleased():
                self._coordination.released(signal)
            case sg.Overrun(deliveries):
                return self._deadlines.overrun(deliveries, now_ms)
            case sg.RebalanceSoon():
                if is_running and self._coordination.allocates:
                    self._rebalancing.soon(now_ms)
            case sg.RebalanceNow():
                return self.rebalance(now_ms) if is_running else []
            case sg.AssignmentChanged():
                return self._presence.changed(now_ms)
            case sg.SubscriptionUnknown(address):
                return self._presence.heartbeats([address])
            case sg.LeaseChanged(ended):
                return self._presence.lease_changed(ended=ended)
            case sg.BrokerMissing():
                return self._presence.look_soon(now_ms)
            case _:
                assert_never(signal)
        return []
