"""INVOKE_BROKER_TO_RESET_OFFSET: the group continues at the operator's offset, and no commit undoes it."""

import pytest
from msgspec.structs import replace

from libramq.codes import RequestCode as R
from libramq.codes import ResponseCode as C
from libramq.formats.document import decode_body
from libramq.formats.tables import SubscriptionGroupConfig
from libramq.message.queue import MessageQueue
from libramq.remoting import headers as h
from libramq.remoting.body.consumers import ResetOffsetBody
from libramq.remoting.command import FLAG_ONEWAY, Command
from tests.broker.brokers import Conversation, answer, find_answer, heartbeat
from tests.broker.test_coordinated_groups import COLLECT_MS, Client, alone, both, committed, reasons
from tests.broker.test_coordinated_groups import talk as talk
from tests.fakes import FakePeer


def reset(talk: Conversation, **fields: object) -> Command:
    header = h.ResetOffsetHeader(**({"group": "G", "topic": "T", "is_force": True} | fields))  # type: ignore[arg-type]
    return talk.ask(FakePeer(), R.INVOKE_BROKER_TO_RESET_OFFSET, header)


def offsets_of(reply: Command) -> dict[int, int]:
    assert reply.code == C.SUCCESS, reply.remark
    table = decode_body(reply.body, ResetOffsetBody).offset_table
    assert {(queue.topic, queue.broker_name) for queue in table} == {("T", "broker-a")}
    return {queue.queue_id: offset for queue, offset in table.items()}


def test_a_reset_moves_the_members_of_a_coordinated_group(talk):
    """The member is fenced first, so its commits from before are refused and cannot undo the reset."""
    alice = alone(talk)
    for queue_id in range(4):
        assert alice.commit(queue_id, 3) == C.SUCCESS
    held = alice.pull_command(1, 3, hold_ms=10_000)
    talk.give(alice.peer, held)
    assert offsets_of(reset(talk, offset=1)) == {0: 1, 1: 1, 2: 1, 3: 1}
    assert answer(alice.peer, held).code == C.FENCED
    assert alice.commit(0, 3) == C.FENCED
    assert alice.pull(2) == C.FENCED
    assert alice.open(0).code == C.FENCED
    assert alice.news() == C.SUCCESS
    assert sorted(alice.revoke) == [0, 1, 2, 3]
    alice.held.clear()
    alice.poll()
    talk.advance(COLLECT_MS)
    assert alice.news() == C.SUCCESS
    assert [alice.open(queue_id).ext["offset"] for queue_id in sorted(alice.held)] == ["1"] * 4
    assert alice.commit(0, 2) == C.SUCCESS
    assert reasons(talk)[1:] == [("operator", "T")]


def test_a_reset_is_acknowledged_when_it_is_on_the_disk(tmp_path):
    """A power cut a moment later undid it, although the operator had seen SUCCESS."""
    talk, peer = Conversation(tmp_path, flush_disk_type="SYNC_FLUSH"), FakePeer()
    talk.create_topic("T")
    talk.broker.groups.put(SubscriptionGroupConfig(group_name="G"), talk.clock.wall_ms())
    talk.flush()
    talk.threads.run_all()
    command = talk.command(
        R.INVOKE_BROKER_TO_RESET_OFFSET, h.ResetOffsetHeader(group="G", topic="T", offset=0)
    )
    talk.give(peer, command)
    while (turn := talk.performer.turns.timer) is not None:
        turn.cancel()
        turn.action()
    assert find_answer(peer, command) is None
    talk.flush()
    talk.threads.run_all()
    assert answer(peer, command).code == C.SUCCESS
    talk.close()


def test_one_queue_is_reset_and_the_others_of_the_topic_keep_their_offsets(talk):
    """They are still granted anew, and continue at their offsets."""
    alice, bob = both(talk)
    for client in (alice, bob):
        for queue_id in client.held:
            assert client.commit(queue_id, 2) == C.SUCCESS
    assert offsets_of(reset(talk, queue_id=3, offset=0)) == {3: 0}
    assert [committed(talk, queue_id) for queue_id in range(4)] == [2, 2, 2, 0]


def mqadmin_sets(talk: Conversation, offset: int, **fields: object) -> Command:
    """Send the commit that mqadmin 5.3.3 sends before the reset for `resetOffsetByTime -b … -q 3 -o …`."""
    commit = h.UpdateConsumerOffsetHeader(consumer_group="G", topic="T", queue_id=3, commit_offset=offset)
    command = talk.command(R.UPDATE_CONSUMER_OFFSET, commit)
    admin = FakePeer("10.0.0.99:1")
    talk.give(admin, replace(command, **({"language": "JAVA"} | fields)))
    return answer(admin, command)


