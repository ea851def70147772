"""The release actions: how a queue is released: handlers drain, the listener runs, offsets are committed; and
how long each may take.

    DRAINING ─► REVOKING ─► LEAVING ─► GONE
    handlers    listener    commit

Upstream: RebalancePushImpl.removeUnnecessaryMessageQueue.
"""

from typing import Final

from libramq.client.consuming import effects as fx
from libramq.client.consuming.ownership import event as ev
from libramq.client.consuming.ownership.ownership import Ownership, Released
from libramq.client.consuming.queues.owned_queue import OwnedQueue, QueueState
from libramq.clock import MonotonicMs
from libramq.logs import get_logger
from libramq.remoting.body.coordination import QueueGrant

log = get_logger(__name__)

#: Ours: how often a member checks for the master of a revoked queue.
MASTER_LOOK_MS: Final = 200


def revoke(own: Ownership, owned: OwnedQueue, event: ev.Unassigned, now_ms: MonotonicMs) -> None:
    """Start no more handlers, wait for running ones, commit, release."""
    owned.state = QueueState.DRAINING
    owned.revoked_ms = now_ms
    owned.is_wanted_again = False
    # After the state has changed: see Delivery.begin.
    owned.work.drop_unstarted(in_order=own.settings.orderly)
    if owned.work.is_under_way and event.drain_ms:
        own.handle_at(owned, ev.DrainTimedOut(), now_ms + event.drain_ms)
        own.commits.commit([owned])
    else:
        end_draining(own, owned, event, now_ms)


def revoke_moved(own: Ownership, owned: OwnedQueue, event: ev.Unassigned, now_ms: MonotonicMs) -> None:
    """Release a queue once its new offset is committed; results of its handlers are ignored."""
    owned.revoked_ms = now_ms
    owned.is_wanted_again = False
    end_draining(own, owned, event, now_ms)


def revoke_unlocked(own: Ownership, owned: OwnedQueue, event: ev.Unassigned, now_ms: MonotonicMs) -> None:
    """Release a queue whose lock was not granted yet."""
    own.remove(owned)
    own.unlock(owned)
    if owned.is_announced:
        own.kernel.effects.add(fx.Revoked((owned.queue,)))


def hurry_draining(own: Ownership, owned: OwnedQueue, event: ev.Unassigned, now_ms: MonotonicMs) -> None:
    """Stop waiting for handlers if their time is over, and for a master if the consumer stops."""
    owned.is_wanted_again = False
    may_wait = owned.work.is_under_way or not own.closing
    if not (event.drain_ms and may_wait):
        end_draining(own, owned, event, now_ms)


def hurry(own: Ownership, owned: OwnedQueue, event: ev.Unassigned, now_ms: MonotonicMs) -> None:
    """Stop waiting for the listener or a commit, if the time is over."""
    owned.is_wanted_again = False
    if not event.drain_ms:
        complete_release(own, owned, now_ms)


def drain(own: Ownership, owned: OwnedQueue, event: ev.HandlerEnded, now_ms: MonotonicMs) -> None:
    """Continue after the last handler."""
    if not owned.work.is_under_way:
        end_draining(own, owned, event, now_ms)


def end_draining(own: Ownership, owned: OwnedQueue, event: ev.Event, now_ms: MonotonicMs) -> None:
    """Commit, and let the listener finish."""
    queue, settings = owned.queue, own.settings
    has_no_master = not settings.broadcasting and own.master(owned) is None
    if has_no_master and _may_have_a_master(own, owned, event, now_ms):
        own.handle_at(owned, ev.DrainTimedOut(), now_ms + MASTER_LOOK_MS)
        own.known_brokers.look_soon(now_ms)
        return
    is_revocation_done = owned.is_revoked_by_coordinator and _is_committed(own, owned)
    if owned.lock.is_in_doubt or (has_no_master and not is_revocation_done):
        own.kernel.effects.add(fx.Lost((queue,)))
        complete_release(own, owned, now_ms)
        return
    own.commits.commit([owned])
    own.kernel.effects.add(fx.Revoked((queue,)))
    if settings.has_revoke_hook:
        owned.state = QueueState.REVOKING
        # The coordinator's revoke timeout covers handlers and listener together.
        since_ms = now_ms if owned.claim.granted is None else owned.revoked_ms
        own.handle_at(owned, ev.ListenerTimedOut(), since_ms + settings.revoke_timeout_ms)
    else:
        leave(own, owned, event, now_ms)


def _may_have_a_master(own: Ownership, owned: OwnedQueue, event: ev.Event, now_ms: MonotonicMs) -> bool:
    """Return whether to wait for a master, which the revoking coordinator may know before us.

    Handled messages are not committed yet, and would be redelivered to the next owner.
    """
    is_hurried = isinstance(event, ev.Unassigned) and not event.drain_ms
    return (
        owned.state is QueueState.DRAINING
        and owned.is_revoked_by_coordinator
        and not is_hurried
        and not own.closing
        and not _is_committed(own, owned)
        and now_ms < owned.revoked_ms + own.settings.revoke_timeout_ms
    )


def stop_waiting(own: Ownership, owned: OwnedQueue, event: ev.ListenerTimedOut, now_ms: MonotonicMs) -> None:
    """Leave without the listener."""
    log.warning("the listener has not released a revoked queue in time", queue=str(owned.queue))
    leave(own, owned, event, now_ms)


def leave(own: Ownership, owned: OwnedQueue, event: ev.Event, now_ms: MonotonicMs) -> None:
    """Release a queue when its last commit is acknowledged."""
    owned.state = QueueState.LEAVING
    if own.settings.broadcasting:
        own.commits.commit([owned])
        complete_release(own, owned, now_ms)
    elif not own.commits.commit_last(owned):
        complete_release(own, owned, now_ms)


def complete_release(own: Ownership, owned: OwnedQueue, now_ms: MonotonicMs) -> None:
    """Complete the release of a queue, and report it."""
    is_committed = _is_committed(own, owned)
    own.remove(owned)
    own.unlock(owned)
    granted = owned.claim.granted
    if owned.is_wanted_again:
        own.take(owned.queue, now_ms, delay_ms=0, claim=granted)
        again = own.table.get(owned.queue)
        if again is not None:
            again.former_attempts = owned.attempts_behind()
    elif granted is not None and owned.is_revoked_by_coordinator:
        grant = QueueGrant.of(owned.queue, granted.epoch, attempts=owned.attempts_behind())
        own.released.append(Released(grant, is_committed))


def lose(own: Ownership, owned: OwnedQueue, event: ev.Event, now_ms: MonotonicMs) -> None:
    """Drop a queue that another member has, with our state of it.

    A locked queue is requested again; in a coordinated group the coordinator decides.
    """
    log.warning("queue lost", queue=str(owned.queue))
    if owned.is_announced and owned.state not in (QueueState.REVOKING, QueueState.LEAVING):
        own.kernel.effects.add(fx.Lost((owned.queue,)))
    own.remove(owned)
    if owned.claim.granted is None:
        own.take(owned.queue, now_ms, delay_ms=0)


def _is_committed(own: Ownership, owned: OwnedQueue) -> bool:
    """Return whether the broker has acknowledged all messages that we handled of a queue."""
    handled = own.pulling.highest_handled(owned.queue)
    acknowledged = own.offsets.acknowledged(owned.queue)
    is_acknowledged = acknowledged is not None and handled < acknowledged
    return not owned.work.is_under_way and (handled < 0 or is_acknowledged)
