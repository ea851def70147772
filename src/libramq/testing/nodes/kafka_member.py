"""The simulated Kafka member: a client in a KIP-848 group, like Java's or librdkafka's.

find the coordinator ─► join ─► heartbeats ─► another assignment: revoke, commit, report; then take, report
        ▲                                 ├─► fenced: everything is lost, join again
        └── no answer, another broker ◄───┘

Its requests are encoded by the real codec; it shares nothing else with the broker.
"""

import sys
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

from libramq.clock import MonotonicMs
from libramq.errors import RemoteError
from libramq.groups.modern.values import Partition, Partitions
from libramq.runtime.seams import Link
from libramq.testing.happening import Happening
from libramq.testing.history import (
    JOINS,
    KafkaBeat,
    KafkaCommit,
    KafkaGroupPlan,
    KafkaPosition,
    Violation,
)
from libramq.testing.machine.network import Network, SimulatedDialer
from libramq.testing.machine.process import Process
from libramq.testing.machine.virtual_time import Event
from libramq.testing.world import World
from libramq.wire.kafka.api import API_VERSIONS, APIS, Api
from libramq.wire.kafka.apis.fetch import (
    FetchedPartition,
    FetchPartition,
    FetchRequest,
    FetchResponse,
)
from libramq.wire.kafka.apis.groups import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    TopicPartitions,
)
from libramq.wire.kafka.apis.handshake import ApiVersionsRequest
from libramq.wire.kafka.apis.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from libramq.wire.kafka.apis.offsets import (
    CommittedPartition,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
    WantedGroup,
)
from libramq.wire.kafka.error_code import ErrorCode
from libramq.wire.kafka.frame import FrameReader
from libramq.wire.kafka.primitives import Reader, encode_int16, encode_int32
from libramq.wire.kafka.schema import Message, Request, Topic, decode, encode

#: Called with the response, or None.
Answered = Callable[[Any], None]

#: Ours: shorter than real clients' timeout (request.timeout.ms is 30 s), so that faults take less simulated
#: time.
ANSWER_MS_MAX: Final = 4_000
#: A client that needs responses in the order of its requests.
JAVA: Final = "apache-kafka-java"
#: A client that matches responses by correlation id.
LIBRDKAFKA: Final = "librdkafka"

_APIS: Final = {api.request: api for api in APIS.values()}


class _Pending(NamedTuple):
    kind: type[Message]
    version: int
    is_flexible: bool
    has_tags: bool
    answered: Answered
    timer: Event


