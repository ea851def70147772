"""Which clients are members of a group, and what the group subscribes to."""

import gc
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from libramq.filter.subscription import SubscriptionData
from libramq.groups.consumer_group import Consumer, ConsumerGroups, Member
from libramq.groups.limits import SUBSCRIPTIONS_MAX


def member(peer: str, client_id: str, at_ms: int = 0) -> Member[str]:
    return Member(peer, client_id, "JAVA", 479, at_ms)


def data(group: str = "G", **fields) -> Consumer:
    return Consumer(group=group, **fields)


def subscribes(topic: str, version: int = 1, expression: str = "*") -> SubscriptionData:
    return SubscriptionData(topic=topic, sub_version=version, sub_string=expression)


def remove_peer(groups: ConsumerGroups[Any], peer: object) -> list[tuple[str, Member[Any]]]:
    """End a connection; return its memberships, which end with it."""
    return [(name, gone) for name in groups.groups_of(peer) if (gone := groups.remove(name, peer))]


def joined(*members: Member[str]) -> ConsumerGroups[str]:
    groups: ConsumerGroups[str] = ConsumerGroups()
    group = groups.get_or_create(data())
    for one in members:
        groups.beat(group, one, data())
    return groups


def test_a_member_is_new_only_once():
    groups = joined()
    group = groups.get_or_create(data())
    assert groups.beat(group, member("c1", "alice"), data())
    assert not groups.beat(group, member("c1", "alice", 5), data())
    assert group.client_ids == ["alice"]
    assert group.members["c1"].heartbeat_at_ms == 5


def test_a_heartbeat_updates_the_groups_settings():
    groups = joined()
    group = groups.get_or_create(data())
    groups.beat(
        group, member("c1", "alice"), data(message_model="BROADCASTING", consume_type="CONSUME_ACTIVELY")
    )
    assert (group.message_model, group.consume_type) == ("BROADCASTING", "CONSUME_ACTIVELY")


def test_a_client_that_reconnects_is_listed_once_until_its_last_connection_ends():
    groups = joined(member("old", "alice"), member("c2", "bob"))
    group = groups.get("G")
    assert groups.beat(group, member("new", "alice"), data())
    assert group.client_ids == ["alice", "bob"]
    assert [(name, gone.client_id) for name, gone in remove_peer(groups, "old")] == [("G", "alice")]
    assert group.has_client("alice")
    remove_peer(groups, "new")
    assert not group.has_client("alice")
    assert group.client_ids == ["bob"]


def test_a_connection_that_changes_its_client_id_is_another_member():
    groups = joined(member("c1", "alice"))
    assert groups.beat(groups.get("G"), member("c1", "eve"), data())
    assert groups.get("G").client_ids == ["eve"]


def test_a_group_without_members_is_forgotten():
    groups = joined(member("c1", "alice"))
    assert groups.remove("G", "c9") is None
    assert groups.remove("G", "c1").client_id == "alice"
    assert groups.get("G") is None
    assert groups.remove("G", "c1") is None
    assert remove_peer(groups, "c1") == []
    assert groups.group_count("c1") == 0


def test_a_connection_leaves_all_its_groups_at_once():
    groups: ConsumerGroups[str] = ConsumerGroups()
    for name in ("G", "H", "I"):
        groups.beat(groups.get_or_create(data(name)), member("c1", "alice"), data(name))
    groups.beat(groups.get("H"), member("c2", "bob"), data("H"))
    assert groups.group_count("c1") == 3
    assert {name for name, _ in remove_peer(groups, "c1")} == {"G", "H", "I"}
    assert [group.name for group in groups] == ["H"]


def test_a_subscription_is_replaced_only_by_a_newer_one():
    """Members started with different expressions do not make it alternate: the newest one stays."""
    group = joined(member("c1", "alice")).get("G")
    assert group.subscribe("c1", [subscribes("T", 10, "a")])
    assert not group.subscribe("c1", [subscribes("T", 9, "b")])
    assert not group.subscribe("c1", [subscribes("T", 10, "b")])
    assert group.subscriptions["T"].sub_string == "a"
    assert group.subscribe("c1", [subscribes("T", 11, "b")])
    assert group.subscriptions["T"].sub_string == "b"


def test_a_newer_version_of_the_same_expression_is_kept_and_no_change():
    group = joined(member("c1", "alice")).get("G")
    group.subscribe("c1", [subscribes("T", 10)])
    assert not group.subscribe("c1", [subscribes("T", 12)])
    assert group.subscriptions["T"].sub_version == 12