@pytest.mark.parametrize("offset", [1, 3], ids=["back", "forwards"])
def test_mqadmin_sets_one_queue_of_a_coordinated_group(talk, offset):
    """mqadmin's commit was refused as a late commit would be, and so the queue could not be set."""
    alice = alone(talk)
    assert alice.commit(3, 2) == C.SUCCESS
    assert mqadmin_sets(talk, offset).code == C.SUCCESS
    assert committed(talk, 3) == offset
    assert alice.commit(3, 2) == C.SUCCESS  # As at Apache's broker: only the reset moves her.
    assert offsets_of(reset(talk, queue_id=3, timestamp=0, offset=offset, is_force=False)) == {3: offset}
    assert alice.commit(3, 2) == C.FENCED
    assert alice.news() == C.SUCCESS
    alice.held.clear()
    alice.poll()
    talk.advance(COLLECT_MS)
    assert alice.news() == C.SUCCESS
    assert alice.open(3).ext["offset"] == str(offset)
    assert alice.commit(3, 3) == C.SUCCESS


def test_mqadmin_moves_a_member_to_the_offset_once(talk):
    """The commit moved the member, and then the reset did: a fast member received the messages twice."""
    alice = alone(talk)
    assert alice.commit(3, 2) == C.SUCCESS
    assert mqadmin_sets(talk, 1).code == C.SUCCESS
    talk.advance(COLLECT_MS)
    assert alice.pull(3) == C.SUCCESS
    assert reasons(talk)[1:] == []
    assert offsets_of(reset(talk, queue_id=3, timestamp=0, offset=1, is_force=False)) == {3: 1}
    assert alice.news() == C.SUCCESS
    alice.poll()
    talk.advance(COLLECT_MS)
    assert reasons(talk)[1:] == [("operator", "T")]


def test_mqadmin_sets_one_queue_of_a_group_without_members_and_without_a_reset(talk):
    alice = alone(talk)
    assert alice.commit(3, 3) == C.SUCCESS
    alice.leave()
    assert mqadmin_sets(talk, 1).code == C.SUCCESS
    bob = Client(talk, "bob").join().poll()
    talk.advance(COLLECT_MS)
    assert bob.news() == C.SUCCESS
    assert bob.open(3).ext["offset"] == "1"


@pytest.mark.parametrize("sent", [{"flag": FLAG_ONEWAY}, {"language": "PYTHON"}], ids=["one way", "ours"])
def test_a_late_commit_does_not_count_as_an_operators(talk, sent):
    """Java's clients commit one-way as they leave; LibraMQ's non-member clients mirror positions."""
    alice = alone(talk)
    assert alice.commit(3, 2) == C.SUCCESS
    commit = h.UpdateConsumerOffsetHeader(consumer_group="G", topic="T", queue_id=3, commit_offset=1)
    command = replace(talk.command(R.UPDATE_CONSUMER_OFFSET, commit), **({"language": "JAVA"} | sent))
    talk.give(FakePeer("10.0.0.99:1"), command)
    assert committed(talk, 3) == 2
    assert alice.pull(3) == C.SUCCESS


def test_a_member_of_another_group_is_no_operator(talk):
    alice = alone(talk)
    java = FakePeer("10.0.0.9:5000")
    talk.beat(java, "java", "other")
    commit = h.UpdateConsumerOffsetHeader(consumer_group="G", topic="T", queue_id=3, commit_offset=1)
    command = replace(talk.command(R.UPDATE_CONSUMER_OFFSET, commit), language="JAVA")
    talk.give(java, command)
    assert answer(java, command).code == C.FENCED
    assert alice.pull(3) == C.SUCCESS


def test_a_coordinated_group_without_members_is_reset(talk):
    alice = alone(talk)
    assert alice.commit(0, 3) == C.SUCCESS
    alice.leave()
    assert offsets_of(reset(talk, timestamp=0)) == {0: 0, 1: 0, 2: 0, 3: 0}
    bob = Client(talk, "bob").join().poll()
    talk.advance(COLLECT_MS)
    assert bob.news() == C.SUCCESS
    assert [bob.open(queue_id).ext["offset"] for queue_id in range(4)] == ["0"] * 4


def test_a_reset_survives_a_restart(talk, tmp_path):
    alice = alone(talk)
    assert alice.commit(0, 3) == C.SUCCESS
    reset(talk, offset=1)
    talk.kill()
    again = Conversation(tmp_path / "data")
    assert committed(again, 0) == 1
    assert again.pull(alice.peer, lb_member=alice.member, lb_queue_epoch=1).code == C.FENCED
    again.close()
    talk.broker.close = lambda: None  # The fixture's broker; another one now owns its files.


def create_group(talk: Conversation) -> None:
    group = SubscriptionGroupConfig(group_name="G")
    assert talk.ask(FakePeer(), R.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, None, group).code == C.SUCCESS


