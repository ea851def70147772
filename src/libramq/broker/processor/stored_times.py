"""The store times of messages, for tools' answers."""

from libramq.kernel.work import Work
from libramq.store.message_store import MessageStore


def stored_ms(store: MessageStore, topic: str, queue_id: int, offset: int) -> Work[int]:
    """Return a message's store time; -1 if there is no message."""
    return store.reading(lambda: store.store_timestamp_ms(topic, queue_id, offset))
