"""The message log: appends messages for services, several together or none of them, with the error code for
each refusal of the store (disk full, too long, too few slaves).

Upstream: SendMessageProcessor.handlePutMessageResult.
"""

from collections.abc import Callable, Sequence
from typing import Final

from libramq.codes import ResponseCode
from libramq.errors import BrokerError, InvalidName, broker_error
from libramq.logs import get_logger
from libramq.message import properties as p
from libramq.message.record import BLANK_BYTES, record_size
from libramq.message.record_head import HOST_BITS
from libramq.store.config import FlushDiskType
from libramq.store.log.append import (
    MESSAGE_ILLEGAL,
    NOT_ENOUGH_REPLICAS,
    PROPERTIES_SIZE_EXCEEDED,
    AppendResult,
    AppendStatus,
    MessageRun,
    StoreMessage,
)
from libramq.store.message_store import MessageStore
from libramq.store.queues.light_queues import LIGHT_QUEUE_ID, names_of

log = get_logger(__name__)

#: Ours: characters of light queues' names in a log line.
NAMED_CHARACTERS_MAX: Final = 100
_REFUSALS: Final = {
    AppendStatus.MESSAGE_ILLEGAL: (
        ResponseCode.MESSAGE_ILLEGAL,
        "the message is illegal: a number or a name is out of range, or no file of the log can hold it",
    ),
    AppendStatus.PROPERTIES_SIZE_EXCEEDED: (
        ResponseCode.MESSAGE_ILLEGAL,
        f"the message is illegal: its properties are over {p.PROPERTIES_BYTES_MAX} bytes",
    ),
    AppendStatus.IN_SYNC_REPLICAS_NOT_ENOUGH: (ResponseCode.SYSTEM_ERROR, NOT_ENOUGH_REPLICAS),
}


class MessageLog:
    """Appends messages. waits_for_slaves: a message is acknowledged once slaves have it."""

    def __init__(self, store: MessageStore, *, waits_for_slaves: bool = False) -> None:
        self._store = store
        self._has_warned_of_light = False
        #: Stores messages by one write; returns one result per message or run.
        self.append: Callable[[Sequence[StoreMessage | MessageRun]], list[AppendResult]] = store.append_batch
        self.message_at, self.record_at = store.message_at, store.record_at
        #: Whether acknowledgements wait for the disk, or for slaves.
        self.must_wait = waits_for_slaves or store.config.flush_disk_type is FlushDiskType.SYNC_FLUSH

    def is_in_batches(self, topic: str) -> bool:
        """Return whether a record may hold several messages in new queues of a topic."""
        return self._store.is_in_batches(topic)

    def require_storable(self, message: StoreMessage) -> None:
        """Raise BrokerError for a message that the store would refuse in any case."""
        if len(message.properties_text) > p.PROPERTIES_BYTES_MAX:
            raise self.refused(PROPERTIES_SIZE_EXCEEDED)
        # Assuming IPv6 hosts, which are 24 bytes longer.
        size = record_size(message.topic, len(message.body), len(message.properties_text), HOST_BITS)
        if size > self._store.config.mapped_file_size_commit_log - BLANK_BYTES:
            raise self.refused(MESSAGE_ILLEGAL)

    def may_hold(self, topics: Sequence[str], size: int) -> bool:
        """Return whether one file may hold messages of these topics; size: of their bodies and properties."""
        around = max(record_size(topic, 0, 0, HOST_BITS) for topic in set(topics))
        return size + around * len(topics) <= self._store.config.mapped_file_size_commit_log - BLANK_BYTES

    def require_light(self, dispatch: str | None) -> None:
        """Raise BrokerError for light queues with invalid names, or for too many of them."""
        maximum = self._store.config.light_queues_max
        if not dispatch:
            return
        if not maximum:
            if not self._has_warned_of_light:  # Once: senders would fill the log.
                self._has_warned_of_light = True
                log.warning(
                    "a message names light queues, which are switched off",
                    queues=dispatch[:NAMED_CHARACTERS_MAX],
                    remedy="set enableLmq=true and enableMultiDispatch=true; this is logged once",
                )
            return
        try:
            fresh = [name for name in names_of(dispatch) if not self._store.has_queue(name, LIGHT_QUEUE_ID)]
        except InvalidName as error:
            raise broker_error(ResponseCode.MESSAGE_ILLEGAL, str(error)) from None
        if fresh and self._store.light_queue_count + len(fresh) > maximum:
            raise broker_error(
                ResponseCode.SYSTEM_ERROR,
                f"[LMQ_CONSUME_QUEUE_NUM_EXCEEDED] there are {self._store.light_queue_count} light queues;"
                f" maxLmqConsumeQueueNum is {maximum}",
            )

    def append_all(self, messages: Sequence[StoreMessage]) -> list[AppendResult]:
        """Store messages by one write; raises BrokerError if the store refuses one."""
        results = self.append(messages)
        for result in results:
            if not result.is_ok:
                raise self.refused(result)
        return results

    def refused(self, result: AppendResult) -> BrokerError:
        """Return the error for a message that was not stored."""
        code, remark = _REFUSALS.get(
            result.status,
            (
                ResponseCode.SERVICE_NOT_AVAILABLE,
                f"the store accepts no messages: {self._store.failure or 'closed'}",
            ),
        )
        return broker_error(code, remark)
