"""Queues opened by the answer that grants them: the coordinator is at the broker of the queues."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from libramq.broker.groups import opening
from libramq.broker.groups.opening import Openings
from libramq.codes import RequestCode as R
from libramq.codes import ResponseCode as C
from libramq.fencing import Claim, FenceGrant, OpenedQueue
from libramq.formats.document import decode_body, encode_body
from libramq.groups.coordinator.balance import COLLECT_MS
from libramq.groups.coordinator.event import FencesInDoubt
from libramq.message.queue import MessageQueue
from libramq.remoting import headers as h
from libramq.remoting.body.coordination import (
    GroupAssignment,
    GroupJoinBody,
    GroupPollBody,
    QueueGrant,
    QueueOpened,
)
from libramq.remoting.command import Command
from tests.broker.brokers import Conversation, answer, find_answer
from tests.fakes import FakePeer


class Member:
    """A member that accepts openings. held: the queues of its last answer."""

    def __init__(self, talk: Conversation, name: str) -> None:
        self.talk, self.name = talk, name
        self.peer = FakePeer(f"10.0.0.{len(name)}:{sum(name.encode())}")
        self.member = ""
        self.held: dict[int, QueueGrant] = {}

    def join(self, *, beats: bool = True) -> Command:
        if beats:
            self.talk.beat(self.peer, self.name, stock=False)
        header = h.GroupJoinHeader(
            consumer_group="G",
            client_id=self.name,
            lb_session_ms=10_000,
            lb_member=self.member or None,
            lb_takes_openings=True,
        )
        return self.give(R.GROUP_JOIN, header, GroupJoinBody(subscriptions={"T": "*"}, held=self.listed()))

    def poll(self) -> Command:
        header = h.GroupPollHeader(
            consumer_group="G", lb_member=self.member, lb_epoch=0, lb_takes_openings=True
        )
        return self.give(R.GROUP_POLL, header, GroupPollBody(held=self.listed()))

    def listed(self) -> list[QueueGrant]:
        return list(self.held.values())

    def give(self, code: int, header: h.Header, body: object) -> Command:
        command = self.talk.command(code, header, body)
        self.talk.give(self.peer, command)
        return command

    def opened(self, request: Command) -> dict[int, int | None]:
        """Return the offsets of the queues that an answer opened; the member takes over its contents."""
        return self.take(answer(self.peer, request))

    def take(self, reply: Command) -> dict[int, int | None]:
        assert reply.code == C.SUCCESS, reply.remark
        self.member = (reply.ext or {}).get("lbMember", self.member)
        assignment = decode_body(reply.body, GroupAssignment)
        self.held = {each.queue_id: each for each in assignment.queues if each.topic == "T"}
        return {each.queue_id: each.offset for each in assignment.opened if each.topic == "T"}

    def pull(self, queue_id: int) -> int:
        command = self.talk.pull_command(
            queue_id=queue_id,
            queue_offset=0,
            suspend_timeout_millis=0,
            lb_member=self.member,
            lb_queue_epoch=self.held[queue_id].epoch,
        )
        self.talk.give(self.peer, command)
        return answer(self.peer, command).code

    def commit(self, queue_id: int, offset: int) -> int:
        header = h.UpdateConsumerOffsetHeader(
            consumer_group="G",
            topic="T",
            queue_id=queue_id,
            commit_offset=offset,
            lb_member=self.member,
            lb_queue_epoch=self.held[queue_id].epoch,
        )
        return self.talk.ask(self.peer, R.UPDATE_CONSUMER_OFFSET, header).code


def filled(talk: Conversation, queues: int = 4) -> Conversation:
    """Create a topic with a message in each queue."""
    talk.create_topic("T", queues)
    for queue_id in range(queues):
        talk.send(FakePeer(), queue_id=queue_id)
    return talk


@pytest.fixture
def talk(tmp_path: Path) -> Iterator[Conversation]:
    talk = filled(Conversation(tmp_path))
    yield talk
    talk.close()


def joined(talk: Conversation, name: str = "alice") -> tuple[Member, dict[int, int | None]]:
    member = Member(talk, name)
    request = member.join()
    talk.advance(COLLECT_MS)
    return member, member.opened(request)


def test_the_only_client_of_a_group_is_assigned_its_queues_in_the_turn_of_its_join(talk):
    """Clients that start together send their heartbeats first, so the broker knows that more will join."""
    alice = Member(talk, "alice")
    assert len(alice.opened(alice.join())) == 4


def test_a_client_waits_for_those_that_start_with_it(talk):
    """One of them would be assigned all queues, and then have to give up most of them."""
    alice, bob = Member(talk, "alice"), Member(talk, "bob")
    talk.beat(bob.peer, "bob", stock=False)
    requests = [alice.join(), bob.join(beats=False)]
    assert find_answer(alice.peer, requests[0]) is None
    talk.advance(COLLECT_MS)
    assert [len(alice.opened(requests[0])), len(bob.opened(requests[1]))] == [2, 2]


def test_one_answer_brings_a_new_member_its_queues_opened(talk):
    """It pulls and commits next; it reads a new topic from 0."""
    alice, opened = joined(talk)
    assert opened == dict.fromkeys(range(4), 0)
    assert [alice.pull(queue_id) for queue_id in range(4)] == [C.SUCCESS] * 4
    assert alice.commit(0, 1) == C.SUCCESS


def test_a_queue_opened_with_an_answer_has_its_owner_before_any_heartbeat(talk):
    """A member may know its coordinator although the broker is not in its routes."""
    alice = Member(talk, "alice")
    request = alice.join(beats=False)
    talk.advance(COLLECT_MS)
    assert len(alice.opened(request)) == 4
    assert set(talk.broker.members.consumers.rebalances.owners("G").values()) == {"alice"}


def test_an_opening_after_that_is_a_repetition(talk):
    """A member that missed the answer, or forgot it, opens the queue again under the same grant."""
    alice, _ = joined(talk)
    alice.commit(2, 1)
    header = h.OpenQueueHeader(
        consumer_group="G",
        topic="T",
        queue_id=2,
        lb_member=alice.member,
        lb_queue_epoch=alice.held[2].epoch,
    )
    reply = talk.ask(alice.peer, R.OPEN_QUEUE, header)
    assert reply.ext == {"offset": "1", "lbFormerEpoch": str(alice.held[2].epoch)}


def test_the_answer_to_a_poll_brings_what_others_released(talk):
    """It starts at the former owner's commit, and no member reads the queue before."""
    alice, _ = joined(talk)
    alice.commit(3, 1)
    bob, opened = joined(talk, "bob")
    assert opened == {}
    request, theirs = bob.poll(), alice.poll()
    assert alice.opened(theirs) == {}, "what it keeps is open"
    assert find_answer(bob.peer, request) is None
    last = alice.poll()  # It lists no queue that it has to release.
    assert bob.opened(request).get(3, 1) == 1
    assert len(bob.held) == 2
    assert find_answer(alice.peer, last) is None
    assert [bob.pull(queue_id) for queue_id in bob.held] == [C.SUCCESS] * 2


