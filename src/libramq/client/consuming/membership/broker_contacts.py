"""The broker contacts: which brokers have our heartbeat, and which ones to retry.

Upstream: MQClientInstance.sendHeartbeatToAllBroker; the reconnecting is ours.
"""

from typing import Final

from libramq.client.consuming.due import Due, DueItems, ReconnectDue
from libramq.client.routing.routes import RouteTable
from libramq.clock import MonotonicMs

#: Ours: a broker whose connection ended may only be restarting.
RECONNECT_MS: Final = 100
RECONNECT_AGAIN_MS: Final = 1_000


class BrokerContacts:
    """Decides which brokers get a heartbeat, and when."""

    def __init__(self, routes: RouteTable, timers: DueItems[Due]) -> None:
        self._routes = routes
        self._timers = timers
        self._known: frozenset[str] = frozenset()
        self._to_reconnect: set[str] = set()
        #: Brokers that answered our last heartbeat, over a connection that is still open.
        self.alive: set[str] = set()
        #: Those of them that offer coordinated groups.
        self.offering: set[str] = set()

    @property
    def all_offer(self) -> bool:
        """Return whether every broker that answered offers coordinated groups."""
        return bool(self.alive) and self.alive <= self.offering

    @property
    def all_named_offer(self) -> bool:
        """Return whether every broker in the routes is known to offer coordinated groups."""
        return self._known <= self.offering

    def addresses_to_query(self) -> list[str]:
        """Return the brokers to query, sorted: those that answered; if none did, all masters."""
        return sorted(self.alive) or sorted(self._routes.masters())

    def take_new(self) -> frozenset[str]:
        """Return the addresses that are new in the routes since the last call."""
        addresses = self._routes.addresses()
        new, self._known = addresses - self._known, addresses
        self.alive &= addresses
        return new

    def regular(self) -> frozenset[str]:
        """Return the targets of the regular heartbeat; silent brokers are retried at a pace of their own."""
        return self._routes.addresses() - self._to_reconnect

    def answered(self, address: str, now_ms: MonotonicMs, *, ok: bool, offers: bool) -> bool:
        """Note the result of a heartbeat; return whether the broker did not know us before."""
        if ok and address not in self.alive:
            (self.offering.add if offers else self.offering.discard)(address)
        if not ok:
            self._try_again(address, now_ms + RECONNECT_AGAIN_MS)
            return False
        is_new = address not in self.alive
        self.alive.add(address)
        return is_new

    def lost(self, address: str, now_ms: MonotonicMs) -> None:
        """Note that a connection ended: the broker has dropped us, or has died."""
        if address in self.alive:
            self._try_again(address, now_ms + RECONNECT_MS)

    def reconnect(self, address: str) -> bool:
        """Return whether to retry the broker after its pause."""
        self._to_reconnect.discard(address)
        return address in self._routes.addresses() and address not in self.alive

    def _try_again(self, address: str, due_ms: MonotonicMs) -> None:
        self.alive.discard(address)
        if address not in self._to_reconnect:
            self._to_reconnect.add(address)
            self._timers.at(due_ms, ReconnectDue(address))
