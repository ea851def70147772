"""Queue locks of orderly consumers: their holders, lifetime and renewal, and the grace period of a vanished
member's locks.

Upstream keeps the locks of a vanished consumer for their whole lifetime, while its queues make no progress.
Here they last a short grace period in which the consumer may reconnect. A consumer may still be handling
messages when the next owner begins: after a crash, order across owners is not guaranteed.

Upstream: broker/client/rebalance/RebalanceLockManager.java.
"""

from collections.abc import Hashable, Iterable, Mapping, Set
from dataclasses import dataclass
from typing import Final

from libramq.clock import MonotonicMs
from libramq.groups.memberships import Memberships
from libramq.message.queue import MessageQueue

#: rocketmq.broker.rebalance.lockMaxLiveTime.
LOCK_LIFETIME_MS: Final = 60_000
#: Ours: the time in which a client may reconnect; orderlyLockGraceMillis.
LOCK_GRACE_MS: Final = 150
#: Ours: once a group locks queues, the reader of a queue under an epoch must lock it within this time.
RESERVED_MS: Final = 3_000
#: Ours: the end of a connection is noticed for at most this many clients that locked queues over it before
#: their first heartbeat; the locks of others last for their lifetime.
UNKNOWN_CLIENTS_MAX: Final = 32


@dataclass(frozen=True, slots=True)
class QueueLock:
    """The holder of a queue, and the time of its last renewal."""

    client_id: str
    renewed_at_ms: MonotonicMs


@dataclass(frozen=True, slots=True)
class Reservation:
    """A reservation: the only client that may lock a queue, and the time limit."""

    client_id: str
    until_ms: MonotonicMs


class QueueLocks:
    """All locks, by group and queue."""

    def __init__(self, *, grace_ms: int = LOCK_GRACE_MS) -> None:
        self._grace_ms = grace_ms
        self._locks: dict[str, dict[MessageQueue, QueueLock]] = {}
        self._vanished: dict[str, dict[str, MonotonicMs]] = {}
        self._reserved: dict[str, dict[MessageQueue, Reservation]] = {}
        self._unknown_clients: Memberships[Hashable, tuple[str, str]] = Memberships()
        self._unknown_client_at: dict[tuple[str, str], Hashable] = {}

    def reserve(self, group: str, readers: Mapping[MessageQueue, str], *, now_ms: MonotonicMs) -> None:
        """Reserve queues for their readers under epochs, because the group has begun to lock queues.

        Otherwise a new member could lock a queue whose reader does not know yet that locks are required.
        """
        until_ms = now_ms + RESERVED_MS
        if readers:
            self._reserved[group] = {queue: Reservation(name, until_ms) for queue, name in readers.items()}
        else:
            self._reserved.pop(group, None)

    def lock(
        self, group: str, client_id: str, queues: Iterable[MessageQueue], *, now_ms: MonotonicMs
    ) -> list[MessageQueue]:
        """Lock queues that are free, expired or already the client's; return those it now holds."""
        self._forget_vanished(group, now_ms)
        self.returned(group, client_id)
        locks = self._locks.get(group, {})
        held = []
        for queue in queues:
            lock = locks.get(queue)
            if self._is_reserved(group, client_id, queue, now_ms):
                continue
            if lock is None or lock.client_id == client_id or self._is_expired(lock, now_ms):
                locks[queue] = QueueLock(client_id, now_ms)
                held.append(queue)
        if locks:
            self._locks[group] = locks
        return held

    def unlock(self, group: str, client_id: str, queues: Iterable[MessageQueue]) -> None:
        """Unlock queues; queues that other clients hold stay locked."""
        self._unlock(group, {client_id}, queues)

    def _unlock(self, group: str, clients: Set[str], queues: Iterable[MessageQueue]) -> None:
        locks, reserved = self._locks.get(group, {}), self._reserved.get(group, {})
        for queue in queues:
            if queue in reserved and reserved[queue].client_id in clients:
                del reserved[queue]
            lock = locks.get(queue)
            if lock is not None and lock.client_id in clients:
                del locks[queue]
        if not locks:
            self._locks.pop(group, None)

    def vanished(self, group: str, client_id: str, *, now_ms: MonotonicMs) -> int:
        """Handle a client's disconnection; return the grace period of its locks (0 if it held none)."""
        reserved = self._reserved.get(group, {})
        for queue in [queue for queue, each in reserved.items() if each.client_id == client_id]:
            del reserved[queue]
        if not any(lock.client_id == client_id for lock in self._locks.get(group, {}).values()):
            return 0
        self._vanished.setdefault(group, {})[client_id] = now_ms
        return self._grace_ms

    def note_unknown_client(self, connection: Hashable, group: str, client_id: str) -> None:
        """Note that a client locks queues before its first heartbeat, as after a restart of this broker.

        It is not yet a member whose end would be noticed, so its connection is watched.
        """
        client = (group, client_id)
        if self._unknown_clients.count(connection) >= UNKNOWN_CLIENTS_MAX:
            return
        former = self._unknown_client_at.get(client)
        if former is not None:
            self._unknown_clients.remove(former, client)
        self._unknown_clients.add(connection, client)
        self._unknown_client_at[client] = connection

    def take_unknown_clients(self, connection: Hashable) -> list[tuple[str, str]]:
        """Return and forget the groups and clients noted for a connection that has ended."""
        clients = self._unknown_clients.of(connection)
        for client in clients:
            self._unknown_clients.remove(connection, client)
            del self._unknown_client_at[client]
        return clients

    def returned(self, group: str, client_id: str) -> None:
        """Handle a client's reconnection, which keeps its locks."""
        clients = self._vanished.get(group, {})
        clients.pop(client_id, None)
        if not clients:
            self._vanished.pop(group, None)

    def holders(self, group: str, *, now_ms: MonotonicMs) -> set[str]:
        """Return the clients that hold an unexpired lock."""
        self._forget_vanished(group, now_ms)
        locks = self._locks.get(group, {})
        return {lock.client_id for lock in locks.values() if not self._is_expired(lock, now_ms)}

    def holds_any(self, group: str, *, now_ms: MonotonicMs) -> bool:
        """Return whether the group holds any unexpired lock (isLockAllExpired upstream)."""
        self._forget_vanished(group, now_ms)
        locks = self._locks.get(group, {})
        return any(not self._is_expired(lock, now_ms) for lock in locks.values())

    def _forget_vanished(self, group: str, now_ms: MonotonicMs) -> None:
        """Free the locks of clients whose grace period is over; thousands may vanish together."""
        vanished = self._vanished.get(group, {})
        gone = {client_id for client_id, at_ms in vanished.items() if now_ms - at_ms >= self._grace_ms}
        for client_id in gone:
            self.returned(group, client_id)
        if gone:
            self._unlock(group, gone, list(self._locks.get(group, {})))

    def _is_reserved(self, group: str, client_id: str, queue: MessageQueue, now_ms: MonotonicMs) -> bool:
        """Return whether a reservation keeps this client out; otherwise the reservation is used up."""
        reserved = self._reserved.get(group)
        if reserved is None or (reservation := reserved.get(queue)) is None:
            return False
        if reservation.client_id != client_id and now_ms < reservation.until_ms:
            return True
        del reserved[queue]
        if not reserved:
            del self._reserved[group]
        return False

    def _is_expired(self, lock: QueueLock, now_ms: MonotonicMs) -> bool:
        return now_ms - lock.renewed_at_ms > LOCK_LIFETIME_MS
