"""The message log: the store as processors append to it, with the answers that its statuses mean.

Upstream: SendMessageProcessor.handlePutMessageResult.
"""

from collections.abc import Sequence
from typing import Final

from libramq.codes import ResponseCode
from libramq.message import properties as p
from libramq.rpc.outcome import Outcome, Reply, ReplyWhenAnnounced, ReplyWhenDurable
from libramq.store.append import AppendResult, AppendStatus, StoreMessage
from libramq.store.config import FlushDiskType
from libramq.store.message_store import MessageStore

_REFUSALS: Final = {
    AppendStatus.MESSAGE_ILLEGAL: (
        ResponseCode.MESSAGE_ILLEGAL,
        "the message is illegal: maxMessageSize is {}",
    ),
    AppendStatus.PROPERTIES_SIZE_EXCEEDED: (
        ResponseCode.MESSAGE_ILLEGAL,
        f"the message is illegal: its properties are over {p.PROPERTIES_BYTES_MAX} bytes",
    ),
}


class MessageLog:
    """Appends messages and answers for them."""

    def __init__(self, store: MessageStore) -> None:
        self._store = store
        self._is_sync = store.config.flush_disk_type is FlushDiskType.SYNC_FLUSH

    def append(self, messages: Sequence[StoreMessage]) -> list[AppendResult]:
        """Store messages by one write."""
        return self._store.append_batch(messages)

    def answer(self, reply: Reply | ReplyWhenAnnounced, last: AppendResult, *, waits: bool) -> Outcome:
        """The answer for stored messages: at once, or when the last of them is on the disk."""
        if self._is_sync and waits:
            return ReplyWhenDurable(last.end, reply)
        return reply

    def refusal(self, result: AppendResult) -> Reply:
        """The answer for a message that was not stored."""
        code, remark = _REFUSALS.get(
            result.status,
            (
                ResponseCode.SERVICE_NOT_AVAILABLE,
                f"the store takes no messages: {self._store.failure or 'closed'}",
            ),
        )
        return Reply(code, remark.format(self._store.config.max_message_size))
