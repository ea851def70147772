"""Arrivals: queues with new messages, reported to those who wait for them.

`store.visible_offset` alone decides what can be read; whenever it moves, held pulls and delay levels are
notified here.
"""

from collections.abc import Sequence
from typing import Protocol

from libramq.logs import get_logger
from libramq.store.message_store import MessageStore

log = get_logger(__name__)


class Listener(Protocol):
    """A component that waits for messages."""

    def arrived(self, topic: str, queue_id: int, end: int) -> None:
        """Handle new messages of a queue, up to an offset."""
        ...


class Arrivals:
    """Reports what the store collects, until nothing is left: listeners may store messages themselves."""

    def __init__(self, store: MessageStore, listeners: Sequence[Listener]) -> None:
        self._store = store
        self._listeners = listeners

    def settle(self) -> None:
        """Notify all listeners."""
        while self._store.touched:
            for (topic, queue_id), end in self._store.drain_touched().items():
                for listener in self._listeners:
                    try:
                        listener.arrived(topic, queue_id, end)
                    except Exception:  # The store reports it only once: the other listeners need it now.
                        log.exception(
                            "held pulls could not be woken for new messages", topic=topic, queue_id=queue_id
                        )