class KafkaLink:
    """A client's connection to a broker; a `runtime.seams.Dialed`. software: the client's name."""

    def __init__(
        self, network: Network, process: Process, address: str, *, client_id: str, software: str
    ) -> None:
        self.is_over = False
        self._process = process
        self._client_id = client_id.encode()
        self._software = software
        self._link: Link | None = None
        self._pending: dict[int, _Pending] = {}
        self._unsent: list[bytes] = []
        self._correlation = 0
        self._frames = FrameReader()
        self.ask(
            ApiVersionsRequest(client_software_name=software, client_software_version="1"), lambda _: None
        )
        SimulatedDialer(network, process).dial(address, self)

    def ask(self, request: Request, answered: Answered) -> None:
        """Send a request in its highest version once the connection is open."""
        api = _APIS[type(request)]
        self._correlation += 1
        is_flexible = api.is_flexible(api.last)
        timer = self._process.after(ANSWER_MS_MAX, self.close)
        self._pending[self._correlation] = _Pending(
            _response_of(api), api.last, is_flexible, is_flexible and api.key != API_VERSIONS, answered, timer
        )
        body = b"".join((
            encode_int16(api.key), encode_int16(api.last), encode_int32(self._correlation),
            encode_int16(len(self._client_id)), self._client_id, b"\0" if is_flexible else b"",
            encode(request, api.last, is_flexible),
        ))  # fmt: skip
        frame = encode_int32(len(body)) + body
        if self._link is None:
            self._unsent.append(frame)
        else:
            self._link.write(frame)

    def opened(self, link: Link) -> None:
        """Handle the open connection: send queued requests."""
        self._link = link
        if self.is_over:
            link.close()
            return
        unsent, self._unsent = self._unsent, []
        link.write(b"".join(unsent))

    def refused(self, error: RemoteError) -> None:
        """Handle a connection that could not be made."""
        self._end()

    def ended(self, reason: str) -> None:
        """Handle the end of the connection."""
        self._end()

    def close(self) -> None:
        """Close the connection, as a client does after a request timeout."""
        if self._link is not None:
            self._link.close()
        self._end()

    def received(self, data: bytes) -> None:
        """Handle received bytes."""
        for frame in self._frames.receive(data):
            if not self.is_over:
                self._answered(frame)

    def _answered(self, frame: bytes) -> None:
        reader = Reader(frame)
        number = reader.int32()
        if self._software == JAVA and number != next(iter(self._pending)):
            raise Violation(
                "Kafka's answers come in order", f"{number} came before {next(iter(self._pending))}"
            )
        pending = self._pending.pop(number)
        pending.timer.cancel()
        if pending.has_tags:
            reader.skip_tags()
        response = decode(pending.kind, pending.version, pending.is_flexible, reader)
        reader.finish()
        pending.answered(response)

    def _end(self) -> None:
        if self.is_over:
            return
        self.is_over = True
        waiting, self._pending = self._pending, {}
        for pending in waiting.values():
            pending.timer.cancel()
            self._process.after(0, partial(pending.answered, None))


def _response_of(api: Api) -> type[Message]:
    name = api.request.__name__.replace("Request", "Response")
    kind: type[Message] = getattr(sys.modules[api.request.__module__], name)
    return kind


READ_RETRY_MS: Final = 200
#: Ours: more often than by default (metadata.max.age.ms is 5 min).
METADATA_MS: Final = 3_000
#: fetch.max.wait.ms.
WAIT_MS_MAX: Final = 500
#: Ours: a few dozen of the producers' messages, which have a few hundred bytes each.
FETCH_BYTES_MAX: Final = 10_000
#: The chance that a commit under an old epoch follows a commit.
STALE_CHANCE: Final = 0.2
#: The longest that a revocation waits for its commit.
COMMIT_MS_MAX: Final = 1_000
#: The pause between a fetch response and the next fetch.
PAUSE_MS: Final = 20

#: Positions in a batch's header: of its length, and of its last record's offset delta.
_LENGTH_AT: Final = 8
_LAST_DELTA_AT: Final = 23


