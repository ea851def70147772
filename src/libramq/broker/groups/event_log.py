"""The event log: when rebalance events are stored as messages of LIBRA_REBALANCE_EVENTS: after the answers of
their turn.

recorded ─► the answers of that turn leave ─► stored, together, a millisecond later

Members wait for those answers, and nobody waits for history. A broker that is killed within that millisecond
loses these events, and nothing else; under ASYNC_FLUSH a power cut loses more of them.
"""

from collections import deque
from collections.abc import Callable
from typing import Final

from libramq.clock import MonotonicMs
from libramq.groups.rebalance_event import RebalanceEvent, encode_event
from libramq.kernel.parts import Kernel
from libramq.logs import get_logger
from libramq.message import properties as p
from libramq.message.names import REBALANCE_EVENTS_TOPIC
from libramq.message.tags import tag_code
from libramq.store.log.append import StoreMessage
from libramq.store.message_store import MessageStore

log = get_logger(__name__)

#: Ours: events that one append stores, in 1 ms.
APPENDED_MAX: Final = 32


class EventLog:
    """Writes events into the broker's own store; clients cannot write to the topic.

    recorded: called with each of them at once, before it is stored.
    """

    def __init__(
        self, store: MessageStore, kernel: Kernel, recorded: Callable[[RebalanceEvent], None] | None = None
    ) -> None:
        self._store = store
        self._recorded = recorded
        self._pending: deque[RebalanceEvent] = deque()
        self._now_ms = kernel.clock.monotonic_ms
        self._deadline = kernel.deadlines.new(self._store_some, "EventLog")

    def record(self, event: RebalanceEvent) -> None:
        """Store an event after this turn; a slave only logs it."""
        log.info("rebalance", group=event.group, epoch=event.epoch, kind=event.kind, reason=event.reason)
        if not self._store.config.is_copy:
            self._pending.append(event)
            self._deadline.by(self._now_ms())
        if self._recorded is not None:
            self._recorded(event)

    def close(self) -> None:
        """Store what is pending."""
        while self._pending:
            self._store_some(self._now_ms())

    def _store_some(self, now_ms: MonotonicMs) -> None:
        """Store the first events; the others are due at once, after others were served."""
        events = [self._pending.popleft() for _ in range(min(len(self._pending), APPENDED_MAX))]
        if self._pending:
            self._deadline.at(now_ms)
        results = self._store.append_batch([_message(event) for event in events])
        for event, result in zip(events, results, strict=True):
            if not result.is_ok:
                log.warning("rebalance event lost: the store accepts no messages", group=event.group)


def _message(event: RebalanceEvent) -> StoreMessage:
    return StoreMessage(
        REBALANCE_EVENTS_TOPIC,
        0,
        encode_event(event),
        p.encode_properties({p.KEYS: event.group, p.TAGS: event.kind}),
        tag_code(event.kind),
        born_timestamp_ms=event.at_ms,
    )
