"""Transactions: how a half message is committed, rolled back, renewed or discarded in the log, and how an
interrupted commit is completed.

    send with TRAN_MSG ─► half topic ─► END_TRANSACTION ─┬─ commit ──► its own queue, and an operation message
                              ▲  │                       └─ rollback ► an operation message
                              │  └─ not ended ─► CHECK_TRANSACTION_STATE to a producer of its group
                              └── renewed ◄─────────────────────┘

The committed message and its operation message are one append. If a power cut or the loss of a master leaves
only the first, the next start writes the second again.
Upstream: TransactionalMessageServiceImpl.java, EndTransactionProcessor.java.
"""

from typing import Final

from libramq.broker.files.files import BrokerFiles
from libramq.broker.groups.offset_commits import OffsetCommits
from libramq.broker.transactions import half
from libramq.broker.transactions.known_transactions import Known, first_open
from libramq.clock import Now, WallMs
from libramq.codes import ResponseCode
from libramq.errors import broker_error
from libramq.formats.tables import PERM_READ, PERM_WRITE
from libramq.message import names
from libramq.message import properties as p
from libramq.message.ids import encode_host
from libramq.message.message import MessageExt
from libramq.store.log.append import PROPERTIES_SIZE_EXCEEDED, AppendResult, StoreMessage

_NOT_KNOWN: Final = (
    "too long ago to tell whether this transaction has ended: if it has not, the next check asks about it"
)


class Transactions:
    """Stores the outcome of half messages."""

    def __init__(self, files: BrokerFiles, offsets: OffsetCommits) -> None:
        self.open = first_open(files.store, offsets)
        self._log, self._topics, self._destinations = files.log, files.tables.topics, files.destinations
        self._schedule, self._timers = files.schedule, files.timers.timers
        self._host = encode_host(files.store.config.store_host)  # For operation messages.

    def create_topics(self, wall_ms: WallMs) -> None:
        """Create the two topics with the first half message."""
        for topic in (names.TRANS_HALF_TOPIC, names.TRANS_OP_HALF_TOPIC):
            self._topics.for_group(topic, 1, PERM_READ | PERM_WRITE, wall_ms)

    def end(self, message: MessageExt, *, is_commit: bool, now: Now) -> AppendResult | None:
        """Commit a half message or roll it back; None if that has happened already. Raises BrokerError.

        Producers repeat themselves, and may answer a check after they have ended the transaction. A message
        is never stored twice, and never after a rollback. An end of a forgotten transaction is refused; if
        the transaction is open after all, its producer is asked about the copy.
        """
        known = self.open.known(message.queue_offset, half.first_offset(message))
        if known is Known.ENDED:
            return None
        if known is Known.NOTHING:
            raise broker_error(ResponseCode.SYSTEM_ERROR, _NOT_KNOWN)
        if is_commit and self.is_of_deleted_topic(message):
            return self.drop(message, now)
        self.create_topics(now.wall_ms)
        return self._store_end(message, now, [self._committed(message, now)] if is_commit else [])

    def is_of_deleted_topic(self, message: MessageExt) -> bool:
        """Return whether a half message is for a topic deleted after it was stored."""
        return message.physical_offset < self._destinations.deleted_end(message.properties[p.REAL_TOPIC])

    def drop(self, message: MessageExt, now: Now) -> AppendResult | None:
        """End a half message of a deleted topic without a commit. Raises BrokerError."""
        result = self.complete(message, now)
        self._destinations.drop({message.properties[p.REAL_TOPIC]: 1})
        return result

    def is_unread(self, message: MessageExt) -> bool:
        """Return whether a half message may have ended before the start; its topic is still being read."""
        return message.queue_offset < self.open.unread_before and not self.has_ended(message)

    def complete(self, message: MessageExt, now: Now) -> AppendResult | None:
        """Store the operation message that a commit lacks; None if it lacks none. Raises BrokerError."""
        if self.has_ended(message):
            return None
        self.create_topics(now.wall_ms)
        return self._store_end(message, now, [])

    def _store_end(self, message: MessageExt, now: Now, before: list[StoreMessage]) -> AppendResult:
        """Store messages and an operation message by one append."""
        named = self.open.to_end(message.queue_offset, half.first_offset(message))
        key = message.properties.get(p.UNIQ_KEY, "")
        results = self._log.append_all([*before, half.ended(named, key, self._host, now.wall_ms)])
        self.open.ended(results[-1].queue_offset, named)
        return results[-1]

    def _committed(self, message: MessageExt, now: Now) -> StoreMessage:
        """Return the committed message: for its own queue, or delayed from now on."""
        final = half.committed(message)
        final.queue_id = self._destinations.queue_for(final.topic, final.queue_id)
        delay = message.properties.get(p.DELAY)
        if delay is not None and p.whole_number(delay):
            self._schedule.delay(final, delay)
        elif any(name in message.properties for name in p.TIMER_REQUESTS):
            self._timers.accept(final, final.properties_text.decode("utf-8", "replace"), now.wall_ms)
        if len(final.properties_text) > p.PROPERTIES_BYTES_MAX:  # Do not end it without storing it.
            raise self._log.refused(PROPERTIES_SIZE_EXCEEDED)
        return final

    def has_ended(self, message: MessageExt) -> bool:
        """Return whether a half message, or the original of this copy, is known to have ended."""
        return self.open.has_ended(message.queue_offset) or self.open.has_ended(half.first_offset(message))

    def renew(self, message: MessageExt, times_checked: int) -> MessageExt | None:
        """Copy a half message to the end of its topic; return the copy. Raises BrokerError.

        None if the properties of a copy would be too long (Apache's broker accepts such half messages).
        """
        properties = half.renewed_properties(message, times_checked)
        copy = half.renewed(message, properties)
        if len(copy.properties_text) > p.PROPERTIES_BYTES_MAX:
            return None
        (result,) = self._log.append_all([copy])
        self.open.was_renewed(half.first_offset(message), result.queue_offset)
        message.stored_again(properties, result.queue_offset, result.physical_offset)
        return message

    def resume(self, message: MessageExt, now: Now) -> None:
        """Store a discarded half message at the end of its topic, as if never checked.

        Raises BrokerError. If it was checked, it carries its original offset, so it is committed once,
        however often it is resumed.
        """
        if not half.is_half_of(message, names.TRANS_CHECK_MAX_TIME_TOPIC):
            raise broker_error(
                ResponseCode.MESSAGE_ILLEGAL, "it lacks the topic or queue that it was sent to"
            )
        if self.is_of_deleted_topic(message):
            raise broker_error(ResponseCode.TOPIC_NOT_EXIST, "its topic was deleted since it was stored")
        self.create_topics(now.wall_ms)
        self._log.append_all([half.resumed(message)])

    def discard(self, message: MessageExt, now: Now) -> None:
        """Move a half message to the topic of discarded ones. Raises BrokerError."""
        self._topics.for_group(names.TRANS_CHECK_MAX_TIME_TOPIC, 1, PERM_READ | PERM_WRITE, now.wall_ms)
        self._log.append_all([half.discarded(message)])
        self.open.was_renewed(half.first_offset(message), message.queue_offset)  # It may still end.
