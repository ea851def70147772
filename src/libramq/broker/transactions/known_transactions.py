"""Known transactions: the open and the ended half messages between the committed offsets of the half topic
and the op topic, and how a start reads them.

    half topic   … ended  ended │ open   ended  open   ended     `half_offset` │
    op topic     … "0,"   "1,"  │ "3,"   "5,"                    `op_offset`   │

Both offsets are committed under CID_RMQ_SYS_TRANS, as by Apache's broker, so either broker continues with the
other's open transactions. Everything behind them is kept in memory. A start reads it, the first stretches at
once and the others in rounds:

    op topic    … the last 4,096, and all behind `op_offset`: ended transactions
    half topic  … behind `half_offset`: copies, which carry the original offsets of open half messages

The end of the log may be missing, because a slave without it was promoted or a power cut destroyed it. If the
log ends with a committed message, its operation message was cut off and is written again.
"""

from collections import deque
from collections.abc import Iterable
from enum import Enum, auto
from typing import Final

from libramq.broker.groups.offset_commits import OffsetCommits
from libramq.broker.transactions import half
from libramq.message import names
from libramq.message.message import MessageExt
from libramq.store.log.append import undamaged
from libramq.store.message_store import MessageStore

#: Ours: most ended half messages remembered, so that a second commit stores no second message. Each takes
#: some 100 bytes.
ENDED_MAX: Final = 200_000
#: Ours: messages per read.
READ_MAX: Final = 32
#: Ours: operation messages that a start reads again, at some 25 µs each. If the broker is killed before it
#: answers a commit, the producer repeats the commit, and rounds may already have passed its half message.
REMEMBERED: Final = 4_096
#: Ours: stretches read before the broker serves.
STRETCHES_AT_START: Final = REMEMBERED // READ_MAX + 32


class Known(Enum):
    """The state of a half message that its producer names."""

    OPEN = auto()
    ENDED = auto()
    NOTHING = auto()  # It was passed, and may have ended too long ago to be remembered.


class KnownTransactions:
    """The open and the ended transactions; offsets refer to the one queue of each topic.

    unread_before: half messages before it may have ended or may be copies; they are still being read.
    held_before: a slave may have passed on half messages before it; that slave's answer is pending.
    """

    def __init__(self, half_offset: int, op_offset: int) -> None:
        self.half_offset = half_offset
        self.unread_before = self.held_before = 0
        self._op_start = self._op_end = op_offset
        # The message's offset, and the last half message that it names.
        self._ops: deque[tuple[int, int]] = deque()
        self._ended: dict[int, None] = {}
        self._copies: dict[int, int] = {}

    @property
    def op_offset(self) -> int:
        """Return the first operation message that names a half message behind `half_offset`."""
        if self.unread_before:
            return self._op_start
        return self._ops[0][0] if self._ops else self._op_end

    def ended(self, op_offset: int, half_offsets: Iterable[int]) -> None:
        """Note an operation message."""
        named = list(half_offsets)
        for half_offset in named:
            self._ended[half_offset] = None
            self._copies.pop(half_offset, None)
        self._ops.append((op_offset, max(named, default=-1)))
        self._op_end = max(self._op_end, op_offset + 1)
        self._forget()

    def all_read(self) -> None:
        """Note that both topics are read, and sort the operation messages, which came in out of order."""
        self.unread_before = 0
        self._ops = deque(sorted(self._ops))

    def remember(self, half_offsets: Iterable[int]) -> None:
        """Remember ended half messages, because their producers may repeat themselves."""
        for half_offset in half_offsets:
            self._ended[half_offset] = None
        self._forget()

    def was_renewed(self, first_offset: int, new_offset: int) -> None:
        """Note that a half message was copied to the end, or discarded in place."""
        self._copies[first_offset] = new_offset
        if len(self._copies) > ENDED_MAX:
            del self._copies[next(iter(self._copies))]

    def to_end(self, half_offset: int, first_offset: int) -> list[int]:
        """Return all offsets by which a half message may be named, without duplicates."""
        newest = self._copies.get(first_offset, half_offset)
        return list(dict.fromkeys((newest, half_offset, first_offset)))

    def has_ended(self, half_offset: int) -> bool:
        """Return whether a half message is known to have ended."""
        return half_offset in self._ended

    def known(self, half_offset: int, first_offset: int) -> Known:
        """Return the state of a half message, by its offset and its original one."""
        if half_offset in self._ended or first_offset in self._ended:
            return Known.ENDED
        if half_offset < self.held_before:
            return Known.NOTHING
        if first_offset in self._copies or half_offset >= max(self.half_offset, self.unread_before):
            return Known.OPEN
        return Known.NOTHING

    def is_renewed(self, first_offset: int, half_offset: int) -> bool:
        """Return whether a half message has a later copy."""
        return self._copies.get(first_offset, half_offset) > half_offset

    def was_passed_on(self, half_offset: int) -> None:
        """Note that a slave has passed on the open half messages before this one: they end elsewhere."""
        self.passed(half_offset)
        self._copies = {first: newest for first, newest in self._copies.items() if newest >= half_offset}

    def passed(self, half_offset: int) -> None:
        """Pass the half messages before an offset: they have ended, or were copied or discarded."""
        self.half_offset = max(self.half_offset, half_offset)
        while self._ops and self._ops[0][1] < self.half_offset:
            self._ops.popleft()

    def _forget(self) -> None:
        """Forget the oldest ended half messages before `half_offset`."""
        while len(self._ended) > ENDED_MAX:
            oldest = next(iter(self._ended))
            if oldest >= self.half_offset:
                return
            del self._ended[oldest]


class Loading:
    """Reads both topics as they are now. at_once: the constructor reads some, waiting for the disk."""

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
        """Read the next stretch, if any; messages of this process are noted as they are written."""
        if self.is_done:
            return
        if self._op_next < self._op_end:
            read = self._store.read(names.TRANS_OP_HALF_TOPIC, half.QUEUE_ID, self._op_next, READ_MAX)
            for message in undamaged(read.data):
                if message.queue_offset < self._op_offset:
                    self._open.remember(half.ended_offsets(message))
                elif message.queue_offset < self._op_end:
                    self._open.ended(message.queue_offset, half.ended_offsets(message))
            self._op_next = max(read.next_offset, self._op_next + 1)
        elif self._half_next < self._half_end:
            read = self._store.read(names.TRANS_HALF_TOPIC, half.QUEUE_ID, self._half_next, READ_MAX)
            for message in undamaged(read.data):
                first = half.first_offset(message)
                # By now, a slave may have passed on messages before `half_offset`.
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
    """Return the half message whose committed message ends the log; waits for the disk.

    Both messages of a commit are one append, so the operation message is missing then.
    """
    last = store.copy.last_record()
    committed = store.stored_message_at(last[0]) if last is not None else None
    if committed is None:
        return None
    message = store.stored_message_at(committed.prepared_transaction_offset)
    return message if message is not None and half.is_committed_as(message, committed) else None


def _end(store: MessageStore, topic: str) -> int:
    return store.max_offset(topic, half.QUEUE_ID)