class Member:
    """A member that allocates for itself, and pulls from one queue."""

    def __init__(self, talk: Conversation, *, language: str = "JAVA", model: str = "CLUSTERING") -> None:
        self.talk, self.language = talk, language
        self.peer = FakePeer("10.0.0.9:5000")
        beat = talk.command(R.HEART_BEAT, None, heartbeat("java", message_model=model))
        talk.give(self.peer, replace(beat, language=language))

    def pull(self, offset: int, *, hold_ms: int = 0) -> Command | None:
        """Pull from an offset; return the answer, None while the broker holds the pull."""
        self.pulling = self.talk.pull_command(queue_offset=offset, suspend_timeout_millis=hold_ms)
        self.talk.give(self.peer, replace(self.pulling, language=self.language))
        return find_answer(self.peer, self.pulling)

    def moved_to(self, offset: int) -> int | None:
        """Pull; return the offset the broker moves the member to, or None if it answers with messages."""
        reply = self.pull(offset)
        assert reply is not None
        return int(reply.ext["nextBeginOffset"]) if reply.code == C.PULL_OFFSET_MOVED else None

    def commit(self, offset: int) -> None:
        """Commit as Java's clients do, without an answer."""
        header = h.UpdateConsumerOffsetHeader(consumer_group="G", topic="T", queue_id=0, commit_offset=offset)
        self.talk.tell(self.peer, R.UPDATE_CONSUMER_OFFSET, header)

    def query(self) -> int:
        header = h.QueryConsumerOffsetHeader(consumer_group="G", topic="T", queue_id=0)
        return int(self.talk.ask(self.peer, R.QUERY_CONSUMER_OFFSET, header).ext["offset"])

    def notices(self) -> list[Command]:
        return [reply for reply in self.peer.replies if reply.code == R.RESET_CONSUMER_CLIENT_OFFSET]


@pytest.mark.parametrize("target", [0, 3], ids=["back", "to where it reads"])
def test_a_pulling_member_is_moved_and_its_commits_from_before_change_nothing(talk, target):
    """It was only notified, which Java's lite pull and POP consumers ignore: nothing was read again."""
    member = Member(talk)
    assert member.moved_to(0) is None
    member.commit(2)
    assert member.pull(3, hold_ms=15_000) is None
    assert offsets_of(reset(talk, offset=target))[0] == target
    moved = answer(member.peer, member.pulling)
    assert (moved.code, moved.ext["nextBeginOffset"]) == (C.PULL_OFFSET_MOVED, str(target))
    assert member.notices() == []  # Java's push consumers would stand still for 10 s.
    member.commit(2)
    assert committed(talk, 0) == target
    assert member.moved_to(target) is None
    member.commit(target)
    assert (member.query(), member.moved_to(3)) == (target, None)


def test_a_pull_from_before_does_not_end_a_reset_to_its_offset(talk):
    """A member that pulled from the reset's offset by chance still held what it had pulled before."""
    member = Member(talk)
    reset(talk, offset=2)
    assert member.moved_to(2) == 2
    member.commit(1)
    assert committed(talk, 0) == 2
    assert member.moved_to(2) is None
    member.commit(3)
    assert committed(talk, 0) == 3


def test_a_reset_ends_for_a_member_that_asks_for_its_offset_and_pulls_from_there(talk):
    create_group(talk)
    reset(talk, offset=1)
    member = Member(talk)
    assert member.query() == 1
    assert member.moved_to(1) is None
    member.commit(2)
    assert committed(talk, 0) == 2


def test_a_pending_reset_survives_a_kill(talk, tmp_path):
    member = Member(talk)
    member.commit(3)
    reset(talk, offset=1)
    talk.kill()
    again = Conversation(tmp_path / "data")
    talk.broker.close = lambda: None  # The fixture's broker; another one now owns its files.
    member.talk = again
    member.commit(3)  # Before its heartbeat.
    assert committed(again, 0) == 1
    member = Member(again)
    assert member.moved_to(3) == 1
    assert member.moved_to(1) is None
    member.commit(2)
    again.kill()
    last = Conversation(tmp_path / "data")
    assert committed(last, 0) == 2
    assert Member(last).moved_to(2) is None
    last.close()


def test_a_reader_that_is_no_member_goes_on_where_it_chooses_and_its_commits_count(talk):
    """Spark reads so; its commits only show how far it is."""
    create_group(talk)
    reset(talk, offset=1)
    reader, pull = FakePeer(), talk.pull_command(queue_offset=2)
    talk.give(reader, pull)
    assert answer(reader, pull).code == C.SUCCESS
    commit = {"consumer_group": "G", "topic": "T", "queue_id": 0, "commit_offset": 3}
    talk.tell(reader, R.UPDATE_CONSUMER_OFFSET, h.UpdateConsumerOffsetHeader(**commit))
    assert committed(talk, 0) == 1  # Perhaps of a member from before, whose heartbeat is still to come.
    talk.tell(reader, R.UPDATE_CONSUMER_OFFSET, h.UpdateConsumerOffsetHeader(**commit, lb_mirrored=True))
    assert committed(talk, 0) == 3


