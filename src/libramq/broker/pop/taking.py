"""Taking: which messages a pop gets: the order of queues (by turns, by priority), the share of the retry
topic (a fifth), and the limits.

    one queue, or all in turn from the next one on         the topic's
    and the retry topic: first for a fifth of the pops, for the others if there is room

    of a topic with priorities (`message.type=PRIORITY`): all from the last to the first, then the retry topic

Upstream: PopMessageProcessor.popMsgFromTopic, popMsgFromQueue, getInitOffset.
"""

import random
import struct
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Final, NamedTuple

import msgspec

from libramq.broker.files.files import BrokerFiles
from libramq.broker.groups.offset_commits import OffsetCommits
from libramq.catalog.topic_attributes import is_of_priorities
from libramq.clock import Clock
from libramq.filter.subscription import MessageFilter
from libramq.formats.tables import TopicConfig
from libramq.kernel.work import PORTION
from libramq.message import names
from libramq.message.record_head import HEADS, HOST_BITS, SYS_FLAG_LOW_AT
from libramq.pop.entries import MESSAGES_MAX
from libramq.pop.positions import QueueOfGroup
from libramq.store.log.segments import Cold
from libramq.store.reading.filtered_read import STEP_LOOKUPS, FilteredRead
from libramq.store.reading.read import NO_QUEUE, ReadResult, ReadStatus

#: BrokerConfig.popFromRetryProbability, in percent.
RETRY_FIRST_PERCENT: Final = 20
#: Ours: queues per pop in which only unwanted messages are examined: up to 800 each, in some 5 ms.
SCANS_MAX: Final = 2
#: Ours: steps of a filtered read per pop, for 800 messages (maxMessageFilterNum); fewer if a message takes
#: many lookups. A consumer whose messages all lie further behind pops again at once.
STEPS_MAX: Final = 25
#: Ours: messages of one pop that may get several check points of a queue.
MESSAGES_OF_A_POP_MAX: Final = 1024
#: Ours: any pop ends with this size. Each queue read gives at least one message, and an answer must fit into
#: a frame of 16 MiB.
POP_BYTES_MAX: Final = 4 * 1024 * 1024
#: Ours: groups and topics whose turns are remembered.
TURNS_MAX: Final = 4096
_SIZE_AND_OFFSET: Final = struct.Struct(">i16xq")
#: Positions in RecordFields.
_SIZE: Final = 0
_RECONSUME_TIMES: Final = 12
_MOVED: Final = frozenset({ReadStatus.OFFSET_TOO_SMALL, ReadStatus.OFFSET_OVERFLOW_BADLY})


class PopSelection(msgspec.Struct, eq=False, kw_only=True):
    """The messages that a pop selects.

    queue_id: -1 for any. from_end: where a group that is new to a topic begins.
    in_order: the queues' messages go to one consumer at a time; attempt_id: identifies a pop, so that its
    repetition is not blocked.
    tag_codes: of the wanted messages; None: all. message_filter: a further condition.
    """

    group: str
    topic: str
    queue_id: int
    count_max: int
    from_end: bool = False
    in_order: bool = False
    attempt_id: str | None = None
    tag_codes: frozenset[int] | None = None
    message_filter: MessageFilter | None = None


class Share(NamedTuple):
    """One queue's messages, from `start` on. The next read of the queue begins at `next_offset`."""

    topic: str
    queue_id: int
    start: int
    next_offset: int
    offsets: Sequence[int]
    records: tuple[bytes | memoryview, ...]

    @property
    def is_retry(self) -> bool:
        """Return whether the messages were popped before."""
        return self.topic.startswith(names.RETRY_PREFIX)

    @property
    def failures(self) -> int:
        """Return the highest number of failed attempts among the messages."""
        return max(_reconsume_times(self.records), default=0) if self.is_retry else 0

    def parts(self) -> Iterator[tuple[int, Sequence[int]]]:
        """Yield the check points of the messages: where each starts, and the offsets in it."""
        start, offsets = self.start, self.offsets
        for first in range(0, len(offsets), MESSAGES_MAX):
            yield start if first == 0 else offsets[first], offsets[first : first + MESSAGES_MAX]


