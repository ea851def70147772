"""Fences at work: openings, pulls and commits of a group whose coordinator is at another broker."""

import pytest

from libramq.codes import RequestCode as R
from libramq.codes import ResponseCode as C
from libramq.fencing import MODE_CLIENT, Claim, FenceGrant
from libramq.message.queue import MessageQueue
from libramq.remoting import headers as h
from libramq.remoting.command import Command
from libramq.rpc.broker_calls import PULL_COMMIT_OFFSET, PULL_SUBSCRIPTION, PULL_SUSPEND
from tests.broker.brokers import Conversation, answer, find_answer
from tests.fakes import FakePeer

COMMITTING = PULL_SUSPEND | PULL_SUBSCRIPTION | PULL_COMMIT_OFFSET


@pytest.fixture
def bob() -> FakePeer:
    return FakePeer("10.0.0.8:1000")


def grant(talk: Conversation, member: str, epoch: int, queue_id: int = 0, **fields: object) -> None:
    """Grant a queue, as a coordinator at another broker does."""
    claims = {MessageQueue("T", talk.config.broker_name, queue_id): Claim(member, epoch)}
    talk.broker.fences.grant(FenceGrant(group="G", epoch=epoch, claims=claims, **fields))  # type: ignore[arg-type]


def open_queue(talk: Conversation, peer: FakePeer, member: str, epoch: int, queue_id: int = 0) -> Command:
    header = h.OpenQueueHeader(
        consumer_group="G", topic="T", queue_id=queue_id, lb_member=member, lb_queue_epoch=epoch
    )
    return talk.ask(peer, R.OPEN_QUEUE, header)


def commit(
    talk: Conversation, peer: FakePeer, offset: int, member: str | None = None, epoch: int | None = None
) -> int:
    header = h.UpdateConsumerOffsetHeader(
        consumer_group="G",
        topic="T",
        queue_id=0,
        commit_offset=offset,
        lb_member=member,
        lb_queue_epoch=epoch,
    )
    return talk.ask(peer, R.UPDATE_CONSUMER_OFFSET, header).code


def committed(talk: Conversation) -> int | None:
    return talk.broker.offsets.query("G", "T", 0)


def fill(talk: Conversation, count: int = 5) -> None:
    talk.beat(FakePeer("10.0.0.9:1"), "watcher")
    for _ in range(count):
        talk.send(FakePeer(), queue_id=0)


def test_a_member_opens_pulls_and_commits(talk, peer):
    fill(talk)
    talk.beat(peer, "alice", stock=False)
    assert open_queue(talk, peer, "alice", 1).code == C.NOT_YET_GRANTED
    grant(talk, "alice", 1)
    assert talk.pull(peer, lb_member="alice", lb_queue_epoch=1).code == C.NOT_YET_GRANTED
    opened = open_queue(talk, peer, "alice", 1)
    assert opened.code == C.SUCCESS
    assert opened.ext == {
        "offset": "0",
        "lbInitial": "true",
        "lbFormerEpoch": "0",
    }  # Young: nothing may be missed.
    assert talk.pull(peer, lb_member="alice", lb_queue_epoch=1).code == C.SUCCESS
    assert commit(talk, peer, 3, "alice", 1) == C.SUCCESS
    assert open_queue(talk, peer, "alice", 1).ext == {"offset": "3", "lbFormerEpoch": "1"}


def test_without_a_committed_offset_the_member_chooses_where_an_old_queue_begins(talk, peer):
    fill(talk)
    talk.broker.store.is_young = lambda *_: False  # type: ignore[method-assign]
    grant(talk, "alice", 1)
    opened = open_queue(talk, peer, "alice", 1)
    assert (opened.code, opened.ext) == (C.SUCCESS, {"lbFormerEpoch": "0"})


def test_under_epochs_only_the_member_that_opened_a_queue_owns_it(talk, peer, bob):
    """A pull without an epoch is served: its member may not know yet that the group is coordinated."""
    fill(talk)
    talk.beat(peer, "alice", stock=False)
    talk.beat(bob, "bob", stock=False)
    queue = MessageQueue("T", talk.config.broker_name, 0)
    assert talk.pull(bob).code == C.SUCCESS
    assert talk.broker.members.consumers.rebalances.owners("G") == {queue: "bob"}
    grant(talk, "alice", 1)
    open_queue(talk, peer, "alice", 1)
    assert talk.pull(bob).code == C.SUCCESS
    assert talk.broker.members.consumers.rebalances.owners("G") == {queue: "alice"}


