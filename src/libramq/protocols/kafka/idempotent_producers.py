"""The sequences of idempotent producers: whether a batch is new, a retry or out of order, the mark on stored
messages, and how long a producer is remembered.

A producer numbers its records to a partition, from 0 in each of its epochs. The last five batches of each
producer and partition are remembered:

    a batch that is one of them     a retry: the answer is the original offset
    a batch that follows the last   it is stored
    any other                       OUT_OF_ORDER_SEQUENCE_NUMBER
    a batch of an older epoch       INVALID_PRODUCER_EPOCH

An unknown or forgotten producer may begin anywhere. The log is the source of truth: every record has its
batch's numbers as a property (`mark`). If the broker is killed while storing a batch, only its first records
may be stored; the retry adds the others.

Upstream: ProducerStateManager.java, ProducerStateEntry.java, ProducerAppendInfo.java.
"""

import re
from collections.abc import Callable, Sequence
from itertools import takewhile
from typing import Final, NamedTuple

from libramq.clock import WallMs
from libramq.wire.kafka.error_code import ErrorCode
from libramq.wire.kafka.record_batch import InvalidBatch, Stamp

#: ProducerStateEntry.NUM_BATCHES_TO_RETAIN: as many as a producer may have in flight.
BATCHES_MAX: Final = 5
#: Ours: producers times partitions, of about 1 KB each. The least recently used are dropped.
ENTRIES_MAX: Final = 50_000
#: producer.id.expiration.ms.
EXPIRATION_MS: Final = 86_400_000
#: Sequences wrap around after 2³¹ - 1.
_SEQUENCES: Final = 1 << 31
_MARK: Final = re.compile(rb"(\d{1,19}):(\d{1,5}):(\d{1,10}):(\d{1,5}):(\d{1,19})")


def mark(stamp: Stamp, offset: int) -> str:
    """Return the value of the property for a batch whose first record is stored at this queue offset.

    The offset distinguishes a record from its copies, which also have the property.
    """
    return f"{stamp.producer_id}:{stamp.epoch}:{stamp.first}:{stamp.records}:{offset}"


def read_mark(data: bytes) -> tuple[Stamp, int] | None:
    """Parse a mark: the stamp and queue offset of the record's batch; None if it is invalid."""
    found = _MARK.fullmatch(data)
    if found is None:
        return None
    *stamp, offset = map(int, found.groups())
    return Stamp(*stamp), offset


class StoredBatch(NamedTuple):
    """A batch. records: their count; stored: the count of stored ones; end: the log offset after those."""

    first: int
    records: int
    stored: int
    offset: int
    end: int


class Entry(NamedTuple):
    """The last batches that a producer stored in a partition, newest last."""

    epoch: int
    used_ms: int
    batches: tuple[StoredBatch, ...]

    @property
    def next_sequence(self) -> int:
        """Return the first sequence of the next batch."""
        last = self.batches[-1]
        return (last.first + last.stored) % _SEQUENCES


#: A producer's id, a topic and a queue.
Key = tuple[int, str, int]


class Sequences:
    """The sequences of all producers. next_offset: returns the next offset of a queue."""

    def __init__(self, next_offset: Callable[[str, int], int]) -> None:
        self._next_offset = next_offset
        #: In the order of use, most recent last.
        self._entries: dict[Key, Entry] = {}
        self.version = 0

    def __len__(self) -> int:
        return len(self._entries)

    def judge(self, topic: str, queue_id: int, stamp: Stamp) -> StoredBatch | None:
        """Return a batch's earlier attempt, which is stored entirely or in part; None if the batch is new.

        Raises InvalidBatch if the batch must not be stored.
        """
        key = (stamp.producer_id, topic, queue_id)
        entry = self._entries.get(key)
        if entry is None:
            return None
        last = entry.batches[-1]
        if last.offset + last.stored > self._next_offset(topic, queue_id):  # Of a deleted topic.
            del self._entries[key]
            return None
        who = f"producer {stamp.producer_id}"
        if stamp.epoch < entry.epoch:
            raise InvalidBatch(
                ErrorCode.INVALID_PRODUCER_EPOCH, f"{who} has epoch {entry.epoch}, this batch {stamp.epoch}"
            )
        expected = 0
        if stamp.epoch == entry.epoch:
            expected = entry.next_sequence
            for batch in entry.batches:
                if (batch.first, batch.records) == (stamp.first, stamp.records):
                    return batch
        if stamp.first != expected:
            raise InvalidBatch(
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"{who} continues with sequence {expected}, this batch begins with {stamp.first}",
            )
        return None

    def note(self, topic: str, queue_id: int, stamp: Stamp, batch: StoredBatch, wall_ms: int) -> None:
        """Note a stored batch, or the rest of one."""
        key = (stamp.producer_id, topic, queue_id)
        entry = self._entries.pop(key, None)
        batches = entry.batches if entry is not None and entry.epoch == stamp.epoch else ()
        if batches and (batches[-1].first, batches[-1].records) == (batch.first, batch.records):
            batches = batches[:-1]
        self._entries[key] = Entry(stamp.epoch, wall_ms, (*batches, batch)[-BATCHES_MAX:])
        self.version += 1
        if len(self._entries) > ENTRIES_MAX:
            del self._entries[next(iter(self._entries))]

    def note_record(
        self,
        topic: str,
        queue_id: int,
        queue_offset: int,
        marked: tuple[Stamp, int],
        end: int,
        wall_ms: int,
        *,
        count: int = 1,
    ) -> None:
        """Note a record found in the log, in the order of the log. count: its messages."""
        stamp, offset = marked
        index = queue_offset - offset
        if not 0 <= index < stamp.records:  # A copy.
            return
        entry = self._entries.get((stamp.producer_id, topic, queue_id))
        stored = min(index + count, stamp.records)
        found = StoredBatch(stamp.first, stamp.records, stored, offset, end)
        if entry is not None and entry.epoch > stamp.epoch:
            return
        if entry is not None and entry.epoch == stamp.epoch:
            found = _completed(entry.batches[-1], found)
        self.note(topic, queue_id, stamp, found, wall_ms)

    def forget_topic(self, topic: str) -> None:
        """Forget the batches in a deleted topic."""
        for key in [key for key in self._entries if key[1] == topic]:
            del self._entries[key]
            self.version += 1

    def expire(self, wall_ms: WallMs) -> None:
        """Forget producers that have stored nothing for a day."""
        unused_ms = int(wall_ms) - EXPIRATION_MS
        for key, _ in list(takewhile(lambda item: item[1].used_ms <= unused_ms, self._entries.items())):
            del self._entries[key]

    def snapshot(self) -> Sequence[tuple[Key, Entry]]:
        """Return all entries, which are immutable."""
        return list(self._entries.items())

    def restore(self, snapshot: Sequence[tuple[Key, Entry]]) -> None:
        """Take over a snapshot."""
        self._entries = dict(snapshot[-ENTRIES_MAX:])


def _completed(last: StoredBatch, found: StoredBatch) -> StoredBatch:
    """Return a batch including the record found last, which may come from the retry that completes it."""
    done = found.first - last.first
    if (
        done > 0
        and found.first + found.records == last.first + last.records
        and done + found.stored > last.stored
    ):
        return last._replace(stored=done + found.stored, end=found.end)
    return found