class Taken(NamedTuple):
    """The result of a pop. rest: messages left behind.

    shares: may include queues that were only skipped ahead. cold: ranges to be read from the disk first; then
    nothing was taken.
    """

    shares: Sequence[Share] = ()
    rest: int = 0
    cold: tuple[Cold, ...] = ()

    @property
    def messages(self) -> int:
        """Return the number of messages."""
        return sum(len(share.offsets) for share in self.shares)


class Taking:
    """Finds the next messages of a group, and keeps its positions.

    is_blocked: returns whether an ordered queue is blocked. moved: called when there is something to commit.
    """

    def __init__(
        self,
        files: BrokerFiles,
        offsets: OffsetCommits,
        *,
        is_blocked: Callable[[QueueOfGroup, str | None], bool],
        moved: Callable[[], None],
        clock: Clock,
        randomness: random.Random,
    ) -> None:
        self._store, self._topics, self._groups = files.store, files.tables.topics, files.tables.groups
        self._has_new_names = files.has_new_retry_names
        self._positions, self._journal = files.pop.positions, files.pop.journal
        self._is_blocked = is_blocked
        self._moved = moved
        self._clock = clock
        self._offsets = offsets
        self._random = randomness
        #: By group and topic: the queue after the last one popped, where the next pop begins; by default any.
        self._turns: dict[tuple[str, str], int] = {}
        offsets.observe_removal(self._forget)
        offsets.on_return = self._returned

    def take(self, wanted: PopSelection, only: tuple[str, int] | None = None, *, may_wait: bool) -> Taken:
        """Return the next messages, at most as many as wanted. only: take them from this queue."""
        shares: list[Share] = []
        room, size, rest, scans = wanted.count_max, 0, 0, 0
        for topic, queue_id in self._queues(wanted, only):
            if wanted.in_order and self._is_blocked((wanted.group, topic, queue_id), wanted.attempt_id):
                continue  # Messages of a blocked queue are no reason to pop again at once.
            position = self.position(wanted, topic, queue_id)
            if room <= 0 or size >= POP_BYTES_MAX or scans >= SCANS_MAX:
                rest += max(0, self._store.max_offset(topic, queue_id) - position)
                continue
            position, result = self._read(wanted, topic, queue_id, position, room, may_wait=may_wait)
            if result.status is ReadStatus.WOULD_WAIT:
                return Taken(cold=result.cold)
            if result.status is ReadStatus.FOUND:
                offsets = _offsets_from(position, result)
                shares.append(Share(topic, queue_id, position, result.next_offset, offsets, result.data))
                room -= len(offsets)
                size += result.size
            elif result.next_offset != position and result.max_offset:
                scans += 1
                shares.append(Share(topic, queue_id, position, result.next_offset, (), ()))
            rest += max(0, result.max_offset - result.next_offset)
        return Taken(shares, rest)

    def has_any(self, wanted: PopSelection, only: tuple[str, int] | None = None) -> bool:
        """Return whether a group has messages to take, regardless of tags. only: in this queue."""
        return any(
            self._store.max_offset(topic, queue_id) > self.position(wanted, topic, queue_id)
            for topic, queue_id in self._queues(wanted, only)
            if not (wanted.in_order and self._is_blocked((wanted.group, topic, queue_id), None))
        )

    def position(self, wanted: PopSelection, topic: str, queue_id: int) -> int:
        """Return a group's next offset in a queue; raises BrokerError if a reset cannot be stored."""
        queue = (wanted.group, topic, queue_id)
        reset = self._offsets.take_reset(wanted.group, topic, queue_id)
        if reset is not None:
            self._offsets.commit(wanted.group, topic, queue_id, reset)
        committed = self._offsets.query(wanted.group, topic, queue_id)
        if wanted.in_order:
            # Unacknowledged messages are delivered again, so the committed offset is the position.
            return committed if committed is not None else self._first(wanted, topic, queue_id)
        known = self._positions.find(queue, committed)
        if known is not None and reset is None:
            return known
        offset = committed if committed is not None else self._first(wanted, topic, queue_id)
        if reset is not None or self._positions.is_moved(queue, committed):
            self._journal.mark(topic, wanted.group, queue_id, offset, self._clock.wall_ms())
            self._positions.set(queue, offset, committed)
        return offset

    def move_on(self, group: str, share: Share, log_end: int) -> None:
        """Move a group past a share of a queue, and commit that once the log is on the disk."""
        committed = self._offsets.query(group, share.topic, share.queue_id)
        if not self._positions.waiting:
            self._moved()
        self._positions.advance((group, share.topic, share.queue_id), share.next_offset, committed, log_end)
        self.note_turn(group, share)

    def note_turn(self, group: str, share: Share) -> None:
        """Let the group's next pop of the topic begin behind this queue."""
        if len(self._turns) >= TURNS_MAX:
            self._turns.clear()
        self._turns[group, share.topic] = share.queue_id + 1

    def settle(self) -> bool:
        """Commit offsets whose check points are on the disk, some at a time; return whether more wait."""
        waiting = self._positions.waiting
        if not waiting:
            return False
        flushed = self._store.flushed_offset
        for queue, offset in islice(self._positions.due(flushed), PORTION):
            group, topic, queue_id = queue
            # Nobody has moved the committed offset since the read.
            if self._positions.find(queue, self._offsets.query(group, topic, queue_id)) is not None:
                self._offsets.commit(group, topic, queue_id, offset)
                self._positions.committed(queue, self._offsets.query(group, topic, queue_id))
        return bool(waiting) and waiting[0][0] <= flushed

    def _returned(self, queue: QueueOfGroup, before: int | None) -> None:
        """Keep a position ahead of an offset that a slave returned: nobody else has set that offset."""
        position, committed = self._positions.find(queue, before), self._offsets.query(*queue)
        if position is not None and committed is not None and position >= committed:
            self._positions.committed(queue, committed)

    def _forget(self, group: str) -> None:
        """Forget the positions of a group whose offsets were removed; they would be committed again."""
        self._positions.forget(lambda queue: queue[0] == group)

    def _first(self, wanted: PopSelection, topic: str, queue_id: int) -> int:
        """Return where a group that is new to a queue begins."""
        first = self._store.min_offset(topic, queue_id)
        if not wanted.from_end or topic.startswith(names.RETRY_PREFIX):
            return first
        if first <= 0 and self._store.is_young(topic, queue_id):
            return 0
        return max(0, self._store.max_offset(topic, queue_id) - 1)

    def retry_topics(self, topic: str, group: str) -> list[TopicConfig]:
        """Return the existing retry topics of a group for a topic."""
        named = (names.pop_retry_topic(topic, group, is_new=is_new) for is_new in (False, True))
        return [
            config
            for name in named
            if (config := self._topics.get(name)) is not None and not self._is_anothers(name)
        ]

    def _is_anothers(self, topic: str) -> bool:
        """Return whether an old-style retry topic, which gets no messages now, is another group's."""
        return self._has_new_names and topic.removeprefix(names.RETRY_PREFIX) in self._groups

    def _read(
        self, wanted: PopSelection, topic: str, queue_id: int, position: int, room: int, *, may_wait: bool
    ) -> tuple[int, ReadResult]:
        """Read a queue from an offset, or from the nearest existing one; return that offset as well."""
        result = self._read_from(wanted, topic, queue_id, position, room, may_wait=may_wait)
        if result.status in _MOVED:  # Its messages have expired, or the queue was created again.
            position = result.next_offset
            result = self._read_from(wanted, topic, queue_id, position, room, may_wait=may_wait)
        return position, result

    def _read_from(
        self, wanted: PopSelection, topic: str, queue_id: int, offset: int, room: int, *, may_wait: bool
    ) -> ReadResult:
        store = self._store
        # None: the limit of one read, as in Apache's.
        bytes_max = POP_BYTES_MAX if room > MESSAGES_MAX else None
        if wanted.message_filter is None:
            return store.read(topic, queue_id, offset, room, bytes_max, wanted.tag_codes, may_wait=may_wait)
        read = store.filtered_read(
            topic, queue_id, offset, room, bytes_max, wanted.message_filter, may_wait=may_wait
        )
        result = _stepped(read, wanted.message_filter.weight) if read is not None else NO_QUEUE
        store.count_read(result)
        return result

    def _queues(self, wanted: PopSelection, only: tuple[str, int] | None) -> Iterator[tuple[str, int]]:
        """Yield the queues to read, in their order."""
        if only is not None:
            config = self._topics.get(only[0])
            is_read = config is not None and only[1] < config.read_queue_nums
            is_retry = only[0] != wanted.topic
            if is_read and not (is_retry and (wanted.in_order or self._is_anothers(only[0]))):
                yield only
            return
        config = self._topics.get(wanted.topic)
        retries = [] if wanted.in_order else self.retry_topics(wanted.topic, wanted.group)
        # A reply distinguishes retry topics only by version, so only one of them has its turn.
        retry = self._random.choice(retries) if retries else None
        by_priority = config is not None and not wanted.in_order and is_of_priorities(config)
        is_first = self._random.randrange(100) < RETRY_FIRST_PERCENT and not by_priority
        if retry is not None and is_first:
            yield from self._of(wanted.group, retry)
        if config is not None and wanted.queue_id < 0:
            if by_priority:  # The highest first.
                yield from ((config.topic_name, each) for each in reversed(range(config.read_queue_nums)))
            else:
                yield from self._of(wanted.group, config)
        elif config is not None:
            yield wanted.topic, wanted.queue_id
        if retry is not None and not is_first:
            yield from self._of(wanted.group, retry)

    def _of(self, group: str, config: TopicConfig) -> Iterator[tuple[str, int]]:
        count = config.read_queue_nums
        first = self._turns.get((group, config.topic_name), -1)
        if first < 0 and count > 1:
            first = self._random.randrange(count)
        for index in range(count):
            yield config.topic_name, (first + index) % count


