"""ListOffsets (2): the ends of queues, and the search for the first message with a timestamp or a later one.

A record's timestamp is set by its producer, and imports and mirrors store old records in any order. So a
search reads the timestamps of all candidates, in several turns:

    stored an hour before the timestamp ─► stretches of 1,024 offsets,        ─► the first record with this
                                           each with its greatest timestamp      timestamp or a later one

The search can begin there, because Kafka's producers are refused if their clock is more than an hour ahead. A
stretch that was read before is skipped by its greatest timestamp.
"""

from functools import partial
from typing import Final

from libramq.auth.authorizer import Authorizer, require_permission
from libramq.auth.operation import Action, Manage, topic
from libramq.broker.cluster.kafka.nodes import is_visible
from libramq.catalog.requirements import Requirements
from libramq.errors import BrokerError
from libramq.kernel.work import Work
from libramq.message.inner_batch import message_count
from libramq.message.record import decode_records, peek_record
from libramq.message.record_head import first_born, greatest_born_ms
from libramq.message.sys_flag import INNER_BATCH
from libramq.protocols.kafka.answers import Slot, serves
from libramq.protocols.kafka.api00_produce import AHEAD_MS_MAX
from libramq.protocols.kafka.node import KafkaNodes
from libramq.protocols.kafka.refusals import code_of
from libramq.store.message_store import MessageStore
from libramq.store.reading.read import ReadResult
from libramq.wire.kafka.apis import fetch as wire
from libramq.wire.kafka.error_code import ErrorCode
from libramq.wire.kafka.record_batch import LEADER_EPOCH
from libramq.wire.kafka.schema import by_topic, partitions_of

#: Ours: offsets of a stretch.
STRETCH: Final = 1024
#: Ours: stretches of all queues whose greatest timestamp is remembered: about 10 MB for a hundred million
#: messages. Over the limit, all are forgotten and read again.
STRETCHES_MAX: Final = 100_000
#: Ours: bytes that a step reads, in about 0.7 ms. One byte less would get the smaller limits (`read_limits`).
_BYTES_PER_STEP: Final = 256 * 1024 + 1
#: Ours: known stretches that a step skips.
_SKIPPED_PER_STEP: Final = 4096
_MESSAGES_PER_READ: Final = 32


class BornTimes:
    """The greatest message timestamp of each stretch that a search has read.

    version: changes when a topic does, because its offsets may then belong to other messages.
    """

    def __init__(self) -> None:
        self._greatest: dict[str, dict[tuple[int, int], int]] = {}
        self._count = 0
        self.version = 0

    def get(self, topic: str, queue_id: int, stretch: int) -> int | None:
        """Return a stretch's greatest timestamp, if it is known."""
        return self._greatest.get(topic, {}).get((queue_id, stretch))

    def note(self, topic: str, queue_id: int, stretch: int, greatest_ms: int) -> None:
        """Remember the greatest timestamp of a completely read stretch."""
        if self._count >= STRETCHES_MAX:
            self._greatest.clear()
            self._count = 0
        of_topic = self._greatest.setdefault(topic, {})
        self._count += (queue_id, stretch) not in of_topic
        of_topic[queue_id, stretch] = greatest_ms

    def forget(self, topic: str) -> None:
        """Forget a changed topic: it may have been deleted."""
        self.version += 1
        self._count -= len(self._greatest.pop(topic, ()))


