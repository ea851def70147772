"""The event logs: rebalances as messages of LIBRA_REBALANCE_EVENTS, audit events as messages of LIBRA_AUDIT;
when they are stored, and how a slave handles them.

    a rebalance is recorded ─► the answers of that turn leave ─► stored, together, a millisecond later
    a turn's changes        ─► one append, after its answers
    a second's observations ─► one append, at its end

No request waits for them. A kill in between loses only these events; under ASYNC_FLUSH a power cut loses more
of them. A slave, whose log is its master's, writes them to its text log.
"""

from collections import deque
from collections.abc import Callable, Mapping
from typing import Final

from libramq.auth import audit
from libramq.auth.audit import Audit, AuditEvent
from libramq.clock import MonotonicMs
from libramq.groups import rebalance_event
from libramq.groups.rebalance_event import RebalanceEvent
from libramq.kernel.parts import Kernel
from libramq.logs import get_logger
from libramq.message import properties as p
from libramq.message.names import AUDIT_TOPIC, REBALANCE_EVENTS_TOPIC
from libramq.message.tags import tag_code
from libramq.store.log.append import StoreMessage
from libramq.store.message_store import MessageStore

log = get_logger(__name__)

#: Ours: events per append, which takes 1 ms.
APPENDED_MAX: Final = 32


class EventLog:
    """Writes rebalance events into the broker's own store; clients cannot write to the topic.

    recorded: called at once with each event, before it is stored.
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
        """Store pending events."""
        while self._pending:
            self._store_some(self._now_ms())

    def _store_some(self, now_ms: MonotonicMs) -> None:
        """Store the first events; the rest are due at once, after other work."""
        events = [self._pending.popleft() for _ in range(min(len(self._pending), APPENDED_MAX))]
        if self._pending:
            self._deadline.at(now_ms)
        results = self._store.append_batch(
            [
                _message(
                    REBALANCE_EVENTS_TOPIC,
                    rebalance_event.encode_event(event),
                    {p.KEYS: event.group, p.TAGS: event.kind},
                    event.at_ms,
                )
                for event in events
            ]
        )
        for event, result in zip(events, results, strict=True):
            if not result.is_ok:
                log.warning("rebalance event lost: the store accepts no messages", group=event.group)


class AuditLog:
    """Writes audit events into the broker's own store; clients cannot write to the topic."""

    def __init__(self, broker_name: str, store: MessageStore, kernel: Kernel) -> None:
        self._store = store
        self._now_ms = kernel.clock.monotonic_ms
        self._deadline = kernel.deadlines.new(lambda now_ms: self._write(self.audit.take(now_ms)), "AuditLog")
        self.audit = Audit(broker_name, kernel.clock, self._deadline.by)

    def close(self) -> None:
        """Write pending events."""
        self._write(self.audit.take(self._now_ms(), all_of_them=True))

    def _write(self, events: list[AuditEvent]) -> None:
        if self._store.config.is_copy:
            for event in events:
                log.info("audit", kind=event.kind, user=event.user, host=event.host, request=event.request,
                         resources=list(event.resources), reason=event.reason, count=event.count)  # fmt: skip
            return
        results = self._store.append_batch([_audit_message(event) for event in events]) if events else []
        lost = sum(not result.is_ok for result in results)
        if lost:
            log.warning("audit events lost: the store accepts no messages", count=lost)


def _audit_message(event: AuditEvent) -> StoreMessage:
    properties = {p.TAGS: event.kind.value}
    if event.user and event.user.isprintable() and " " not in event.user:  # Keys are separated by blanks.
        properties[p.KEYS] = event.user
    return _message(AUDIT_TOPIC, audit.encode_event(event), properties, event.at_ms)


def _message(topic: str, body: bytes, properties: Mapping[str, str], at_ms: int) -> StoreMessage:
    code = tag_code(properties[p.TAGS])
    return StoreMessage(topic, 0, body, p.encode_properties(properties), code, born_timestamp_ms=at_ms)
