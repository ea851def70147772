"""Arrivals: queues that have more to read, handed to whoever waits for that.

`store.visible_offset` alone decides what can be read; whatever moved it, held pulls and delay levels hear of
it here.
"""

from collections.abc import Sequence
from typing import Protocol

from libramq.logs import get_logger
from libramq.store.message_store import MessageStore

log = get_logger(__name__)


class Listener(Protocol):
    """Somebody who waits for messages."""

    def arrived(self, topic: str, queue_id: int, end: int) -> None:
        """A queue has more to read, up to an offset."""
        ...


class Arrivals:
    """Hands out what the store collects, until nothing is left: listeners may store messages themselves."""

    def __init__(self, store: MessageStore, listeners: Sequence[Listener]) -> None:
        self._store = store
        self._listeners = listeners

    def settle(self) -> None:
        """Tell everybody."""
        while self._store.touched:
            for (topic, queue_id), end in self._store.drain_touched().items():
                for listener in self._listeners:
                    try:
                        listener.arrived(topic, queue_id, end)
                    except Exception:  # The store says it once only: the others have to hear it now.
                        log.exception(
                            "held pulls could not be woken for new messages", topic=topic, queue_id=queue_id
                        )
