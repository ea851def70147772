"""Coordinated groups on one broker: from a member's join to its last commit, through mishaps and restarts."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from libramq.codes import RequestCode as R
from libramq.codes import ResponseCode as C
from libramq.formats.document import Document, decode_body, encode_body
from libramq.formats.tables import SubscriptionGroupConfig
from libramq.groups.coordinator.inquiry import PARTING_MS
from libramq.groups.rebalance_event import RebalanceEvent, decode_event
from libramq.remoting import headers as h
from libramq.remoting.body.coordination import (
    GroupAssignment,
    GroupJoinBody,
    GroupLeaveBody,
    GroupPollBody,
    GroupReleaseBody,
    QueueGrant,
)
from libramq.remoting.command import Command
from libramq.rpc.request import INLINE_BODY_BYTES_MAX
from tests.broker.brokers import (
    Conversation,
    answer,
    find_answer,
    heartbeat,
    notifications,
    subscription,
)
from tests.fakes import FakePeer

SESSION_MS = 10_000
#: Changes of a group are collected for this long, and then handled together.
COLLECT_MS = 20


class Client:
    """A LibraMQ client that makes one request at a time."""

    def __init__(
        self, talk: Conversation, name: str, *, instance: str | None = None, tags: str = "*"
    ) -> None:
        self.tags = tags
        self.warning = ""
        self.talk = talk
        self.name = name
        self.peer = FakePeer(f"10.0.0.{len(name)}:{sum(name.encode())}")
        self.instance = instance
        self.member: str | None = None
        self.epoch = 0
        self.mode = ""
        self.held: dict[int, QueueGrant] = {}
        self.revoke: list[int] = []
        self._poll: Command | None = None

    def beat(self) -> None:
        self.talk.beat(self.peer, self.name, stock=False)

    def join(self) -> "Client":
        self.beat()
        header = h.GroupJoinHeader(
            consumer_group="G",
            client_id=self.name,
            lb_session_ms=SESSION_MS,
            lb_instance=self.instance,
            lb_member=self.member,
        )
        body = GroupJoinBody(subscriptions={"T": self.tags}, held=list(self.held.values()))
        reply = self.talk.ask(self.peer, R.GROUP_JOIN, header, body)
        assert reply.code == C.SUCCESS, reply.remark
        self.member = reply.ext["lbMember"]
        self._take(reply)
        return self

    def poll(self, *, duplicates: int = 0) -> "Client":
        """Report what the client holds; `news` has the answer."""
        header = h.GroupPollHeader(consumer_group="G", lb_member=self.member or "", lb_epoch=self.epoch)
        body = GroupPollBody(held=list(self.held.values()), duplicates=duplicates)
        self._poll = self.talk.command(R.GROUP_POLL, header, body)
        self.talk.give(self.peer, self._poll)
        return self

    def news(self) -> int | None:
        """Return the code of the poll's answer, or None while it is held."""
        assert self._poll is not None
        reply = find_answer(self.peer, self._poll)
        if reply is None:
            return None
        if reply.code == C.SUCCESS:
            self._take(reply)
        return reply.code

    def _take(self, reply: Command) -> None:
        assignment = decode_body(reply.body, GroupAssignment)
        self.epoch, self.mode = assignment.epoch, assignment.mode
        self.warning = assignment.warning
        self.held |= {grant.queue_id: grant for grant in assignment.queues if grant.topic == "T"}
        self.revoke = [grant.queue_id for grant in assignment.revoke if grant.topic == "T"]

    def tell(self, code: int, body: Document) -> int:
        header = h.GroupMemberHeader(consumer_group="G", lb_member=self.member or "")
        return self.talk.ask(self.peer, code, header, body).code

    def release(self, *queue_ids: int, is_committed: bool | None = True) -> None:
        """Release queues, the revoked ones if none is named. is_committed=None: the client does not know."""
        queues = [self.held.pop(queue_id) for queue_id in queue_ids or self.revoke]
        self.revoke = [queue_id for queue_id in self.revoke if queue_id in self.held]
        uncommitted = None if is_committed is None else [] if is_committed else queues
        body = GroupReleaseBody(queues=queues, uncommitted=uncommitted)
        assert self.tell(R.GROUP_RELEASE, body) == C.SUCCESS

    def leave(self, *, is_committed: bool = False) -> None:
        queues = list(self.held.values()) if is_committed else []
        assert self.tell(R.GROUP_LEAVE, GroupLeaveBody(queues=queues)) == C.SUCCESS
        self.held = {}

    def open(self, queue_id: int) -> Command:
        header = h.OpenQueueHeader(
            consumer_group="G",
            topic="T",
            queue_id=queue_id,
            lb_member=self.member or "",
            lb_queue_epoch=self.held[queue_id].epoch,
        )
        return self.talk.ask(self.peer, R.OPEN_QUEUE, header)

    def open_all(self) -> list[int]:
        """Open the queues that the client holds, and return their ids."""
        for queue_id in self.held:
            assert self.open(queue_id).code == C.SUCCESS
        return sorted(self.held)

    def pull_command(self, queue_id: int, offset: int = 0, *, hold_ms: int = 0) -> Command:
        return self.talk.pull_command(
            queue_id=queue_id,
            queue_offset=offset,
            suspend_timeout_millis=hold_ms,
            lb_member=self.member,
            lb_queue_epoch=self.held[queue_id].epoch,
        )

    def pull(self, queue_id: int) -> int:
        command = self.pull_command(queue_id)
        self.talk.give(self.peer, command)
        return answer(self.peer, command).code

    def commit(self, queue_id: int, offset: int, *, as_member: bool = True) -> int:
        header = h.UpdateConsumerOffsetHeader(
            consumer_group="G",
            topic="T",
            queue_id=queue_id,
            commit_offset=offset,
            lb_member=self.member if as_member else None,
            lb_queue_epoch=self.held[queue_id].epoch if as_member else None,
        )
        return self.talk.ask(self.peer, R.UPDATE_CONSUMER_OFFSET, header).code

    def close(self) -> None:
        self.peer.is_open = False
        self.talk.performer.closed(self.peer)  # type: ignore[arg-type]


