"""The loading of POP: how a start finds the check points still in flight, whichever broker wrote them, and
the offsets that were not committed.

        timer queue     our journal; Apache's before it moves an entry to its revive topic
        revive topic    Apache's, once due; read from its revive group's offset on

Apache's entries may be applied in any order and more than once: a check point is found by its key, and its
bits only grow. The state left by Apache's broker is written to our journal once; our timers ignore the same
entries in its timer wheel.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Final

from libramq.clock import Now
from libramq.errors import RemoteProtocolError
from libramq.logs import get_logger
from libramq.message import names
from libramq.message import properties as p
from libramq.message.message import MessageExt
from libramq.offsets.ledger import OffsetLedger
from libramq.pop import InFlight
from libramq.pop.check_point import check_point_of, key_of, was_popped_before
from libramq.pop.entries import AckEntry, CheckPointEntry, decode_entry
from libramq.pop.positions import QueueOfGroup
from libramq.store.deletions import Deletions
from libramq.store.log.append import undamaged
from libramq.store.message_store import MessageStore
from libramq.store.reading.read import ReadStatus
from libramq.timers.timer_checkpoint import FoundCheckpoint, TimerCheckpoint

log = get_logger(__name__)

#: Ours: messages per read.
READ_MAX: Final = 1024
#: Ours: bytes per read.
READ_BYTES_MAX: Final = 4 * 1024 * 1024
#: TimerMessageStore.DAY_SECS and similar: no timer message waits longer than timerMaxDelaySec.
WAITING_MS_MAX: Final = 3 * 24 * 3600 * 1000


class Loaded:
    """The state found at a start. place: where its journal begins. from_apache: Apache's broker ran last.

    deletions: of topics and groups; earlier pops do not concern their successors of the same name.
    """

    def __init__(self, deletions: Deletions, place: int = 0) -> None:
        self._deletions = deletions
        self.in_flight = InFlight()
        self.place = place
        self.from_apache = False
        #: Where groups were to continue, according to their pops.
        self.positions: dict[QueueOfGroup, int] = {}
        self._acks: list[AckEntry] = []

    def apply(self, message: MessageExt, *, place: int, now: Now) -> None:
        """Apply one entry of the journal, or of the revive topic."""
        try:
            entry = decode_entry(message.tags, message.body)
        except RemoteProtocolError as error:
            log.error("an entry of POP cannot be read; skipped", id=message.offset_id, reason=str(error))
            return
        if isinstance(entry, AckEntry):
            self._acks.append(entry)
            if not self.from_apache:  # Its check point comes before it, or is settled.
                self.finish()
        elif isinstance(entry, CheckPointEntry):
            self._add(entry, message, place, now)

    def finish(self) -> None:
        """Apply the acknowledgements; those of settled check points match none in flight."""
        for entry in self._acks:
            check_point = self.in_flight.find(key_of(entry))
            if check_point is None:
                continue
            bits = 0
            for offset in entry.offsets or (entry.offset,):
                bits |= check_point.bit_of(offset) if offset is not None else 0
            self.in_flight.acknowledge(check_point, bits)
        self._acks.clear()

    def _add(self, entry: CheckPointEntry, message: MessageExt, place: int, now: Now) -> None:
        if message.physical_offset < self._deletions.end_of(entry.topic):
            return
        revive_queue = message.queue_id
        if message.topic == names.TIMER_TOPIC:
            revive_queue = p.whole_number(message.properties.get(p.REAL_QUEUE_ID, ""), digits_max=9) or 0
        # Only the wall clock ran while the broker was down. If set back, it must not hide a message for
        # longer than its invisible time.
        left_ms = entry.pop_time_ms + entry.invisible_ms - int(now.wall_ms)
        due_ms = now.monotonic_ms + max(0, min(left_ms, entry.invisible_ms))
        found = check_point_of(entry, revive_queue=revive_queue, place=place, due_ms=due_ms)
        is_former = message.physical_offset < self._deletions.end_of_group(entry.group)
        if not (was_popped_before(entry) or is_former or self.from_apache):
            queue = (found.group, found.topic, found.queue_id)
            is_mark = not found.diffs
            self.positions[queue] = (
                found.end if is_mark else max(found.end, self.positions.get(queue, found.end))
            )
        known = self.in_flight.find(found.key)
        if known is not None and known.re_puts == found.re_puts:
            found.done |= known.done
            found.origin = known.origin if found.origin < 0 else found.origin
            self.in_flight.acknowledge(known, (1 << len(known.diffs)) - 1)
        self.in_flight.add(found)


class JournalReader:
    """Reads the journal in steps. loaded: the state so far; place: where to begin in the timer queue."""

    def __init__(
        self, store: MessageStore, place: int, *, revive_topic: str, now: Now, read_max: int = READ_MAX
    ) -> None:
        self.loaded = Loaded(store.deletions, place)
        self.end = store.max_offset(names.TIMER_TOPIC, 0)
        self._store = store
        self._revive_topic = revive_topic
        self._now = now
        self._read_max = read_max
        self._offset = max(place, store.min_offset(names.TIMER_TOPIC, 0))

    def step(self, is_moved: Callable[[MessageExt], bool] = lambda message: False) -> bool:
        """Read on; return whether there is more. May raise ColdRead. is_moved: whether to leave one out."""
        if self._offset >= self.end:
            return False
        read = self._store.read(names.TIMER_TOPIC, 0, self._offset, self._read_max, READ_BYTES_MAX)
        if read.status is not ReadStatus.FOUND and read.next_offset <= self._offset:
            self._offset = self.end
            return False
        for message in undamaged(read.data):
            is_entry = message.properties.get(p.REAL_TOPIC) == self._revive_topic
            if is_entry and message.queue_offset < self.end and not is_moved(message):
                self.loaded.apply(message, place=message.queue_offset, now=self._now)
        self._offset = read.next_offset
        return self._offset < self.end


def load(
    store: MessageStore,
    ledger: OffsetLedger,
    checkpoint: FoundCheckpoint | None,
    *,
    revive_topic: str,
    now: Now,
) -> Loaded:
    """Read the check points in flight; waits for the disk."""
    end = store.max_offset(names.TIMER_TOPIC, 0)
    own = checkpoint.own if checkpoint is not None else None
    place, is_apaches = 0, False
    if own is not None and own.pop_place >= 0:
        place = own.pop_place if own.pop_place <= end else 0
        if place < own.pop_place:
            log.warning(
                "POP's journal begins beyond its end; all of it is read", place=own.pop_place, end=end
            )
    elif checkpoint is not None:
        is_apaches = True
        since_ms = checkpoint.apache.read_ms - WAITING_MS_MAX
        place = store.offset_by_timestamp(names.TIMER_TOPIC, 0, max(0, since_ms))
    reader = JournalReader(store, place, revive_topic=revive_topic, now=now)
    loaded = reader.loaded
    if is_apaches:
        loaded.from_apache = True
        _load_revive_topic(loaded, store, ledger, revive_topic, now)

    def is_moved(message: MessageExt) -> bool:
        return is_apaches and checkpoint is not None and not _waits(message, checkpoint.apache)

    while reader.step(is_moved):
        pass
    loaded.finish()
    if loaded.in_flight:
        log.info("messages are in flight", check_points=len(loaded.in_flight), from_apache=loaded.from_apache)
    return loaded


def uncommitted(loaded: Loaded, ledger: OffsetLedger) -> Iterator[tuple[QueueOfGroup, int]]:
    """Yield queues whose offsets were not committed before a kill, and the offsets to commit.

    Their messages are in flight, or done; if popped again, they would be in flight twice. Apache's broker
    does not mark resets, so only those of its check points count that begin at the committed offset.
    """
    query = ledger.offsets.query
    for queue, offset in loaded.positions.items():
        group, topic, queue_id = queue
        committed = query(group, topic, queue_id)
        if committed is None or committed < offset:
            yield queue, offset
    for check_point in list(loaded.in_flight) if loaded.from_apache else ():
        group, topic, queue_id = check_point.group, check_point.topic, check_point.queue_id
        if not check_point.done and query(group, topic, queue_id) in (None, check_point.start_offset):
            yield (group, topic, queue_id), check_point.end


def _waits(message: MessageExt, checkpoint: TimerCheckpoint) -> bool:
    """Return whether a timer message is not yet in its own topic."""
    due_ms = p.whole_number(message.properties.get(p.TIMER_OUT_MS, "0"))
    is_due = due_ms is not None and due_ms < checkpoint.read_ms
    return not is_due or message.queue_offset >= checkpoint.queue_offset


def _load_revive_topic(
    loaded: Loaded, store: MessageStore, ledger: OffsetLedger, revive_topic: str, now: Now
) -> None:
    for queue_id in store.queue_ids(revive_topic):
        done = ledger.offsets.query(names.REVIVE_GROUP, revive_topic, queue_id)
        first = done + 1 if done is not None else 0
        for message in _messages(store, revive_topic, queue_id, first):
            loaded.apply(message, place=-1, now=now)


def _messages(store: MessageStore, topic: str, queue_id: int, offset: int) -> Iterator[MessageExt]:
    """Yield the messages of a queue from an offset on."""
    offset = max(offset, store.min_offset(topic, queue_id))
    while offset < store.max_offset(topic, queue_id):
        result = store.read(topic, queue_id, offset, READ_MAX, READ_BYTES_MAX)
        if result.status is ReadStatus.FOUND:
            yield from undamaged(result.data)
        elif result.next_offset <= offset:
            return
        offset = result.next_offset


def popped_behind(store: MessageStore, end: int, revive_topic: str) -> Mapping[QueueOfGroup, int]:
    """Return, for each group's queue, the first message whose check point lies behind an end of the log.

    A slave lowers its offsets to these before its log is truncated there:

        log      … messages 5 to 9 … │ check point of 5 to 9 …      │ the cut
        offset   10, from the former master's table ─► 5

    Without their check point, no record leads to messages before the committed offset. A slave promoted after
    the cut, before it has copied the new master's offsets, would never deliver them.
    """
    first: dict[QueueOfGroup, int] = {}
    start = store.first_offset_at(names.TIMER_TOPIC, 0, end)
    for message in _messages(store, names.TIMER_TOPIC, 0, start):
        if message.properties.get(p.REAL_TOPIC) != revive_topic:
            continue
        try:
            entry = decode_entry(message.tags, message.body)
        except RemoteProtocolError:
            continue
        if isinstance(entry, CheckPointEntry):
            queue = (entry.group, entry.topic, entry.queue_id)
            first[queue] = min(entry.start_offset, first.get(queue, entry.start_offset))
    return first