class KafkaReader:
    """Reads its member's partitions.

    Metadata    ─► leaders
    OffsetFetch ─► position ─► Fetch, from each leader ─► OffsetCommit, now and then
    """

    def __init__(self, world: World, member: "SimulatedKafkaMember", brokers: Sequence[str]) -> None:
        self._world = world
        self._member = member
        self._brokers = brokers
        self._random = world.stream(f"reader of {member.name}")
        #: Topic ids by name, from Metadata.
        self.topic_ids: dict[str, bytes] = {}
        self._leaders: dict[Partition, str] = {}
        #: Positions of the partitions being read; None while unknown.
        self._positions: dict[Partition, int | None] = {}
        self._committed: dict[Partition, int] = {}
        #: Positions of partitions no longer read, yet to be committed.
        self._left: dict[Partition, int | None] = {}
        self._fetching: set[str] = set()
        self._is_looking_up = self._is_refreshing = False
        self._epochs: list[int] = []
        self._commits = 0

    def start(self) -> None:
        """Start periodic commits and metadata refreshes."""
        process, plan = self._member.process, self._member.plan
        process.every(plan.commit_ms, self._commit_now)
        process.every(METADATA_MS, self.refresh)
        self.refresh()

    def note_epoch(self, epoch: int) -> None:
        """Note the member's epoch; 0 if it has to join again."""
        if epoch == JOINS:
            self._epochs.clear()
        elif epoch not in self._epochs[-1:]:
            self._epochs.append(epoch)

    def read(self, partitions: Partitions) -> None:
        """Read these partitions from now on."""
        self._left = {each: at for each, at in self._positions.items() if each not in partitions}
        self._positions = {each: self._positions.get(each) for each in sorted(partitions)}
        self._look_up()
        self._fetch()

    # Topics.

    def named(self, assigned: Iterable[TopicPartitions]) -> Partitions | None:
        """Return an assignment by topic names; None if a topic id is unknown."""
        names = {topic_id: name for name, topic_id in self.topic_ids.items()}
        if any(each.topic_id not in names for each in assigned):
            return None
        return frozenset(
            Partition(names[each.topic_id], number) for each in assigned for number in each.partitions
        )

    def refresh(self) -> None:
        """Request the topics' metadata from any broker."""
        if self._is_refreshing:
            return
        self._is_refreshing = True
        topics = tuple(MetadataRequestTopic(name=each) for each in self._member.plan.topics)
        request = MetadataRequest(topics=topics, allow_auto_topic_creation=False)
        self._member.link("any", self._random.choice(self._brokers)).ask(request, self._refreshed)

    def _refreshed(self, response: MetadataResponse | None) -> None:
        self._is_refreshing = False
        if response is None or any(topic.error_code for topic in response.topics):
            self._member.process.after(READ_RETRY_MS, self.refresh)
        if response is None:
            return
        addresses = {each.node_id: f"{each.host}:{each.port}" for each in response.brokers}
        for topic in response.topics:
            if topic.error_code or topic.name is None:
                continue
            self.topic_ids[topic.name] = topic.topic_id
            for each in topic.partitions:
                partition = Partition(topic.name, each.partition_index)
                if each.leader_id in addresses:
                    self._leaders[partition] = addresses[each.leader_id]
        self._fetch()

    # Positions.

    def _look_up(self) -> None:
        """Fetch committed offsets from the coordinator."""
        member = self._member
        wanted = [each for each, position in self._positions.items() if position is None]
        if not wanted or self._is_looking_up:
            return
        address = member.coordinator_address
        if address is None:
            member.process.after(READ_RETRY_MS, self._look_up)
            return
        self._is_looking_up = True
        group = WantedGroup(
            group_id=member.plan.name,
            member_id=member.member_id,
            member_epoch=member.epoch,
            topics=tuple(
                Topic(name=topic, partitions=tuple(each.number for each in partitions))
                for topic, partitions in _by_topic(wanted).items()
            ),
        )
        request = OffsetFetchRequest(groups=(group,), require_stable=True)
        broker, now_ms = self._world.network.name_at(address), self._world.time.now_ms
        member.link("group", address).ask(request, partial(self._looked_up, member.life, broker, now_ms))

    def _looked_up(
        self, life: int, broker: str, sent_ms: MonotonicMs, response: OffsetFetchResponse | None
    ) -> None:
        self._is_looking_up = False
        group = response.groups[0] if response is not None else None
        found = [
            (Partition(topic.name, each.partition_index), each)
            for topic in (group.topics if group is not None and not group.error_code else ())
            for each in topic.partitions
        ]
        for partition, each in found:
            is_wanted = partition in self._positions and self._positions[partition] is None
            if is_wanted and not each.error_code and self._member.life == life:
                position = max(each.committed_offset, 0)
                self._positions[partition] = self._committed[partition] = position
                who = self._member
                self._world.history.kafka_position(
                    KafkaPosition(who.plan.name, who.name, broker, partition, position, sent_ms)
                )
        if None in self._positions.values():
            self._member.process.after(READ_RETRY_MS, self._look_up)
        self._fetch()

    # Records.

    def _fetch(self) -> None:
        """Send a fetch to each leader that has none in flight."""
        of: dict[str, dict[str, list[FetchPartition]]] = {}
        for partition, position in self._positions.items():
            leader = self._leaders.get(partition)
            if leader is not None and position is not None and leader not in self._fetching:
                wanted = FetchPartition(
                    partition=partition.number, fetch_offset=position, partition_max_bytes=FETCH_BYTES_MAX
                )
                of.setdefault(leader, {}).setdefault(partition.topic, []).append(wanted)
        for leader, topics in of.items():
            self._fetching.add(leader)
            request = FetchRequest(
                max_wait_ms=WAIT_MS_MAX,
                min_bytes=1,
                topics=tuple(Topic(name=topic, partitions=tuple(each)) for topic, each in topics.items()),
            )
            begins = {
                Partition(topic, each.partition): each.fetch_offset
                for topic, wanted in topics.items()
                for each in wanted
            }
            self._member.link("records", leader).ask(request, partial(self._fetched, leader, begins))

    def _fetched(self, leader: str, begins: dict[Partition, int], response: FetchResponse | None) -> None:
        if response is None:
            self._member.process.after(READ_RETRY_MS, partial(self._fetch_again, leader))
            self.refresh()
            return
        is_wrong = False
        for topic in response.responses:
            for each in topic.partitions:
                partition = Partition(topic.name, each.partition_index)
                # Otherwise it was revoked, perhaps even assigned again, so its position has changed.
                if self._positions.get(partition) == begins[partition]:
                    is_wrong |= not self._take(leader, partition, begins[partition], each)
        if is_wrong:
            self.refresh()
        self._member.process.after(
            READ_RETRY_MS if is_wrong else PAUSE_MS, partial(self._fetch_again, leader)
        )

    def _fetch_again(self, leader: str) -> None:
        self._fetching.discard(leader)
        self._fetch()

    def _take(self, leader: str, partition: Partition, begin: int, each: FetchedPartition) -> bool:
        """Handle a partition's records; return False if the leader reported an error."""
        broker = self._world.network.name_at(leader)
        if each.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
            self._world.history.kafka_out_of_range(self._member.name, broker, partition, begin)
            self._positions[partition] = 0  # auto.offset.reset=earliest
            return False
        if each.error_code:
            return False
        end = _end_of(each.records or b"", begin)
        if end > begin:
            self._positions[partition] = end
            self._world.history.kafka_handled(self._member.plan.name, broker, partition, begin, end)
        return True

    # Commits.

    def _commit_now(self) -> None:
        if not self._member.is_stopping:
            self.commit(frozenset(self._positions), lambda: None)

    def commit(self, partitions: Partitions, done: Callable[[], None]) -> None:
        """Commit the positions in partitions; `done` is called once, regardless of the outcome."""
        offsets = {}
        for each in sorted(partitions):
            position = self._positions.get(each, self._left.get(each))
            if position is not None and position != self._committed.get(each):
                offsets[each] = position
        address = self._member.coordinator_address
        if not offsets or address is None or self._member.epoch == JOINS:
            done()
            return
        is_done = False

        def once() -> None:
            nonlocal is_done
            if not is_done:
                is_done = True
                done()

        self._send(address, self._member.epoch, offsets, once)
        self._member.process.after(COMMIT_MS_MAX, once)
        if len(self._epochs) > 2 and self._random.random() < STALE_CHANCE:
            self._send(address, self._epochs[-3], offsets, lambda: None, is_stale=True)

    def _send(
        self,
        address: str,
        epoch: int,
        offsets: dict[Partition, int],
        done: Callable[[], None],
        *,
        is_stale: bool = False,
    ) -> None:
        member = self._member
        request = OffsetCommitRequest(
            group_id=member.plan.name,
            generation_id_or_member_epoch=epoch,
            member_id=member.member_id,
            group_instance_id=member.instance_id,
            topics=tuple(
                Topic(
                    name=topic,
                    partitions=tuple(
                        CommittedPartition(partition_index=each.number, committed_offset=offsets[each])
                        for each in partitions
                    ),
                )
                for topic, partitions in _by_topic(offsets).items()
            ),
        )
        broker = self._world.network.name_at(address)
        now_ms = self._world.time.now_ms
        self._commits += 1
        commit = KafkaCommit(
            group=member.plan.name,
            member=member.name,
            life=member.life,
            broker=broker,
            epoch=epoch,
            number=self._commits,
            offsets=offsets,
            is_stale=is_stale,
            sent_ms=now_ms,
        )
        self._world.history.kafka_commit(commit)
        member.link("group", address).ask(request, partial(self._sent, commit, done))

    def _sent(
        self, commit: KafkaCommit, done: Callable[[], None], response: OffsetCommitResponse | None
    ) -> None:
        codes = {
            Partition(topic.name, each.partition_index): each.error_code
            for topic in (response.topics if response is not None else ())
            for each in topic.partitions
        }
        if commit.is_stale and ErrorCode.STALE_MEMBER_EPOCH in codes.values():
            self._world.history.happened(Happening.KAFKA_STALE_COMMIT, self._member.name)
        self._world.history.kafka_committed(commit, codes)
        for partition, code in codes.items():
            if code == ErrorCode.NONE and not commit.is_stale and partition in self._positions:
                self._committed[partition] = commit.offsets[partition]
        done()