@pytest.fixture
def talk(tmp_path: Path) -> Iterator[Conversation]:
    """A broker with a topic of four queues, three messages in each."""
    talk = Conversation(tmp_path / "data")
    talk.create_topic("T", 4)
    for queue_id in range(4):
        for _ in range(3):
            talk.send(FakePeer(), queue_id=queue_id)
    yield talk
    talk.close()


def alone(talk: Conversation) -> Client:
    """Alice, who has all queues open and polls."""
    alice = Client(talk, "alice").join().poll()
    talk.advance(COLLECT_MS)
    assert alice.news() == C.SUCCESS
    assert alice.open_all() == [0, 1, 2, 3]
    assert alice.poll().news() is None
    return alice


def both(talk: Conversation) -> tuple[Client, Client]:
    """Alice and Bob, who have two queues each."""
    alice, bob = alone(talk), Client(talk, "bob").join().poll()
    talk.advance(COLLECT_MS)
    assert alice.news() == C.SUCCESS
    alice.release()
    assert bob.news() == C.SUCCESS
    bob.open_all()
    alice.poll()
    bob.poll()
    return alice, bob


def reasons(talk: Conversation) -> list[tuple[str | None, str | None]]:
    return [(event.reason, event.who) for event in events(talk) if event.kind == "started"]


def events(talk: Conversation) -> list[RebalanceEvent]:
    talk.tick()  # They are stored after the turn that recorded them.
    return [decode_event(message.body) for message in talk.messages("LIBRA_REBALANCE_EVENTS")]


def committed(talk: Conversation, queue_id: int) -> int | None:
    return talk.broker.offsets.query("G", "T", queue_id)


# Stalls.


