"""The simulated cluster: a plan's servers, producers and groups, and the operations on them."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from libramq.client.consuming.consumer_settings import (
    REVOKE_TIMEOUT_MS,
    SESSION_MS,
    ConsumerSettings,
)
from libramq.client.options import ConsumeFrom
from libramq.clock import MonotonicMs, WallMs
from libramq.errors import LibraError
from libramq.filter.tag import parse_tag_filter
from libramq.formats.tables import SubscriptionGroupConfig, TopicConfig
from libramq.message.queue import MessageQueue
from libramq.nameserver.config import NameServerConfig
from libramq.rpc.admin_calls import create_group, create_topic, delete_group, delete_topic, reset_offsets
from libramq.rpc.group_calls import find_group, remove_member
from libramq.testing.happening import Happening
from libramq.testing.history import Commit, KafkaGroupPlan, Watcher
from libramq.testing.machine.network import ask, simulated_remotes
from libramq.testing.machine.process import Process
from libramq.testing.nodes.broker_node import SimulatedBroker, SimulatedSlave
from libramq.testing.nodes.consumer_node import Handling, MemberPlan, SimulatedConsumer
from libramq.testing.nodes.kafka_member import KafkaMembers
from libramq.testing.nodes.name_server_node import SimulatedNameServer
from libramq.testing.nodes.popper_node import (
    INVISIBLE_MS,
    LONG_INVISIBLE_MS,
    SimulatedPopMember,
    SimulatedPopper,
)
from libramq.testing.nodes.producer_node import ProducerPlan, SimulatedProducer, SimulatedTransactions
from libramq.testing.world import World

HA_PORT = 10_912
KAFKA_PORT = 9_092
#: Pause before an administrator repeats a failed request.
ADMIN_AGAIN_MS = 100
#: More queues than any topic has (operations.QUEUES_MAX).
QUEUES_MAX = 16
#: Share of delayed messages if slaves may act.
DELAY_CHANCE = 0.4
AS_SYNC_MASTER: Mapping[str, Any] = {"broker_role": "SYNC_MASTER", "in_sync_replicas": 2}
#: Brokers check open transactions soon, and so often that no simulated one is given up.
CHECKS: Mapping[str, Any] = {
    "transaction_timeout_ms": 2_000,
    "transaction_check_interval_ms": 2_000,
    "transaction_check_max": 1_000,
}
#: Average interval between a producer's transactions if slaves may act.
TRANSACTION_INTERVAL_MS = 150
#: The group of our own clients that pop.
POP_GROUP = "P1"
POP_ROUTES_MS = 1_000
#: Later than the end of any simulation on any of its clocks.
FOR_EVER_MS = 1 << 60


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupPlan:
    """A group's settings, common to its members. Member n subscribes to `topics[n % len(topics)]`.

    stock_chance: the chance that a member offers no coordination, like RocketMQ's own clients. ask_chance:
    the chance that such a member asks the broker for its queues. is_static: members keep their queues over a
    restart. is_broadcasting: every member gets every message.
    """

    name: str
    topics: tuple[tuple[str, ...], ...]
    orderly: bool = False
    handling: Handling = field(default_factory=Handling)
    stock_chance: float = 0.0
    ask_chance: float = 0.0
    is_broadcasting: bool = False
    max_reconsume_times: int = -1
    is_static: bool = False
    route_refresh_ms: int = 5_000
    persist_ms: int = 1_000
    session_ms: int = SESSION_MS
    revoke_timeout_ms: int = REVOKE_TIMEOUT_MS


@dataclass(frozen=True, slots=True, kw_only=True)
class PopPlan:
    """A group of our clients that pops all topics. Besides it, one group for each topic pops in order."""

    members: int
    invisible_ms: int
    retries_max: int
    handling: Handling


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterPlan:
    """The processes of a cluster.

    is_sync: brokers flush before they acknowledge. slave_count: this many masters have a slave, or two with
    has_second_slaves. waits_for_slaves: masters acknowledge a message once a slave has it. has_acting_slaves:
    slaves deliver delayed messages while their masters are gone. has_long_pops: popped messages may be
    invisible for longer than a slave acts.
    """

    broker_count: int
    is_sync: bool
    name_server_count: int = 1
    slave_count: int = 0
    waits_for_slaves: bool = False
    has_acting_slaves: bool = False
    has_second_slaves: bool = False
    has_long_pops: bool = False
    pops: PopPlan | None = None
    kafka_groups: tuple[KafkaGroupPlan, ...] = ()


class Cluster(Watcher):
    """All simulated processes."""

    def __init__(self, world: World, plan: ClusterPlan) -> None:
        self.world = world
        self.is_sync = plan.is_sync
        self.waits_for_slaves = plan.waits_for_slaves
        self.has_acting_slaves = plan.has_acting_slaves
        #: When brokers' machines last lost power, on both clocks.
        self.cuts_ms: dict[str, MonotonicMs] = {}
        self.cuts_wall_ms: dict[str, WallMs] = {}
        self.topics: dict[str, int] = {}
        #: When topics were last deleted at brokers, on both clocks; FOR_EVER_MS until a request succeeds.
        self.deletions_ms: dict[tuple[str, str], MonotonicMs] = {}
        self.deletions_wall_ms: dict[tuple[str, str], WallMs] = {}
        self._set_back: set[tuple[str, str, str]] = set()
        self.members: list[SimulatedConsumer] = []
        self.producers: list[SimulatedProducer] = []
        config = NameServerConfig(support_acting_master=plan.has_acting_slaves)
        self.transactions: list[SimulatedTransactions] = []
        self.poppers: list[SimulatedPopper] = []
        self.pops = plan.pops
        self._invisible_ms = (*INVISIBLE_MS, *((LONG_INVISIBLE_MS,) if plan.has_long_pops else ()))
        self.pop_members: list[SimulatedPopMember] = []
        self.name_servers = [
            SimulatedNameServer(world, number, config) for number in range(1, plan.name_server_count + 1)
        ]
        self._addresses = [each.address for each in self.name_servers]
        self._kafka_port = KAFKA_PORT if plan.kafka_groups else 0
        self.brokers = {
            name: self._new_broker(name, number, has_slave=number <= plan.slave_count)
            for number, name in enumerate(
                [f"broker-{letter}" for letter in "abcdefgh"][: plan.broker_count], 1
            )
        }
        #: Slaves by the names of their masters.
        self.slaves = {
            master.name: self._new_slave(master, number)
            for number, master in enumerate(list(self.brokers.values())[: plan.slave_count], 1)
        }
        self.second_slaves = {
            name: self._new_slave(slave.master, number, broker_id=2)
            for number, (name, slave) in enumerate(self.slaves.items() if plan.has_second_slaves else (), 1)
        }
        kafka_addresses = [f"{each.config.broker_ip}:{KAFKA_PORT}" for each in self.brokers.values()]
        self.kafka = KafkaMembers(world, plan.kafka_groups, kafka_addresses)
        self._joined = self._produced = 0
        self._random = world.stream("members")
        self._admin = Process("admin", world.time)
        self._admin.start()
        self._remotes = simulated_remotes(world.network, self._admin)
        world.history.watchers.append(self)
        for broker in (*self.brokers.values(), *self.every_slave):
            broker.start()

    def _new_broker(self, name: str, number: int, *, has_slave: bool) -> SimulatedBroker:
        as_master = {"ha_listen_port": HA_PORT, "enable_slave_acting_master": self.has_acting_slaves}
        return SimulatedBroker(
            self.world,
            name,
            f"10.0.0.{number}",
            self._addresses,
            flush_disk_type="SYNC_FLUSH" if self.is_sync else "ASYNC_FLUSH",
            ha_allowed_addresses="10.0.0.0/8",
            kafka_listen_port=self._kafka_port,
            **(as_master if has_slave else {}),
            **(AS_SYNC_MASTER if has_slave and self.waits_for_slaves else {}),
            **(CHECKS if self.has_acting_slaves else {}),
        )

    def _new_slave(self, master: SimulatedBroker, number: int, broker_id: int = 1) -> SimulatedSlave:
        return SimulatedSlave(
            self.world,
            master,
            f"10.0.{broker_id}.{number}",
            self._addresses,
            broker_id=broker_id,
            flush_disk_type=master.config.flush_disk_type,
            enable_slave_acting_master=self.has_acting_slaves,
            enable_remote_escape=self.has_acting_slaves,
            **(CHECKS if self.has_acting_slaves else {}),
        )

    @property
    def now_ms(self) -> MonotonicMs:
        """Return the simulation's monotonic time."""
        return self.world.time.now_ms

    @property
    def every_slave(self) -> list[SimulatedSlave]:
        """Return all slaves."""
        return [*self.slaves.values(), *self.second_slaves.values()]

    def popping(self) -> dict[str, list[str]]:
        """Return the popping groups, with their topics."""
        groups = {popper.group: [popper.topic] for popper in self.poppers}
        return groups | ({POP_GROUP: list(self.topics)} if self.pops is not None else {})

    def hands_over_cleanly(self, group: str) -> bool:
        """Return whether handovers without faults cause no redeliveries."""
        return not any(member.plan.is_stock for member in self.members if member.group == group)

    def may_have_lost(self, broker: str, requested_ms: MonotonicMs) -> bool:
        """Return whether a message sent to a broker at that time may be lost, even if acknowledged."""
        return not self.is_sync and requested_ms <= self.cuts_ms.get(broker, MonotonicMs(-1))

    def was_deleted(self, queue: MessageQueue, requested_ms: MonotonicMs | None = None) -> bool:
        """Return whether data sent to a queue at that time (None: ever) may be deleted with its topic."""
        if (queue.broker_name, queue.topic) not in self.deletions_ms:
            return False
        # A send may create the topic first, with more queues than the administrator then gives it.
        return (
            requested_ms is None
            or self.was_deleted_at(queue.broker_name, queue.topic, requested_ms)
            or queue.queue_id >= self.topics[queue.topic]
        )

    def was_deleted_at(self, broker: str, topic: str, requested_ms: MonotonicMs) -> bool:
        """Return whether data sent to a topic at that time may be deleted with it at a broker."""
        return requested_ms <= self.deletions_ms.get((broker, topic), MonotonicMs(-1))

    def was_stored_before_deletion(self, queue: MessageQueue, stored_ms: WallMs) -> bool:
        """Return whether a message may belong to a deleted topic of the same name."""
        return stored_ms <= self.deletions_wall_ms.get((queue.broker_name, queue.topic), WallMs(-1))

    def make_again(self, broker: str, topic: str, after_ms: int) -> None:
        """Delete a topic at a broker, and create it again after a delay."""
        node, key = self.brokers[broker], (broker, topic)
        self.deletions_ms[key], self.deletions_wall_ms[key] = MonotonicMs(FOR_EVER_MS), WallMs(FOR_EVER_MS)
        self.world.history.topic_deleted(broker, topic)

        def deleted(outcome: object) -> None:
            if not isinstance(outcome, LibraError):  # Otherwise the deletion may still happen at any time.
                self.deletions_ms[key] = self.now_ms
                self.deletions_wall_ms[key] = node.process.clock.wall_ms_max
                self.world.history.topic_deleted(broker, topic)
                self.world.history.happened(Happening.MADE_AGAIN, topic)
            self._admin.after(after_ms, lambda: self._set_queues(node.address, topic, self.topics[topic]))

        ask(self._remotes, node.address, delete_topic(topic), deleted)

    def was_set_back(self, group: str, queue: MessageQueue) -> bool:
        """Return whether an operator has ever reset a group's offset in a queue."""
        return (queue.broker_name, group, queue.topic) in self._set_back

    def set_back(self, broker: str, group: str, topic: str) -> None:
        """Have a broker reset a group to the beginning of a topic."""
        self._set_back.add((broker, group, topic))
        for queue_id in range(QUEUES_MAX):
            commit = Commit(0, self.now_ms)  # The reset may take effect at any time.
            self.world.history.commit_requested(group, MessageQueue(topic, broker, queue_id), commit)

        def done(outcome: object) -> None:
            if not isinstance(outcome, LibraError):
                self.world.history.happened(Happening.SET_BACK, group)

        call = reset_offsets(group, topic, timestamp_ms=0, force=False)
        ask(self._remotes, self.brokers[broker].address, call, done)

    def set_back_pops(self, broker: str, group: str, topic: str) -> None:
        """Have a broker reset a popping group to the beginning of a topic."""
        self.world.history.pops_set_back(group, topic, broker, None)

        def done(outcome: dict[MessageQueue, int] | LibraError) -> None:
            if not isinstance(outcome, LibraError):
                self.world.history.happened(Happening.POPS_SET_BACK, group)
                self.world.history.pops_set_back(group, topic, broker, outcome.keys())

        call = reset_offsets(group, topic, timestamp_ms=0)
        ask(self._remotes, self.brokers[broker].address, call, done)

    def delete_group(self, broker: str, group: str) -> None:
        """Delete a subscription group at a broker, except for its offsets."""

        def deleted(outcome: object) -> None:
            if not isinstance(outcome, LibraError):
                self.world.history.happened(Happening.GROUP_DELETED, group)

        ask(self._remotes, self.brokers[broker].address, delete_group(group), deleted)

    def broker_died(self, name: str, durable_to: int | None) -> None:
        if durable_to is not None:
            self.cuts_ms[name] = self.now_ms
            self.cuts_wall_ms[name] = self.brokers[name].process.clock.wall_ms_max
            for topic, count in self.topics.items():  # A change of the last half second may be lost.
                self._set_queues(self.brokers[name].address, topic, count)

    def set_queues(self, topic: str, count: int) -> None:
        """Create a topic on every broker, or give it more queues."""
        self.topics[topic] = count
        for broker in self.brokers.values():
            self._set_queues(broker.address, topic, count)

    def _set_queues(self, address: str, topic: str, count: int) -> None:
        config = TopicConfig(topic_name=topic, read_queue_nums=count, write_queue_nums=count, perm=6)

        def answered(outcome: object) -> None:
            if isinstance(outcome, LibraError) or self.topics[topic] != count:
                self._admin.after(
                    ADMIN_AGAIN_MS, lambda: self._set_queues(address, topic, self.topics[topic])
                )

        ask(self._remotes, address, create_topic(config, abandon_unread=True), answered)

    def produce(self, topic: str, *, interval_ms: int, body_bytes: int) -> None:
        """Start a producer. If slaves may act, also delays some messages and starts a transaction producer.

        If slaves may act or the plan has popping groups, also starts a popper.
        """
        self._produced += 1
        name = f"producer-{self._produced}"
        self.producers.append(
            SimulatedProducer(
                self.world,
                name,
                self._addresses,
                ProducerPlan(topic, interval_ms, body_bytes, DELAY_CHANCE if self.has_acting_slaves else 0.0),
            )
        )
        if self.has_acting_slaves:
            self.transactions.append(
                SimulatedTransactions(
                    self.world,
                    f"transactions-{self._produced}",
                    topic,
                    self._addresses,
                    interval_ms=TRANSACTION_INTERVAL_MS,
                )
            )
        if self.has_acting_slaves or self.pops is not None:
            slaves = {
                name: [each for each in self.every_slave if each.master.name == name] for name in self.slaves
            }
            masters = list(self.brokers.values())
            is_in_order = self.pops is not None
            self.poppers.append(
                SimulatedPopper(
                    self.world,
                    topic,
                    masters,
                    slaves,
                    in_order=is_in_order,
                    invisible_ms=self._invisible_ms,
                )
            )

    def join(
        self, plan: GroupPlan, kind: int | None = None, *, instead_of: SimulatedConsumer | None = None
    ) -> SimulatedConsumer:
        """Start a member of the given kind, or of the plan's next kind.

        instead_of: a member that has ended, whose place the new one takes.
        """
        topics = plan.topics[(self._joined if kind is None else kind) % len(plan.topics)]
        self._joined += 1
        name = f"member-{self._joined}"
        is_stock = self._random.random() < plan.stock_chance
        instance_id = name if plan.is_static and not is_stock else None
        asks = is_stock and self._random.random() < plan.ask_chance
        client_id, disk = name, None
        if instead_of is not None:
            topics, instance_id = instead_of.topics, instead_of.instance_id
            is_stock, asks = instead_of.plan.is_stock, instead_of.plan.asks
            if plan.is_broadcasting:
                client_id, disk = instead_of.client_id, instead_of.disk
        settings = ConsumerSettings(
            group=plan.name,
            client_id=client_id,
            instance_id=instance_id,
            consume_from=ConsumeFrom.FIRST_OFFSET,
            orderly=plan.orderly,
            broadcasting=plan.is_broadcasting,
            max_reconsume_times=plan.max_reconsume_times,
            route_refresh_ms=plan.route_refresh_ms,
            persist_ms=plan.persist_ms,
            session_ms=plan.session_ms,
            revoke_timeout_ms=plan.revoke_timeout_ms,
        )
        self.world.history.note(
            name, f"joins {plan.name} as {instance_id or name}, subscribes to {' '.join(topics)}"
        )
        member_plan = MemberPlan(
            settings,
            {topic: parse_tag_filter("*") for topic in topics},
            plan.handling,
            is_stock=is_stock,
            asks=asks,
        )
        member = SimulatedConsumer(self.world, name, member_plan, self._addresses, disk=disk)
        self.members.append(member)
        return member

    def join_pops(self) -> None:
        """Start a member of the popping group."""
        plan = self.pops
        assert plan is not None, "there is such a group"
        name = f"pop-member-{len(self.pop_members) + 1}"
        settings = ConsumerSettings(
            group=POP_GROUP,
            client_id=name,
            consume_from=ConsumeFrom.FIRST_OFFSET,
            route_refresh_ms=POP_ROUTES_MS,
            pop=True,
            invisible_ms=plan.invisible_ms,
        )
        self.world.history.note(name, f"joins {POP_GROUP}")
        member = MemberPlan(settings, {topic: parse_tag_filter("*") for topic in self.topics}, plan.handling)
        self.pop_members.append(SimulatedPopMember(self.world, name, member, self._addresses))

    def make_pop_groups(self) -> None:
        """Create the popping groups at every broker, with few attempts per message."""
        assert self.pops is not None, "there are such groups"
        for group in self.popping():
            config = SubscriptionGroupConfig(group_name=group, retry_max_times=self.pops.retries_max)
            for broker in self.brokers.values():
                self._make_group(broker.address, config)

    def _make_group(self, address: str, config: SubscriptionGroupConfig) -> None:
        def answered(outcome: object) -> None:
            if isinstance(outcome, LibraError):
                self._admin.after(ADMIN_AGAIN_MS, lambda: self._make_group(address, config))

        ask(self._remotes, address, create_group(config), answered)

    def member(self, name: str) -> SimulatedConsumer:
        """Return the member of that name, alive or not."""
        return next(member for member in self.members if member.name == name)

    def alive(self, group: str | None = None) -> list[SimulatedConsumer]:
        """Return the active members of one group or of all."""
        return [m for m in self.members if m.is_alive and (group is None or m.group == group)]

    def spare(self) -> list[SimulatedConsumer]:
        """Return the active members that are not the last of their kind."""
        alive = self.alive()
        kinds = Counter((member.group, member.topics) for member in alive)
        return [member for member in alive if kinds[member.group, member.topics] > 1]

    def remove(self, member: SimulatedConsumer) -> None:
        """Have an administrator remove a member, if its group's coordinator is found at once."""
        name = member.instance_id or member.name
        broker = self._random.choice(list(self.brokers.values()))

        def found(outcome: str | LibraError) -> None:
            if not isinstance(outcome, LibraError):
                ask(self._remotes, outcome, remove_member(member.group, name, "admin"), removed)

        def removed(outcome: LibraError | None) -> None:
            if outcome is None:
                self.world.history.happened(Happening.REMOVED, name)

        ask(self._remotes, broker.address, find_group(member.group), found)

    def groups(self) -> Collection[str]:
        """Return the groups that have had members, in the order of their first members."""
        return dict.fromkeys([member.group for member in self.members])

    def subscriptions(self) -> Mapping[str, set[str]]:
        """Return the topics that the members of each group subscribe to."""
        found: dict[str, set[str]] = {}
        for member in self.members:
            found.setdefault(member.group, set()).update(member.topics)
        return found

    def queues(self, topics: Iterable[str]) -> list[MessageQueue]:
        """Return every queue of the topics, at every broker."""
        return [
            MessageQueue(topic, broker, queue_id)
            for topic in sorted(topics)
            for broker in self.brokers
            for queue_id in range(self.topics[topic])
        ]
