"""The loading of transactions: what a start reads of the half topic and the op topic to know which half
messages are open.

    op topic    … the last 4,096, and all behind `op_offset`: what has ended
    half topic  … behind `half_offset`: copies, which carry the first offsets of those that are open

It is read in stretches: the first ones at once, the others in rounds.

The end of the log may be missing: a slave was promoted that lacks it, or a power cut took it. Where it ends
with a committed message, the operation message behind it was cut off, and is written again.
"""

from typing import Final

from libramq.broker.files.message_log import undamaged
from libramq.broker.groups.offset_commits import OffsetCommits
from libramq.broker.transactions import half
from libramq.broker.transactions.known_transactions import KnownTransactions
from libramq.message import names
from libramq.message.message import MessageExt
from libramq.store.message_store import MessageStore
from libramq.store.reading.read import ReadResult, ReadStatus

#: Ours: messages of one read.
READ_MAX: Final = 32
#: Ours: operation messages that a start reads again, some 25 µs each: a producer whose commit had no answer
#: when the broker was killed repeats it, and rounds may have passed its half message before.
REMEMBERED: Final = 4_096
#: Ours: what is read before the broker serves.
STRETCHES_AT_START: Final = REMEMBERED // READ_MAX + 32


class Loading:
    """Reads both topics as they are now. at_once: some of it in the constructor, waiting for the disk."""

    def __init__(self, store: MessageStore, known: KnownTransactions, *, at_once: bool = True) -> None:
        self._store = store
        self._open = known
        self._op_offset, self._op_end = known.op_offset, _end(store, names.TRANS_OP_HALF_TOPIC)
        self._half_end = known.unread_before = _end(store, names.TRANS_HALF_TOPIC)
        self._op_next = min(self._op_offset, self._op_end - REMEMBERED)
        self._op_next = max(self._op_next, store.min_offset(names.TRANS_OP_HALF_TOPIC, half.QUEUE_ID))
        self._half_next = known.half_offset
        for _ in range(STRETCHES_AT_START if at_once else 0):
            self.read_on()

    @property
    def is_done(self) -> bool:
        """Return whether everything is read."""
        return not self._open.unread_before

    def read_on(self) -> None:
        """Read a stretch, if any is left; messages that this process writes are noted as they are written."""
        if self.is_done:
            return
        if self._op_next < self._op_end:
            read = self._store.read(names.TRANS_OP_HALF_TOPIC, half.QUEUE_ID, self._op_next, READ_MAX)
            for message in messages_of(read):
                if message.queue_offset < self._op_offset:
                    self._open.remember(half.ended_offsets(message))
                elif message.queue_offset < self._op_end:
                    self._open.ended(message.queue_offset, half.ended_offsets(message))
            self._op_next = max(read.next_offset, self._op_next + 1)
        elif self._half_next < self._half_end:
            read = self._store.read(names.TRANS_HALF_TOPIC, half.QUEUE_ID, self._half_next, READ_MAX)
            for message in messages_of(read):
                first = half.first_offset(message)
                # A slave may have passed on what lies before `half_offset` by now.
                is_copy = max(first + 1, self._open.half_offset) <= message.queue_offset < self._half_end
                if is_copy and not self._open.has_ended(first):
                    self._open.was_renewed(first, message.queue_offset)
            self._half_next = max(read.next_offset, self._half_next + 1)
        if self._op_next >= self._op_end and self._half_next >= self._half_end:
            self._open.all_read()


def first_open(store: MessageStore, offsets: OffsetCommits) -> KnownTransactions:
    """Return the state after a start: everything between the committed offsets and the end is open."""
    found = []
    for topic in (names.TRANS_HALF_TOPIC, names.TRANS_OP_HALF_TOPIC):
        first = store.min_offset(topic, half.QUEUE_ID)
        committed = offsets.query(half.TRANSACTION_GROUP, topic, half.QUEUE_ID)
        found.append(max(first, committed if committed is not None else first))
    return KnownTransactions(*found)


def last_committed(store: MessageStore) -> MessageExt | None:
    """Return the half message whose committed message is the last of the log; waits for the disk.

    Both are one append, so the operation message is missing then.
    """
    last = store.copy.last_record()
    committed = store.stored_message_at(last[0]) if last is not None else None
    if committed is None:
        return None
    message = store.stored_message_at(committed.prepared_transaction_offset)
    return message if message is not None and half.is_committed_as(message, committed) else None


def messages_of(read: ReadResult) -> list[MessageExt]:
    """Return the undamaged messages of a read."""
    return undamaged(read.data) if read.status is ReadStatus.FOUND else []


def _end(store: MessageStore, topic: str) -> int:
    return store.max_offset(topic, half.QUEUE_ID)