def test_a_queue_that_a_returning_member_lists_is_not_opened_for_it(talk):
    """Pulls and commits under its claim may be on their way over another connection."""
    alice, _ = joined(talk)
    before = dict(alice.held)
    alice.peer = FakePeer("10.0.0.9:9")
    assert alice.opened(alice.join()) == {}
    assert alice.held == before
    assert alice.commit(0, 1) == C.SUCCESS


def test_a_member_of_the_first_release_is_answered_at_once_and_opens_for_itself(talk):
    """It does not announce that it accepts openings."""
    header = h.GroupJoinHeader(consumer_group="G", client_id="alice", lb_session_ms=10_000)
    peer = FakePeer("10.0.0.5:5")
    reply = talk.ask(peer, R.GROUP_JOIN, header, GroupJoinBody(subscriptions={"T": "*"}))
    poll = h.GroupPollHeader(consumer_group="G", lb_member=reply.ext["lbMember"], lb_epoch=0)
    request = talk.command(R.GROUP_POLL, poll, GroupPollBody())
    talk.give(peer, request)
    talk.advance(COLLECT_MS)
    assignment = decode_body(answer(peer, request).body, GroupAssignment)
    assert len([each for each in assignment.queues if each.topic == "T"]) == 4
    assert assignment.opened == []
    assert talk.broker.fences.claims("G") == {}


