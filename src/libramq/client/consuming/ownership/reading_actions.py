"""The actions of reading: the user pauses and resumes a queue."""

from libramq.client.consuming.ownership import event as ev
from libramq.client.consuming.ownership.owned_queue import OwnedQueue
from libramq.client.consuming.ownership.ownership import Ownership
from libramq.client.consuming.ownership.state import QueueState
from libramq.client.consuming.signals import Steps
from libramq.clock import MonotonicMs


def pause(own: Ownership, owned: OwnedQueue, event: ev.Paused, now_ms: MonotonicMs) -> Steps:
    """Start no more handlers and pulls, if the user has paused this queue."""
    own.read(owned)
    return []


def resume(own: Ownership, owned: OwnedQueue, event: ev.Resumed, now_ms: MonotonicMs) -> Steps:
    """Continue, if no other pause is left."""
    own.read(owned)
    if owned.state is not QueueState.READING:
        return []
    owned.cursor.last_ms = now_ms
    return own.pulling.go_on(owned, now_ms)


def go_on(own: Ownership, owned: OwnedQueue, event: ev.Continued, now_ms: MonotonicMs) -> Steps:
    """Start the handlers that were held, and pull."""
    return own.pulling.go_on(owned, now_ms)
