"""The coordinator: short scenarios, each a conversation between members and their coordinator."""

from collections import Counter
from random import Random

import pytest

from libramq.balance import TopicStrategy, register_strategy
from libramq.codes import ResponseCode
from libramq.fencing import MODE_CLIENT, Attempts, Claim, FenceGrant, FenceReport
from libramq.groups.coordinator import event as ev
from libramq.groups.coordinator import membership as group_membership
from libramq.groups.coordinator import state
from libramq.groups.coordinator.balance import COLLECT_MS
from libramq.groups.coordinator.coordinated_group import RECORD_AGAIN_MS
from libramq.groups.coordinator.coordinator import Coordinator
from libramq.groups.coordinator.member import REPEAT_MS
from libramq.groups.coordinator.request import Join, Leave, Poll, Remove
from libramq.groups.rebalance_event import Reason
from libramq.message.queue import MessageQueue
from libramq.testing.world import SeededSecretBits
from tests.groups.coordinator.coordinated import (
    GROUP,
    SESSION_MS,
    Answer,
    Consumer,
    Gather,
    Grant,
    ModeChanged,
    Settled,
    Started,
    Surroundings,
    queues_of,
)


def group_of(*client_ids: str, queues: list[MessageQueue] | None = None, **fields) -> Surroundings:
    """Return a group that has settled."""
    group = Surroundings(queues)
    for client_id in client_ids:
        group.add(client_id, **fields)
    group.run(100)
    group.effects.clear()
    return group


def reasons(group: Surroundings) -> list[Reason]:
    return [event.reason for event in group.take(Started)]


# Members come and go.


def test_the_first_member_gets_all_queues_and_the_second_half_of_them():
    group = Surroundings()
    alice = group.add("alice")
    group.run(100)
    assert set(group.owners().values()) == {"alice"}
    group.add("bob")
    group.run(100)
    assert group.loads() == {"alice": 4, "bob": 4}
    assert sorted(alice.held.values()) == [1] * 4, "kept queues keep their epochs"
    first, second = group.take(Settled)
    assert (len(first.moved), first.minimum) == (8, 8)
    assert (len(second.moved), second.minimum) == (4, 4)
    assert set(second.holders.values()) == {"alice", "bob"}
    assert reasons(group) == [Reason.MEMBER_JOINED] * 2
    assert [grant.grant.complete for grant in group.take(Grant)] == [True, False]


def test_drained_queues_of_a_leaving_member_are_reassigned_before_it_is_gone():
    """Each queue moves once, none returns to the member, and there is one rebalance with one reason."""
    group = group_of("alice", "bob", "carol", queues=queues_of("T", 9))
    alice = group.consumers["alice"]
    mine = sorted(alice.held)
    group.depart(alice, mine[0])
    group.run(100)
    assert alice.client_id not in group.owners().values() or set(alice.held) == set(mine[1:])
    assert group.owners()[mine[0].queue_id] in {"bob", "carol"}
    assert reasons(group) == [Reason.MEMBER_LEFT]
    group.give_up(alice, mine[1])
    group.run(100)
    assert group.loads() == {"alice": 1, "bob": 4, "carol": 4}
    assert not group.view.is_settled
    group.run(state.REVOKE_TIMEOUT_MS * 2)
    assert group.loads()["alice"] == 1, "it has a deadline of its own"
    group.leave(alice)
    group.run(100)
    (settled,) = group.take(Settled)
    assert (len(settled.moved), settled.minimum) == (3, 3)
    assert sorted(Counter(settled.holders.values()).values()) == [4, 5]
    assert reasons(group) == []


def test_the_last_leaving_member_gets_nothing_back():
    group = group_of("alice")
    alice = group.consumers["alice"]
    first = min(alice.held)
    group.depart(alice, first)
    group.run(100)
    assert first not in group.view.owners
    bob = group.add("bob")
    group.run(100)
    assert list(bob.held) == [first]


def test_a_member_that_joins_again_is_no_longer_leaving():
    group = group_of("alice", "bob")
    alice = group.consumers["alice"]
    group.depart(alice, min(alice.held))
    group.run(100)
    alice.is_leaving, alice.drains = False, True
    alice.polls.clear()
    group.join(alice, claims=True)
    group.run(100)
    assert group.loads() == {"alice": 4, "bob": 4}


def test_a_restarted_coordinator_learns_of_a_leaving_member_by_its_next_poll():
    group = group_of("alice", "bob")
    alice = group.consumers["alice"]
    group.depart(alice, *sorted(alice.held)[:3])
    group.run(100)
    assert group.loads() == {"alice": 1, "bob": 7}
    group.restart()
    group.run(100)
    assert group.loads() == {"alice": 1, "bob": 7}


def test_queues_held_longest_stay():
    group = group_of("alice", "bob")
    before = set(group.consumers["bob"].held)
    group.leave(group.consumers["alice"])
    group.run(100)
    group.add("carol")
    group.run(100)
    assert set(group.consumers["bob"].held) == before


def test_a_hundred_joins_at_once_are_one_rebalance():
    group = Surroundings(queues_of("T", 200))
    names = [f"c{n:03}" for n in range(100)]
    for name in names:
        group.add(name)
    group.run(COLLECT_MS)
    assert group.view.epoch == 1
    (started,) = group.take(Started)
    assert started.who == started.members == tuple(names)
    (settled,) = group.take(Settled)
    assert (len(settled.moved), settled.minimum, set(Counter(settled.holders.values()).values())) == (
        200,
        200,
        {2},
    )
    assert group.records == 1


def test_a_queue_is_granted_only_after_its_release():
    group = group_of("alice")
    alice = group.consumers["alice"]
    alice.drains = False
    bob = group.add("bob")
    group.run(1_000)
    assert (len(alice.revoked), len(alice.held), bob.held) == (4, 8, {})
    assert group.view.epoch == 2, "it rises with the target"
    assert group.loads() == {"alice": 8, "bob": 0}
    group.release(alice)
    group.run(0)
    assert group.loads() == {"alice": 4, "bob": 4}
    assert set(bob.held.values()) == {2}
    (settled,) = group.take(Settled)
    assert settled.uncommitted == sorted(bob.held)


def test_a_member_that_does_not_release_a_queue_loses_it():
    group = group_of("alice")
    group.consumers["alice"].drains = False
    bob = group.add("bob")
    group.run(COLLECT_MS + state.REVOKE_TIMEOUT_MS - 1)
    assert bob.held == {}
    group.run(1)
    assert len(bob.held) == 4


@pytest.mark.parametrize(("requested_ms", "waits_ms"), [(30_000, 30_000), (2_000, 2_000), (0, 1_000)])
def test_a_member_has_its_own_revoke_timeout(requested_ms, waits_ms):
    """Each member has its own timeout; the default is 10 s."""
    group = Surroundings()
    group.add("alice", revoke_timeout_ms=requested_ms, session_ms=60_000)
    group.run(100)
    group.consumers["alice"].drains = False
    bob = group.add("bob", session_ms=60_000)
    group.run(COLLECT_MS + waits_ms - 1)
    assert bob.held == {}
    group.run(1)
    assert len(bob.held) == 4
    bob.drains = False
    carol = group.add("carol", session_ms=60_000)
    group.run(COLLECT_MS + state.REVOKE_TIMEOUT_MS - 1)
    asked_back = set(bob.revoked)
    assert asked_back
    assert not asked_back & set(carol.held)
    group.run(1)
    assert asked_back <= set(carol.held)


