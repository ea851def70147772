"""Arrivals: when `visible_offset` moves, which held pulls, pops, delay levels and timers are notified of new
messages.

`store.visible_offset` alone decides which messages can be read; whenever it moves, the listeners are notified
here.
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


class TopicListener(Listener, Protocol):
    """A component that waits for messages of one topic only."""

    topic: str


class Arrivals:
    """Notifies listeners of new messages after each event that changed the store.

    listeners: those of every topic, in their order; those of one topic come after them.
    """

    def __init__(
        self,
        store: MessageStore,
        listeners: Sequence[Listener],
        of_one_topic: Sequence[TopicListener] = (),
    ) -> None:
        self._store = store
        self._listeners = tuple(listeners)
        self._by_topic = {listener.topic: (*listeners, listener) for listener in of_one_topic}

    def report(self) -> None:
        """Notify all listeners, and then all callers that wait for any change of the store."""
        touched, waiting = self._store.take_changes()
        for (topic, queue_id), end in touched.items():
            for listener in self._by_topic.get(topic, self._listeners):
                try:
                    listener.arrived(topic, queue_id, end)
                except Exception:  # The store reports a change only once: the other listeners need it now.
                    log.exception(
                        "held pulls could not be woken for new messages", topic=topic, queue_id=queue_id
                    )
        for action in waiting:
            action()