def test_a_member_learns_whether_it_is_still_the_last_that_opened_the_queue(talk, peer, bob):
    """It is not after another member opened the queue, nor after its topic was deleted and created again."""

    def former_epoch(member, epoch, who=peer):
        grant(talk, member, epoch)
        return open_queue(talk, who, member, epoch).ext["lbFormerEpoch"]

    talk.create_topic("T")
    assert [former_epoch("alice", epoch) for epoch in (1, 2)] == ["0", "1"]
    assert former_epoch("bob", 3, bob) == "0"
    assert former_epoch("alice", 4) == "0"
    talk.ask(peer, R.DELETE_TOPIC_IN_BROKER, h.TopicHeader(topic="T"))
    talk.create_topic("T")
    assert former_epoch("alice", 5) == "0"


@pytest.mark.parametrize(("topic", "queue_id", "code"), [("U", 0, 17), ("T", 4, 29), ("T", -1, 29)])
def test_a_queue_that_does_not_exist_is_not_opened(talk, peer, topic, queue_id, code):
    talk.create_topic("T", 4)
    header = h.OpenQueueHeader(
        consumer_group="G", topic=topic, queue_id=queue_id, lb_member="alice", lb_queue_epoch=1
    )
    assert talk.ask(peer, R.OPEN_QUEUE, header).code == code


def test_the_former_owner_is_fenced_with_its_held_pull(talk, peer, bob):
    fill(talk, 2)
    grant(talk, "alice", 1)
    open_queue(talk, peer, "alice", 1)
    commit(talk, peer, 2, "alice", 1)
    at_end = {"queue_offset": 2, "suspend_timeout_millis": 15_000}
    mine = talk.pull_command(**at_end, lb_member="alice", lb_queue_epoch=1)
    others = talk.pull_command("H", **at_end)
    stock = talk.pull_command(**at_end)
    talk.give(peer, mine, others, stock)
    grant(talk, "bob", 2)
    assert find_answer(peer, mine) is None
    assert open_queue(talk, bob, "bob", 2).ext == {"offset": "2", "lbFormerEpoch": "0"}
    fenced = answer(peer, mine)
    assert (fenced.code, "under epoch 2" in fenced.remark) == (C.FENCED, True)
    assert find_answer(peer, others) is find_answer(peer, stock) is None
    assert commit(talk, peer, 1, "alice", 1) == C.FENCED
    assert talk.pull(peer, lb_member="alice", lb_queue_epoch=1).code == C.FENCED
    assert open_queue(talk, peer, "alice", 1).code == C.FENCED
    assert committed(talk) == 2
    talk.send(FakePeer(), queue_id=0)
    assert answer(peer, others).code == answer(peer, stock).code == C.SUCCESS
    assert talk.pull(bob, queue_offset=2, lb_member="bob", lb_queue_epoch=2).code == C.SUCCESS


def test_a_pull_that_waits_for_the_disk_is_checked_again(tmp_path, peer, bob):
    talk = Conversation(tmp_path)
    fill(talk)
    talk.close()
    talk = Conversation(tmp_path)
    grant(talk, "alice", 1)
    open_queue(talk, peer, "alice", 1)
    talk.disk.is_cold = True
    pull = talk.pull_command(lb_member="alice", lb_queue_epoch=1)
    talk.give(peer, pull)
    assert talk.threads.work
    talk.disk.is_cold = False  # The thread has read it, but the result is not processed yet.
    grant(talk, "bob", 2)
    open_queue(talk, bob, "bob", 2)
    talk.read_cold()
    assert answer(peer, pull).code == C.FENCED
    talk.close()


def test_a_commit_without_an_epoch_is_refused_under_epochs_and_only_there(talk, peer):
    fill(talk)
    talk.beat(peer, "alice")
    assert commit(talk, peer, 1) == C.SUCCESS
    grant(talk, "bob", 1)
    assert commit(talk, peer, 2) == C.FENCED
    # A pull without one does no harm, but its commit would.
    assert talk.pull(peer, sys_flag=COMMITTING, commit_offset=2, queue_offset=2).code == C.SUCCESS
    assert committed(talk) == 1
    grant(talk, "bob", 2, mode=MODE_CLIENT)
    assert commit(talk, peer, 2) == C.SUCCESS
    assert talk.pull(peer, sys_flag=COMMITTING, commit_offset=3, queue_offset=3).code == C.SUCCESS
    assert committed(talk) == 3


@pytest.mark.parametrize("end", ["close", "kill"])
def test_a_restarted_broker_knows_which_groups_allocate_for_themselves(tmp_path, peer, bob, end):
    """Their coordinator is at another broker, and the link to it may take a while."""
    talk = Conversation(tmp_path)
    talk.create_topic("T", 4)
    fill(talk)
    grant(talk, "bob", 1)
    open_queue(talk, bob, "bob", 1)
    grant(talk, "bob", 2, mode=MODE_CLIENT)
    talk.beat(peer, "alice")
    getattr(talk, end)()
    talk = Conversation(tmp_path, clock=talk.clock)
    assert commit(talk, peer, 2) == C.SUCCESS
    grant(talk, "bob", 3)
    assert commit(talk, peer, 3) == C.FENCED
    talk.close()


