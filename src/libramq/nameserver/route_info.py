"""The route table: live brokers, their topics, and how long departed brokers are remembered. Decides which
registrations take effect, and applies them in slices.

    cluster → broker names          broker name → {id: address}
    topic → broker names            broker name → {topic: queues}           address → liveness

A plain table: times and requests in, values out. Tens of thousands of topics are added and removed in slices,
and other requests are served in between. The rules and their order are Apache's, so that brokers of both
kinds can be mixed. Upstream: routeinfo/RouteInfoManager.java.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final, NamedTuple

import msgspec

from libramq.clock import MonotonicMs
from libramq.codes import ResponseCode
from libramq.errors import BrokerError, broker_error
from libramq.formats.route import MASTER_ID, BrokerData, QueueData, TopicRouteData
from libramq.formats.tables import (
    PERM_READ,
    PERM_WRITE,
    DataVersion,
    TopicConfig,
    TopicConfigSerializeWrapper,
)
from libramq.kernel.work import PORTION, Work
from libramq.nameserver.registration import (
    TOPICS_MAX,
    check_queues,
    check_registration,
    check_topic_name,
)
from libramq.remoting.body.cluster import ClusterInfo
from libramq.remoting.headers import RegisterBrokerHeader

#: RouteInfoManager.DEFAULT_BROKER_CHANNEL_EXPIRED_TIME.
HEARTBEAT_TIMEOUT_MS: Final = 120_000
#: Ours: how long an absent broker's topics are remembered: as long as brokers keep messages by default
#: (fileReservedTime, 72 h).
ABSENT_MS_MAX: Final = 72 * 3_600_000
#: Ours: remembered topics of all absent brokers; about 30 MB.
ABSENT_TOPICS_MAX: Final = 500_000


@dataclass(slots=True)
class Liveness:
    """The broker at an address: its last heartbeat, connection and topic table."""

    cluster: str
    broker_name: str
    owner: object
    data_version: DataVersion
    ha_address: str
    timeout_ms: int
    last_seen_ms: MonotonicMs


@dataclass(slots=True)
class BrokerRecord:
    """A broker name: a master and its slaves, and their topics."""

    cluster: str
    addresses: dict[int, str] = field(default_factory=dict)
    queues: dict[str, QueueData] = field(default_factory=dict)
    mappings: dict[str, Any] = field(default_factory=dict)
    acting_master: bool = False
    #: Whether the master has left and a slave may act for it: the topics are read-only, whatever their perm.
    is_wiped: bool = False
    zone: str | None = None

    @property
    def lowest_id(self) -> int:
        return min(self.addresses)

    def offered(self, topic: str) -> QueueData:
        """Return a topic's queues for a route: read-only if the master has left."""
        held = self.queues[topic]
        return msgspec.structs.replace(held, perm=held.perm & ~PERM_WRITE) if self.is_wiped else held


@dataclass(frozen=True, slots=True, eq=False)
class PendingTopics:
    """A broker's topics that have yet to be registered, without those deleted meanwhile."""

    broker_name: str
    topics: dict[str, TopicConfig]
    mappings: dict[str, Any]