def test_topics_no_longer_subscribed_are_removed():
    groups = joined(member("c1", "alice"))
    group = groups.get("G")
    group.subscribe("c1", [subscribes("T"), subscribes("U")])
    assert groups.subscribers_of("U") == ["G"]
    assert group.subscribe("c1", [subscribes("T")])
    assert list(group.subscriptions) == ["T"]
    assert groups.subscribers_of("U") == []


def test_a_topic_stays_while_any_member_names_it():
    """Upstream drops U with alice's next heartbeat, and bob's pulls of it fail until his."""
    groups = joined(member("c1", "alice"), member("c2", "bob"))
    group = groups.get("G")
    assert group.subscribe("c1", [subscribes("T")])
    assert group.subscribe("c2", [subscribes("T"), subscribes("U")])
    version = group.version
    assert not group.subscribe("c1", [subscribes("T", 2)])
    assert (list(group.subscriptions), group.version) == (["T", "U"], version)
    assert group.subscribe("c2", [subscribes("T")])
    assert (list(group.subscriptions), group.version) == (["T"], version + 1)
    group.subscribe("c2", [subscribes("V")])
    groups.remove("G", "c2")
    assert list(group.subscriptions) == ["T"]


def test_members_with_equal_subscriptions_share_them_and_nothing_is_kept_of_members_that_are_gone():
    """A thousand members of a group share one mapping; bob's different one is dropped when he leaves."""
    groups = joined(member("c1", "alice"), member("c2", "bob"), member("c3", "carol"), member("c4", "dave"))
    group = groups.get("G")
    for peer in ("c1", "c3", "c4"):
        group.subscribe(peer, [subscribes("T")])
    groups.beat(group, member("c5", "erin"), data())
    group.subscribe("c5", [subscribes("T")])
    group.subscribe("c2", [subscribes("T"), subscribes("U")])
    assert len({id(group.members[peer].subscriptions) for peer in ("c1", "c3", "c4", "c5")}) == 1
    bob = groups.remove("G", "c2")
    assert bob is not None
    assert group not in gc.get_referrers(bob.subscriptions)


def test_retry_topics_come_and_go_without_being_a_change():
    group = joined(member("c1", "alice")).get("G")
    group.subscribe("c1", [subscribes("T")])
    assert not group.subscribe("c1", [subscribes("T"), subscribes("%RETRY%G_T")])
    assert "%RETRY%G_T" in group.subscriptions
    assert not group.subscribe("c1", [subscribes("T")])
    assert "%RETRY%G_T" not in group.subscriptions


def test_facts_about_a_member_survive_its_heartbeats():
    groups = joined(member("c1", "alice", 10))
    group = groups.get("G")
    group.subscribe("c1", [subscribes("T", expression="a")])
    group.members["c1"].asks = True
    for at_ms in (40, 100, 105):
        groups.beat(group, member("c1", "alice", at_ms), data())
    alice = group.members["c1"]
    assert (alice.joined_at_ms, alice.heartbeat_gaps_ms, alice.asks) == (10, (60, 5), True)
    assert alice.subscriptions == {"T": "a"}
    groups.beat(group, member("c1", "eve", 200), data())
    assert (group.members["c1"].asks, group.subscriptions) == (None, {})


def test_subscriptions_beyond_the_limit_are_skipped():
    group = joined(member("c1", "alice")).get("G")
    group.subscribe("c1", [subscribes(f"T{n}") for n in range(SUBSCRIPTIONS_MAX + 5)])
    assert len(group.subscriptions) == SUBSCRIPTIONS_MAX


@given(
    st.lists(
        st.tuples(st.sampled_from("jlc"), st.integers(0, 4), st.integers(0, 3), st.integers(0, 2)),
        max_size=60,
    )
)
def test_the_tables_agree_with_a_plain_set_of_memberships(steps):
    """Heartbeats, leaves and closes come in any sequence, over a few connections, clients and groups."""
    groups: ConsumerGroups[int] = ConsumerGroups()
    model: dict[tuple[str, int], str] = {}
    for step, peer, client, number in steps:
        name, client_id = f"G{number}", f"client{client}"
        if step == "j":
            is_new = groups.beat(
                groups.get_or_create(data(name)), Member(peer, client_id, "", 0, 0), data(name)
            )
            assert is_new == (model.get((name, peer)) != client_id)
            model[name, peer] = client_id
        elif step == "l":
            gone = groups.remove(name, peer)
            assert (gone.client_id if gone else None) == model.pop((name, peer), None)
        else:
            expected = {key[0]: value for key, value in model.items() if key[1] == peer}
            assert {name: gone.client_id for name, gone in remove_peer(groups, peer)} == expected
            model = {key: value for key, value in model.items() if key[1] != peer}
        assert {group.name: set(group.client_ids) for group in groups} == {
            name: {client for (other, _), client in model.items() if other == name} for name, _ in model
        }
