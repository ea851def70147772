"""The sequences of idempotent producers: whether a batch is new, a retry or out of order, the mark by which
stored messages show it, and how long a producer is remembered.

A producer numbers its records to a partition, from 0 on in each of its epochs. Of each producer and partition
the last five batches are known:

    a batch that is one of them     it was sent again: the answer is the offset of the first time
    a batch that follows the last   it is stored
    any other                       OUT_OF_ORDER_SEQUENCE_NUMBER
    a batch of an older epoch       INVALID_PRODUCER_EPOCH

A producer that is not known, or not any more, may begin anywhere. The truth lies in the log: every record has
its batch's numbers as a property (`mark`). After a kill amid a batch its first records may be there without
the others; the retry adds those.

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
#: Ours: producers times partitions; each takes about 1 KB. Those that were not used for longest are dropped.
ENTRIES_MAX: Final = 50_000
#: producer.id.expiration.ms.
EXPIRATION_MS: Final = 86_400_000
#: Sequences begin again after 2³¹ - 1.
_SEQUENCES: Final = 1 << 31
_MARK: Final = re.compile(rb"(\d{1,19}):(\d{1,5}):(\d{1,10}):(\d{1,5}):(\d{1,19})")


def mark(stamp: Stamp, offset: int) -> str:
    """Return what the property of a batch's records says; the first one is stored at this queue offset.

    The offset tells a record from its copies, which have the property, too.
    """
    return f"{stamp.producer_id}:{stamp.epoch}:{stamp.first}:{stamp.records}:{offset}"


def read_mark(data: bytes) -> tuple[Stamp, int] | None:
    """Return a record's stamp, and the queue offset of its batch; None if it is none."""
    found = _MARK.fullmatch(data)
    if found is None:
        return None
    *stamp, offset = map(int, found.groups())
    return Stamp(*stamp), offset


class StoredBatch(NamedTuple):
    """A batch of so many records. stored: how many of them are; end: where those end in the log."""

    first: int
    records: int
    stored: int
    offset: int
    end: int


class Entry(NamedTuple):
    """The batches that a producer stored in a partition: its last batches, the newest last."""

    epoch: int
    used_ms: int
    batches: tuple[StoredBatch, ...]

    @property
    def next_sequence(self) -> int:
        """Return the sequence that the next batch begins with."""
        last = self.batches[-1]
        return (last.first + last.stored) % _SEQUENCES


#: A producer's id, a topic and a queue.
Key = tuple[int, str, int]


class Sequences:
    """The sequences of all producers. next_offset: of the message that is stored next in a queue."""

    def __init__(self, next_offset: Callable[[str, int], int]) -> None:
        self._next_offset = next_offset
        #: The one that was used last is the last.
        self._entries: dict[Key, Entry] = {}
        self.version = 0

    def __len__(self) -> int:
        return len(self._entries)

    def judge(self, topic: str, queue_id: int, stamp: Stamp) -> StoredBatch | None:
        """Return a batch's earlier try, of which all or some records are stored; None: it is new.

        Raises InvalidBatch if it may not be stored.
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
        """Note a batch that was stored, or the rest of one."""
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
        """Note a record of so many messages that was found in the log, where later ones follow it."""
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
        """Forget what was stored in a deleted topic."""
        for key in [key for key in self._entries if key[1] == topic]:
            del self._entries[key]
            self.version += 1

    def expire(self, wall_ms: WallMs) -> None:
        """Forget producers that stored nothing for a day."""
        unused_ms = int(wall_ms) - EXPIRATION_MS
        for key, _ in list(takewhile(lambda item: item[1].used_ms <= unused_ms, self._entries.items())):
            del self._entries[key]

    def snapshot(self) -> Sequence[tuple[Key, Entry]]:
        """Return everything; the parts never change."""
        return list(self._entries.items())

    def restore(self, snapshot: Sequence[tuple[Key, Entry]]) -> None:
        """Take over a snapshot."""
        self._entries = dict(snapshot[-ENTRIES_MAX:])


def _completed(last: StoredBatch, found: StoredBatch) -> StoredBatch:
    """Return a batch with the record found last, which may be of the retry that completes the one before."""
    done = found.first - last.first
    if (
        done > 0
        and found.first + found.records == last.first + last.records
        and done + found.stored > last.stored
    ):
        return last._replace(stored=done + found.stored, end=found.end)
    return found
