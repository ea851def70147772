"""The reader of a simulated Kafka member: where it begins, what it fetches, and what it commits.

Metadata ─► leaders       OffsetFetch ─► position ─► Fetch, from each leader ─► OffsetCommit, now and then
"""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from libramq.clock import MonotonicMs
from libramq.testing.history import Violation
from libramq.testing.nodes.kafka_facts import JOINS, KafkaCommit, KafkaPartition, KafkaPartitions
from libramq.testing.scenarios.happening import Happening
from libramq.testing.world import World
from libramq.wire.kafka.apis.consumer_group_heartbeat import TopicPartitions
from libramq.wire.kafka.apis.fetch import (
    FetchedPartition,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
)
from libramq.wire.kafka.apis.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from libramq.wire.kafka.apis.offset_commit import (
    CommittedPartition,
    CommittedTopic,
    OffsetCommitRequest,
    OffsetCommitResponse,
)
from libramq.wire.kafka.apis.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchResponse,
    WantedGroup,
    WantedTopic,
)
from libramq.wire.kafka.error_code import ErrorCode

if TYPE_CHECKING:
    from libramq.testing.nodes.kafka_member import SimulatedKafkaMember

RETRY_MS: Final = 200
#: Ours, for more of them: metadata.max.age.ms is 5 min.
METADATA_MS: Final = 3_000
#: fetch.max.wait.ms, and a message of the producers has some hundred bytes.
WAIT_MS_MAX: Final = 500
FETCH_BYTES_MAX: Final = 10_000
#: How often a commit is followed by one under an old epoch.
STALE_CHANCE: Final = 0.2
#: How long a revocation waits for its commit.
COMMIT_MS_MAX: Final = 1_000
#: Between an empty answer that a broker did not hold, and the next question.
PAUSE_MS: Final = 20

#: Of a batch's header: its offset, its length, and the number of its last record.
_LENGTH_AT: Final = 8
_LAST_DELTA_AT: Final = 23