class _Search:
    """A search, in steps, for the first message with a timestamp or a later one.

    found: the message's offset and timestamp, both -1 if there is none; None until the search has ended.
    """

    def __init__(
        self, store: MessageStore, times: BornTimes, topic: str, queue_id: int, timestamp_ms: int
    ) -> None:
        self.found: tuple[int, int] | None = None
        self._store = store
        self._times = times
        self._version = times.version
        self._queue = topic, queue_id
        self._timestamp_ms = timestamp_ms
        self._end = store.max_offset(topic, queue_id)
        first = store.offset_by_timestamp(topic, queue_id, max(timestamp_ms - AHEAD_MS_MAX, 0))
        #: The offset at which the search continues.
        self._offset = max(first // STRETCH * STRETCH, store.min_offset(topic, queue_id))
        #: The greatest timestamp since the beginning of the stretch.
        self._greatest_ms = -1
        #: The end of a matching batch, up to which single messages are read.
        self._batch_end = 0

    def step(self) -> None:
        """Continue the search; raises ColdRead if the disk has to be read, and can then be repeated."""
        self._skip()
        if self._offset >= self._end:
            self.found = -1, -1
        elif self._offset < self._batch_end:
            self._look_into_batch()
        else:
            self._look()

    def _skip(self) -> None:
        """Skip known stretches in which every timestamp is earlier."""
        for _ in range(_SKIPPED_PER_STEP):
            stretch = self._offset // STRETCH
            greatest_ms = self._times.get(*self._queue, stretch)
            if greatest_ms is None or greatest_ms >= self._timestamp_ms:
                return
            self._offset, self._greatest_ms = (stretch + 1) * STRETCH, -1

    def _look(self) -> None:
        """Read the rest of a stretch, or as much of it as a step may."""
        stretch_end = (self._offset // STRETCH + 1) * STRETCH
        result = self._store.look(*self._queue, self._offset, stretch_end - self._offset, _BYTES_PER_STEP)
        greatest_ms = max(map(greatest_born_ms, result.data), default=-1)
        self._greatest_ms = max(self._greatest_ms, greatest_ms)
        if greatest_ms >= self._timestamp_ms:
            self._take_first(result)
        elif result.next_offset <= self._offset:
            self.found = -1, -1
        else:
            self._go_on(result.next_offset, greatest_ms)

    def _take_first(self, result: ReadResult) -> None:
        """Take the first matching message; if it is a batch, continue inside."""
        for piece in result.data:
            place = first_born(piece, self._timestamp_ms)
            if place is None:
                continue
            record = bytes(piece[place[0] : sum(place)])
            head = peek_record(record)
            assert head is not None  # A read returns whole records.
            if head.sys_flag & INNER_BATCH:
                self._offset = max(head.queue_offset, self._offset)
                self._batch_end = head.queue_offset + message_count(head)
            else:
                self.found = head.queue_offset, greatest_born_ms(record)
            return

    def _look_into_batch(self) -> None:
        result = self._store.read(*self._queue, self._offset, _MESSAGES_PER_READ)
        for message in decode_records(b"".join(result.data), decompress=False):
            if message.born_timestamp_ms >= self._timestamp_ms:
                self.found = message.queue_offset, message.born_timestamp_ms
                return
        if result.next_offset <= self._offset:
            self.found = -1, -1
        else:
            self._go_on(result.next_offset, self._greatest_ms)

    def _go_on(self, offset: int, latest_ms: int) -> None:
        """Continue at an offset; remember the greatest timestamps of stretches that end before it.

        latest_ms: the greatest timestamp of the last read, since a batch may extend into the next stretch.
        """
        ended = range(self._offset // STRETCH, offset // STRETCH)
        if self._version == self._times.version:
            for stretch in ended:
                self._times.note(*self._queue, stretch, self._greatest_ms)
        if ended:
            self._greatest_ms = latest_ms if offset % STRETCH else -1
        self._offset = offset


class _Wanted:
    """A request and its results so far.

    search: the running search, for the next partition. searched: partitions, by topic, with a search so far.
    """

    def __init__(self, request: wire.ListOffsetsRequest, slot: Slot) -> None:
        self._request = request
        self.slot = slot
        self.wanted = partitions_of(request.topics)
        self.found: list[wire.ListedPartition] = []
        self.search: _Search | None = None
        self.searched: set[tuple[str, int]] = set()

    def response(self) -> wire.ListOffsetsResponse:
        """Return the answer from the complete results."""
        return wire.ListOffsetsResponse(topics=by_topic(self._request.topics, self.found))


class OffsetLists:
    """Answers ListOffsets."""

    def __init__(
        self,
        store: MessageStore,
        requirements: Requirements,
        authorizer: Authorizer,
        nodes: KafkaNodes,
    ) -> None:
        self._nodes = nodes
        self._store = store
        self._requirements = requirements
        self._authorizer = authorizer
        self._times = BornTimes()
        #: Must be called with each topic that changes.
        self.forget = self._times.forget

    @serves(wire.ListOffsetsRequest)
    def list(self, request: wire.ListOffsetsRequest, slot: Slot) -> None:
        """Answer with one offset for each partition, in steps."""
        slot.proceed(self._steps(_Wanted(request, slot)))

    def _steps(self, work: "_Wanted") -> Work[None]:
        """Look up one partition after the other; a thread reads from the disk."""
        while (at := len(work.found)) < len(work.wanted):
            listed = yield from self._store.reading(partial(self._listed, work, *work.wanted[at]))
            if listed is not None:
                work.found.append(listed)
                work.search = None
            yield None
        work.slot.answer(work.response())

    def _listed(
        self, work: "_Wanted", name: str, partition: wire.ListOffsetsPartition
    ) -> wire.ListedPartition | None:
        """Return a partition's offset; None while a search continues."""
        index = partition.partition_index
        listed = partial(wire.ListedPartition, partition_index=index)
        try:
            seen = Manage(work.slot.principal, Action.GET, (topic(name),), Action.SUB)
            require_permission(self._authorizer, seen)
            if not is_visible(name):
                return listed(error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            queue_id = self._nodes.queue(name, index)
            if isinstance(queue_id, ErrorCode):
                return listed(error_code=queue_id)
            self._requirements.queue_to_read(name, queue_id, work.slot.connection.address)
        except BrokerError as refused:
            return listed(error_code=code_of(refused))
        if partition.timestamp == wire.LATEST:
            return _at(index, self._store.max_offset(name, queue_id))
        if partition.timestamp == wire.EARLIEST:
            return _at(index, self._store.min_offset(name, queue_id))
        if partition.timestamp < 0:
            return listed(error_code=ErrorCode.UNSUPPORTED_VERSION)
        if work.search is None:
            if (name, index) in work.searched:  # Named twice; Kafka refuses any such partition.
                return listed(error_code=ErrorCode.INVALID_REQUEST)
            work.search = _Search(self._store, self._times, name, queue_id, partition.timestamp)
            work.searched.add((name, index))
        work.search.step()
        if work.search.found is None:
            return None
        offset, born_ms = work.search.found
        return _at(index, offset, born_ms) if offset >= 0 else listed()


def _at(index: int, offset: int, timestamp_ms: int = -1) -> wire.ListedPartition:
    return wire.ListedPartition(
        partition_index=index, offset=offset, timestamp=timestamp_ms, leader_epoch=LEADER_EPOCH
    )
