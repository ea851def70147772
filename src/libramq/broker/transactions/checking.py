"""Transaction checks: when a producer is asked about an open half message (transactionTimeOut, immunity), how
often (transactionCheckMax), and when the message is discarded.

    every transactionCheckInterval, from the first open half message on
        ended                                   ─► passed
        its topic was deleted meanwhile         ─► ended, and dropped
        asked transactionCheckMax times, too old ─► discarded
        within its own immunity time             ─► copied to the end without a check
        younger than transactionTimeOut          ─► the round ends: later ones are younger
        else                                     ─► copied to the end, and its producer is asked

A deadline is set only while half messages are open. After a start, ended transactions are loaded first.
Upstream: TransactionalMessageServiceImpl.check, AbstractTransactionalMessageCheckListener.java.
"""

from collections.abc import Callable, Iterator
from enum import Enum, auto
from typing import Final

from libramq.broker.groups.offset_commits import OffsetCommits
from libramq.broker.transactions import half
from libramq.broker.transactions.known_transactions import READ_MAX, Loading, last_committed
from libramq.broker.transactions.transactions import Transactions
from libramq.clock import MonotonicMs, Now, read_clock
from libramq.errors import BrokerError
from libramq.kernel.parts import Kernel
from libramq.logs import get_logger
from libramq.message import names
from libramq.message import properties as p
from libramq.message.message import MessageExt
from libramq.store.log.append import undamaged
from libramq.store.message_store import MessageStore
from libramq.store.rounds import Rounds

log = get_logger(__name__)

#: Ours: delay before a round is repeated because the store accepts no messages or its progress is not
#: flushed.
AGAIN_MS: Final = 100
#: Ours: delay before a round is repeated that waits for slaves to report their progress.
HELD_MS: Final = 1_000


class Verdict(Enum):
    """The decision about an open half message."""

    DISCARD = auto()
    DEFER = auto()  # Copy it without a check.
    WAIT = auto()
    ASK = auto()


class CheckRules:
    """The limits of checks: times in ms, and a count."""

    def __init__(self, *, interval_ms: int, timeout_ms: int, times_max: int, kept_ms: int) -> None:
        self.interval_ms = interval_ms
        self.timeout_ms = timeout_ms
        self._times_max = times_max
        self._kept_ms = kept_ms

    def verdict(self, message: MessageExt, wall_ms: int) -> Verdict:
        """Decide about an open half message. Ages count from its birth, by its producer's clock."""
        age_ms = wall_ms - message.born_timestamp_ms
        if times_checked(message) >= self._times_max or age_ms > self._kept_ms:
            return Verdict.DISCARD
        immunity_ms = immunity_of(message)
        if immunity_ms is not None:
            # Clocks differ a little; a clock that was set back must not postpone a check for long.
            return Verdict.DEFER if abs(age_ms) < immunity_ms else Verdict.ASK
        return Verdict.WAIT if 0 <= age_ms < self.timeout_ms else Verdict.ASK

    def is_too_late(self, message: MessageExt, wall_ms: int) -> bool:
        """Return whether a producer's own immunity time is over, so that it must wait for the next check."""
        immunity_ms = immunity_of(message)
        if immunity_ms is None:
            return False
        return wall_ms - message.born_timestamp_ms > max(immunity_ms, self.timeout_ms)


def times_checked(message: MessageExt) -> int:
    """Return how often a producer was asked about a message."""
    text = message.properties.get(p.TRANSACTION_CHECK_TIMES, "0")
    return p.whole_number(text, digits_max=9) or 0


def immunity_of(message: MessageExt) -> int | None:
    """Return how long a producer exempts its message from checks, in ms; None by default."""
    seconds = p.whole_number(message.properties.get(p.CHECK_IMMUNITY_TIME_IN_SECONDS, ""), digits_max=9)
    return None if seconds is None else seconds * 1000


