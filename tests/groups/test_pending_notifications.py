"""Pending notifications: a change is repeated to members that have not fetched the list since."""

from libramq.groups.pending_notifications import PENDING_MS_MAX, REPEAT_MS, ROUND_GAP_MS, PendingNotifications


def herd(*members: str, at_ms: int = 10_000) -> PendingNotifications[str]:
    found: PendingNotifications[str] = PendingNotifications()
    found.changed(members, now_ms=at_ms)
    return found


def test_a_member_that_fetched_the_list_is_not_notified_again() -> None:
    """alice fetches the list after the change; only bob is notified again."""
    group = herd("alice", "bob")
    group.fetched("alice", now_ms=10_100)
    assert group.due(now_ms=10_000 + REPEAT_MS) == ["bob"]


def test_a_member_is_notified_at_most_once_a_second() -> None:
    group = herd("alice")
    assert group.due(now_ms=10_000 + REPEAT_MS - 1) == []
    assert group.due(now_ms=10_000 + REPEAT_MS) == ["alice"]
    assert group.due(now_ms=10_000 + 2 * REPEAT_MS - 1) == []
    assert group.due(now_ms=10_000 + 2 * REPEAT_MS) == ["alice"]


def test_a_round_under_way_at_the_change_does_not_count() -> None:
    """alice has fetched the list for one topic when bob joins; her second fetch follows at once."""
    group = herd("alice", at_ms=1_000)
    group.fetched("alice", now_ms=5_000)
    group.changed(["alice", "bob"], now_ms=5_001)
    group.fetched("alice", now_ms=5_002)
    group.fetched("bob", now_ms=5_300)
    assert group.due(now_ms=5_001 + REPEAT_MS) == ["alice"]
    group.fetched("alice", now_ms=6_050)
    assert group.due(now_ms=5_001 + 3 * REPEAT_MS) == []
    assert group.is_current


def test_all_fetches_of_a_later_round_count_as_one_round() -> None:
    group = herd("alice", at_ms=1_000)
    group.fetched("alice", now_ms=1_000 + ROUND_GAP_MS)
    group.fetched("alice", now_ms=1_001 + ROUND_GAP_MS)
    assert group.due(now_ms=1_000 + REPEAT_MS) == []


def test_a_change_while_notifications_are_pending_notifies_everybody_again() -> None:
    group = herd("alice", "bob")
    group.fetched("alice", now_ms=10_300)
    group.fetched("bob", now_ms=10_300)
    group.changed(["alice"], now_ms=11_000)
    assert group.due(now_ms=11_000 + REPEAT_MS) == ["alice"]


def test_members_that_never_fetch_the_list_are_given_up() -> None:
    group = herd("alice")
    assert group.due(now_ms=10_001 + PENDING_MS_MAX) == []
    assert group.is_current


def test_clients_outside_the_group_are_ignored() -> None:
    group = herd("alice")
    group.fetched("mallory", now_ms=10_500)
    assert group.due(now_ms=12_000) == ["alice"]


def test_in_a_large_group_a_member_is_notified_once_a_second_however_many_join():
    herd: PendingNotifications[int] = PendingNotifications()
    told = [herd.changed(range(count), now_ms=count) for count in range(1, 901)]
    assert told[49] == list(range(50))
    assert all(len(peers) == 1 for peers in told[51:])
    first = herd.due(now_ms=1_050)
    assert first == list(range(50))
    assert sorted(first + herd.due(now_ms=1_900)) == list(range(900))
    assert herd.due(now_ms=1_900) == []


def test_a_delayed_notification_is_sent_when_the_delay_ends() -> None:
    """carol vanished with locks: others are notified once these are free, as they would be refused before."""
    group: PendingNotifications[str] = PendingNotifications()
    assert group.changed(["alice", "bob"], now_ms=10_000, wait_ms=150) == []
    assert group.due(now_ms=10_149) == []
    assert group.due(now_ms=10_150) == ["alice", "bob"]
    assert group.due(now_ms=10_200) == []


def test_a_member_that_fetched_too_early_is_notified_again() -> None:
    """bob is current, but a queue of his becomes free only in 100 ms."""
    group: PendingNotifications[str] = PendingNotifications()
    group.changed(["alice", "bob"], now_ms=10_000)
    group.fetched("alice", now_ms=10_300)
    group.fetched("bob", now_ms=10_300)
    assert group.due(now_ms=10_350) == []
    group.again("bob", now_ms=10_400, wait_ms=100)
    assert not group.is_current
    assert group.due(now_ms=10_499) == []
    assert group.due(now_ms=10_500) == ["bob"]
    group.fetched("bob", now_ms=10_600)
    assert group.due(now_ms=12_000) == []
    assert group.is_current


def test_a_member_that_joined_since_the_change_is_notified_too() -> None:
    group: PendingNotifications[str] = PendingNotifications()
    group.changed(["alice"], now_ms=10_000)
    group.again("bob", now_ms=10_400, wait_ms=100)
    assert group.due(now_ms=10_500) == ["bob"]


def test_the_time_when_all_had_fetched_the_list_is_known() -> None:
    group = herd("alice", "bob")
    group.fetched("alice", now_ms=10_300)
    assert group.due(now_ms=10_350) == []
    assert group.looked_at_ms is None
    group.fetched("bob", now_ms=10_400)
    group.due(now_ms=10_450)
    assert group.looked_at_ms == 10_450
    group.changed(["alice"], now_ms=11_000)
    assert group.looked_at_ms is None
    group.due(now_ms=11_001 + PENDING_MS_MAX)
    assert group.looked_at_ms is None
