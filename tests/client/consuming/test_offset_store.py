"""Tests of the offset store: offsets only advance, freeze when refused, and are committed when changed."""

from libramq.client.consuming.committing.commits import OffsetStore
from libramq.message.queue import MessageQueue

Q, R = MessageQueue("T", "a", 0), MessageQueue("T", "a", 1)


def test_offsets_only_advance():
    """A late result of an early message changes nothing."""
    store = OffsetStore()
    assert store.read(Q) is None
    store.advance(Q, 5)
    store.advance(Q, 3)
    assert store.read(Q) == 5


def test_a_loaded_offset_needs_no_commit():
    """The broker has it already."""
    store = OffsetStore()
    store.loaded(Q, 5)
    assert store.to_persist([Q], all_of_them=False) == []
    assert store.to_persist([Q], all_of_them=True) == [(Q, 5)]
    store.advance(Q, 6)
    assert store.to_persist([Q], all_of_them=False) == [(Q, 6)]


def test_only_acknowledged_offsets_count_as_committed():
    """Offsets that advanced meanwhile are committed next time."""
    store = OffsetStore()
    store.advance(Q, 5)
    assert store.to_persist([Q, R], all_of_them=False) == [(Q, 5)]
    store.advance(Q, 7)
    store.persisted(Q, 5)
    assert store.to_persist([Q], all_of_them=False) == [(Q, 7)]
    store.persisted(Q, 7)
    assert store.to_persist([Q], all_of_them=False) == []


def test_a_frozen_offset_ignores_results_and_may_go_back():
    """The broker refused the old offset."""
    store = OffsetStore()
    store.advance(Q, 50)
    store.freeze(Q, 10)
    store.advance(Q, 60)
    assert store.read(Q) == 10
    assert store.to_persist([Q], all_of_them=False) == [(Q, 10)]
    store.forget(Q)
    store.advance(Q, 11)
    assert store.read(Q) == 11