def test_an_offset_committed_by_a_pull_is_fenced_like_a_commit(talk, peer, bob):
    fill(talk)
    grant(talk, "alice", 1)
    open_queue(talk, peer, "alice", 1)
    pull = {"sys_flag": COMMITTING, "queue_offset": 2, "lb_member": "alice", "lb_queue_epoch": 1}
    assert talk.pull(peer, **pull, commit_offset=2).code == C.SUCCESS
    grant(talk, "bob", 2)
    open_queue(talk, bob, "bob", 2)
    assert talk.pull(peer, **pull, commit_offset=3).code == C.FENCED
    assert committed(talk) == 2


def test_a_fenced_commit_leaves_its_neighbours_alone(talk, peer):
    fill(talk)
    grant(talk, "alice", 1)
    open_queue(talk, peer, "alice", 1)
    commands = [
        talk.command(
            R.UPDATE_CONSUMER_OFFSET,
            h.UpdateConsumerOffsetHeader(
                consumer_group="G",
                topic="T",
                queue_id=0,
                commit_offset=offset,
                lb_member=member,
                lb_queue_epoch=1,
            ),
        )
        for offset, member in ((1, "alice"), (4, "zombie"), (2, "alice"))
    ]
    talk.give(peer, *commands)
    assert [answer(peer, command).code for command in commands] == [C.SUCCESS, C.FENCED, C.SUCCESS]
    assert committed(talk) == 2


def test_openings_survive_a_restart(tmp_path, peer, bob):
    talk = Conversation(tmp_path)
    fill(talk)
    grant(talk, "alice", 1)
    open_queue(talk, peer, "alice", 1)
    grant(talk, "bob", 2, queue_id=1)
    open_queue(talk, bob, "bob", 2, queue_id=1)
    talk.kill()
    talk = Conversation(tmp_path)
    assert talk.pull(peer, lb_member="alice", lb_queue_epoch=1).code == C.NOT_YET_GRANTED
    assert open_queue(talk, peer, "alice", 1).code == C.SUCCESS
    assert talk.pull(peer, lb_member="alice", lb_queue_epoch=1).code == C.SUCCESS
    assert commit(talk, peer, 1, "alice", 1) == C.SUCCESS
    assert commit(talk, peer, 2, "bob", 2) == C.NOT_YET_GRANTED
    assert commit(talk, peer, 2) == C.FENCED
    assert talk.broker.fences.epoch("G") == 2
    talk.close()
    talk = Conversation(tmp_path)
    assert commit(talk, peer, 2, "alice", 1) == C.SUCCESS
    talk.close()


def test_nothing_is_opened_on_a_full_disk(talk, peer, bob):
    fill(talk)
    grant(talk, "alice", 1)
    open_queue(talk, peer, "alice", 1)
    grant(talk, "bob", 2)
    talk.disk.bytes_left = 10
    refused = open_queue(talk, bob, "bob", 2)
    assert (refused.code, "no space left" in refused.remark) == (C.SYSTEM_ERROR, True)
    assert talk.pull(peer, lb_member="alice", lb_queue_epoch=1).code == C.SUCCESS
    talk.disk.bytes_left = None
    assert open_queue(talk, bob, "bob", 2).code == C.SUCCESS
    talk.kill()
    again = Conversation(talk.config.store_path)  # type: ignore[arg-type]
    assert open_queue(again, bob, "bob", 2).code == C.SUCCESS
    assert again.pull(bob, lb_member="bob", lb_queue_epoch=2).code == C.SUCCESS
    assert again.pull(peer, lb_member="alice", lb_queue_epoch=1).code == C.FENCED
    again.kill()


def test_topics_and_groups_that_are_deleted_leave_no_fence(talk, peer):
    talk.create_topic("T", 4)
    grant(talk, "alice", 1)
    open_queue(talk, peer, "alice", 1)
    assert list(talk.broker.fences.file().openings) == ["T@G@0"]
    talk.ask(peer, R.DELETE_TOPIC_IN_BROKER, h.TopicHeader(topic="T"))
    assert list(talk.broker.fences.file().openings) == ["@G@-1"]  # The epoch.
    assert "G" in talk.broker.fences
    talk.ask(peer, R.DELETE_SUBSCRIPTIONGROUP, h.DeleteGroupHeader(group_name="G", clean_offset=False))
    assert "G" not in talk.broker.fences


def test_what_others_have_done_while_rebalances_are_looked_at_is_noted_first(talk, peer):
    """A rebalance was recorded as settled without the queues just opened (seed 34000767)."""
    talk.create_topic("T")
    talk.beat(peer, "alice")
    rebalances = talk.broker.members.consumers.rebalances
    assert rebalances.are_unsettled
    looks = rebalances.settle()
    next(looks)
    noted: list[bool] = []
    rebalances.note_later(lambda _: noted.append(True))
    next(looks, None)
    assert noted
