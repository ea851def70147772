"""The coordinator: short scenarios, each a conversation between members and their coordinator."""

from libramq.groups.rebalance_event import Reason
from tests.groups.coordinated import Settled, Started, Surroundings


def test_the_first_member_gets_all_and_the_second_half():
    group = Surroundings()
    alice = group.add("alice")
    group.run(100)
    assert set(group.owners().values()) == {"alice"}
    group.add("bob")
    group.run(100)
    assert group.loads() == {"alice": 4, "bob": 4}
    assert sorted(alice.held.values()) == [1] * 4, "what stays keeps its epoch"
    first, second = group.take(Settled)
    assert (len(first.moves), first.minimum) == (8, 8)
    assert (len(second.moves), second.minimum) == (4, 4)
    assert {move.from_ for move in second.moves} == {"alice"}
    assert [event.reason for event in group.take(Started)] == [Reason.MEMBER_JOINED] * 2


def test_a_restart_moves_nothing():
    group = Surroundings()
    group.add("alice")
    group.add("bob")
    group.run(100)
    owners, epoch = group.owners(), group.view.epoch
    group.take(Started)
    group.restart()
    group.run(30_000)
    assert (group.owners(), group.view.epoch) == (owners, epoch)
    assert group.take(Started) == []


def test_stock_members_put_the_group_into_client_mode_and_back():
    group = Surroundings()
    alice = group.add("alice")
    bob = group.add("bob")
    group.run(100)
    group.stock("java")
    group.run(1_000)
    assert alice.mode == bob.mode == group.view.mode == "client"
    alice.held, bob.held = bob.held, alice.held
    held = dict.fromkeys(alice.held), dict.fromkeys(bob.held)
    group.stock()
    group.run(1_000)
    assert alice.mode == bob.mode == group.view.mode == "epochs"
    assert (dict.fromkeys(alice.held), dict.fromkeys(bob.held)) == held, "whoever holds what, first"
