"""Which producers are connected."""

from collections import deque

import pytest

from libramq.groups import producer_group
from libramq.groups.consumer_group import Member
from libramq.groups.producer_group import SILENCE_MS_MAX, ProducerGroups
from libramq.kernel.connection import ANONYMOUS, Principal


def member(peer: str, client_id: str = "p", at_ms: int = 0, principal: Principal = ANONYMOUS) -> Member[str]:
    return Member(peer, client_id, "JAVA", 479, at_ms, principal=principal)


def test_producers_join_and_leave_with_their_connection():
    groups: ProducerGroups[str] = ProducerGroups()
    groups.beat("P", member("c1", "a"))
    groups.beat("P", member("c1", "a", 9))
    groups.beat("P", member("c2", "b"))
    assert [(m.client_id, m.heartbeat_at_ms) for m in groups.members("P")] == [("a", 9), ("b", 0)]
    groups.remove("P", "c3")
    groups.remove("P", "c1")
    assert [m.client_id for m in groups.members("P")] == ["b"]
    deque(groups.remove_peer("c2"), 0)
    assert groups.members("P") == []


def test_silent_producers_expire():
    groups: ProducerGroups[str] = ProducerGroups()
    groups.beat("P", member("c1", "a", 0))
    groups.beat("P", member("c2", "b", 1))
    assert len(list(groups.remove_silent(SILENCE_MS_MAX + 1))) == 2, "the one removed, and the group"
    assert [m.client_id for m in groups.members("P")] == ["b"]


def test_the_table_is_bounded(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(producer_group, "GROUPS_PER_CONNECTION_MAX", 3)
    monkeypatch.setattr(producer_group, "MEMBERSHIPS_MAX", 5)
    groups: ProducerGroups[str] = ProducerGroups()
    assert [groups.beat(f"P{n}", member("c1")) for n in range(5)] == [True] * 3 + [False] * 2
    assert [groups.beat(f"P{n}", member("c2")) for n in range(3)] == [True, True, False]
    assert groups.beat("P0", member("c1", at_ms=7))
    deque(groups.remove_peer("c1"), 0)
    assert groups.beat("P9", member("c2"))


def test_one_user_leaves_as_many_places_to_all_others(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(producer_group, "MEMBERSHIPS_PER_USER_MAX", 2)
    groups: ProducerGroups[str] = ProducerGroups()
    alice, bob = Principal("alice"), Principal("bob")
    assert groups.beat("P", member("c1", principal=alice))
    assert groups.beat("P", member("c2", principal=alice))
    assert not groups.beat("P", member("c3", principal=alice))
    assert groups.beat("P", member("c1", principal=alice)), "it has a place"
    assert groups.beat("P", member("c4", principal=bob))
    assert all(groups.beat("P", member(f"d{number}")) for number in range(5)), "nobody in particular"
    assert groups.beat("P", member("c1", principal=bob)), "the connection is another user's now"
    assert groups.beat("P", member("c3", principal=alice))
    assert not groups.beat("P", member("c5", principal=alice))
    groups.remove("P", "c3")
    assert groups.beat("P", member("c5", principal=alice))
    deque(groups.remove_disabled(lambda principal: principal is not alice), 0)
    assert [each.peer for each in groups.members("P")] == ["c1", "c4", *(f"d{number}" for number in range(5))]
