"""The actions of reading: the user pauses and resumes a queue, or continues elsewhere in it."""

from libramq.client.consuming.effects import Effects
from libramq.client.consuming.ownership import event as ev
from libramq.client.consuming.ownership.ownership import Ownership
from libramq.client.consuming.queues.owned_queue import OwnedQueue
from libramq.client.consuming.queues.state import QueueState
from libramq.clock import MonotonicMs


def pause(own: Ownership, owned: OwnedQueue, event: ev.Paused, now_ms: MonotonicMs) -> Effects:
    """Start no more handlers and pulls, if the user has paused this queue."""
    own.read(owned)
    return []


def resume(own: Ownership, owned: OwnedQueue, event: ev.Resumed, now_ms: MonotonicMs) -> Effects:
    """Continue, if no other pause is left."""
    own.read(owned)
    if owned.state is not QueueState.READING:
        return []
    owned.cursor.last_ms = now_ms
    return own.pulling.go_on(owned, now_ms)


def go_on(own: Ownership, owned: OwnedQueue, event: ev.Continued, now_ms: MonotonicMs) -> Effects:
    """Start the handlers that were held, and pull."""
    return own.pulling.go_on(owned, now_ms)


def seek_later(own: Ownership, owned: OwnedQueue, event: ev.Sought, now_ms: MonotonicMs) -> Effects:
    """Begin at the offset that the program wants, whatever is committed."""
    owned.cursor.sought_offset = event.offset
    return []


def seek(own: Ownership, owned: OwnedQueue, event: ev.Sought, now_ms: MonotonicMs) -> Effects:
    """Drop what was pulled, and continue at another offset."""
    owned.drop_pulled()
    owned.work.finished = event.offset
    own.offsets.sought(owned.queue, event.offset)
    own.pulling.move(owned, event.offset)
    return own.pulling.pull(owned, now_ms)


def seek_at_once(own: Ownership, owned: OwnedQueue, event: ev.Sought, now_ms: MonotonicMs) -> Effects:
    """Search no further for the offset to continue at."""
    own.read(owned)
    return seek(own, owned, event, now_ms)