def test_more_queues_than_fit_a_turn_are_left_to_the_member(tmp_path, monkeypatch):
    """The others are only granted, and the member opens them itself."""
    monkeypatch.setattr(opening, "OPENED_WITH_AN_ANSWER_MAX", 3)
    talk = filled(Conversation(tmp_path))
    alice, _ = joined(talk)
    assert len(alice.held) == 4
    assert len(talk.broker.fences.claims("G")) == 3
    talk.close()


def test_under_sync_flush_the_answer_waits_until_the_openings_are_on_the_disk(tmp_path):
    """A queue that was opened for a member stays open for it after a power cut."""
    talk = Conversation(tmp_path, flush_disk_type="SYNC_FLUSH")
    talk.create_topic("T")
    queue, claim = MessageQueue("T", talk.config.broker_name, 0), Claim("m1", 1)
    talk.broker.fences.grant(FenceGrant(group="G", epoch=1, claims={queue: claim}))
    talk.flush()
    answers: list[Openings] = []
    opened = talk.broker.members.opening.open_granted("G", {queue: claim}, FakePeer(), client_id=None)
    talk.broker.members.opening.when_durable(opened, answers.append)
    assert talk.broker.fences.claims("G") == {queue: claim}
    talk.tick()
    assert answers == []
    talk.threads.run_all()
    assert answers == [{queue: OpenedQueue(0, 0, is_initial=True)}]
    talk.close()


def test_queues_that_are_open_stay_with_their_member_while_its_answer_waits_for_the_disk(tmp_path):
    """The fences are queried again at that moment: another broker was found.

    The openings looked like remnants of released queues, which were then granted to others.
    """
    talk = Conversation(tmp_path, flush_disk_type="SYNC_FLUSH")
    alice = Member(talk, "alice")
    for queues in (2, 4):  # It lists two of them when the others are opened.
        talk.create_topic("T", queues)
        request = alice.join()
        while len(talk.broker.fences.claims("G")) < queues:
            talk.advance(COLLECT_MS)
            if (reply := find_answer(alice.peer, request)) is not None:
                alice.take(reply)
                request = alice.poll()
            for each in talk.threads.work[:1]:
                talk.threads.work.remove(each)
                talk.threads.finish(each)
        if queues == 2:
            talk.threads.run_all()
            assert alice.opened(request)
    assert find_answer(alice.peer, request) is None
    talk.broker.members.coordination.happened(FencesInDoubt(), "G")  # It causes an inquiry at the fences.
    opened = talk.broker.fences.claims("G")
    for _ in range(3):
        talk.advance(COLLECT_MS)
        talk.threads.run_all()
    group = talk.broker.members.coordination.group("G")
    owners = {queue: (holding.member, holding.epoch) for queue, holding in group.owners.items()}
    assert owners.items() >= {queue: (claim.member, claim.epoch) for queue, claim in opened.items()}.items()
    talk.close()


def test_an_opening_is_the_same_with_a_grant_as_with_a_request_of_its_own():
    """Every field of a fence's answer is also in the body."""
    queue, opened = (
        MessageQueue("T", "a", 0),
        OpenedQueue(*range(1, len(OpenedQueue._fields)), is_initial=True),
    )
    body = decode_body(encode_body(QueueOpened.of(queue, opened)), QueueOpened)
    assert body.value() == (queue, opened)
