"""Lowest ids: a broker and its slaves are informed when the lowest id among them changes.

    a lower id has registered ──► the others, with the new one's HA address
    the lowest id has left ─────► those that remain, if they have enableSlaveActingMaster

So a slave learns at once that it may act for its master, or that its master is back. Only with
notifyMinBrokerIdChanged. Upstream: RouteInfoManager.notifyMinBrokerIdChanged.
"""

from collections.abc import Mapping
from typing import NamedTuple

from libramq.nameserver.records import BrokerRecord
from libramq.remoting.admin_headers import LowestIdHeader


class LowestIdNotice(NamedTuple):
    """A notification, and the addresses of the brokers that get it."""

    addresses: list[str]
    header: LowestIdHeader


class LowestIds:
    """The lowest id of each broker name, with its address, as it was last seen."""

    def __init__(self, brokers: Mapping[str, BrokerRecord]) -> None:
        self._brokers = brokers
        self._seen: dict[str, tuple[int, str]] = {}

    def notices(self, changed: Mapping[str, str]) -> list[LowestIdNotice]:
        """Return what must be sent after changes; changed: see `RouteTables`."""
        found = (self._look(name, ha_address) for name, ha_address in changed.items())
        return [each for each in found if each is not None]

    def _look(self, name: str, ha_address: str) -> LowestIdNotice | None:
        broker, before = self._brokers.get(name), self._seen.pop(name, None)
        if broker is None:
            return None
        lowest = broker.lowest_id
        address = broker.addresses[lowest]
        self._seen[name] = lowest, address
        if before is None or before[0] == lowest:
            return None
        header = LowestIdHeader(min_broker_id=lowest, min_broker_addr=address)
        if lowest < before[0]:
            header.ha_broker_addr = ha_address or None
            return LowestIdNotice([at for id_, at in broker.addresses.items() if id_ != lowest], header)
        if not broker.acting_master:
            return None
        header.offline_broker_addr = before[1]
        return LowestIdNotice(list(broker.addresses.values()), header)
