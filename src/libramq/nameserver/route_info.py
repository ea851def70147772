"""The route table: which brokers live, and which topics they hold.

    cluster → broker names          broker name → {id: address}
    topic → {broker name: queues}   address → liveness

A plain table: times and requests in, values out. Rules and their order are those of Apache's, so that its
brokers and ours can be mixed. Upstream: routeinfo/RouteInfoManager.java.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import msgspec

from libramq.clock import MonotonicMs
from libramq.codes import ResponseCode
from libramq.errors import BrokerError, broker_error
from libramq.formats.route import MASTER_ID, BrokerData, QueueData, TopicRouteData
from libramq.formats.tables import (
    PERM_WRITE,
    DataVersion,
    TopicConfig,
    TopicConfigSerializeWrapper,
)
from libramq.nameserver.bounds import check_registration
from libramq.remoting.body.route import ClusterInfo
from libramq.remoting.headers import RegisterBrokerHeader

#: RouteInfoManager.DEFAULT_BROKER_CHANNEL_EXPIRED_TIME.
HEARTBEAT_TIMEOUT_MS: Final = 120_000


class BrokerAddress(NamedTuple):
    """One broker process."""

    cluster: str
    address: str


@dataclass(slots=True)
class Liveness:
    """The broker at an address: its last heartbeat, connection and topic table."""

    cluster: str
    broker_name: str
    owner: object
    data_version: DataVersion
    ha_address: str
    timeout_ms: int
    heard_ms: MonotonicMs


@dataclass(slots=True)
class _Broker:
    """A broker name: a master and its slaves."""

    cluster: str
    addresses: dict[int, str] = field(default_factory=dict)
    acting_master: bool = False
    zone: str | None = None

    @property
    def lowest_id(self) -> int:
        return min(self.addresses)


class Registered(NamedTuple):
    """The answer to a registration; a slave learns its master."""

    is_new: bool
    master_address: str = ""
    ha_address: str = ""


class RouteInfo:
    """Everything a name server knows."""

    def __init__(self) -> None:
        self._brokers: dict[str, _Broker] = {}
        self._clusters: dict[str, set[str]] = {}
        self._topics: dict[str, dict[str, QueueData]] = {}
        self._mappings: dict[str, dict[str, Any]] = {}
        self._live: dict[str, Liveness] = {}

    # Brokers

    def register(
        self,
        header: RegisterBrokerHeader,
        table: TopicConfigSerializeWrapper,
        *,
        owner: object,
        zone: str | None,
        now_ms: MonotonicMs,
    ) -> Registered:
        """Take in a broker and its topics; BrokerError when it is turned down, and then nothing changed."""
        broker = self._brokers.get(header.broker_name) or _Broker(header.cluster_name)
        check_registration(
            header,
            table,
            broker_names=self._brokers.keys(),
            broker_ids=broker.addresses.keys(),
            topics=self._topics.keys(),
        )
        holder = broker.addresses.get(header.broker_id)
        if holder is not None and holder != header.broker_addr and self._is_deposed(table, by=holder):
            # A deposed master: heard, but not believed.
            self._forget([header.broker_addr] if header.broker_addr in self._live else [])
            return Registered(is_new=False)
        is_first = holder is None
        if is_first and len(table.topic_config_table) == 1:
            # A broker that registers one topic only tells of a change; what else it has is not known yet.
            raise BrokerError(ResponseCode.SYSTEM_ERROR, "register broker failed")

        before = self._live.get(header.broker_addr)
        if before is not None and (before.cluster, before.broker_name) != (
            header.cluster_name,
            header.broker_name,
        ):
            self._forget([header.broker_addr])  # Another broker listens at this address now.
        self._brokers[header.broker_name] = broker
        self._clusters.setdefault(header.cluster_name, set()).add(header.broker_name)
        broker.acting_master = bool(header.enable_acting_master)
        broker.zone = zone
        broker.addresses = _without(broker.addresses, header.broker_addr)
        broker.addresses[header.broker_id] = header.broker_addr
        self._take_topics(header, table, broker, is_first=is_first)
        self._live[header.broker_addr] = Liveness(
            cluster=header.cluster_name,
            broker_name=header.broker_name,
            owner=owner,
            data_version=table.data_version,
            ha_address=header.ha_server_addr,
            timeout_ms=header.heartbeat_timeout_millis or HEARTBEAT_TIMEOUT_MS,
            heard_ms=now_ms,
        )
        return self._answer(header, broker, is_new=is_first)

    def displaced(
        self, header: RegisterBrokerHeader, table: TopicConfigSerializeWrapper, *, owner: object
    ) -> list[object]:
        """Return the connections of live brokers whose places a registration would take."""
        addresses = [header.broker_addr]
        broker = self._brokers.get(header.broker_name)
        holder = broker.addresses.get(header.broker_id) if broker is not None else None
        if holder is not None and not self._is_deposed(table, by=holder):
            addresses.append(holder)
        owners = (self._live[address].owner for address in addresses if address in self._live)
        return [*dict.fromkeys(each for each in owners if each is not owner)]

    def unregister(self, key: BrokerAddress, *, owner: object) -> bool:
        """Forget a broker; whether it was known. Only for the connection that registered it."""
        liveness = self._find(key)
        if liveness is None:
            return False
        if liveness.owner is not owner:
            raise broker_error(
                ResponseCode.NO_PERMISSION, f"{key.address} was registered over another connection"
            )
        self._forget([key.address])
        return True

    def owner_lost(self, owner: object) -> list[BrokerAddress]:
        """Forget the brokers that registered over a connection that ended."""
        return self._forget([address for address, broker in self._live.items() if broker.owner is owner])

    @property
    def has_brokers(self) -> bool:
        """Return whether any broker is registered."""
        return bool(self._live)

    def expire(self, now_ms: MonotonicMs) -> tuple[list[BrokerAddress], list[object]]:
        """Forget brokers that were silent too long; also the connections that serve no other broker."""
        late = [
            address for address, broker in self._live.items() if broker.heard_ms + broker.timeout_ms < now_ms
        ]
        owners = [self._live[address].owner for address in late]
        forgotten = self._forget(late)
        still_used = {id(liveness.owner) for liveness in self._live.values()}
        return forgotten, [owner for owner in owners if id(owner) not in still_used]

    def stood_still(self, stood_ms: int, now_ms: MonotonicMs) -> None:
        """Nobody listened to brokers for so long, until now."""
        for liveness in self._live.values():
            liveness.heard_ms = min(now_ms, liveness.heard_ms + stood_ms)

    def heard(self, key: BrokerAddress, now_ms: MonotonicMs) -> None:
        """A broker gave a sign of life."""
        liveness = self._find(key)
        if liveness is not None:
            liveness.heard_ms = now_ms

    def data_version(self, key: BrokerAddress) -> DataVersion | None:
        """The version of the topic table that a broker registered last."""
        liveness = self._find(key)
        return None if liveness is None else liveness.data_version

    # Topics

    def route(self, topic: str) -> TopicRouteData | None:
        """Where a topic's queues are; None when no broker has it."""
        queues = self._topics.get(topic)
        if not queues:
            return None
        brokers = [self._broker_data(name) for name in queues if name in self._brokers]
        if not brokers:
            return None
        return TopicRouteData(
            queue_datas=list(queues.values()),
            broker_datas=brokers,
            topic_queue_mapping_by_broker=self._mappings.get(topic),
        )

    def delete_topic(self, topic: str, cluster: str | None = None) -> None:
        """Forget a topic's route, everywhere or in one cluster."""
        if not cluster:
            self._topics.pop(topic, None)
            self._mappings.pop(topic, None)
            return
        for broker_name in self._clusters.get(cluster, ()):
            self._remove_queues(topic, broker_name)

    def topics(self) -> list[str]:
        """The names of all topics."""
        return list(self._topics)

    def topics_of_cluster(self, cluster: str) -> list[str]:
        """The names of the topics that brokers of a cluster have."""
        names = self._clusters.get(cluster, set())
        return [topic for topic, queues in self._topics.items() if not names.isdisjoint(queues)]

    def clusters(self) -> ClusterInfo:
        """All clusters and brokers."""
        return ClusterInfo(
            broker_addr_table={name: self._broker_data(name) for name in self._brokers},
            cluster_addr_table={cluster: sorted(names) for cluster, names in self._clusters.items()},
        )

    # Within

    def _take_topics(
        self,
        header: RegisterBrokerHeader,
        table: TopicConfigSerializeWrapper,
        broker: _Broker,
        *,
        is_first: bool,
    ) -> None:
        is_prime_slave = (
            header.broker_id != MASTER_ID
            and header.enable_acting_master is not None
            and header.broker_id == broker.lowest_id
        )
        if header.broker_id != MASTER_ID and not is_prime_slave:
            return
        stored = self.data_version(BrokerAddress(header.cluster_name, header.broker_addr))
        changed = is_first or stored != table.data_version
        read_only = is_prime_slave and broker.acting_master
        for topic, config in table.topic_config_table.items():
            queues = self._topics.setdefault(topic, {})
            if changed or header.broker_name not in queues:
                queues[header.broker_name] = _queue_data(header.broker_name, config, read_only=read_only)
        if changed:
            for topic, info in table.topic_queue_mapping_info_map.items():
                if topic in self._topics:
                    self._mappings.setdefault(topic, {})[header.broker_name] = info

    def _answer(self, header: RegisterBrokerHeader, broker: _Broker, *, is_new: bool) -> Registered:
        master_address = broker.addresses.get(MASTER_ID)
        if header.broker_id == MASTER_ID or master_address is None:
            return Registered(is_new)
        master = self._live.get(master_address)
        return Registered(is_new) if master is None else Registered(is_new, master_address, master.ha_address)

    def _is_deposed(self, table: TopicConfigSerializeWrapper, *, by: str) -> bool:
        other = self._live.get(by)
        return other is not None and other.data_version.state_version > table.data_version.state_version

    def _find(self, key: BrokerAddress) -> Liveness | None:
        liveness = self._live.get(key.address)
        return liveness if liveness is not None and liveness.cluster == key.cluster else None

    def _forget(self, addresses: list[str]) -> list[BrokerAddress]:
        forgotten = []
        for address in addresses:
            liveness = self._live.pop(address)
            self._remove(liveness.broker_name, address)
            forgotten.append(BrokerAddress(liveness.cluster, address))
        return forgotten

    def _remove(self, broker_name: str, address: str) -> None:
        """Take an address out of its broker name, and the name with its last address."""
        broker = self._brokers.get(broker_name)
        if broker is None:
            return
        broker.addresses = _without(broker.addresses, address)
        if broker.addresses:
            if broker.acting_master and broker.lowest_id > MASTER_ID:
                self._wipe_write_permission(broker_name)
            return
        del self._brokers[broker_name]
        for cluster in [cluster for cluster, names in self._clusters.items() if broker_name in names]:
            self._clusters[cluster].discard(broker_name)
            if not self._clusters[cluster]:
                del self._clusters[cluster]
        for topic in list(self._topics_at(broker_name)):
            self._remove_queues(topic, broker_name)

    def _wipe_write_permission(self, broker_name: str) -> None:
        for topic in self._topics_at(broker_name):
            queues = self._topics[topic]
            held = queues[broker_name]
            queues[broker_name] = msgspec.structs.replace(held, perm=held.perm & ~PERM_WRITE)

    def _topics_at(self, broker_name: str) -> Iterator[str]:
        return (topic for topic, queues in self._topics.items() if broker_name in queues)

    def _remove_queues(self, topic: str, broker_name: str) -> None:
        for table in (self._topics, self._mappings):
            by_broker: dict[str, Any] = table.get(topic, {})
            by_broker.pop(broker_name, None)
            if not by_broker:
                table.pop(topic, None)

    def _broker_data(self, broker_name: str) -> BrokerData:
        broker = self._brokers[broker_name]
        return BrokerData(
            cluster=broker.cluster,
            broker_name=broker_name,
            broker_addrs=dict(sorted(broker.addresses.items())),
            enable_acting_master=broker.acting_master,
            zone_name=broker.zone,
        )


def _queue_data(broker_name: str, config: TopicConfig, *, read_only: bool) -> QueueData:
    return QueueData(
        broker_name=broker_name,
        read_queue_nums=config.read_queue_nums,
        write_queue_nums=config.write_queue_nums,
        perm=config.perm & ~PERM_WRITE if read_only else config.perm,
        topic_sys_flag=config.topic_sys_flag,
    )


def _without(addresses: dict[int, str], address: str) -> dict[int, str]:
    return {id_: held for id_, held in addresses.items() if held != address}
