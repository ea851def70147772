"""The event log: rebalance events as messages of LIBRA_REBALANCE_EVENTS, keyed by group."""

from collections.abc import Callable

from libramq.groups.rebalance_event import RebalanceEvent, encode_event
from libramq.logs import get_logger
from libramq.message import properties as p
from libramq.message.names import REBALANCE_EVENTS_TOPIC
from libramq.message.tags import tag_code
from libramq.store.log.append import StoreMessage
from libramq.store.message_store import MessageStore

log = get_logger(__name__)


class EventLog:
    """Writes events into the broker's own store; clients cannot write to the topic.

    recorded: called with each of them afterwards.
    """

    def __init__(self, store: MessageStore, recorded: Callable[[RebalanceEvent], None] | None = None) -> None:
        self._store = store
        self._recorded = recorded

    def record(self, event: RebalanceEvent) -> None:
        """Store one event; a slave only logs it."""
        log.info("rebalance", group=event.group, epoch=event.epoch, kind=event.kind, reason=event.reason)
        if not self._store.config.is_copy:
            message = StoreMessage(
                REBALANCE_EVENTS_TOPIC,
                0,
                encode_event(event),
                p.encode_properties({p.KEYS: event.group, p.TAGS: event.kind}),
                tag_code(event.kind),
                born_timestamp_ms=event.at_ms,
            )
            (result,) = self._store.append_batch([message])
            if not result.is_ok:
                log.warning("rebalance event lost: the store accepts no messages", group=event.group)
        if self._recorded is not None:
            self._recorded(event)