def _by_topic(partitions: Iterable[Partition]) -> dict[str, list[Partition]]:
    found: dict[str, list[Partition]] = {}
    for each in partitions:
        found.setdefault(each.topic, []).append(each)
    return found


def _end_of(records: bytes, begin: int) -> int:
    """Return the offset after the last record of batches, from their headers."""
    at, end = 0, begin
    while len(records) - at > _LAST_DELTA_AT + 4:
        base = int.from_bytes(records[at : at + 8])
        if base > end:
            raise Violation("Kafka's offsets have no gaps", f"behind {end} comes {base}")
        end = base + int.from_bytes(records[at + _LAST_DELTA_AT : at + _LAST_DELTA_AT + 4]) + 1
        at += _LENGTH_AT + 4 + int.from_bytes(records[at + _LENGTH_AT : at + _LENGTH_AT + 4])
    return end


LEAVES: Final = -1
LEAVES_FOR_A_WHILE: Final = -2
NOTHING: Final[Partitions] = frozenset()
#: retry.backoff.ms of Java's clients.
RETRY_MS: Final = 100
#: The pause before a static member retries if its instance id is in use.
TAKEN_MS: Final = 500
#: The longest that a stopping member waits for its coordinator (close with a timeout).
STOP_MS_MAX: Final = 2_000

