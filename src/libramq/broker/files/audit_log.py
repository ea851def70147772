"""The audit log: audit events as messages of LIBRA_AUDIT; when they are stored, and what a slave does with
them.

    what a turn has changed ─► one append, after its answers
    what a second has seen  ─► one append, when it is over

No request waits for it. A broker that is killed in between loses the events of that second; a slave, whose
log is its master's, writes them to its own log of lines.
"""

from libramq.auth.audit import Audit, AuditEvent, encode_event
from libramq.clock import MonotonicMs
from libramq.kernel.parts import Kernel
from libramq.logs import get_logger
from libramq.message import properties as p
from libramq.message.names import AUDIT_TOPIC
from libramq.message.tags import tag_code
from libramq.store.log.append import StoreMessage
from libramq.store.message_store import MessageStore

log = get_logger(__name__)


class AuditLog:
    """Writes events into the broker's own store; clients cannot write to the topic."""

    def __init__(self, broker_name: str, store: MessageStore, kernel: Kernel) -> None:
        self._store = store
        self._now_ms = kernel.clock.monotonic_ms
        self._deadline = kernel.deadlines.new(self._write_due, "AuditLog")
        self.audit = Audit(broker_name, kernel.clock, self._deadline.by)

    def close(self) -> None:
        """Write what is pending."""
        self._write(self.audit.take(self._now_ms(), all_of_them=True))

    def _write_due(self, now_ms: MonotonicMs) -> None:
        self._write(self.audit.take(now_ms))

    def _write(self, events: list[AuditEvent]) -> None:
        if self._store.config.is_copy:
            for event in events:
                log.info("audit", kind=event.kind, user=event.user, host=event.host, request=event.request,
                         resources=list(event.resources), reason=event.reason, count=event.count)  # fmt: skip
            return
        results = self._store.append_batch([_message(event) for event in events]) if events else []
        lost = sum(not result.is_ok for result in results)
        if lost:
            log.warning("audit events lost: the store accepts no messages", count=lost)


def _message(event: AuditEvent) -> StoreMessage:
    properties = {p.TAGS: event.kind.value}
    if event.user and event.user.isprintable() and " " not in event.user:  # Keys are divided by blanks.
        properties[p.KEYS] = event.user
    return StoreMessage(
        AUDIT_TOPIC,
        0,
        encode_event(event),
        p.encode_properties(properties),
        tag_code(event.kind),
        born_timestamp_ms=event.at_ms,
    )
