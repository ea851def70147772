"""The simulated Kafka member: a client of a group of KIP-848, as Java's or librdkafka's is.

find the coordinator ─► join ─► heartbeats ─► another assignment: revoke, commit, report; then take, report
        ▲                                 ├─► fenced: everything is lost, join again
        └── no answer, another broker ◄───┘

Its requests have the bytes of the real codec; nothing of it is shared with the broker.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from libramq.testing.history import Violation
from libramq.testing.machine.process import Process
from libramq.testing.machine.virtual_time import Event
from libramq.testing.nodes.kafka_facts import JOINS, KafkaBeat, KafkaGroupPlan, KafkaPartitions
from libramq.testing.nodes.kafka_link import JAVA, LIBRDKAFKA, KafkaLink
from libramq.testing.nodes.kafka_reader import KafkaReader
from libramq.testing.scenarios.happening import Happening
from libramq.testing.world import World
from libramq.wire.kafka.apis.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    TopicPartitions,
)
from libramq.wire.kafka.apis.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from libramq.wire.kafka.error_code import ErrorCode

LEAVES: Final = -1
LEAVES_FOR_A_WHILE: Final = -2
NOTHING: Final[KafkaPartitions] = frozenset()
#: retry.backoff.ms of Java's clients.
RETRY_MS: Final = 100
#: How soon a static member tries again whose place is taken.
TAKEN_MS: Final = 500
#: How long a stopping member waits for its coordinator (close with a timeout).
STOP_MS_MAX: Final = 2_000

#: Another broker coordinates, or this one cannot now.
_FIND_AGAIN: Final = (
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
)
_FENCED: Final = (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_MEMBER_EPOCH)


class SimulatedKafkaMember:
    """One member, from its process's start to its end. instance_id: of a static one."""

    def __init__(
        self,
        world: World,
        name: str,
        plan: KafkaGroupPlan,
        brokers: Sequence[str],
        *,
        instance_id: str | None = None,
    ) -> None:
        self.name = name
        self.plan = plan
        self.instance_id = instance_id
        self.is_stopping = False
        #: Whether another member has its place.
        self.is_replaced = False
        #: The epoch of its last answer, and how often it has joined.
        self.epoch, self.life = JOINS, 0
        #: What it reads, and what its coordinator takes it to have.
        self.owned = self.reported = NOTHING
        self._world = world
        self._random = world.stream(name)
        self._brokers = brokers
        self._software = self._random.choice((JAVA, LIBRDKAFKA))
        self._links: dict[tuple[str, str], KafkaLink] = {}
        #: The broker that it takes for its coordinator.
        self.coordinator_address: str | None = None
        self._target: KafkaPartitions | None = None
        self._is_full = True
        self._is_reconciling = self._is_finding = False
        self._beating: KafkaBeat | None = None
        self._timer: Event | None = None
        self.process = Process(name, world.time, clock=world.clock(name))
        self.process.start()
        self.reader = KafkaReader(world, self, brokers)
        self.process.after(0, self._start)

    @property
    def is_alive(self) -> bool:
        """Return whether it takes part in its group, or is about to."""
        return self.process.is_alive and not self.is_stopping

    @property
    def is_in(self) -> bool:
        """Return whether it has joined, and has the assignment that it was sent last."""
        return self.epoch > JOINS and self._target in (None, self.owned)

    @property
    def coordinator(self) -> str | None:
        """Return the name of that broker."""
        address = self.coordinator_address
        return self._world.network.name_at(address) if address is not None else None

    def link(self, purpose: str, address: str) -> KafkaLink:
        """Return its connection to a broker: one to coordinate, one to read."""
        key = (purpose, address)
        if key not in self._links:
            self._links[key] = KafkaLink(
                self._world.network, self.process, address, client_id=self.name, software=self._software
            )
        return self._links[key]

    # Start and stop.

    def _start(self) -> None:
        self.reader.start()
        self._find()

    def stop(self) -> None:
        """Leave gracefully: a static member keeps its place for a session."""
        self.is_stopping = True
        self.process.do(self._stop)

    def _stop(self) -> None:
        self.process.after(STOP_MS_MAX, self.kill)
        self.reader.commit(self.owned, self._leave)

    def _leave(self) -> None:
        if self.coordinator_address is None or self.epoch == JOINS:
            self.kill()
            return
        epoch = LEAVES if self.instance_id is None else LEAVES_FOR_A_WHILE
        self._own(NOTHING)
        request = ConsumerGroupHeartbeatRequest(
            group_id=self.plan.name,
            member_id=self.member_id,
            member_epoch=epoch,
            instance_id=self.instance_id,
        )
        self.link("group", self.coordinator_address).ask(request, lambda _: self.kill())

    def kill(self) -> None:
        """Kill it, as by SIGKILL."""
        if self.process.is_alive:
            self.process.kill()
            self._world.network.died(self.process)
            self._own(NOTHING)
            self._world.history.note(self.name, "gone")

    # The coordinator.

    @property
    def member_id(self) -> str:
        """Return the id that it has chosen."""
        return f"{self.name}-id"

    def _find(self) -> None:
        if self._is_finding:
            return
        self._is_finding = True
        address = self._random.choice(self._brokers)
        request = FindCoordinatorRequest(coordinator_keys=(self.plan.name,))
        self.link("any", address).ask(request, self._found)

    def _found(self, response: FindCoordinatorResponse | None) -> None:
        self._is_finding = False
        one = response.coordinators[0] if response is not None else None
        if one is None or one.error_code:
            if one is not None and one.error_code not in _FIND_AGAIN:
                self._unexpected("FindCoordinator", one.error_code)
            self._later(RETRY_MS, self._find)
            return
        self.coordinator_address = f"{one.host}:{one.port}"
        self._is_full = True
        self._beat()

    def _lose_coordinator(self) -> None:
        self.coordinator_address = None
        self._later(RETRY_MS, self._find)

    def _later(self, delay_ms: int, action: Callable[[], None]) -> None:
        """Have one next step."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self.process.after(delay_ms, action)

    # Heartbeats.

    def _beat(self) -> None:
        """Send a heartbeat, unless one is under way, or no coordinator is known."""
        if self._beating is not None or self.is_stopping:
            return
        if self.coordinator_address is None:
            self._find()
            return
        is_join = self.epoch == JOINS
        if is_join:
            self.life += 1
        reports = self._is_full or self.owned != self.reported
        owned = (NOTHING if is_join else self.owned) if reports else None
        self._is_full, is_full = False, self._is_full or is_join
        self._own(self.owned)
        topics: dict[str, list[int]] = {}
        for each in sorted(owned or ()):
            topics.setdefault(each.topic, []).append(each.number)
        request = ConsumerGroupHeartbeatRequest(
            group_id=self.plan.name,
            member_id=self.member_id,
            member_epoch=self.epoch,
            instance_id=self.instance_id,
            rebalance_timeout_ms=self.plan.rebalance_ms if is_full else -1,
            subscribed_topic_names=self.plan.topics if is_full else None,
            server_assignor=self.plan.assignor if is_full else None,
            topic_partitions=None
            if owned is None
            else tuple(
                TopicPartitions(topic_id=self.reader.topic_ids[topic], partitions=tuple(numbers))
                for topic, numbers in topics.items()
            ),
        )
        now_ms = self._world.time.now_ms
        broker = self._world.network.name_at(self.coordinator_address)
        beat = KafkaBeat(self.plan.name, self.name, self.life, broker, self.epoch, owned, now_ms)
        self._world.history.kafka_beat(beat)
        self._beating = beat
        self.link("group", self.coordinator_address).ask(request, partial(self._answered, beat))

    def _answered(self, beat: KafkaBeat, response: ConsumerGroupHeartbeatResponse | None) -> None:
        self._beating = None
        if self.is_stopping:
            return
        if response is None:
            self._lose_coordinator()
            return
        code = response.error_code
        assigned = None
        if response.assignment is not None:
            assigned = self.reader.named(response.assignment.topic_partitions)
            if assigned is None:  # A topic that it does not know yet: the client asks for it.
                self._is_full = True
                self.reader.refresh()
                self._later(RETRY_MS, self._beat)
                return
        self._world.history.kafka_answered(beat, code, response.member_epoch, assigned)
        if code == ErrorCode.NONE:
            self._take(response, assigned)
        elif code in _FENCED:
            self._fenced()
        elif code in _FIND_AGAIN:
            self._lose_coordinator()
        elif code == ErrorCode.UNRELEASED_INSTANCE_ID:
            self._is_full = True
            self._later(TAKEN_MS, self._beat)
        elif code == ErrorCode.FENCED_INSTANCE_ID:
            self.is_replaced = True
            self._world.history.note(self.name, "is replaced")
            self.kill()
        else:
            self._unexpected("ConsumerGroupHeartbeat", code)

    def _take(self, response: ConsumerGroupHeartbeatResponse, assigned: KafkaPartitions | None) -> None:
        self.epoch = response.member_epoch
        self.reader.note_epoch(self.epoch)
        if assigned is not None:
            self._target = assigned
            self._reconcile()
        self._later(0 if self.owned != self.reported else response.heartbeat_interval_ms, self._beat)

    def _fenced(self) -> None:
        """Lose everything, and join again at once."""
        if self.epoch != JOINS:
            self._world.history.happened(Happening.KAFKA_FENCED, self.name)
        self.epoch = JOINS
        self._target = None
        self.owned = NOTHING
        self._own(NOTHING)
        self.reader.read(NOTHING)
        self.reader.note_epoch(JOINS)
        self._is_full = True
        self._later(RETRY_MS, self._beat)

    # The assignment.

    def _reconcile(self) -> None:
        """Revoke what it has too much; then take the rest."""
        if self._is_reconciling or self._target is None:
            return
        revoked = self.owned - self._target
        if not revoked:
            self._take_up()
            return
        self._is_reconciling = True
        life = self.life
        self.reader.read(self.owned - revoked)

        def is_same() -> bool:
            return self.life == life and self.epoch != JOINS

        def commit() -> None:
            self.reader.commit(revoked if is_same() else NOTHING, revoke)

        def revoke() -> None:
            self._is_reconciling = False
            if is_same():
                self.owned -= revoked
                self._later(0, self._beat)
            self._reconcile()

        self.process.after(self._random.randint(0, self.plan.revoke_ms_max), commit)

    def _take_up(self) -> None:
        assert self._target is not None
        gained = self._target - self.owned
        self.owned = self._target
        if gained:
            self._own(self.reported | gained)
        self.reader.read(self.owned)

    def _own(self, partitions: KafkaPartitions) -> None:
        """Note what it has, as far as its coordinator was told: what it gives up, from its heartbeat on."""
        if partitions != self.reported:
            self.reported = partitions
            self._world.history.kafka_owns(self.plan.name, self.name, partitions)

    def _unexpected(self, what: str, code: int) -> None:
        raise Violation("Kafka's requests are answered as its protocol says", f"{self.name}: {what}: {code}")
