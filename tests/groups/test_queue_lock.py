"""Locks of orderly consumers."""

from libramq.groups.queue_lock import LOCK_GRACE_MS, LOCK_LIFETIME_MS, RESERVED_MS, QueueLocks
from libramq.message.queue import MessageQueue

Q = [MessageQueue("T", "b", n) for n in range(4)]


def test_a_lock_belongs_to_its_client_until_it_expires():
    locks = QueueLocks()
    assert locks.lock("G", "alice", Q[:2], now_ms=0) == Q[:2]
    assert locks.lock("G", "bob", Q[1:3], now_ms=1) == Q[2:3]
    assert locks.lock("G", "alice", Q[:1], now_ms=50_000) == Q[:1]
    assert locks.lock("G", "bob", Q[:2], now_ms=LOCK_LIFETIME_MS) == []
    assert locks.lock("G", "bob", Q[:2], now_ms=LOCK_LIFETIME_MS + 1) == Q[1:2]
    assert locks.lock("G", "bob", Q[:1], now_ms=50_000 + LOCK_LIFETIME_MS + 1) == Q[:1]


def test_members_that_read_under_an_epoch_lock_first():
    """Their locks hold until released or for a limited time; other queues and groups are unaffected."""
    locks = QueueLocks()
    locks.reserve("G", dict.fromkeys(Q[:3], "alice"), now_ms=0)
    assert not locks.holds_any("G", now_ms=0)
    assert locks.lock("G", "java", Q, now_ms=1) == Q[3:]
    assert locks.lock("H", "java", Q, now_ms=1) == Q
    assert locks.lock("G", "alice", Q[:1], now_ms=2) == Q[:1]
    locks.unlock("G", "alice", Q[:2])
    assert locks.lock("G", "java", Q[:3], now_ms=3) == Q[:2]
    assert locks.lock("G", "java", Q[:3], now_ms=RESERVED_MS) == Q[:3]


def test_a_reservation_of_a_vanished_client_is_free():
    locks = QueueLocks()
    locks.reserve("G", {Q[0]: "alice"}, now_ms=0)
    locks.vanished("G", "alice", now_ms=1)
    assert locks.lock("G", "java", Q[:1], now_ms=1) == Q[:1]


def test_locks_of_groups_are_independent():
    locks = QueueLocks()
    locks.lock("G", "alice", Q, now_ms=0)
    assert locks.lock("H", "bob", Q, now_ms=0) == Q


def test_only_the_holder_unlocks():
    locks = QueueLocks()
    locks.lock("G", "alice", Q, now_ms=0)
    locks.unlock("G", "bob", Q)
    assert locks.lock("G", "bob", Q, now_ms=1) == []
    locks.unlock("G", "alice", Q[:2])
    assert locks.lock("G", "bob", Q, now_ms=2) == Q[:2]
    locks.unlock("H", "alice", Q)


def test_holds_any_counts_only_locks_that_have_not_expired():
    locks = QueueLocks()
    assert not locks.holds_any("G", now_ms=0)
    locks.lock("G", "alice", Q[:1], now_ms=0)
    assert locks.holds_any("G", now_ms=LOCK_LIFETIME_MS)
    assert not locks.holds_any("G", now_ms=LOCK_LIFETIME_MS + 1)
    assert not locks.holds_any("H", now_ms=0)
    locks.unlock("G", "alice", Q)
    assert not locks.holds_any("G", now_ms=0)


def test_a_vanished_client_keeps_its_locks_for_the_grace_only() -> None:
    """alice's connection ends; bob gets her queues after the grace period, not 60 s later."""
    locks = QueueLocks()
    locks.lock("g", "alice", Q, now_ms=1_000)
    locks.vanished("g", "alice", now_ms=2_000)
    assert locks.lock("g", "bob", Q, now_ms=2_000 + LOCK_GRACE_MS - 1) == []
    assert locks.lock("g", "bob", Q, now_ms=2_000 + LOCK_GRACE_MS) == Q


def test_a_client_that_returns_within_the_grace_keeps_its_locks() -> None:
    locks = QueueLocks()
    locks.lock("g", "alice", Q, now_ms=1_000)
    locks.vanished("g", "alice", now_ms=2_000)
    locks.returned("g", "alice")
    assert locks.lock("g", "bob", Q, now_ms=2_000 + 10 * LOCK_GRACE_MS) == []


def test_apaches_lock_lifetime_can_be_configured() -> None:
    locks = QueueLocks(grace_ms=LOCK_LIFETIME_MS)
    locks.lock("g", "alice", Q, now_ms=1_000)
    locks.vanished("g", "alice", now_ms=1_000)
    assert locks.lock("g", "bob", Q, now_ms=LOCK_LIFETIME_MS) == []
    assert not locks.holds_any("g", now_ms=1_001 + LOCK_LIFETIME_MS)