def test_clients_that_know_the_notice_get_it(talk):
    """They hold back pulls while they have much to handle, and need not wait for the next one."""
    member = Member(talk, language="GO")
    assert member.pull(3, hold_ms=15_000) is None
    assert offsets_of(reset(talk, offset=1))[0] == 1
    (told,) = member.notices()
    assert (told.is_oneway, told.ext["group"], told.ext["topic"]) == (True, "G", "T")
    assert decode_body(told.body, ResetOffsetBody).offset_table[MessageQueue("T", "broker-a", 0)] == 1
    member.commit(3)
    assert committed(talk, 0) == 1
    assert (member.query(), member.moved_to(1)) == (1, None)


def test_broadcasting_members_are_notified_only(talk):
    """Each keeps its own offsets, which the broker does not know."""
    member = Member(talk, model="BROADCASTING")
    reset(talk, offset=1)
    assert (len(member.notices()), member.moved_to(3)) == (1, None)


def test_a_reset_before_broadcasting_members_are_known_moves_none_of_them(talk):
    """As after a restart: moved to an offset below their own, they began at their own again, for ever."""
    create_group(talk)
    reset(talk, offset=1)
    assert Member(talk, model="BROADCASTING").moved_to(3) is None


def test_a_reset_ends_with_the_opening_of_a_coordinated_member(talk):
    create_group(talk)
    reset(talk, offset=1)
    alice = alone(talk)
    assert alice.open(0).ext["offset"] == "1"
    assert alice.commit(0, 2) == C.SUCCESS
    assert committed(talk, 0) == 2


def test_a_reset_without_connected_members_sets_the_offsets(talk):
    talk.ask(FakePeer(), R.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, None, SubscriptionGroupConfig(group_name="G"))
    assert offsets_of(reset(talk, timestamp=-1)) == {0: 3, 1: 3, 2: 3, 3: 3}
    assert committed(talk, 2) == 3


def test_without_force_a_group_moves_backwards_only(talk):
    alice = alone(talk)
    assert alice.commit(0, 1) == C.SUCCESS
    assert alice.commit(1, 3) == C.SUCCESS
    assert offsets_of(reset(talk, offset=2, is_force=False)) == {0: 1, 1: 2, 2: 2, 3: 2}


@pytest.mark.parametrize(("offset", "lands_at"), [(-5, 0), (99, 3)])
def test_a_reset_to_a_missing_offset_takes_the_next_one(talk, offset, lands_at):
    alone(talk)
    assert offsets_of(reset(talk, offset=offset))[0] == lands_at


def test_a_reset_by_time_looks_each_queue_up(talk):
    alone(talk)
    talk.clock.advance(10_000)
    at_ms = talk.clock.wall_ms()
    talk.send(FakePeer(), queue_id=2)
    assert offsets_of(reset(talk, timestamp=at_ms))[2] == 3


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"topic": "nowhere"}, C.TOPIC_NOT_EXIST),
        ({"group": "nobody"}, C.SUBSCRIPTION_GROUP_NOT_EXIST),
        ({"queue_id": 4}, C.INVALID_PARAMETER),
        ({"queue_id": -2}, C.INVALID_PARAMETER),
    ],
)
def test_an_invalid_reset_is_refused(talk, fields, code):
    alone(talk)
    reply = reset(talk, **fields)
    assert (reply.code, bool(reply.remark)) == (code, True)


def test_a_reset_that_cannot_be_journalled_is_refused(talk):
    alice = alone(talk)
    assert alice.commit(0, 3) == C.SUCCESS
    talk.disk.bytes_left = 10
    reply = reset(talk, offset=0)
    assert (reply.code, "no space left" in (reply.remark or "")) == (C.SYSTEM_ERROR, True)
    assert committed(talk, 0) == 3
    talk.disk.bytes_left = None
    assert find_answer(alice.peer, talk.command(0)) is None


def test_mqadmins_reset_by_time_goes_to_the_time(talk):
    """mqadmin sends offset -1, which means none; the group used to be set to the first message instead."""
    talk.ask(FakePeer(), R.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, None, SubscriptionGroupConfig(group_name="G"))
    ends = {queue_id: talk.broker.store.max_offset("T", queue_id) for queue_id in range(4)}
    assert all(ends.values())
    now = int(talk.clock.wall_ms()) + 1
    assert offsets_of(reset(talk, timestamp=now, offset=-1, queue_id=-1)) == ends
    assert offsets_of(reset(talk, timestamp=now, offset=-1, queue_id=2)) == {2: ends[2]}
