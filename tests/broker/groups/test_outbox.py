"""Pending notices: each is sent once, and no connection waits for all notices of another."""

import gc

from libramq.broker.groups.consumer_clients import Outbox
from libramq.groups.pending_notifications import AreYouThere, GroupChanged
from libramq.kernel.work import PORTION
from tests.fakes import FakePeer


def test_a_member_of_one_group_does_not_wait_behind_one_of_a_thousand():
    outbox, busy, single = Outbox(), FakePeer(), FakePeer()
    for number in range(1_000):
        outbox.change(f"G{number}", [busy])
    outbox.change("Mine", [single])
    first = outbox.take()
    assert [notice.peer for notice in first] == [busy] * PORTION
    assert outbox.take() == [GroupChanged(single, "Mine")]
    groups = [notice.group for notice in first]
    while outbox:
        groups += [notice.group for notice in outbox.take()]
    assert groups == [f"G{number}" for number in range(1_000)]
    assert not outbox


def test_a_change_is_sent_once_and_a_probe_before_it():
    outbox, peer = Outbox(), FakePeer()
    outbox.change("G", [peer])
    outbox.change("G", [peer])
    probe = AreYouThere(peer, "G", "c", 1)
    outbox.probe([probe])
    assert outbox.take() == [probe]
    assert outbox.take() == [GroupChanged(peer, "G")]
    assert not outbox


def test_changes_that_wait_are_no_objects_of_the_garbage_collector():
    """20,000 tracked changes stopped the loop for 20 ms while the collector scanned them."""
    outbox, peers = Outbox(), [FakePeer() for _ in range(20)]
    names = [f"G{number}" for number in range(1_000)]
    gc.collect()
    before = len(gc.get_objects())
    for name in names:
        outbox.change(name, peers)
    assert len(gc.get_objects()) - before < 100