def test_a_member_that_stays_after_all_has_its_revoke_timeout_from_the_revocation():
    group = group_of("alice")
    alice = group.consumers["alice"]
    alice.drains = False
    bob = group.add("bob")
    group.run(100)
    group.depart(alice)
    group.run(state.REVOKE_TIMEOUT_MS * 2)
    assert bob.held == {}
    alice.is_leaving = False
    group.join(alice, claims=True)
    group.run(100)
    assert len(bob.held) == 4


# Stalls.


@pytest.mark.parametrize("session_ms", [1_000, 3_000])
def test_a_stalled_coordinator_expels_no_member_that_polled_meanwhile(session_ms):
    """During 5 s of stall members' polls wait in sockets, and timers fire before these are read."""
    group = Surroundings()
    for name in ("alice", "bob"):
        group.add(name, session_ms=session_ms)
        group.run(100)
    owners = group.owners()
    for consumer in group.consumers.values():
        consumer.is_silent = True
    group.run(session_ms // 3)
    group.now_ms += 5_000
    group.happen(ev.Stalled(5_000))
    group.do(group.coordinator.tick(group.now_ms))
    for consumer in group.consumers.values():
        consumer.is_silent = False
    group.run(100)
    assert group.owners() == owners
    assert reasons(group)[2:] == []


def test_a_member_silent_beyond_the_stall_is_expelled():
    """It has the rest of its session, which further stalls do not extend."""
    group = group_of("alice", "bob")
    group.consumers["bob"].is_silent = True
    for _ in range(9):
        group.run(SESSION_MS // 10)
        group.now_ms += 600
        group.happen(ev.Stalled(600))
    assert set(group.owners().values()) == {"alice", "bob"}
    group.run(SESSION_MS // 2)
    assert set(group.owners().values()) == {"alice"}


def test_grace_periods_and_revocations_are_extended_by_a_stall():
    group = group_of("alice", "bob")
    alice, bob = group.consumers["alice"], group.consumers["bob"]
    alice.drains = False
    carol = group.add("carol")
    group.run(100)
    held = set(alice.held)
    group.do(group.coordinator.closed(bob.peer, now_ms=group.now_ms))
    group.now_ms += 20_000
    group.happen(ev.Stalled(20_000))
    group.do(group.coordinator.tick(group.now_ms))
    assert "bob" in group.loads()
    assert not held & set(carol.held)
    alice.drains = True
    group.run(50)
    assert held & set(carol.held), "released, not taken"


def test_leaving_frees_queues_at_once_and_records_the_reason():
    group = group_of("alice", "bob", "carol")
    group.leave(group.consumers["carol"])
    group.run(COLLECT_MS)
    assert group.loads() == {"alice": 4, "bob": 4}
    group.leave(group.consumers["bob"], "processing_timeout")
    group.run(COLLECT_MS)
    assert group.loads() == {"alice": 8}
    assert reasons(group) == [Reason.MEMBER_LEFT, Reason.PROCESSING_TIMEOUT]


def test_a_slow_members_queues_go_to_others_until_its_handler_is_done():
    """The slow members stay in the group, and keep queues that no other member may have."""
    group = group_of("alice", "bob")
    alone = group.add("carol", topics=("U",))
    group.tell("U", queues_of("U", 2))
    group.run(100)
    bob = group.consumers["bob"]
    for slow in (bob, alone):
        slow.is_slow = True
        group.give_up(slow)
    group.run(100)
    assert group.loads() == {"alice": 8, "bob": 0, "carol": 2}
    bob.is_slow = False
    group.give_up(bob)
    group.run(100)
    assert group.loads() == {"alice": 4, "bob": 4, "carol": 2}


def test_where_all_members_are_slow_no_queue_moves():
    """No member is better than another. The queues of a lost member are still taken over."""
    group = group_of("alice", "bob")
    before = group.owners()
    for slow in group.consumers.values():
        slow.is_slow = True
    for slow in group.consumers.values():
        group.give_up(slow)
    group.run(100)
    assert group.owners() == before
    group.leave(group.consumers["bob"])
    group.run(100)
    assert group.loads() == {"alice": 8}


def test_the_epoch_continues_after_the_last_member_left():
    group = group_of("alice")
    group.leave(group.consumers["alice"])
    group.run(100)
    assert (group.view.owners, group.view.members, group.view.is_settled) == ({}, (), True)
    before = group.view.epoch
    group.restart()
    bob = group.add("bob")
    group.run(100)
    assert min(bob.held.values()) > before


def test_leaving_and_returning_within_the_collection_time_is_one_change():
    group = group_of("alice", "bob")
    bob = group.consumers["bob"]
    group.leave(bob)
    group.add("bob")
    group.run(100)
    assert group.loads() == {"alice": 4, "bob": 4}
    (settled,) = group.take(Settled)
    assert len(settled.moved) == settled.minimum == 4


# Sessions.


def test_a_closed_connection_has_a_short_grace():
    group = group_of("alice", "bob")
    group.kill(group.consumers["bob"])
    group.run(149)
    assert group.loads() == {"alice": 4, "bob": 4}
    group.run(1 + COLLECT_MS)
    assert group.loads() == {"alice": 8}
    assert reasons(group) == [Reason.CONNECTION_CLOSED]


def test_another_connection_ends_the_grace():
    group = group_of("alice", "bob")
    bob = group.consumers["bob"]
    old, bob.peer = bob.peer, "another"
    group.do(group.coordinator.closed(old, now_ms=group.now_ms))
    bob.polls.clear()
    group.run(60_000)
    assert group.loads() == {"alice": 4, "bob": 4}
    assert (reasons(group), group.view.epoch) == ([], 1)


def test_the_end_of_a_former_connection_is_ignored():
    group = group_of("alice", "bob")
    bob = group.consumers["bob"]
    old, bob.peer = bob.peer, "another"
    group.poll(bob)
    group.do(group.coordinator.closed(old, now_ms=group.now_ms))
    group.run(60_000)
    assert group.loads() == {"alice": 4, "bob": 4}


def test_a_silent_member_is_expelled_after_its_session():
    group = group_of("alice", "bob")
    bob = group.consumers["bob"]
    bob.is_silent = True
    group.run(SESSION_MS + 100)
    assert group.loads() == {"alice": 8}
    assert reasons(group) == [Reason.SESSION_EXPIRED]
    bob.is_silent = False
    group.run(100)
    assert bob.refused == ResponseCode.UNKNOWN_MEMBER


def test_polls_are_answered_in_a_third_of_the_session():
    group = group_of("alice", "bob")
    group.run(60_000)
    assert group.slowest_ms == SESSION_MS // 3
    assert len(group.take(Answer)) == 2 * (60_000 // (SESSION_MS // 3))


@pytest.mark.parametrize("is_disk_full", [False, True])
def test_a_poll_that_ends_as_queues_are_assigned_carries_none_that_are_not_recorded(is_disk_full: bool):
    group = Surroundings()
    group.topics.clear()
    alice = group.add("alice")
    group.run(SESSION_MS // 3 - COLLECT_MS)
    (poll,) = alice.polls
    group.is_disk_full = is_disk_full
    group.take(Answer), group.take(Grant)
    group.tell("T", queues_of("T", 2))
    group.now_ms += COLLECT_MS
    effects = group.coordinator.tick(group.now_ms)
    (answer,) = [effect for effect in effects if isinstance(effect, Answer)]
    assert answer.ticket == poll
    if is_disk_full:
        assert answer.code == ResponseCode.SYSTEM_BUSY
        return
    (grant,) = [effect for effect in effects if isinstance(effect, Grant)]
    assert answer.assignment.queues == {queue: claim.epoch for queue, claim in grant.grant.claims.items()}
    assert len(answer.assignment.queues) == 2
    assert effects.index(grant) < effects.index(answer)


def test_subscriptions_of_all_members_are_bounded(monkeypatch):
    """GROUP_JOINs of 4 MiB each exhausted a broker's memory, and its disk with every record."""
    monkeypatch.setattr(
        "libramq.groups.coordinator.membership.SUBSCRIPTION_BYTES_MAX", 200
    )  # A group has half.
    group = Surroundings()
    long_name = "T" * 40
    alice, bob = (group.add(name, topics=(long_name,)) for name in ("alice", "bob"))
    carol = group.add("carol", topics=(long_name,))
    assert (carol.member, carol.refused) == (None, ResponseCode.SYSTEM_BUSY)
    group.join(bob, claims=True)
    assert bob.refused is None, "it has its room"
    group.leave(alice)
    group.join(carol)
    assert carol.member is not None


def test_the_queues_that_all_members_list_are_bounded(monkeypatch):
    """A hundred members that listed 60,000 made-up queues each took more than a gigabyte."""
    monkeypatch.setattr("libramq.groups.coordinator.shared_tables.HELD_OF_ALL_MAX", 20)  # A group has half.
    group = group_of("alice", "bob")  # They hold eight.
    alice, bob = group.consumers["alice"], group.consumers["bob"]
    bob.held |= {MessageQueue("T", "b", number): 1 for number in range(100, 103)}
    group.poll(bob)
    assert bob.refused == ResponseCode.SYSTEM_BUSY
    group.leave(alice)
    bob.refused = None
    group.poll(bob)
    assert bob.refused is None


def test_a_second_poll_answers_the_first():
    group = group_of("alice")
    alice = group.consumers["alice"]
    (first,) = alice.polls
    group.poll(alice)
    assert [answer.ticket for answer in group.take(Answer)] == [first]
    assert len(alice.polls) == 1


def test_the_queues_a_member_reports_are_believed():
    group = group_of("alice", "bob")
    alice = group.consumers["alice"]
    lost = dict(alice.held)
    theirs = next(iter(group.consumers["bob"].held))
    alice.held = {theirs: 1}
    group.poll(alice)
    group.run(100)
    assert alice.held == lost, "grants that it does not list are repeated"
    assert theirs not in alice.held, "another member's queue is taken from it"
    assert group.loads() == {"alice": 4, "bob": 4}


def test_queues_opened_with_an_answer_are_held_before_their_member_lists_them():
    """Otherwise an inquiry before its next poll would consider them released and give them to others."""
    group = group_of("alice")
    alice = group.consumers["alice"]
    before = dict(alice.held)
    alice.is_silent = True
    group.tell("T", queues_of("T", 12))
    group.run(100)
    claims = {queue: Claim(alice.member, epoch) for queue, epoch in alice.held.items()}
    assert len(claims) == 12
    group.coordinator.opened(GROUP, {queue: claim for queue, claim in claims.items() if queue not in before})
    group.fences["b"] = FenceReport(epoch=group.view.epoch, openings=claims)
    group.happen(ev.FencesInDoubt())
    assert {queue: (held.member, held.epoch) for queue, held in group.view.owners.items()} == {
        queue: (claim.member, claim.epoch) for queue, claim in claims.items()
    }


def test_a_release_under_an_earlier_epoch_is_ignored():
    group = group_of("alice")
    alice = group.consumers["alice"]
    queue, epoch = next(iter(alice.held.items()))
    alice.revoked = {queue: epoch - 1}
    group.release(alice)
    assert group.view.owners[queue].epoch == epoch


def test_attempts_outlast_an_owner_that_reports_none():
    """It may have had to release the queue before it opened it."""
    group = group_of("alice")
    alice = group.consumers["alice"]
    queue = next(iter(alice.held))
    for attempts in ({queue: Attempts(7, 3)}, {}):
        group.take(Grant)
        alice.revoked = {queue: alice.held[queue]}
        group.release(alice, attempts)
        group.run(0)
        granted = [each.grant.attempts for each in group.take(Grant) if queue in each.grant.claims]
        assert granted == [{queue: Attempts(7, 3)}]


def test_a_revoked_queue_missing_from_its_holders_poll_is_free():
    """The member never learned of the queue, or its release was lost."""
    group = group_of("alice")
    alice = group.consumers["alice"]
    alice.drains = False
    bob = group.add("bob")
    group.run(100)
    queue = next(iter(alice.revoked))
    del alice.held[queue]
    group.poll(alice)
    group.run(0)
    assert bob.held == {queue: 2}


def test_a_lost_answer_is_repeated():
    group = Surroundings()
    alice = group.add("alice")
    group.work()
    alice.is_silent = True
    group.run(COLLECT_MS)
    alice.held.clear()
    group.poll(alice)
    assert alice.held == {}, "over the same connection it may just be on its way"
    group.run(REPEAT_MS)
    assert len(alice.held) == 8
    alice.held.clear()
    alice.peer = "another"
    group.poll(alice)
    assert len(alice.held) == 8, "over another one it is repeated at once"


def test_a_queue_released_unprompted_is_granted_again():
    group = group_of("alice")
    alice = group.consumers["alice"]
    queue, epoch = next(iter(alice.held.items()))
    alice.revoked = {queue: epoch}
    group.release(alice)
    group.run(0)
    assert alice.held[queue] == epoch + 1


# Returning members.


def test_a_member_that_joins_again_keeps_its_queues():
    group = group_of("alice", "bob")
    bob = group.consumers["bob"]
    before = dict(bob.held)
    bob.polls.clear()
    group.join(bob, claims=True)
    group.run(100)
    assert (bob.held, group.view.epoch, reasons(group)) == (before, 1, [])


def test_a_repeated_join_is_one_member():
    group = Surroundings()
    alice = group.add("alice")
    first, alice.member = alice.member, None
    group.join(alice)
    assert alice.member == first
    assert len(group.view.members) == 1


def test_an_unused_member_id_is_kept_and_an_invalid_one_is_replaced():
    group = Surroundings()
    alice = Consumer("alice", "peer", member="0123456789abcdef" * 2)
    mallory = Consumer("mallory", "another peer", member="x")
    group.consumers = {"alice": alice, "mallory": mallory}
    group.join(alice)
    group.join(mallory)
    assert alice.member == "0123456789abcdef" * 2
    assert len(mallory.member) == 32


def test_changed_topics_cause_a_rebalance_and_changed_expressions_do_not():
    group = group_of("alice", "bob", queues=[*queues_of("T", 4), *queues_of("U", 4)])
    bob = group.consumers["bob"]
    bob.topics = ("T", "U")
    bob.polls.clear()
    group.join(bob, claims=True)
    group.run(100)
    assert reasons(group) == [Reason.SUBSCRIPTION_CHANGED]
    assert group.loads() == {"alice": 4, "bob": 4}
    bob.topics = ("U",)
    bob.polls.clear()
    group.join(bob, claims=True)
    group.run(100)
    assert {queue.topic for queue in bob.held} == {"U"}
    assert group.coordinator.topics() == ["T", "U"]
    group.leave(bob)
    group.run(100)
    assert group.coordinator.topics() == ["T"]


def test_a_static_member_takes_over_the_queues_of_its_name():
    group = group_of("alice")
    bob = group.add("bob@1", instance="bob")
    group.run(100)
    before, epoch = group.owners(), group.view.epoch
    group.effects.clear()
    group.do(group.coordinator.closed(bob.peer, now_ms=group.now_ms))
    bob.is_silent = True
    bob.polls.clear()
    group.run(5_000)
    assert group.owners() == before, "no grace: it is waited for"
    again = group.add("bob@2", instance="bob")
    group.run(100)
    assert {queue: {"bob@2": "bob@1"}.get(who, who) for queue, who in group.owners().items()} == before
    assert set(again.held.values()) == {epoch + 1}, "its former self is fenced"
    assert (reasons(group), group.take(Settled)) == ([], [])
    (grant,) = group.take(Grant)
    assert {each.member for each in grant.grant.claims.values()} == {again.member}


def test_the_former_process_of_a_static_member_is_refused():
    group = group_of("alice", instance="a")
    alice = group.consumers["alice"]
    former = alice.member
    group.add("alice@2", instance="a")
    assert alice.refused == ResponseCode.FENCED
    alice.member, alice.refused = former, None
    group.join(alice)
    assert alice.refused == ResponseCode.FENCED
    assert group.loads() == {"alice@2": 8}


def test_a_former_process_gets_its_name_back_when_it_is_free():
    """It takes no other member's place, whatever id it claims; afterwards it is a new member."""
    group = group_of("alice", instance="a")
    alice = group.consumers["alice"]
    former = alice.member
    second = group.add("alice@2", instance="a")
    for said in (former, None):
        alice.member, alice.refused = said, None
        group.join(alice, if_free=True)
        assert alice.refused == ResponseCode.FENCED
        assert group.loads() == {"alice@2": 8}
    second.is_silent = True
    second.polls.clear()
    group.run(SESSION_MS + 1_000)
    alice.member, alice.refused = former, None
    group.join(alice, if_free=True)
    assert alice.refused is None
    assert alice.member not in (None, former)
    group.run(100)
    assert group.loads() == {"alice": 8}


def test_the_id_of_a_static_member_is_not_returned_without_its_name():
    group = group_of("alice", instance="a")
    former = group.consumers["alice"].member
    group.add("alice@2", instance="a")
    bob = group.consumers["bob"] = Consumer("bob", "peer of bob", member=former)
    group.join(bob)
    assert bob.member not in (None, former)


def test_a_restart_of_a_static_member_is_no_move():
    group = group_of("alice", "carol", instance=None)
    group.add("bob@1", instance="bob")
    group.run(100)
    group.effects.clear()
    owned = group.consumers["alice"].held
    group.consumers["carol"].drains = False
    group.leave(group.consumers["alice"])
    group.add("bob@2", instance="bob")
    group.run(100)
    (settled,) = group.take(Settled)
    assert len(settled.moved) == settled.minimum == len(owned)


def test_a_revocation_of_the_former_process_does_not_bind_a_static_member():
    group = group_of("alice", instance="a")
    group.consumers["alice"].drains = False
    bob = group.add("bob")
    group.run(100)
    assert bob.held == {}
    group.add("alice@2", instance="a")
    group.run(0)
    assert len(bob.held) == 4


# Operators.


def test_an_operator_removes_a_lost_static_member():
    group = group_of("alice")
    bob = group.add("bob", instance="two", session_ms=SESSION_MS * 6)
    group.run(100)
    group.take(Settled)
    group.kill(bob)
    group.run(SESSION_MS)
    assert group.loads() == {"alice": 4, "bob": 4}, "it is waited for"
    assert group.remove("two") == ResponseCode.SUCCESS
    group.run(100)
    assert group.loads() == {"alice": 8}
    (started,) = [event for event in group.take(Started) if event.reason is Reason.OPERATOR]
    assert (started.who, started.members) == (("olga@10.0.0.9 removed bob",), ("alice",))
    (settled,) = group.take(Settled)
    assert (len(settled.moved), settled.minimum) == (4, 4)


def test_a_removed_member_that_is_alive_joins_again():
    group = group_of("alice", "bob")
    bob = group.consumers["bob"]
    assert group.remove("bob", operator=None) == ResponseCode.SUCCESS
    assert (bob.refused, bob.member) == (ResponseCode.UNKNOWN_MEMBER, None)
    group.run(100)
    assert group.loads() == {"alice": 8}
    group.join(bob)
    group.run(100)
    assert group.loads() == {"alice": 4, "bob": 4}
    assert [event.who for event in group.take(Started)] == [("10.0.0.9 removed bob",), ("bob",)]


def test_a_removal_matches_an_instance_id_before_client_ids():
    group = group_of("alice", "bob")
    group.add("twin")
    group.consumers["twin of bob"] = twin = Consumer("twin of bob", peer="elsewhere")
    twin.client_id = "bob"
    group.join(twin)
    static = group.add("carol", instance="bob")
    group.run(100)
    assert len(group.view.members) == 5
    assert group.remove("bob") == ResponseCode.SUCCESS
    assert static.refused == ResponseCode.UNKNOWN_MEMBER
    group.kill(static)
    assert group.remove("bob") == ResponseCode.SUCCESS
    group.run(100)
    assert group.loads() == {"alice": 4, "twin": 4}


def inquiring() -> Surroundings:
    """Return a group whose coordinator queries the fences; one names a member that does not return."""
    group = group_of("alice", "bob")
    carol = Claim("carol, who does not come", group.view.epoch)
    group.fences = {"b": FenceReport(epoch=carol.epoch, openings={MessageQueue("T", "b", 0): carol})}
    group.happen(ev.FencesInDoubt())
    return group


@pytest.mark.parametrize("is_disk_full", [False, True])
def test_a_removal_while_fences_are_queried_is_answered_once_it_is_recorded(is_disk_full: bool):
    """Nothing is recorded before the holders are known; a kill before that would leave bob known."""
    group = inquiring()
    assert group.remove("bob") is None
    group.run(100)
    assert [each.code for each in group.take(Answer) if each.ticket.startswith("/")] == []
    assert [member.client_id for member in group.states[GROUP].members] == ["alice", "bob"]
    group.is_disk_full = is_disk_full
    group.run(SESSION_MS)
    (code,) = [each.code for each in group.take(Answer) if each.ticket.startswith("/")]
    assert code == (ResponseCode.SYSTEM_BUSY if is_disk_full else ResponseCode.SUCCESS)
    left = ["alice", "bob"] if is_disk_full else ["alice"]
    assert [member.client_id for member in group.states[GROUP].members] == left


def test_an_operator_is_redirected_if_the_group_moves_before_its_removal_is_recorded():
    group = inquiring()
    assert group.remove("bob") is None
    group.do(group.coordinator.drop(GROUP, now_ms=group.now_ms))
    (answer,) = [each for each in group.take(Answer) if each.ticket.startswith("/")]
    assert answer.code == ResponseCode.NOT_COORDINATOR


def test_a_removal_is_recorded_before_it_is_answered():
    group = group_of("alice", "bob")
    group.is_disk_full = True
    assert group.remove("bob") == ResponseCode.SYSTEM_BUSY
    group.is_disk_full = False
    group.run(2_000)
    group.add("bob")
    group.run(100)
    assert group.remove("bob") == ResponseCode.SUCCESS
    assert [member.client_id for member in group.states[GROUP].members] == ["alice"]
    group.consumers.pop("bob")
    group.restart()
    group.run(100)
    assert group.loads() == {"alice": 8}


def test_stock_members_cannot_be_removed():
    group = group_of("alice")
    group.stock("java")
    for name in ("java", "alice"):
        remove = Remove(group=GROUP, name=name, operator=None, host="h")
        (answer,) = group.coordinator.ask("x", "olga", remove, now_ms=group.now_ms)
        assert answer.code == ResponseCode.INVALID_PARAMETER
        assert answer.remark.startswith("group G has stock members: java;")


@pytest.mark.parametrize(
    ("name", "operator", "code"),
    [
        ("carol", "olga", ResponseCode.UNKNOWN_MEMBER),
        ("", "olga", ResponseCode.INVALID_PARAMETER),
        ("bob", "", ResponseCode.INVALID_PARAMETER),
        ("bob", "o" * 256, ResponseCode.INVALID_PARAMETER),
        ("bob", "\x1b[31m", ResponseCode.INVALID_PARAMETER),
    ],
)
def test_an_invalid_removal_is_refused(name, operator, code):
    group = group_of("alice", "bob")
    assert group.remove(name, operator) == code
    assert group.loads() == {"alice": 4, "bob": 4}


def test_a_removal_from_an_empty_group_is_refused():
    assert Surroundings().remove("bob") == ResponseCode.UNKNOWN_MEMBER


# Queues and brokers.


def test_queues_are_added_and_removed():
    group = group_of("alice", "bob")
    group.tell("T", queues_of("T", 10))
    group.run(100)
    assert group.loads() == {"alice": 5, "bob": 5}
    group.tell("T", queues_of("T", 2))
    group.run(100)
    assert group.loads() == {"alice": 1, "bob": 1}
    assert all(len(each.held) == 1 for each in group.consumers.values()), "they were notified"
    assert reasons(group) == [Reason.QUEUE_COUNT_CHANGED] * 2


def test_removed_queues_need_no_release():
    group = group_of("alice")
    alice = group.consumers["alice"]
    alice.drains = False
    group.tell("T", queues_of("T", 6))
    group.run(COLLECT_MS)
    assert (group.loads(), group.view.is_settled) == ({"alice": 6}, True)
    assert len(alice.revoked) == 2, "it is notified nevertheless"


def test_queues_of_a_recreated_topic_are_granted_again():
    """No member noticed their absence. Queues of other brokers keep their epochs."""
    group = Surroundings([*queues_of("T", 4), *queues_of("T", 4, "c")])
    for name in ("alice", "bob"):
        group.add(name)
        group.run(100)
    before, epoch = dict(group.view.owners), group.view.epoch
    group.take(Grant)
    group.happen(ev.QueuesRemoved("T", "c", Reason.QUEUE_COUNT_CHANGED))
    assert {queue.broker_name for queue in group.view.owners} == {"b"}
    group.run(100)
    for queue, holding in group.view.owners.items():
        assert holding == before[queue] if queue.broker_name == "b" else holding.epoch > before[queue].epoch
    assert group.loads() == {"alice": 4, "bob": 4}
    assert {name: len(each.held) for name, each in group.consumers.items()} == group.loads()
    assert {grant.broker_name for grant in group.take(Grant)} == {"c"}
    assert group.view.epoch >= epoch
    assert group.view.is_settled


def test_a_topic_recreated_at_once_at_its_only_broker_is_granted_again():
    """The group gets all three changes, one after the other, before it computes a new target."""
    group = group_of("alice", "bob")
    before = dict(group.view.owners)
    group.do(group.coordinator.queues_changed("T", [], now_ms=group.now_ms))
    group.happen(ev.QueuesRemoved("T", "b", Reason.QUEUE_COUNT_CHANGED))
    group.do(group.coordinator.queues_changed("T", queues_of("T", 8), now_ms=group.now_ms))
    group.run(100)
    assert group.loads() == {"alice": 4, "bob": 4}
    assert all(holding.epoch > before[queue].epoch for queue, holding in group.view.owners.items())


def test_a_group_deleted_at_another_broker_is_gathered_and_granted_again():
    """Its fence there no longer knows any member, yet no queue moves."""
    group = group_of("alice", "bob")
    group.run(1_000)
    before = {queue: holding.member for queue, holding in group.view.owners.items()}
    group.take(Grant)
    group.fences = {"b": FenceReport(epoch=group.view.epoch)}
    group.happen(ev.FencesInDoubt())
    group.run(100)
    assert {queue: holding.member for queue, holding in group.view.owners.items()} == before
    (grant,) = group.take(Grant)
    assert (grant.grant.complete, len(grant.grant.claims)) == (True, 8)


def test_a_member_that_has_just_left_is_not_awaited():
    """A broker was discovered between the member's leave and the next grant (seed 8310179)."""
    group = group_of("alice", "bob")
    claims = {queue: Claim(each.member, each.epoch) for queue, each in group.view.owners.items()}
    group.fences = {"b": FenceReport(epoch=group.view.epoch, openings=claims)}
    group.leave(group.consumers["bob"])
    group.happen(ev.FencesInDoubt())
    group.run(100)
    assert group.loads() == {"alice": 8}


def test_a_member_that_was_awaited_in_vain_is_not_awaited_again_for_the_same_queues():
    """A fence refused the grants after the wait (seed 9303802): the queues had no owner for another session.
    Queues that the member opened since do count: another coordinator may have had it meanwhile.
    """
    group = group_of("alice")
    first, second = sorted(group.view.owners)[:2]
    opened = {first: Claim("carol, who does not come", group.view.epoch)}
    group.fences = {"b": FenceReport(epoch=group.view.epoch, openings=opened)}
    group.happen(ev.FencesInDoubt())
    group.run(SESSION_MS)
    assert group.loads() == {"alice": 8}
    group.happen(ev.GrantRefused(group.view.epoch, group.view.epoch + 1))
    group.run(100)
    assert group.loads() == {"alice": 8}
    opened[second] = Claim("carol, who does not come", group.view.epoch)
    group.happen(ev.FencesInDoubt())
    group.run(100)
    assert group.loads() == {"alice": 0}, "it is awaited"
    group.run(SESSION_MS)
    assert group.loads() == {"alice": 8}


def test_those_who_left_are_remembered_in_limits(monkeypatch: pytest.MonkeyPatch):
    """Each one is awaited for at most one session."""
    monkeypatch.setattr(group_membership, "LEFT_MAX", 1)
    group = group_of("alice", "bob", "carol")
    claims = {queue: Claim(each.member, each.epoch) for queue, each in group.view.owners.items()}
    group.fences = {"b": FenceReport(epoch=group.view.epoch, openings=claims)}
    group.leave(group.consumers["bob"])
    group.leave(group.consumers["carol"])
    group.happen(ev.FencesInDoubt())
    group.run(100)
    assert group.loads()["alice"] < 8
    group.run(SESSION_MS)
    assert group.loads() == {"alice": 8}


def test_queues_reset_by_an_operator_are_granted_again():
    """Only queues of this group move; those of another group with the topic stay."""
    group = group_of("alice", "bob")
    before = dict(group.view.owners)
    group.take(Grant)
    group.do(
        group.coordinator.happened(ev.QueuesRemoved("T", "b", Reason.OPERATOR), "H", now_ms=group.now_ms)
    )
    assert group.take(Grant) == []
    group.happen(ev.QueuesRemoved("T", "b", Reason.OPERATOR))
    group.run(100)
    assert group.loads() == {"alice": 4, "bob": 4}
    assert all(holding.epoch > before[queue].epoch for queue, holding in group.view.owners.items())
    assert {name: len(each.held) for name, each in group.consumers.items()} == group.loads()
    assert reasons(group) == [Reason.OPERATOR]


def test_a_queue_closed_by_an_operator_needs_no_release():
    """In a take-over its claims on that queue are void, while the others count."""
    group = group_of("alice")
    first = min(group.view.owners)
    opened = {
        queue: Claim("" if queue == first else holding.member, holding.epoch)
        for queue, holding in group.view.owners.items()
    }
    group.fences = {"b": FenceReport(epoch=group.view.epoch, openings=opened)}
    before = dict(group.view.owners)
    group.happen(ev.FencesInDoubt())
    group.run(100)
    after = group.view.owners
    assert after[first].epoch > before[first].epoch
    assert all(after[queue].epoch == before[queue].epoch for queue in before if queue != first)


def test_an_arriving_broker_is_a_separate_reason():
    group = group_of("alice", "bob")
    group.tell("T", [*queues_of("T", 8), *queues_of("T", 8, "c")])
    group.run(100)
    assert (group.loads(), reasons(group)) == ({"alice": 8, "bob": 8}, [Reason.BROKER_CHANGED])
    assert {grant.broker_name for grant in group.take(Grant)} == {"c"}
    assert len(group.coordinator.grants_for("b")[0].grant.claims) == 8
    assert group.coordinator.grants_for("b")[0].grant.complete
    group.tell("T", queues_of("T", 8))
    group.run(100)
    assert (group.loads(), reasons(group)) == ({"alice": 4, "bob": 4}, [Reason.BROKER_CHANGED])


def test_topics_with_unknown_queues_are_awaited_for_a_second():
    group = Surroundings([])
    alice = group.add("alice", topics=("T", "U"))
    group.run(500)
    group.tell("T", queues_of("T", 2))
    group.run(400)
    assert alice.held == {}, "the other topic's queues count too"
    group.run(200)
    assert len(alice.held) == 2
    group.tell("U", queues_of("U", 2))
    group.run(COLLECT_MS)
    assert len(alice.held) == 4


def test_assignment_starts_when_a_topics_queues_become_known():
    group = Surroundings([])
    alice = group.add("alice")
    group.run(300)
    group.tell("T", queues_of("T", 2))
    group.run(COLLECT_MS)
    assert len(alice.held) == 2


# Strategies.


def test_the_strategy_named_by_most_members_is_used():
    group = group_of("alice", strategy="AVG")
    group.add("bob", strategy="AVG_BY_CIRCLE")
    group.run(100)
    assert list(group.owners().values()) == ["alice"] * 4 + ["bob"] * 4, "the first joined decides"
    group.add("carol", strategy="AVG_BY_CIRCLE")
    group.run(100)
    assert list(group.owners().values()) == ["alice", "bob", "carol"] * 2 + ["alice", "bob"]
    assert reasons(group)[-1] == Reason.STRATEGY_CHANGED


@pytest.mark.parametrize("name", ["sticky", "cooperative-sticky", "balanced_sticky"])
def test_a_sticky_strategy_gives_the_newcomer_what_moves_and_nothing_else_moves(name):
    group = group_of("alice", strategy=name)
    group.add("bob", strategy=name)
    group.run(100)
    assert group.loads() == {"alice": 4, "bob": 4}
    (settled,) = group.take(Settled)
    assert (len(settled.moved), settled.minimum) == (4, 4)


@pytest.mark.parametrize("name", ["no such strategy", "CONFIG", "raises", "twice", "foreign"])
def test_a_strategy_that_cannot_be_used_breaks_nothing(name):
    group = group_of("alice", "bob", strategy=name)
    assert group.loads() == {"alice": 4, "bob": 4}


def _raising(*_: object) -> list[MessageQueue]:
    raise RuntimeError("a user's strategy")


register_strategy("raises", TopicStrategy(_raising))
register_strategy("twice", TopicStrategy(lambda _, queues, __: queues))
register_strategy("foreign", TopicStrategy(lambda *_: [MessageQueue("T", "b", 99)]))


def test_capacities_are_respected():
    group = Surroundings(queues_of("T", 9))
    group.add("small")
    group.add("large", capacity=2)
    group.run(100)
    assert group.loads() == {"small": 3, "large": 6}


def test_members_with_equal_client_ids_are_distinguished():
    group = Surroundings()
    group.add("same")
    other = Consumer("same", "another peer")
    group.consumers["same/2"] = other
    group.join(other)
    group.run(100)
    assert sorted(len(member.owned) for member in group.view.members) == [4, 4]


# Durability.


def test_a_restart_moves_nothing():
    group = group_of("alice", "bob")
    owners, epoch = group.owners(), group.view.epoch
    group.restart()
    group.run(30_000)
    assert (group.owners(), group.view.epoch) == (owners, epoch)
    assert reasons(group) == []


def test_a_changed_subscription_survives_a_restart():
    group = group_of("alice", queues=[*queues_of("T", 2), *queues_of("U", 2)])
    alice = group.consumers["alice"]
    alice.topics = ("T", "U")
    alice.polls.clear()
    group.join(alice, claims=True)
    group.restart()
    group.run(100)
    assert len(alice.held) == 4


def test_a_member_that_does_not_return_after_a_restart_is_expelled():
    group = group_of("alice", "bob")
    del group.consumers["bob"]
    group.restart()
    group.run(SESSION_MS - 1)
    assert group.loads() == {"alice": 4, "bob": 4}
    group.run(100)
    assert (group.loads(), reasons(group)) == ({"alice": 8}, [Reason.SESSION_EXPIRED])


def test_a_handover_continues_after_a_restart():
    group = group_of("alice")
    alice = group.consumers["alice"]
    alice.drains = False
    bob = group.add("bob")
    group.run(100)
    group.restart()
    group.run(100)
    assert (len(alice.revoked), bob.held) == (4, {})
    group.release(alice)
    group.run(100)
    assert group.loads() == {"alice": 4, "bob": 4}


def test_nothing_is_granted_while_the_disk_refuses_writes():
    group = Surroundings()
    group.is_disk_full = True
    alice = group.add("alice")
    group.run(5_000)
    assert (alice.held, group.take(Grant)) == ({}, [])
    group.add("bob")
    assert group.consumers.pop("bob").refused == ResponseCode.SYSTEM_BUSY
    group.is_disk_full = False
    group.run(1_000)
    assert len(alice.held) == 8
    assert alice.refused == ResponseCode.SYSTEM_BUSY
    assert group.slowest_ms == SESSION_MS // 3, "a poll waits for the disk, but not for ever"


def test_the_gathering_times_out_after_a_failed_write():
    """A group whose deadline is in the past is late at every tick: an engine would mistake that for a stall
    and extend all deadlines, including the inquiry's.
    """
    group = group_of("alice", "bob")
    group.is_disk_full = True
    group.tell("T", queues_of("T", 10))
    group.run(100)
    carol = Claim("carol, who does not come", group.view.epoch)
    group.fences = {"b": FenceReport(epoch=carol.epoch, openings={MessageQueue("T", "b", 0): carol})}
    group.happen(ev.FencesInDoubt())
    group.now_ms += RECORD_AGAIN_MS
    group.do(group.coordinator.tick(group.now_ms))
    assert group.coordinator.next_due_ms > group.now_ms
    group.is_disk_full = False
    group.run(SESSION_MS)
    assert group.loads() == {"alice": 5, "bob": 5}, "carol is awaited for a session, and no longer"


def test_an_overdue_repeated_answer_is_sent_at_once():
    """Members are sent the mode again, under a higher epoch, long after they first received it."""
    group = group_of("alice", "bob")
    group.stock("stock")
    group.run(SESSION_MS // 3 - 100)
    group.take(Answer)
    group.happen(ev.FencesInDoubt())
    assert len(group.take(Answer)) == 2
    assert group.coordinator.next_due_ms > group.now_ms


def test_a_join_during_a_gathering_does_not_wait_for_the_disk():
    """Nothing is recorded meanwhile, so nothing is refused; the result is recorded at the end."""
    group = group_of("alice", "bob")
    group.is_disk_full = True
    group.tell("T", queues_of("T", 10))
    group.run(100)
    group.add("dora")
    assert group.consumers.pop("dora").refused == ResponseCode.SYSTEM_BUSY
    carol = Claim("carol, who does not come", group.view.epoch)
    group.fences = {"b": FenceReport(epoch=carol.epoch, openings={MessageQueue("T", "b", 0): carol})}
    group.happen(ev.FencesInDoubt())
    before = group.take(Grant)
    dora = group.add("dora")
    assert (dora.refused, dora.member is not None) == (None, True)
    group.run(SESSION_MS)
    assert (before, group.take(Grant)) == ([], []), "the disk is still full"
    group.is_disk_full = False
    group.run(RECORD_AGAIN_MS)
    assert sorted(group.loads().values()) == [3, 3, 4]


# Taking a group over.


def opened(group: Surroundings) -> FenceReport:
    view = group.view
    held = {queue: Claim(holding.member, holding.epoch) for queue, holding in view.owners.items()}
    return FenceReport(epoch=view.epoch, openings=held)


def taken_over(group: Surroundings) -> Surroundings:
    """Return another coordinator with the same members and no knowledge of the group."""
    other = Surroundings()
    other.now_ms, other.must_gather = group.now_ms, True
    other.fences = {"b": opened(group)}
    other.consumers, other.tickets = group.consumers, group.tickets
    for consumer in other.consumers.values():
        consumer.polls.clear()
        consumer.peer += "'"
    return other


def test_a_takeover_by_another_coordinator_moves_nothing():
    group = group_of("alice", "bob")
    owners = group.owners()
    held = {name: dict(each.held) for name, each in group.consumers.items()}
    other = taken_over(group)
    other.join(other.consumers["alice"], claims=True)
    other.run(2_000)
    assert other.consumers["alice"].held == held["alice"], "it continues to read"
    assert other.states == {}, "an unknown state is not recorded"
    other.join(other.consumers["bob"], claims=True)
    other.run(100)
    assert other.owners() == owners
    assert {name: each.held for name, each in other.consumers.items()} == held
    assert other.view.epoch > group.view.epoch
    assert len(other.take(Gather)) == 1
    (grant,) = other.take(Grant)
    assert grant.grant.complete
    assert len(grant.grant.claims) == 8


def test_absent_members_are_awaited_for_one_session():
    group = group_of("alice", "bob")
    other = taken_over(group)
    del other.consumers["bob"]
    other.join(other.consumers["alice"], claims=True)
    other.run(SESSION_MS - 1)
    assert len(other.consumers["alice"].held) == 4
    other.run(100)
    assert len(other.consumers["alice"].held) == 8
    (settled,) = other.take(Settled)
    assert len(settled.moved) == settled.minimum == 4


def test_silent_fences_are_not_awaited_for_long():
    group = Surroundings()
    group.must_gather = True
    alice = group.add("alice")
    group.run(4_000)
    assert alice.held == {}
    group.run(2_000)
    assert len(alice.held) == 8


def test_a_refused_coordinator_raises_its_epoch_above_the_fences():
    group = group_of("alice", "bob")
    owners = group.owners()
    group.fences = {"b": FenceReport(epoch=70, openings=opened(group).openings)}
    epoch = group.view.epoch
    for _ in range(2):
        group.happen(ev.GrantRefused(epoch, 70))
    group.run(100)
    assert group.view.epoch > 70
    assert group.owners() == owners
    assert len(group.take(Gather)) == 1


def test_a_refused_grant_gathers_the_group_although_a_later_one_was_accepted():
    """The later grant was accepted, but covers other queues."""
    group = group_of("alice", "bob")
    epoch = group.view.epoch
    group.add("carol")
    group.run(100)
    assert group.view.epoch > epoch
    group.fences = {"b": opened(group)}
    group.happen(ev.GrantRefused(epoch, epoch + 1))
    assert len(group.take(Gather)) == 1


@pytest.mark.parametrize("first", ["alice", "bob"])
def test_members_restore_what_the_disk_lost_in_a_power_cut(first):
    """Coordinator and fence restart from before carol's visit, and no member has to give up a queue."""
    group = group_of("alice", "bob")
    alice, bob = group.consumers.values()
    states, fence = dict(group.states), opened(group)
    group.add("carol")
    group.run(100)
    group.leave(group.consumers["carol"])
    group.run(100)
    held = {"alice": dict(alice.held), "bob": dict(bob.held)}
    epoch = group.view.epoch
    assert epoch > fence.epoch
    assert opened(group).openings != fence.openings
    group.states, group.fences = states, {"b": fence}
    group.restart()
    group.consumers[first].is_silent = True
    group.run(1_000)
    group.consumers[first].is_silent = False
    group.run(100)
    assert group.view.epoch > epoch
    assert {"alice": alice.held, "bob": bob.held} == held


def test_polls_are_answered_in_time_while_members_are_awaited():
    group = group_of("alice", "bob")
    group.fences = {"b": opened(group)}
    group.restart()
    group.consumers["bob"].is_silent = True
    group.consumers["alice"].epoch += 1
    group.run(SESSION_MS)
    assert group.slowest_ms <= SESSION_MS // 3


def test_impossible_epochs_of_members_are_ignored():
    group = group_of("alice")
    alice = group.consumers["alice"]
    for ahead, is_believed in ((1_000, True), (1_001, False)):
        alice.polls.clear()
        alice.epoch = group.view.epoch + ahead
        group.fences = {"b": opened(group)}
        told = alice.epoch
        group.poll(alice)
        group.run(100)
        assert (group.view.epoch > told) is is_believed


def test_in_client_mode_a_higher_epoch_is_exceeded():
    """Otherwise the member, which follows the higher epoch, would ignore the assignment."""
    group = group_of("alice")
    group.stock("java")
    group.run(100)
    alice = group.consumers["alice"]
    alice.polls.clear()
    alice.epoch, alice.mode = group.view.epoch + 5, "epochs"
    group.poll(alice)
    group.run(REPEAT_MS)
    assert (alice.mode, alice.epoch) == ("client", group.view.epoch)


def test_a_group_with_another_coordinator_is_dropped():
    group = group_of("alice")
    group.do(group.coordinator.drop(GROUP, "10.0.0.2:10911", now_ms=group.now_ms))
    (answer,) = group.take(Answer)
    assert (answer.code, answer.remark) == (ResponseCode.NOT_COORDINATOR, "10.0.0.2:10911")
    assert (group.states, group.coordinator.names(), group.coordinator.topics()) == ({}, [], [])


# Mixed groups.


def test_stock_members_put_the_group_into_client_mode_and_back():
    group = group_of("alice", "bob")
    alice, bob = group.consumers.values()
    group.stock("java")
    group.run(1_000)
    assert alice.mode == bob.mode == group.view.mode == "client"
    (grant,) = group.take(Grant)
    assert (grant.grant.mode, grant.grant.claims, grant.grant.complete) == ("client", {}, True)
    alice.held, bob.held = bob.held, alice.held
    held = dict.fromkeys(alice.held), dict.fromkeys(bob.held)
    group.stock()
    group.run(1_000)
    assert alice.mode == bob.mode == group.view.mode == "epochs"
    assert (dict.fromkeys(alice.held), dict.fromkeys(bob.held)) == held, "the holders first"
    assert {*alice.held.values(), *bob.held.values()} == {3}, "under a new epoch"
    assert [change.mode for change in group.take(ModeChanged)] == ["client", "epochs"]
    assert reasons(group) == [Reason.MODE_CHANGED] * 2


def test_double_holdings_are_resolved_after_client_mode():
    group = group_of("alice", "bob")
    alice, bob = group.consumers.values()
    group.stock("java")
    group.run(1_000)
    alice.held = {**alice.held, **bob.held}
    group.stock()
    bob.is_silent = True
    group.run(499)
    assert group.view.mode == "client"
    bob.is_silent = False
    group.run(100)
    assert group.loads() == {"alice": 4, "bob": 4}
    assert alice.held.keys().isdisjoint(bob.held)


def test_a_join_beside_stock_members_starts_in_client_mode():
    group = Surroundings()
    group.stock("java")
    alice = group.add("alice")
    group.run(5_000)
    assert (alice.mode, alice.held) == ("client", {})
    group.restart()
    group.run(100)
    assert group.view.mode == "client"
    group.stock()
    group.run(600)
    assert len(alice.held) == 8


def test_the_last_commits_of_a_stock_member_are_awaited_after_it_unregisters():
    """Until they arrive the group stays in client mode."""
    group = group_of("alice")
    group.stock("java")
    group.run(100)
    group.stock()
    group.run(400)
    assert group.view.mode == "client"
    group.run(700)
    assert group.view.mode == "epochs"


def test_a_stock_member_that_returns_during_a_gathering_keeps_client_mode():
    group = group_of("alice")
    group.stock("java")
    group.run(100)
    group.consumers["alice"].is_silent = True
    group.stock()
    group.stock("java")
    group.consumers["alice"].is_silent = False
    group.run(5_000)
    assert group.view.mode == "client"
    group.happen(ev.GrantRefused(group.view.epoch, 90))
    assert group.view.epoch == 91
    assert group.take(Gather) == []


# Refused requests.

TOO_MUCH = {
    "session too short": {"session_ms": 999},
    "session too long": {"session_ms": 3_600_001},
    "no client id": {"client_id": ""},
    "client id too long": {"client_id": "c" * 256},
    "instance too long": {"instance": "i" * 256},
    "no topics": {"topics": ()},
    "too many topics": {"topics": tuple(f"T{n}" for n in range(2_001))},
    "no proper topic": {"topics": ("../T",)},
    "capacity": {"capacity": 0},
    "strategy": {"strategy": "s" * 256},
    "revoke timeout": {"revoke_timeout_ms": 600_001},
    "no revoke timeout": {"revoke_timeout_ms": -1},
}


@pytest.mark.parametrize("fields", TOO_MUCH.values(), ids=TOO_MUCH)
def test_a_join_out_of_bounds_is_refused(fields):
    group = Surroundings()
    fields = {"client_id": "alice", "peer": "peer", **fields}
    consumer = group.consumers[fields["client_id"]] = Consumer(**fields)
    group.join(consumer)
    (answer,) = group.take(Answer)
    assert (answer.code, consumer.member) == (ResponseCode.INVALID_PARAMETER, None)
    assert answer.remark


def test_the_members_of_a_group_are_limited(monkeypatch):
    monkeypatch.setattr(group_membership, "MEMBERS_MAX", 2)
    group = group_of("alice", "bob")
    group.add("carol")
    assert group.consumers["carol"].refused == ResponseCode.SYSTEM_ERROR
    assert group.loads() == {"alice": 4, "bob": 4}


def test_a_poll_that_always_lags_is_answered_at_intervals():
    """Otherwise a client that never opens its grants would keep its coordinator busy."""
    group = group_of("alice")
    alice = group.consumers["alice"]
    poll = Poll(group=GROUP, member=alice.member, epoch=0)
    answers = 0
    for at_ms in range(0, 1_000, 10):
        effects = group.coordinator.tick(group.now_ms + at_ms)
        if at_ms == 0 or any(isinstance(effect, Answer) for effect in effects):
            answers += 1
            now_ms = group.now_ms + at_ms
            group.coordinator.ask("ticket", alice.peer, poll, now_ms=now_ms)
    assert answers <= 11


def test_an_unknown_member_is_refused():
    group = Surroundings()
    poll = Poll(group="H", member="x", epoch=0)
    (answer,) = group.coordinator.ask("ticket", "peer", poll, now_ms=0)
    assert answer.code == ResponseCode.UNKNOWN_MEMBER
    join = Join(group="no group", client_id="c", session_ms=SESSION_MS, subscriptions={"T": "*"})
    (answer,) = group.coordinator.ask("ticket", "peer", join, now_ms=0)
    assert answer.code == ResponseCode.INVALID_PARAMETER


def test_removed_queues_are_revoked_in_the_order_they_were_granted():
    """The order must not be a set's, which differs between processes: one seed means one history."""
    names = [f"c{number}" for number in range(8)]
    group = group_of(*names, queues=queues_of("T", 8))
    holders = {held.member: None for held in group.view.owners.values()}
    clients = {member.member: member.client_id for member in group.view.members}
    group.tell("T", [])
    group.effects.clear()
    group.now_ms += COLLECT_MS
    effects = group.coordinator.tick(group.now_ms)
    answered = [effect.ticket.rpartition("/")[0] for effect in effects if isinstance(effect, Answer)]
    assert answered == [clients[member] for member in holders]


def test_a_group_left_to_another_broker_is_remembered_with_its_members():
    """Their next coordinator awaits them, but not one that has left meanwhile."""
    group = Surroundings()
    group.add("alice")
    group.add("bob")
    group.run(100)
    epoch, members = group.coordinator.members_of(GROUP)
    assert (epoch, len(members)) == (group.view.epoch, 2)
    group.do(group.coordinator.drop(GROUP, "b:1", now_ms=group.now_ms))
    assert group.coordinator.members_of(GROUP) == (epoch, members)
    group.coordinator.forget_former(Leave(group=GROUP, member=members[0]))
    assert group.coordinator.former(GROUP) == (epoch, members[1:])
    group.do(group.coordinator.removed(GROUP, may_return=True, now_ms=group.now_ms))
    assert group.coordinator.former(GROUP) == (0, None)


def test_a_fence_of_an_unknown_group_hears_that_its_members_allocate():
    """The fence remains from an earlier life of the group, or from a coordinator unknown to this one."""
    fences = {GROUP: 7}
    secret_bits = SeededSecretBits(Random(1))
    coordinator: Coordinator[str, str] = Coordinator(secret_bits=secret_bits, fence_epoch=fences.get)
    assert coordinator.stock_members("H", ["java"], now_ms=0) == []
    assert coordinator.stock_members(GROUP, ["java"], now_ms=0) == [ModeChanged(GROUP, MODE_CLIENT, 7)]
    assert coordinator.stock_members(GROUP, ["java"], now_ms=0) == [], "no news"
    grant = FenceGrant(group=GROUP, epoch=7, mode=MODE_CLIENT)
    assert coordinator.refused(grant, 9, now_ms=0) == [ModeChanged(GROUP, MODE_CLIENT, 9)]
    coordinator.stock_members(GROUP, [], now_ms=0)
    assert coordinator.refused(grant, 9, now_ms=0) == [], "no member allocates any more"