class KafkaReader:
    """Reads what its member has."""

    def __init__(self, world: World, member: "SimulatedKafkaMember", brokers: Sequence[str]) -> None:
        self._world = world
        self._member = member
        self._brokers = brokers
        self._random = world.stream(f"reader of {member.name}")
        #: By the topics' names; clients learn them from Metadata.
        self.topic_ids: dict[str, bytes] = {}
        self._leaders: dict[KafkaPartition, str] = {}
        #: Of what it reads; None: not known yet.
        self._positions: dict[KafkaPartition, int | None] = {}
        self._committed: dict[KafkaPartition, int] = {}
        #: Where it was in what it reads no more, to be committed.
        self._left: dict[KafkaPartition, int | None] = {}
        self._fetching: set[str] = set()
        self._is_looking_up = self._is_refreshing = False
        self._epochs: list[int] = []
        self._commits = 0

    def start(self) -> None:
        """Begin to commit, and to look at the topics, now and then."""
        process, plan = self._member.process, self._member.plan
        process.every(plan.commit_ms, self._commit_now)
        process.every(METADATA_MS, self.refresh)
        self.refresh()

    def note_epoch(self, epoch: int) -> None:
        """Note the member's epoch; 0: it has to join again."""
        if epoch == JOINS:
            self._epochs.clear()
        elif epoch not in self._epochs[-1:]:
            self._epochs.append(epoch)

    def read(self, partitions: KafkaPartitions) -> None:
        """Read these partitions from now on."""
        self._left = {each: at for each, at in self._positions.items() if each not in partitions}
        self._positions = {each: self._positions.get(each) for each in sorted(partitions)}
        self._look_up()
        self._fetch()

    # Topics.

    def named(self, assigned: Iterable[TopicPartitions]) -> KafkaPartitions | None:
        """Return an assignment with the names of its topics; None if one is unknown."""
        names = {topic_id: name for name, topic_id in self.topic_ids.items()}
        if any(each.topic_id not in names for each in assigned):
            return None
        return frozenset(
            KafkaPartition(names[each.topic_id], number) for each in assigned for number in each.partitions
        )

    def refresh(self) -> None:
        """Ask any broker for the topics."""
        if self._is_refreshing:
            return
        self._is_refreshing = True
        topics = tuple(MetadataRequestTopic(name=each) for each in self._member.plan.topics)
        request = MetadataRequest(topics=topics, allow_auto_topic_creation=False)
        self._member.link("any", self._random.choice(self._brokers)).ask(request, self._refreshed)

    def _refreshed(self, response: MetadataResponse | None) -> None:
        self._is_refreshing = False
        if response is None or any(topic.error_code for topic in response.topics):
            self._member.process.after(RETRY_MS, self.refresh)
        if response is None:
            return
        addresses = {each.node_id: f"{each.host}:{each.port}" for each in response.brokers}
        for topic in response.topics:
            if topic.error_code or topic.name is None:
                continue
            self.topic_ids[topic.name] = topic.topic_id
            for each in topic.partitions:
                partition = KafkaPartition(topic.name, each.partition_index)
                if each.leader_id in addresses:
                    self._leaders[partition] = addresses[each.leader_id]
        self._fetch()

    # Positions.

    def _look_up(self) -> None:
        """Ask the coordinator where to begin."""
        member = self._member
        wanted = [each for each, position in self._positions.items() if position is None]
        if not wanted or self._is_looking_up:
            return
        address = member.coordinator_address
        if address is None:
            member.process.after(RETRY_MS, self._look_up)
            return
        self._is_looking_up = True
        topics: dict[str, list[int]] = {}
        for each in wanted:
            topics.setdefault(each.topic, []).append(each.number)
        group = WantedGroup(
            group_id=member.plan.name,
            member_id=member.member_id,
            member_epoch=member.epoch,
            topics=tuple(
                WantedTopic(name=topic, partition_indexes=tuple(numbers)) for topic, numbers in topics.items()
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
            (KafkaPartition(topic.name, each.partition_index), each)
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
                    who.plan.name, who.name, broker, partition, position, sent_ms
                )
        if None in self._positions.values():
            self._member.process.after(RETRY_MS, self._look_up)
        self._fetch()

    # Records.

    def _fetch(self) -> None:
        """Ask each leader that is not asked yet."""
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
                topics=tuple(
                    FetchTopic(topic=topic, partitions=tuple(each)) for topic, each in topics.items()
                ),
            )
            begins = {
                KafkaPartition(topic, each.partition): each.fetch_offset
                for topic, wanted in topics.items()
                for each in wanted
            }
            self._member.link("records", leader).ask(request, partial(self._fetched, leader, begins))

    def _fetched(
        self, leader: str, begins: dict[KafkaPartition, int], response: FetchResponse | None
    ) -> None:
        if response is None:
            self._member.process.after(RETRY_MS, partial(self._fetch_again, leader))
            self.refresh()
            return
        is_wrong = False
        for topic in response.responses:
            for each in topic.partitions:
                partition = KafkaPartition(topic.topic, each.partition_index)
                # Revoked meanwhile, or given away and back: its position is another one.
                if self._positions.get(partition) == begins[partition]:
                    is_wrong |= not self._take(leader, partition, begins[partition], each)
        if is_wrong:
            self.refresh()
        self._member.process.after(RETRY_MS if is_wrong else PAUSE_MS, partial(self._fetch_again, leader))

    def _fetch_again(self, leader: str) -> None:
        self._fetching.discard(leader)
        self._fetch()

    def _take(self, leader: str, partition: KafkaPartition, begin: int, each: FetchedPartition) -> bool:
        """Take the records of a partition; return whether its leader had any to give."""
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

    def commit(self, partitions: KafkaPartitions, done: Callable[[], None]) -> None:
        """Commit where it is in partitions; `done` is called once, whatever comes of it."""
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
        offsets: dict[KafkaPartition, int],
        done: Callable[[], None],
        *,
        is_stale: bool = False,
    ) -> None:
        member = self._member
        topics: dict[str, list[CommittedPartition]] = {}
        for each, offset in offsets.items():
            committed = CommittedPartition(partition_index=each.number, committed_offset=offset)
            topics.setdefault(each.topic, []).append(committed)
        request = OffsetCommitRequest(
            group_id=member.plan.name,
            generation_id_or_member_epoch=epoch,
            member_id=member.member_id,
            group_instance_id=member.instance_id,
            topics=tuple(
                CommittedTopic(name=topic, partitions=tuple(each)) for topic, each in topics.items()
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
            KafkaPartition(topic.name, each.partition_index): each.error_code
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


def _end_of(records: bytes, begin: int) -> int:
    """Return the offset behind the last record of batches, by their headers."""
    at, end = 0, begin
    while len(records) - at > _LAST_DELTA_AT + 4:
        base = int.from_bytes(records[at : at + 8])
        if base > end:
            raise Violation("Kafka's offsets have no gaps", f"behind {end} comes {base}")
        end = base + int.from_bytes(records[at + _LAST_DELTA_AT : at + _LAST_DELTA_AT + 4]) + 1
        at += _LENGTH_AT + 4 + int.from_bytes(records[at + _LENGTH_AT : at + _LENGTH_AT + 4])
    return end