def test_a_broker_that_stalled_keeps_its_members(talk):
    """The broker stalls beyond their sessions; timers fire before the members' requests are read."""
    alice, bob = both(talk)
    talk.extend_deadlines(SESSION_MS + 5_000)
    assert (alice.news(), bob.news()) == (C.SUCCESS, C.SUCCESS), "it is time for that"
    assert (alice.poll().news(), bob.poll().news()) == (None, None)
    assert reasons(talk) == [("member_joined", "alice"), ("member_joined", "bob")]
    talk.advance(SESSION_MS // 2)
    assert alice.poll().news() is None
    talk.advance(SESSION_MS // 2 + COLLECT_MS)
    assert reasons(talk)[2:] == [("session_expired", "bob")]


# The life of a member.


def test_a_single_broker_is_the_coordinator(talk):
    reply = talk.ask(FakePeer(), R.GROUP_FIND, h.GroupHeader(consumer_group="G"))
    assert reply.ext == {"lbCoordinator": talk.config.address}


def test_a_member_joins_opens_pulls_and_commits(talk):
    alice = alone(talk)
    assert alice.mode == "epochs"
    for queue_id in range(4):
        assert alice.pull(queue_id) == C.SUCCESS
        assert alice.commit(queue_id, 2) == C.SUCCESS
        assert alice.open(queue_id).ext == {"offset": "2", "lbFormerEpoch": "1"}
    assert notifications(alice.peer) == []


def test_a_second_member_gets_half_and_opens_it_when_it_is_released(talk):
    alice, bob = alone(talk), Client(talk, "bob").join().poll()
    alice.commit(3, 2)
    talk.advance(COLLECT_MS)
    assert alice.news() == C.SUCCESS
    assert len(alice.revoke) == 2
    first, second = alice.revoke
    alice.poll()
    assert alice.pull(first) == C.SUCCESS  # Until alice releases it.
    assert bob.news() is None
    bob.held = dict(alice.held)
    assert bob.open(first).code == C.FENCED  # Even if a member cheats.
    bob.held = {}
    alice.release(first)
    assert bob.news() == C.SUCCESS
    assert list(bob.held) == [first]
    assert bob.open(first).code == C.SUCCESS
    alice.release(second)
    assert bob.poll().news() == C.SUCCESS
    assert bob.open_all() == sorted([first, second])
    assert alice.open_all() == sorted({0, 1, 2, 3} - {first, second})
    assert [bob.pull(queue_id) for queue_id in bob.held] == [C.SUCCESS] * 2


def test_the_queues_of_a_leaving_member_are_reassigned_at_once(talk):
    alice, bob = both(talk)
    bob.leave()
    talk.advance(COLLECT_MS)
    assert alice.news() == C.SUCCESS
    assert alice.open_all() == [0, 1, 2, 3]
    assert bob.poll().news() == C.UNKNOWN_MEMBER


def test_a_poll_without_news_is_answered_within_a_third_of_the_session(talk):
    alice = alone(talk)
    talk.advance(SESSION_MS // 3 - 1)
    assert alice.news() is None
    talk.advance(1)
    assert alice.news() == C.SUCCESS


# Disappearing members.


def test_a_zombie_is_fenced_with_its_held_pull(talk):
    alice, bob = both(talk)
    lost = sorted(alice.held)
    pulls = {queue_id: alice.pull_command(queue_id, 3, hold_ms=15_000) for queue_id in lost}
    talk.give(alice.peer, *pulls.values())
    for _ in range(4):
        talk.advance(SESSION_MS // 4)
        bob.news()
        bob.poll()
    talk.advance(COLLECT_MS)
    assert alice.news() in (C.SUCCESS, C.UNKNOWN_MEMBER)
    bob.news()
    assert bob.open_all() == [0, 1, 2, 3]
    assert [answer(alice.peer, pulls[queue_id]).code for queue_id in lost] == [C.FENCED] * 2
    assert [alice.commit(queue_id, 3) for queue_id in lost] == [C.FENCED] * 2
    assert [alice.pull(queue_id) for queue_id in lost] == [C.FENCED] * 2
    assert [committed(talk, queue_id) for queue_id in lost] == [None] * 2
    assert len(talk.broker.held) == 0
    assert ("session_expired", "alice") in reasons(talk)


def test_the_queues_of_an_ended_connection_are_reassigned_soon(talk):
    alice, bob = both(talk)
    bob.close()
    talk.advance(149)
    assert alice.news() is None
    talk.advance(1)
    talk.advance(COLLECT_MS)
    assert alice.news() == C.SUCCESS
    assert alice.open_all() == [0, 1, 2, 3]
    assert bob.peer.replies == []


def test_a_client_that_reconnects_soon_keeps_its_queues(talk):
    alice, bob = both(talk)
    before = dict(bob.held)
    bob.close()
    bob.peer = FakePeer("10.0.0.3:999")
    bob.beat()
    talk.advance(100)
    bob.poll()
    talk.advance(1_000)
    assert alice.news() is None
    assert bob.news() is None
    assert bob.held == before
    assert bob.pull(next(iter(before))) == C.SUCCESS


def test_a_client_that_unregisters_has_a_grace_too(talk):
    alice, bob = both(talk)
    header = h.UnregisterClientHeader(client_id="bob", producer_group=None, consumer_group="G")
    talk.ask(bob.peer, R.UNREGISTER_CLIENT, header)
    talk.advance(150)
    talk.advance(COLLECT_MS)
    assert alice.news() == C.SUCCESS
    assert alice.open_all() == [0, 1, 2, 3]


def test_a_restarted_static_member_has_its_queues_and_its_former_process_is_fenced(talk):
    alice, bob = alone(talk), Client(talk, "bob", instance="two").join().poll()
    talk.advance(COLLECT_MS)
    alice.news()
    alice.release()
    alice.poll()
    bob.news()
    bob.open_all()
    again = Client(talk, "again", instance="two").join()
    assert sorted(again.held) == sorted(bob.held)
    again.open_all()
    assert [bob.commit(queue_id, 1) for queue_id in bob.held] == [C.FENCED] * 2
    assert [again.commit(queue_id, 1) for queue_id in again.held] == [C.SUCCESS] * 2
    talk.advance(COLLECT_MS)
    assert alice.news() is None


# Operators.


def remove(talk: Conversation, name: str) -> Command:
    header = h.GroupRemoveHeader(consumer_group="G", lb_name=name, lb_operator="olga")
    return talk.ask(FakePeer("10.0.0.99:1"), R.GROUP_REMOVE, header)


def test_an_operator_removes_a_static_member_whose_process_is_gone(tmp_path):
    """Its queues move at once, its old process is fenced, and not even a restart brings it back."""
    talk = Conversation(tmp_path)
    talk.create_topic("T", 4)
    alice, bob = alone(talk), Client(talk, "bob", instance="two").join().poll()
    talk.advance(COLLECT_MS)
    alice.news()
    alice.release()
    alice.poll()
    bob.news()
    bob.open_all()
    bob.close()
    assert remove(talk, "two").code == C.SUCCESS
    assert [profile.client_id for profile in talk.broker.tables.group_states.by_name["G"].members] == [
        "alice"
    ]
    talk.advance(COLLECT_MS)
    assert alice.news() == C.SUCCESS
    assert alice.open_all() == [0, 1, 2, 3]
    bob.peer = FakePeer("10.0.0.3:999")
    assert [bob.commit(queue_id, 1) for queue_id in bob.held] == [C.FENCED] * 2
    assert bob.poll().news() == C.UNKNOWN_MEMBER
    assert reasons(talk)[-1] == ("operator", "olga@10.0.0.99 removed bob")
    talk.kill()
    talk = Conversation(tmp_path, clock=talk.clock)
    assert [profile.client_id for profile in talk.broker.tables.group_states.by_name["G"].members] == [
        "alice"
    ]
    talk.close()


def test_stock_members_cannot_be_removed(talk):
    talk.beat(FakePeer("10.0.0.9:1"), "java")
    reply = remove(talk, "java")
    assert reply.code == C.INVALID_PARAMETER
    assert "group G has stock members: java" in reply.remark


# Topics.


def test_a_growing_topic_is_reassigned(talk):
    alice, bob = both(talk)
    talk.create_topic("T", 6)
    talk.advance(COLLECT_MS)
    assert (alice.news(), bob.news()) == (C.SUCCESS, C.SUCCESS)
    assert sorted([*alice.open_all(), *bob.open_all()]) == [0, 1, 2, 3, 4, 5]
    assert len(alice.held) == len(bob.held) == 3
    assert notifications(alice.peer) == []


def test_the_groups_retry_topic_is_assigned_too(talk):
    header = h.GroupJoinHeader(consumer_group="G", client_id="alice", lb_session_ms=SESSION_MS)
    body = GroupJoinBody(subscriptions={"T": "*", "%RETRY%G": "*"})
    peer = FakePeer()
    member = talk.ask(peer, R.GROUP_JOIN, header, body).ext["lbMember"]
    talk.advance(COLLECT_MS)
    poll = h.GroupPollHeader(consumer_group="G", lb_member=member, lb_epoch=0)
    assignment = decode_body(talk.ask(peer, R.GROUP_POLL, poll, GroupPollBody()).body, GroupAssignment)
    assert [grant.queue_id for grant in assignment.queues if grant.topic == "%RETRY%G"] == [0]


# Stock clients.


def test_members_allocate_while_a_stock_client_is_present(talk):
    alice = alone(talk)
    assert alice.commit(0, 1, as_member=False) == C.FENCED
    stock = FakePeer("10.0.0.9:1")
    talk.beat(stock, "java")
    assert alice.news() == C.SUCCESS
    assert alice.mode == "client"
    assert notifications(alice.peer) == notifications(stock) == ["G"]
    assert alice.commit(0, 1, as_member=False) == C.SUCCESS
    assert committed(talk, 0) == 1
    alice.held = {}
    alice.poll()
    stock.is_open = False
    talk.performer.closed(stock)
    talk.advance(PARTING_MS)
    for _ in range(3):
        alice.news()
        alice.poll()
        talk.advance(COLLECT_MS)
    assert alice.mode == "epochs"
    assert alice.open_all() == [0, 1, 2, 3]
    assert alice.commit(0, 2, as_member=False) == C.FENCED
    assert alice.commit(0, 2) == C.SUCCESS
    assert [reason for reason, _ in reasons(talk)].count("mode_changed") == 2


def test_stock_clients_take_over_a_group_without_members(talk):
    alice = alone(talk)
    grant = dict(alice.held)
    alice.leave()
    talk.advance(SESSION_MS)
    alice.held = grant
    assert alice.commit(0, 1, as_member=False) == C.FENCED
    talk.beat(FakePeer("10.0.0.9:1"), "java")
    assert alice.commit(0, 1, as_member=False) == C.SUCCESS


def test_a_fence_recorded_without_its_group_changes_to_client_mode(tmp_path):
    talk = Conversation(tmp_path)
    talk.create_topic("T", 4)
    grant = dict(alone(talk).held)
    talk.close()
    for path in (tmp_path / "config").glob("groups.json*"):
        path.unlink()
    talk = Conversation(tmp_path)
    stock = Client(talk, "java")
    stock.held = grant
    assert stock.commit(0, 0, as_member=False) == C.FENCED
    talk.beat(stock.peer, "java")
    assert stock.commit(0, 0, as_member=False) == C.SUCCESS
    talk.close()


# Restarts and disks.


@pytest.mark.parametrize("end", ["close", "kill"])
def test_members_keep_their_queues_over_a_restart(tmp_path, end):
    talk = Conversation(tmp_path)
    talk.create_topic("T", 4)
    for queue_id in range(4):
        talk.send(FakePeer(), queue_id=queue_id)
    alice, bob = both(talk)
    held = dict(alice.held), dict(bob.held)
    getattr(talk, end)()
    clock = talk.clock
    alice.talk = bob.talk = talk = Conversation(tmp_path, clock=clock)
    due_ms = talk.broker.engine.next_due_ms
    assert due_ms is not None
    assert due_ms >= clock.monotonic_ms(), "it would seem to have been stalled"
    for member in (alice, bob):
        member.beat()
        if end == "kill":  # Under ASYNC_FLUSH the log may have lost what they have read.
            assert member.open_all() == sorted(member.held)
        assert [member.pull(queue_id) for queue_id in member.held] == [C.SUCCESS] * 2
        assert [member.commit(queue_id, 1) for queue_id in member.held] == [C.SUCCESS] * 2
        assert member.poll().news() is None
    talk.advance(1_000)
    assert (alice.news(), bob.news()) == (None, None)
    assert (alice.held, bob.held) == held
    assert reasons(talk) == reasons(talk)[:2]
    alice.leave()
    talk.advance(COLLECT_MS)
    before = max(grant.epoch for grant in bob.held.values())
    assert bob.news() == C.SUCCESS
    assert bob.open_all() == [0, 1, 2, 3]
    assert sorted(grant.epoch > before for grant in bob.held.values()) == [False, False, True, True]
    talk.close()


def test_members_that_do_not_return_after_a_restart_are_expelled(tmp_path):
    talk = Conversation(tmp_path)
    talk.create_topic("T", 4)
    alice, _ = both(talk)
    talk.kill()
    alice.talk = talk = Conversation(tmp_path, clock=talk.clock)
    for _ in range(5):
        alice.beat()
        alice.poll()
        talk.advance(SESSION_MS // 4)
        alice.news()
    talk.advance(COLLECT_MS)
    alice.poll().news()
    assert alice.open_all() == [0, 1, 2, 3]
    assert ("session_expired", "bob") in reasons(talk)
    talk.close()


def test_a_restart_in_the_middle_of_a_handover_loses_no_queue(tmp_path):
    talk = Conversation(tmp_path)
    talk.create_topic("T", 4)
    alice, bob = alone(talk), Client(talk, "bob").join().poll()
    talk.advance(COLLECT_MS)
    alice.news()
    first, _ = alice.revoke
    alice.release(first)
    bob.news()
    talk.kill()
    alice.talk = bob.talk = talk = Conversation(tmp_path, clock=talk.clock)
    assert bob.open(first).code == C.SUCCESS
    for _ in range(3):
        for member in (alice, bob):
            member.beat()
            member.poll()
        talk.advance(COLLECT_MS)
        for member in (alice, bob):
            member.news()
            if member.revoke:
                member.release()
    assert sorted([*alice.open_all(), *bob.open_all()]) == [0, 1, 2, 3]
    assert len(alice.held) == len(bob.held) == 2
    talk.close()


@pytest.mark.parametrize("comes_back", [True, False])
def test_stock_members_may_return_within_their_session_after_a_restart(tmp_path, comes_back):
    talk = Conversation(tmp_path)
    talk.create_topic("T", 4)
    alice = alone(talk)
    talk.beat(FakePeer("10.0.0.9:1"), "java")
    assert (alice.news(), alice.mode) == (C.SUCCESS, "client")
    talk.kill()
    alice.talk = talk = Conversation(tmp_path, clock=talk.clock)
    alice.held = {}
    java = FakePeer("10.0.0.9:2")
    for _ in range(30):
        alice.beat()
        alice.poll()
        if comes_back:
            talk.beat(java, "java")
        talk.advance(2_500)
        alice.news()
    assert alice.mode == "client"
    talk.advance(PARTING_MS)
    for _ in range(5):
        alice.poll()
        talk.advance(COLLECT_MS)
        alice.news()
    assert alice.mode == ("client" if comes_back else "epochs")
    talk.close()


def test_a_deleted_topic_is_taken_from_its_owners(talk):
    alice = alone(talk)
    talk.ask(FakePeer(), R.DELETE_TOPIC_IN_BROKER, h.TopicHeader(topic="T"))
    talk.advance(COLLECT_MS)
    alice.held = {}
    assert (alice.news(), alice.held) == (C.SUCCESS, {})
    talk.create_topic("T", 2)
    alice.poll()
    talk.advance(COLLECT_MS)
    assert alice.news() == C.SUCCESS
    assert alice.open_all() == [0, 1]


def test_nothing_is_opened_or_granted_on_a_full_disk(talk):
    alice, bob = alone(talk), Client(talk, "bob").join().poll()
    talk.advance(COLLECT_MS)
    alice.news()
    first, second = alice.revoke
    alice.release(first)
    assert bob.news() == C.SUCCESS
    talk.disk.bytes_left = 0
    assert bob.open(first).code == C.SYSTEM_ERROR
    assert alice.pull(second) == C.SUCCESS
    alice.release(second)
    assert bob.poll().news() is None  # Nothing unrecorded is announced.
    talk.disk.bytes_left = None
    assert bob.open(first).code == C.SUCCESS
    talk.advance(1_000)
    assert bob.news() == C.SUCCESS
    assert bob.open_all() == sorted([first, second])


# Warnings to members.


def test_members_are_warned_of_conflicting_filters_until_they_agree(talk):
    alice = alone(talk)
    bob = Client(talk, "bob", instance="two", tags="b").join().poll()
    assert (alice.warning, bob.warning) == ("", "")
    talk.advance(COLLECT_MS)
    assert (alice.news(), bob.news()) == (C.SUCCESS, C.SUCCESS)
    for member in (alice, bob):
        assert member.warning.startswith("of T, alice wants '*' and bob wants 'b': ")
    alice.release()
    alice.poll()
    bob.poll()
    assert bob.news() == C.SUCCESS  # Alice's released queues.
    assert bob.warning
    again = Client(talk, "again", instance="two").join().poll()
    talk.advance(COLLECT_MS)
    assert (alice.news(), again.news()) == (C.SUCCESS, C.SUCCESS)
    assert (alice.warning, again.warning) == ("", "")
    alice.poll()
    talk.advance(COLLECT_MS)
    assert alice.news() is None, "nothing is said twice"


def test_members_of_different_topics_are_not_warned(talk):
    alice = alone(talk)
    header = h.GroupJoinHeader(consumer_group="G", client_id="bob", lb_session_ms=SESSION_MS)
    bob = FakePeer("10.0.0.3:3")
    assert talk.ask(bob, R.GROUP_JOIN, header, GroupJoinBody(subscriptions={"U": "b"})).code == C.SUCCESS
    talk.advance(COLLECT_MS)
    assert alice.news() is None


# Observations from outside.


def test_each_change_is_recorded_once_under_the_groups_epoch(talk):
    alice, bob = both(talk)
    for member in (alice, bob):
        for queue_id in member.held:
            member.pull(queue_id)
    talk.advance(2_000)
    started = [event for event in events(talk) if event.kind == "started"]
    assert [(event.reason, event.who) for event in started] == [
        ("member_joined", "alice"),
        ("member_joined", "bob"),
    ]
    assert started[1].members == ["alice", "bob"]
    assert started[1].epoch == bob.epoch
    settled = events(talk)[-1]
    assert (settled.kind, settled.loads) == ("settled", {"alice": 2, "bob": 2})


def test_when_members_restart_only_the_queues_of_dynamic_members_move(talk):
    """The static member restarts under another client id; to the group it is the same member."""
    alice, bob = alone(talk), Client(talk, "bob", instance="two").join().poll()
    talk.advance(COLLECT_MS)
    alice.news()
    alice.release()
    bob.news()
    bob.open_all()
    for member in (alice, bob):
        for queue_id in member.held:
            member.pull(queue_id)
    talk.advance(3_000)
    alice.leave()
    for member in (alice, bob):
        member.close()
    talk.advance(500)
    carol, bobby = Client(talk, "carol").join().poll(), Client(talk, "bobby", instance="two").join().poll()
    talk.advance(COLLECT_MS)
    bobby.news()
    bobby.release()
    carol.news()
    for member in (carol, bobby):
        for queue_id in member.open_all():
            member.pull(queue_id)
    talk.advance(3_000)
    moved, settled = events(talk)[-2:]
    assert [(move.from_, move.to) for move in moved.moves or ()] == [("alice", "carol")] * 2
    assert (settled.kind, settled.moved, settled.minimum, settled.unowned) == ("settled", 2, 2, 0)
    assert settled.loads == {"bobby": 2, "carol": 2}
    assert settled.members == ["bobby", "carol"]


def test_a_rebalance_settles_only_after_every_release(talk):
    """Alice's handlers take longer than the pause after which a quiet rebalance counts as settled."""
    alice = alone(talk)
    for queue_id in alice.held:
        alice.pull(queue_id)
    talk.advance(2_000)
    assert events(talk)[-1].kind == "settled"
    bob = Client(talk, "bob").join().poll()
    talk.advance(2_000)
    assert (events(talk)[-1].kind, events(talk)[-1].who) == ("started", "bob")
    alice.news()
    alice.release()
    bob.news()
    for queue_id in bob.open_all():
        bob.pull(queue_id)
    talk.advance(2_000)
    settled = events(talk)[-1]
    assert (settled.kind, settled.moved, settled.loads) == ("settled", 2, {"alice": 2, "bob": 2})


def test_a_queue_belongs_to_its_opener_even_before_the_first_pull(talk):
    """Bob is paused: he has opened his queues but reads nothing."""
    alice, bob = both(talk)
    for queue_id in alice.held:
        alice.pull(queue_id)
    talk.advance(2_000)
    settled = events(talk)[-1]
    assert (settled.kind, settled.unowned, settled.loads) == ("settled", 0, {"alice": 2, "bob": 2})
    assert bob.held


def test_a_queue_granted_and_never_opened_has_no_owner(talk):
    alice, bob = alone(talk), Client(talk, "bob").join().poll()
    talk.advance(COLLECT_MS)
    alice.news()
    alice.release()
    bob.news()
    opened, _ = bob.held
    bob.open(opened)
    for _ in range(25):
        for member in (alice, bob):
            member.poll()
        assert events(talk)[-1].kind != "settled"
        talk.advance(2_400)
    talk.advance(1_000)
    settled = events(talk)[-1]
    assert (settled.kind, settled.unowned, settled.loads) == ("settled", 1, {"alice": 2, "bob": 1})


def test_a_member_unknown_to_a_restarted_broker_keeps_its_name(tmp_path):
    """Its open queues outlive the broker's restart; its connection may take long to return."""
    talk = Conversation(tmp_path / "data")
    talk.create_topic("T", 4)
    alice, bob = both(talk)
    talk.advance(2_000)
    talk.close()
    talk = Conversation(tmp_path / "data", clock=talk.clock)
    bob.talk = talk
    bob.peer = FakePeer("10.0.0.9:9")
    bob.beat()
    for queue_id in bob.held:
        bob.pull(queue_id)
    bob.poll()
    talk.create_topic("U", 1)
    carol = FakePeer("10.0.0.8:8")
    talk.beat(carol, "carol", stock=False, subscriptions=[subscription("U")])
    header = h.GroupJoinHeader(consumer_group="G", client_id="carol", lb_session_ms=SESSION_MS)
    reply = talk.ask(carol, R.GROUP_JOIN, header, GroupJoinBody(subscriptions={"U": "*"}))
    talk.advance(COLLECT_MS)
    claim = {
        "lb_member": reply.ext["lbMember"],
        "lb_queue_epoch": talk.broker.members.coordination.group("G").epoch,
    }
    opening = h.OpenQueueHeader(consumer_group="G", topic="U", queue_id=0, **claim)
    assert talk.ask(carol, R.OPEN_QUEUE, opening).code == C.SUCCESS
    talk.advance(3_000)
    settled = events(talk)[-1]
    assert (settled.kind, settled.unowned) == ("settled", 0)
    assert settled.loads == {"alice": 2, "bob": 2, "carol": 1}
    assert len(alice.held) == 2
    talk.close()


def handed_over(talk: Conversation, give_up: Callable[[Client], None]) -> RebalanceEvent:
    """Let alice commit one of three messages per queue, and bob take two queues; return the settled event."""
    alice = alone(talk)
    for queue_id in alice.held:
        alice.pull(queue_id)
        alice.commit(queue_id, 1)
    talk.advance(2_000)
    bob = Client(talk, "bob").join().poll()
    talk.advance(COLLECT_MS)
    alice.news()
    give_up(alice)
    talk.advance(COLLECT_MS)
    bob.news()
    for queue_id in bob.open_all():
        command = bob.pull_command(queue_id, 1)
        talk.give(bob.peer, command)
    talk.advance(3_000)
    settled = events(talk)[-1]
    assert settled.kind == "settled"
    return settled


@pytest.mark.parametrize(
    "give_up",
    [lambda alice: alice.release(), lambda alice: alice.leave(is_committed=True)],
    ids=["on a join", "on a clean stop"],
)
def test_queues_handed_over_committed_have_no_redelivery(talk, give_up):
    """Alice received more than she handled; her unhandled messages do not count as redelivered."""
    assert handed_over(talk, give_up).redelivered_upper_bound == 0


@pytest.mark.parametrize(
    ("give_up", "bound"),
    [
        (lambda alice: alice.release(is_committed=False), 4),
        (lambda alice: alice.release(is_committed=None), 4),
        (lambda alice: alice.leave(), 8),
        (lambda alice: (alice.close(), alice.talk.advance(150)), 8),
    ],
    ids=["a handler runs on", "a member of 0.2.0", "a stop in the middle", "a crash"],
)
def test_redelivery_is_bounded_by_messages_sent_and_not_committed(talk, give_up, bound):
    assert handed_over(talk, give_up).redelivered_upper_bound == bound


def test_a_queue_lost_once_keeps_its_redelivery_bound(talk):
    """Alice's process is killed; Bob commits all that he handled and hands over some of her queues."""
    alice, bob = both(talk)
    for queue_id in alice.held:
        alice.pull(queue_id)
    talk.advance(2_000)
    alice.close()
    talk.advance(150 + COLLECT_MS)
    bob.news()
    carol = Client(talk, "carol").join().poll()
    bob.poll()
    talk.advance(COLLECT_MS)
    bob.news()
    bob.release()
    carol.news()
    for member in (bob, carol):
        for queue_id in member.open_all():
            member.pull(queue_id)
    talk.advance(3_000)
    settled = events(talk)[-1]
    assert (settled.kind, settled.redelivered_upper_bound) == ("settled", 6)


def all_over_again(talk: Conversation, end: Callable[[Client], None]) -> RebalanceEvent:
    """Let alice commit one of three messages per queue, and bob join after she is gone; return the end."""
    alice = alone(talk)
    for queue_id in alice.held:
        alice.pull(queue_id)
        alice.commit(queue_id, 1)
    talk.advance(2_000)
    end(alice)
    talk.advance(3_000)
    assert events(talk)[-1].loads == {}
    bob = Client(talk, "bob").join().poll()
    talk.advance(COLLECT_MS)
    bob.news()
    for queue_id in bob.open_all():
        talk.give(bob.peer, bob.pull_command(queue_id, 1))
    talk.advance(3_000)
    settled = events(talk)[-1]
    assert (settled.kind, settled.moved) == ("settled", 4)
    return settled


def test_nothing_is_redelivered_after_a_clean_stop_of_the_group(talk):
    """The committed state is remembered while the group has no members."""
    assert all_over_again(talk, lambda alice: alice.leave(is_committed=True)).redelivered_upper_bound == 0


def test_after_a_crash_of_the_group_uncommitted_messages_are_redelivered(talk):
    def crash(alice: Client) -> None:
        alice.close()
        alice.talk.advance(150)

    assert all_over_again(talk, crash).redelivered_upper_bound == 8


@pytest.mark.parametrize("has_committed", [True, False])
def test_after_a_brokers_restart_redelivery_is_unknown(talk, tmp_path, has_committed):
    """Deliveries to Bob, who does not return, are not recorded; unknown must not be reported as none."""
    alice, bob = both(talk)
    for queue_id in bob.held:
        bob.pull(queue_id)
        if has_committed:
            bob.commit(queue_id, 1)
    talk.broker.close()
    alice.talk = again = Conversation(tmp_path / "data", clock=talk.clock)
    for _ in range(5):
        alice.beat()
        alice.poll()
        again.advance(SESSION_MS // 4)
        alice.news()
    again.advance(COLLECT_MS)
    alice.poll().news()
    for queue_id in alice.open_all():
        alice.pull(queue_id)
    again.advance(3_000)
    settled = events(again)[-1]
    assert (settled.kind, settled.moved, settled.redelivered_upper_bound) == ("settled", 2, None)
    again.close()


def test_a_member_present_for_less_than_a_second_moves_nothing(talk):
    alone(talk).leave(is_committed=True)
    talk.advance(3_000)
    settled = events(talk)[-1]
    assert (settled.kind, settled.moved, settled.minimum) == ("settled", 0, 0)


def test_redeliveries_seen_by_members_are_summed_up(talk):
    alice, bob = alone(talk), Client(talk, "bob").join().poll()
    talk.advance(COLLECT_MS)
    alice.news()
    alice.poll(duplicates=3)
    alice.release()
    bob.news()
    for member in (alice, bob):
        for queue_id in member.open_all():
            member.pull(queue_id)
    talk.advance(2_000)
    settled = events(talk)[-1]
    assert (settled.kind, settled.duplicates_reported) == ("settled", 3)


def test_simultaneous_joins_are_one_rebalance(talk):
    clients = [Client(talk, f"client-{number}").join() for number in range(8)]
    talk.advance(COLLECT_MS)
    (event,) = [event for event in events(talk) if event.kind == "started"]
    assert event.who == "client-0, client-1, client-2, client-3, client-4 and 3 more"
    assert event.members == [client.name for client in clients]


def test_a_group_deleted_while_members_consume_is_created_again(talk):
    """Using the group creates it again: members keep what they hold, and open their queues again."""
    alice = alone(talk)
    assert alice.commit(0, 2) == C.SUCCESS
    held = alice.pull_command(0, 3, hold_ms=10_000)
    talk.give(alice.peer, held)
    talk.ask(FakePeer(), R.DELETE_SUBSCRIPTIONGROUP, h.DeleteGroupHeader(group_name="G"))
    assert answer(alice.peer, held).code == C.NOT_YET_GRANTED
    assert alice.news() is None
    assert alice.open_all() == [0, 1, 2, 3]
    assert alice.pull(0) == C.SUCCESS
    assert alice.commit(0, 3) == C.SUCCESS
    assert (committed(talk, 0), reasons(talk)[1:]) == (3, [("broker_changed", "G")])
    assert [event for event in events(talk)[2:] if event.kind == "moved"] == []


def test_a_deleted_group_ends_where_members_may_not_create_it(tmp_path):
    talk = Conversation(tmp_path / "closed", auto_create_subscription_group=False)
    talk.create_topic("T", 4)
    talk.ask(FakePeer(), R.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, None, SubscriptionGroupConfig(group_name="G"))
    alice = alone(talk)
    talk.ask(FakePeer(), R.DELETE_SUBSCRIPTIONGROUP, h.DeleteGroupHeader(group_name="G"))
    assert alice.news() == C.NOT_COORDINATOR
    assert talk.broker.tables.group_states.by_name == {}
    assert "G" not in talk.broker.fences
    assert alice.poll().news() == C.UNKNOWN_MEMBER
    talk.close()


def test_a_deleted_group_without_members_is_gone(talk):
    alice = alone(talk)
    alice.leave()
    talk.ask(FakePeer(), R.DELETE_SUBSCRIPTIONGROUP, h.DeleteGroupHeader(group_name="G"))
    assert talk.broker.tables.group_states.by_name == {}
    assert "G" not in talk.broker.fences
    assert alice.poll().news() == C.UNKNOWN_MEMBER


# Commits of one member over two connections: it has given up the older one.


def commit_command(client: Client, queue_id: int, offset: int) -> Command:
    header = h.UpdateConsumerOffsetHeader(
        consumer_group="G",
        topic="T",
        queue_id=queue_id,
        commit_offset=offset,
        lb_member=client.member,
        lb_queue_epoch=client.held[queue_id].epoch,
    )
    return client.talk.command(R.UPDATE_CONSUMER_OFFSET, header)


def test_a_late_commit_on_an_old_connection_does_not_undo_a_newer_one(talk):
    """A thread decodes a large body; the commit behind it waits, and its member has meanwhile reconnected."""
    alice = alone(talk)
    old, former = alice.peer, commit_command(alice, 0, 1)
    body = encode_body(heartbeat("alice")) + b" " * INLINE_BODY_BYTES_MAX
    large = talk.command(R.HEART_BEAT, {"libraGroups": "1"}, body)
    talk.give(old, large, former)
    alice.peer = FakePeer("10.0.0.5:1")
    assert alice.commit(0, 3) == C.SUCCESS
    talk.answer_later(old, former)
    assert committed(talk, 0) == 3


def test_a_member_may_move_its_offset_back_on_one_connection(talk):
    """It does so when a broker that lost power has less than was committed."""
    alice = alone(talk)
    assert [alice.commit(0, 3), alice.commit(0, 2)] == [C.SUCCESS] * 2
    assert committed(talk, 0) == 2


def test_the_next_owner_may_commit_over_an_older_connection(talk):
    """Connections are compared only within one opening."""
    bob = Client(talk, "bob")
    bob.beat()
    alice = alone(talk)
    alice.peer = FakePeer("10.0.0.5:1")
    assert [alice.commit(queue_id, 1) for queue_id in range(4)] == [C.SUCCESS] * 4
    alice.leave(is_committed=True)
    bob.join().poll()
    talk.advance(COLLECT_MS)
    assert bob.news() == C.SUCCESS
    assert bob.open_all() == [0, 1, 2, 3]
    assert bob.commit(0, 2) == C.SUCCESS
    assert committed(talk, 0) == 2