#: Errors after which the member looks for its coordinator again.
_FIND_AGAIN: Final = (
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
)
_FENCED: Final = (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_MEMBER_EPOCH)


class SimulatedKafkaMember:
    """One member, for the life of its process. instance_id: for a static member."""

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
        #: Whether another member has taken its place.
        self.is_replaced = False
        #: The epoch of the last response, and the number of joins.
        self.epoch, self.life = JOINS, 0
        #: The partitions it reads, and those it has according to its coordinator.
        self.owned = self.reported = NOTHING
        self._world = world
        self._random = world.stream(name)
        self._brokers = brokers
        self._software = self._random.choice((JAVA, LIBRDKAFKA))
        self._links: dict[tuple[str, str], KafkaLink] = {}
        #: The broker it believes to be its coordinator.
        self.coordinator_address: str | None = None
        self._target: Partitions | None = None
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
        """Return whether the member takes part in its group or is about to."""
        return self.process.is_alive and not self.is_stopping

    @property
    def is_in(self) -> bool:
        """Return whether the member has joined and applied its last assignment."""
        return self.epoch > JOINS and self._target in (None, self.owned)

    @property
    def coordinator(self) -> str | None:
        """Return the coordinator's broker name, if known."""
        address = self.coordinator_address
        return self._world.network.name_at(address) if address is not None else None

    def link(self, purpose: str, address: str) -> KafkaLink:
        """Return the connection to a broker for coordination or for reading, reopened if it has ended."""
        key = (purpose, address)
        if key not in self._links or self._links[key].is_over:
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
        """Kill the process, as by SIGKILL."""
        if self.process.is_alive:
            self.process.kill()
            self._world.network.died(self.process)
            self._own(NOTHING)
            self._world.history.note(self.name, "gone")

    # The coordinator.

    @property
    def member_id(self) -> str:
        """Return the member id, which the client chooses itself."""
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
        """Schedule the next step, replacing any other."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self.process.after(delay_ms, action)

    # Heartbeats.

    def _beat(self) -> None:
        """Send a heartbeat unless one is in flight or no coordinator is known."""
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
                TopicPartitions(
                    topic_id=self.reader.topic_ids[topic],
                    partitions=tuple(each.number for each in partitions),
                )
                for topic, partitions in _by_topic(sorted(owned)).items()
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
            if assigned is None:  # The assignment has an unknown topic: the client requests its metadata.
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

    def _take(self, response: ConsumerGroupHeartbeatResponse, assigned: Partitions | None) -> None:
        self.epoch = response.member_epoch
        self.reader.note_epoch(self.epoch)
        if assigned is not None:
            self._target = assigned
            self._reconcile()
        self._later(0 if self.owned != self.reported else response.heartbeat_interval_ms, self._beat)

    def _fenced(self) -> None:
        """Lose all partitions and join again at once."""
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
        """Revoke partitions that are no longer assigned; then take the new ones."""
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

    def _own(self, partitions: Partitions) -> None:
        """Note the owned partitions as its coordinator knows them: given up only once a heartbeat says so."""
        if partitions != self.reported:
            self.reported = partitions
            self._world.history.kafka_owns(self.plan.name, self.name, partitions)

    def _unexpected(self, what: str, code: int) -> None:
        raise Violation("Kafka's requests are answered as its protocol says", f"{self.name}: {what}: {code}")


class KafkaMembers:
    """All Kafka members, alive or not. brokers: the brokers' addresses for Kafka's clients."""

    def __init__(self, world: World, plans: Sequence[KafkaGroupPlan], brokers: Sequence[str]) -> None:
        self.plans = plans
        self.all: list[SimulatedKafkaMember] = []
        self._world = world
        self._brokers = brokers
        self._random = world.stream("Kafka members")

    def join_all(self) -> None:
        """Start the first members of each group."""
        for plan in self.plans:
            for _ in range(plan.members):
                self.join(plan)

    def join(
        self, plan: KafkaGroupPlan, *, instead_of: SimulatedKafkaMember | None = None
    ) -> SimulatedKafkaMember:
        """Start a member. instead_of: a static member whose place it takes."""
        name = f"kafka-{len(self.all) + 1}"
        instance_id = name if self._random.random() < plan.static_chance else None
        if instead_of is not None:
            instance_id = instead_of.instance_id
        self._world.history.note(name, f"joins {plan.name} as {instance_id or name}")
        self._world.history.happened(Happening.KAFKA_GROUP, plan.name)
        member = SimulatedKafkaMember(self._world, name, plan, self._brokers, instance_id=instance_id)
        self.all.append(member)
        return member

    def alive(self, group: str | None = None) -> list[SimulatedKafkaMember]:
        """Return the active members of one group or of all."""
        return [each for each in self.all if each.is_alive and group in (None, each.plan.name)]

    def spare(self) -> list[SimulatedKafkaMember]:
        """Return the active members that are not the last of their group."""
        return [each for each in self.alive() if len(self.alive(each.plan.name)) > 1]