@dataclass(frozen=True, slots=True)
class RouteTables:
    """The tables: brokers by name, broker names by cluster, and broker names by topic.

    changed: broker names whose addresses may have changed, with the HA address of the last registration.
    """

    brokers: dict[str, BrokerRecord] = field(default_factory=dict)
    clusters: dict[str, set[str]] = field(default_factory=dict)
    topics: dict[str, dict[str, None]] = field(default_factory=dict)
    changed: dict[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class AbsentBroker:
    """An absent broker and its topics. since_ms: None until the next scan."""

    cluster: str
    topics: set[str]
    since_ms: MonotonicMs | None = None


class BrokerAddress(NamedTuple):
    """One broker process."""

    cluster: str
    address: str


class Registered(NamedTuple):
    """The answer to a registration; a slave gets its master's address."""

    is_new: bool
    master_address: str = ""
    ha_address: str = ""


class RouteInfo:
    """All state of a name server."""

    def __init__(self) -> None:
        self.tables = RouteTables()
        self._brokers = self.tables.brokers
        self._clusters = self.tables.clusters
        self._topics = self.tables.topics
        self._pending: list[PendingTopics] = []
        #: Broker names, each with topics to be removed from the table of topics.
        self._left: deque[tuple[str, dict[str, QueueData]]] = deque()
        self._live: dict[str, Liveness] = {}
        #: Absent brokers by name, in the order of their departure.
        self._absent: dict[str, AbsentBroker] = {}

    # Brokers.

    def register(
        self,
        header: RegisterBrokerHeader,
        table: TopicConfigSerializeWrapper,
        *,
        owner: object,
        zone: str | None,
        now_ms: MonotonicMs,
    ) -> Work[Registered]:
        """Register a broker at once, and its topics in slices.

        Raises BrokerError if it is refused, with nothing changed, or if the broker leaves meanwhile.
        """
        broker = self._brokers.get(header.broker_name) or BrokerRecord(header.cluster_name)
        check_registration(
            header,
            table,
            broker_names=self._brokers.keys(),
            broker_ids=broker.addresses.keys(),
            topics=self._topics.keys(),
        )
        holder = broker.addresses.get(header.broker_id)
        if holder is not None and holder != header.broker_addr and self._is_deposed(table, by=holder):
            # A deposed master is alive, but its data is ignored.
            self._forget([header.broker_addr] if header.broker_addr in self._live else [])
            return Registered(is_new=False)
        is_first = holder is None
        if is_first and len(table.topic_config_table) == 1:  # A change, but the other topics are unknown.
            raise BrokerError(ResponseCode.SYSTEM_ERROR, "register broker failed")

        before = self._live.get(header.broker_addr)
        named = (header.cluster_name, header.broker_name)
        if before is not None and (before.cluster, before.broker_name) != named:
            self._forget([header.broker_addr])  # A different broker now listens at this address.
        self._brokers[header.broker_name] = broker
        self._clusters.setdefault(header.cluster_name, set()).add(header.broker_name)
        broker.acting_master = bool(header.enable_acting_master)
        broker.zone = zone
        self._set_address(header, broker)
        stored = self.data_version(BrokerAddress(header.cluster_name, header.broker_addr))
        liveness = self._live[header.broker_addr] = Liveness(
            cluster=header.cluster_name,
            broker_name=header.broker_name,
            owner=owner,
            data_version=_unfinished(table.data_version),
            ha_address=header.ha_server_addr,
            timeout_ms=header.heartbeat_timeout_millis or HEARTBEAT_TIMEOUT_MS,
            last_seen_ms=now_ms,
        )
        if self._has_topics(header, broker):
            changed = is_first or stored != table.data_version
            for _ in self._take_topics(header, table, broker, changed=changed):
                yield None
                self._require_place(header, broker, liveness)
                if not self._has_topics(header, broker):  # Its master has registered.
                    return self._answer(header, broker, is_new=is_first)
            broker.is_wiped = broker.is_wiped and not changed  # New topics have their own permissions.
            self._absent.pop(header.broker_name, None)
        liveness.data_version = table.data_version
        return self._answer(header, broker, is_new=is_first)

    def _set_address(self, header: RegisterBrokerHeader, broker: BrokerRecord) -> None:
        broker.addresses = _without(broker.addresses, header.broker_addr)
        broker.addresses[header.broker_id] = header.broker_addr
        self.tables.changed[header.broker_name] = header.ha_server_addr

    def _require_place(self, header: RegisterBrokerHeader, broker: BrokerRecord, liveness: Liveness) -> None:
        """Raise BrokerError if a broker has lost its place since the last slice of its topics.

        Later slices would overwrite the topics of the broker that has the place now.
        """
        if self._live.get(header.broker_addr) is not liveness:
            raise broker_error(ResponseCode.SYSTEM_ERROR, "the broker left while it was registered")
        if broker.addresses.get(header.broker_id) != header.broker_addr:
            place = f"{header.broker_name} with id {header.broker_id}"
            raise broker_error(
                ResponseCode.SYSTEM_ERROR, f"another broker has become {place} while it was registered"
            )

    def displaced(
        self, header: RegisterBrokerHeader, table: TopicConfigSerializeWrapper, *, owner: object
    ) -> list[object]:
        """Return the connections of live brokers that a registration would replace."""
        addresses = [header.broker_addr]
        broker = self._brokers.get(header.broker_name)
        holder = broker.addresses.get(header.broker_id) if broker is not None else None
        if holder is not None and not self._is_deposed(table, by=holder):
            addresses.append(holder)
        owners = (self._live[address].owner for address in addresses if address in self._live)
        return [*dict.fromkeys(each for each in owners if each is not owner)]

    def unregister(self, key: BrokerAddress, *, owner: object) -> bool:
        """Remove a broker; return whether it was known. Raises BrokerError unless `owner` registered it."""
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
        """Remove the brokers registered over a connection that ended."""
        return self._forget([address for address, broker in self._live.items() if broker.owner is owner])

    @property
    def has_brokers(self) -> bool:
        """Return whether any broker is registered."""
        return bool(self._live)

    @property
    def expires_ms(self) -> MonotonicMs:
        """Return when the next broker expires, unless it sends a heartbeat before."""
        return min(broker.last_seen_ms + broker.timeout_ms + 1 for broker in self._live.values())

    def expire(self, now_ms: MonotonicMs) -> tuple[list[BrokerAddress], list[object]]:
        """Remove expired brokers; return them, and the connections left without any broker."""
        late = [
            address
            for address, broker in self._live.items()
            if broker.last_seen_ms + broker.timeout_ms < now_ms
        ]
        for name, absent in list(self._absent.items()):
            absent.since_ms = now_ms if absent.since_ms is None else absent.since_ms
            if absent.since_ms + ABSENT_MS_MAX < now_ms:
                del self._absent[name]
        owners = [self._live[address].owner for address in late]
        forgotten = self._forget(late)
        still_used = {id(liveness.owner) for liveness in self._live.values()}
        return forgotten, [owner for owner in owners if id(owner) not in still_used]

    def stalled(self, stall_ms: int, now_ms: MonotonicMs) -> None:
        """Extend the deadlines after a stall of this process."""
        for liveness in self._live.values():
            liveness.last_seen_ms = min(now_ms, liveness.last_seen_ms + stall_ms)

    def seen(self, key: BrokerAddress, now_ms: MonotonicMs) -> None:
        """Note a heartbeat of a broker."""
        liveness = self._find(key)
        if liveness is not None:
            liveness.last_seen_ms = now_ms

    def data_version(self, key: BrokerAddress) -> DataVersion | None:
        """Return the version of a broker's registered topic table."""
        liveness = self._find(key)
        return None if liveness is None else liveness.data_version

    # Topics.

    def route(self, topic: str) -> TopicRouteData | None:
        """Return a topic's route; None if no broker has it."""
        found = [
            (name, broker)
            for name in self._topics.get(topic, ())
            if (broker := self._brokers.get(name)) is not None and topic in broker.queues
        ]
        if not found:
            return None
        mappings = {name: broker.mappings[topic] for name, broker in found if topic in broker.mappings}
        return TopicRouteData(
            queue_datas=[broker.offered(topic) for _, broker in found],
            broker_datas=[self._broker_data(name) for name, _ in found],
            topic_queue_mapping_by_broker=mappings or None,
            lb_absent_brokers=self.absent(topic) or None,
        )

    def absent(self, topic: str) -> list[str]:
        """Return the absent brokers that had a topic."""
        return [
            name
            for name, absent in self._absent.items()
            if topic in absent.topics and name not in self._topics.get(topic, ())
        ]

    def delete_topic(self, topic: str, cluster: str | None = None) -> None:
        """Remove a topic's route, everywhere or in one cluster."""
        names = set(self._clusters.get(cluster, ())) if cluster else self._brokers.keys()
        for pending in self._pending:
            if pending.broker_name in names:
                pending.topics.pop(topic, None)
                pending.mappings.pop(topic, None)
        for absent in self._absent.values():
            if cluster in (None, "", absent.cluster):
                absent.topics.discard(topic)
        for name in names:
            self._brokers[name].queues.pop(topic, None)
            self._brokers[name].mappings.pop(topic, None)
            self._remove_name(topic, name)

    def topics(self) -> list[str]:
        """Return the names of all topics."""
        return list(self._topics)

    def of_cluster(self, cluster: str, topics: Iterable[str]) -> list[str]:
        """Return those of the topics that a cluster's brokers have."""
        names = self._clusters.get(cluster, set())
        return [topic for topic in topics if not names.isdisjoint(self._topics.get(topic, ()))]

    def clusters(self) -> ClusterInfo:
        """Return all clusters and brokers."""
        return ClusterInfo(
            broker_addr_table={name: self._broker_data(name) for name in self._brokers},
            cluster_addr_table={cluster: sorted(names) for cluster, names in self._clusters.items()},
        )

    # Internals.

    def _has_topics(self, header: RegisterBrokerHeader, broker: BrokerRecord) -> bool:
        """Return whether a broker's topics count: it is a master or an acting master."""
        return header.broker_id == MASTER_ID or _is_prime_slave(header, broker)

    def _take_topics(
        self,
        header: RegisterBrokerHeader,
        table: TopicConfigSerializeWrapper,
        broker: BrokerRecord,
        *,
        changed: bool,
    ) -> Iterator[None]:
        """Register a broker's topics, and yield after each slice."""
        name = header.broker_name
        read_only = _is_prime_slave(header, broker) and broker.acting_master
        pending = PendingTopics(
            name, table.topic_config_table.copy(), table.topic_queue_mapping_info_map.copy()
        )
        self._pending.append(pending)
        try:
            while pending.topics:
                for topic in list(islice(pending.topics, PORTION)):
                    config = pending.topics.pop(topic)
                    if changed or topic not in broker.queues:
                        broker.queues[topic] = _queue_data(name, config, read_only=read_only)
                        self._topics.setdefault(topic, {})[name] = None
                if pending.topics:
                    yield
            while changed and pending.mappings:
                for topic in list(islice(pending.mappings, PORTION)):
                    info = pending.mappings.pop(topic)
                    if topic in broker.queues:
                        broker.mappings[topic] = info
                if pending.mappings:
                    yield
            if changed and header.lb_whole:
                self._leave_topics(name, broker, table)
        finally:
            self._pending.remove(pending)

    def _leave_topics(self, name: str, broker: BrokerRecord, whole: TopicConfigSerializeWrapper) -> None:
        """Remove topics missing from a broker's complete table (Apache: deleteTopicWithBrokerRegistration).

        Otherwise only DELETE_TOPIC_IN_NAMESRV would remove them, which Kafka's tools do not send.
        """
        gone = {topic: broker.queues.pop(topic) for topic in broker.queues.keys() - whole.topic_config_table}
        for topic in gone:
            broker.mappings.pop(topic, None)
        self._left.append((name, gone))
        self.tidy()

    def _answer(self, header: RegisterBrokerHeader, broker: BrokerRecord, *, is_new: bool) -> Registered:
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
        self.tidy()
        return forgotten

    def _remove(self, broker_name: str, address: str) -> None:
        """Remove an address from its broker name, and the name along with its last address."""
        broker = self._brokers.get(broker_name)
        if broker is None:
            return
        broker.addresses = _without(broker.addresses, address)
        self.tables.changed[broker_name] = ""
        if broker.addresses:
            if broker.acting_master and broker.lowest_id > MASTER_ID:
                broker.is_wiped = True
            return
        del self._brokers[broker_name]
        for cluster in [cluster for cluster, names in self._clusters.items() if broker_name in names]:
            self._clusters[cluster].discard(broker_name)
            if not self._clusters[cluster]:
                del self._clusters[cluster]
        self._note_absent(broker_name, broker)
        self._left.append((broker_name, broker.queues))
        broker.queues, broker.mappings = {}, {}

    def _note_absent(self, broker_name: str, broker: BrokerRecord) -> None:
        """Remember a departed broker's topics; over the limit, forget the longest absent brokers."""
        known = self._absent.pop(broker_name, None) or AbsentBroker(broker.cluster, set())
        known.topics.update(broker.queues)
        self._absent[broker_name] = known
        while sum(len(absent.topics) for absent in self._absent.values()) > ABSENT_TOPICS_MAX:
            del self._absent[next(iter(self._absent))]

    @property
    def is_untidy(self) -> bool:
        """Return whether removed topics have yet to be cleaned up."""
        return bool(self._left)

    def tidy(self) -> None:
        """Clean up a slice of the brokers' removed topics, except those that were registered again."""
        for _ in range(PORTION):
            while self._left and not self._left[0][1]:
                self._left.popleft()
            if not self._left:
                return
            name, queues = self._left[0]
            topic, _queues = queues.popitem()
            broker = self._brokers.get(name)
            if broker is None or topic not in broker.queues:
                self._remove_name(topic, name)

    def _remove_name(self, topic: str, broker_name: str) -> None:
        """Remove a broker name from a topic, and the topic along with its last name."""
        names = self._topics.get(topic)
        if names is not None:
            names.pop(broker_name, None)
            if not names:
                del self._topics[topic]

    def _broker_data(self, broker_name: str) -> BrokerData:
        broker = self._brokers[broker_name]
        return BrokerData(
            cluster=broker.cluster,
            broker_name=broker_name,
            broker_addrs=dict(sorted(broker.addresses.items())),
            enable_acting_master=broker.acting_master,
            zone_name=broker.zone,
        )


def _is_prime_slave(header: RegisterBrokerHeader, broker: BrokerRecord) -> bool:
    return (
        header.broker_id != MASTER_ID
        and header.enable_acting_master is not None
        and header.broker_id == broker.lowest_id
    )


def _unfinished(version: DataVersion) -> DataVersion:
    """Return the version of an incompletely registered table: no broker's, but of the same term."""
    return DataVersion(state_version=version.state_version, timestamp=-1, counter=-1)


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


def flagged(tables: RouteTables, topics: Sequence[str], mask: int, flags: int) -> list[str]:
    """Return the topics whose masked flags at their first broker equal these."""
    found = []
    for topic in topics:
        name = next(iter(tables.topics.get(topic, ())), None)
        broker = tables.brokers.get(name) if name is not None else None
        queues = broker.queues.get(topic) if broker is not None else None
        if queues is not None and queues.topic_sys_flag & mask == flags:
            found.append(topic)
    return found


def set_writable(tables: RouteTables, broker_name: str, *, writable: bool) -> Work[int]:
    """Change the write permission of all topics of a broker; return their number.

    Adding it always sets perm 6, as Apache's name server does.
    """
    broker = tables.brokers.get(broker_name)
    if broker is None:
        return 0
    count = 0
    for topic in list(broker.queues):
        queues = broker.queues.get(topic)
        if queues is not None:  # The topic may have been deleted meanwhile.
            perm = PERM_READ | PERM_WRITE if writable else queues.perm & ~PERM_WRITE
            broker.queues[topic] = msgspec.structs.replace(queues, perm=perm)
            count += 1
            yield None
    return count


def register_topic(tables: RouteTables, topic: str, queue_datas: Sequence[QueueData]) -> None:
    """Add a topic's route at known brokers; does nothing if any of them is unknown."""
    check_topic_name(topic)
    if topic not in tables.topics and len(tables.topics) >= TOPICS_MAX:
        raise broker_error(ResponseCode.SYSTEM_ERROR, f"over {TOPICS_MAX} topics")
    for queues in queue_datas:
        check_queues(topic, queues)
    if any(queues.broker_name not in tables.brokers for queues in queue_datas):
        return  # Apache's name server answers success as well.
    for queues in queue_datas:
        tables.brokers[queues.broker_name].queues[topic] = queues
        tables.topics.setdefault(topic, {})[queues.broker_name] = None


def member_group(tables: RouteTables, cluster: str, broker_name: str) -> BrokerData:
    """Return the addresses of a broker name; empty if it is unknown."""
    broker = tables.brokers.get(broker_name)
    addresses = dict(sorted(broker.addresses.items())) if broker is not None else {}
    return BrokerData(cluster=cluster, broker_name=broker_name, broker_addrs=addresses)