class Checking:
    """Runs the rounds of checks; an `arrivals.TopicListener`. Slaves run none.

    ask: sends a check to a producer of the half message's group.
    """

    topic = names.TRANS_HALF_TOPIC

    def __init__(
        self,
        *,
        store: MessageStore,
        offsets: OffsetCommits,
        transactions: Transactions,
        rules: CheckRules,
        kernel: Kernel,
        ask: Callable[[MessageExt], None],
    ) -> None:
        self._store = store
        self._offsets = offsets
        self._transactions, self.open = transactions, transactions.open
        self._rules = rules
        self._clock = kernel.clock
        self._ask = ask
        self._rounds = Rounds(store, kernel, self._act, again_ms=rules.interval_ms)
        self._committing = kernel.deadlines.new(self._commit_flushed)
        self._round_end: int | None = None
        self.loading = Loading(store, self.open)
        self._is_loading = not self.loading.is_done
        self._to_commit: tuple[int, int, int] | None = None
        self._is_refused = False
        self._is_active = not store.config.is_copy
        if self._is_active and store.max_offset(names.TRANS_HALF_TOPIC, half.QUEUE_ID):
            wait_ms = 0 if self._is_loading else rules.interval_ms
            self._rounds.by(self._clock.monotonic_ms() + wait_ms)
        if self._is_active:
            self._complete_last_commit()

    def arrived(self, topic: str, queue_id: int, end: int) -> None:
        """Schedule a round for a new half message one interval from now."""
        if self._is_active and not self._rounds.is_running:
            self._rounds.by(self._clock.monotonic_ms() + self._rules.interval_ms)

    def _act(self, now_ms: MonotonicMs) -> bool:
        try:
            has_more = self._go_on(now_ms)
            self._is_refused = False
        except BrokerError as error:
            if not self._is_refused:
                log.warning("half messages wait: the store accepts no messages", reason=error.remark)
            self._is_refused = True
            self._rounds.by(now_ms + AGAIN_MS)
            return False
        return has_more

    def _go_on(self, now_ms: MonotonicMs) -> bool:
        """Load or check some half messages; return whether there are more."""
        if self._is_loading:
            self.loading.read_on()  # Transactions that end now make progress here, too.
            self._is_loading = not self.loading.is_done
            # Producers must reconnect before they can be asked.
            if self._is_loading:
                return True
            self._rounds.by(now_ms + self._rules.interval_ms)
        elif self.open.held_before:
            self._rounds.by(now_ms + HELD_MS)
        elif self._check():
            return True
        else:
            self._round_end = None
            self.want_commit()
            if self.open.half_offset < self._store.max_offset(names.TRANS_HALF_TOPIC, half.QUEUE_ID):
                self._rounds.by(now_ms + self._rules.interval_ms)
        return False

    # The rounds.

    def _check(self) -> bool:
        """Check one half message; return whether this round has more."""
        if self._round_end is None:
            self._round_end = self._store.max_offset(names.TRANS_HALF_TOPIC, half.QUEUE_ID)
        now = read_clock(self._clock)
        offset = self.open.half_offset
        if offset >= self._round_end:
            return False
        next_offset = offset + 1
        if not self.open.has_ended(offset):
            read = self._store.read(names.TRANS_HALF_TOPIC, half.QUEUE_ID, offset, 1)
            found = undamaged(read.data)
            if not found:  # It expired, or is damaged.
                next_offset = max(read.next_offset, next_offset)
            elif not self._settle(found[0], now):
                return False
        self.open.passed(next_offset)
        return True

    def _settle(self, message: MessageExt, now: Now) -> bool:
        """Settle an open half message; return whether it is done. Raises BrokerError."""
        if not half.is_half(message):
            log.error("a half message without its real topic is skipped", id=message.offset_id)
            return True
        if self._transactions.has_ended(message):
            return True
        if self._transactions.is_of_deleted_topic(message):
            self._transactions.drop(message, now)
            return True
        verdict = self._rules.verdict(message, int(now.wall_ms))
        if verdict is Verdict.WAIT:
            return False
        if verdict is Verdict.DISCARD:
            self._discard(message, now)
            return True
        copy = self._transactions.renew(message, times_checked(message) + 1)
        if copy is None:  # There is no room for a copy: ask once, about the original.
            self._discard(message, now)
        if verdict is Verdict.ASK or copy is None:
            self._ask(copy or message)
        return True

    def _discard(self, message: MessageExt, now: Now) -> None:
        self._transactions.discard(message, now)
        log.error(
            "a transaction was given up: no producer ended it",
            group=message.properties.get(p.PRODUCER_GROUP),
            topic=message.properties.get(p.REAL_TOPIC),
            message_id=message.message_id,
            kept_in=names.TRANS_CHECK_MAX_TIME_TOPIC,
        )

    # Interrupted commits.

    def _complete_last_commit(self) -> None:
        """Store the missing operation message if the log ends between the two messages of a commit.

        It is the first message of this process, so every later start finds the commit complete.
        """
        message = last_committed(self._store)
        if message is None:
            return
        try:
            stored = self._transactions.complete(message, read_clock(self._clock))
        except BrokerError as error:
            log.warning("the last commit was cut off, and may be repeated", reason=error.remark)
        else:
            if stored is not None:
                log.info("the log ended amid a commit, which is complete now", id=message.offset_id)

    def passed_on(self, half_offset: int, read: range) -> Iterator[None]:
        """Note, in steps, that a slave has passed on the open half messages before an offset.

        read: from where the slave began to its end of the half topic; empty if this broker has no later
        messages. Later copies of passed-on messages are ended: this broker asked about them just before it
        died. Raises BrokerError.
        """
        self.open.was_passed_on(half_offset)
        store, end = self._store, self._store.max_offset(names.TRANS_HALF_TOPIC, half.QUEUE_ID)
        passed: set[int] = set()
        copies: dict[int, MessageExt] = {}
        offset = read.start
        while read and offset < end:
            found = store.read(names.TRANS_HALF_TOPIC, half.QUEUE_ID, offset, READ_MAX)
            for message in undamaged(found.data):
                first = half.first_offset(message)
                if message.queue_offset < half_offset:
                    passed.add(first)
                elif message.queue_offset < read.stop:
                    passed.discard(first)
                elif first in passed and times_checked(message):
                    copies[first] = message
            offset = max(found.next_offset, offset + 1)
            yield
        for message in copies.values():
            self._transactions.complete(message, read_clock(self._clock))
            yield
        self.want_commit()

    # Progress.

    def want_commit(self) -> None:
        """Commit both offsets once all earlier copies and operation messages are on the disk."""
        log_end = self._store.end
        self._to_commit = self.open.half_offset, self.open.op_offset, log_end
        self._store.want_flush(log_end)
        self._commit_flushed(self._clock.monotonic_ms())

    def _commit_flushed(self, now_ms: MonotonicMs) -> None:
        if self._to_commit is None:
            return
        half_offset, op_offset, log_end = self._to_commit
        if log_end > self._store.flushed_offset:
            self._committing.by(now_ms + AGAIN_MS)
            return
        self._to_commit = None
        group, queue_id = half.TRANSACTION_GROUP, half.QUEUE_ID
        for topic, offset in (
            (names.TRANS_HALF_TOPIC, half_offset),
            (names.TRANS_OP_HALF_TOPIC, op_offset),
        ):
            if offset and self._offsets.query(group, topic, queue_id) != offset:
                self._offsets.commit(group, topic, queue_id, offset)