def _offsets_from(start: int, result: ReadResult) -> Sequence[int]:
    """Return the queue offsets of the records of a read that began at `start`."""
    if (
        result.count == result.next_offset - start
        and _SIZE_AND_OFFSET.unpack_from(result.data[0])[1] == start
    ):
        return range(start, result.next_offset)  # No record was left out, so no record need be decoded.
    return tuple(queue_offsets(result.data))


def queue_offsets(pieces: Sequence[bytes | memoryview]) -> list[int]:
    """Return the queue offsets of records."""
    found: list[int] = []
    unpack = _SIZE_AND_OFFSET.unpack_from
    for piece in pieces:
        at, end = 0, len(piece)
        while at < end:
            size, offset = unpack(piece, at)
            found.append(offset)
            at += size
    return found


def _reconsume_times(pieces: Sequence[bytes | memoryview]) -> list[int]:
    """Return how often records have failed; the field's position depends on the lengths of the hosts."""
    found: list[int] = []
    for piece in pieces:
        at, end = 0, len(piece)
        while at < end:
            fields = HEADS[piece[at + SYS_FLAG_LOW_AT] & HOST_BITS].unpack_from(piece, at)
            found.append(fields[_RECONSUME_TIMES])
            at += fields[_SIZE]
    return found


def _stepped(read: FilteredRead, weight: int) -> ReadResult:
    """Return the result of a filtered read, or of its first steps."""
    for _ in range(max(1, STEPS_MAX * STEP_LOOKUPS // max(STEP_LOOKUPS, weight))):
        result = read.step()
        if result is not None:
            return result
    return read.result_so_far()
