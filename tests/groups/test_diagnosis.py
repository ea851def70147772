"""Problems of a group: each one is one sentence, recorded once."""

from libramq.groups.diagnosis import (
    HEARTBEAT_GAP_MS_MAX,
    NAMED_MAX,
    Connected,
    Diagnoses,
    GroupSeen,
    Kind,
    diagnose,
    no_members,
)
from libramq.message.queue import MessageQueue

Q = [MessageQueue("T", "b", number) for number in range(20)]


def member(
    client_id: str, host: str = "10.0.0.7", *, joined: int = 0, beat: int = 100, **fields
) -> Connected:
    fields.setdefault("subscriptions", {"T": "*"})
    return Connected(client_id=client_id, host=host, joined_at_ms=joined, heartbeat_at_ms=beat, **fields)


def found(*connected: Connected, queue_count: int | None = 8, **fields) -> list[tuple[Kind, str, str]]:
    group = GroupSeen(connected=connected, queue_count=queue_count, **fields)
    return [(one.kind, one.about, one.text) for one in diagnose(group)]


def test_a_healthy_group_has_no_diagnosis():
    assert found(member("alice"), member("bob", "10.0.0.8")) == []
    assert found() == []


def test_queues_read_twice_or_never_indicate_different_strategies():
    ((kind, about, text),) = found(
        member("alice"), member("bob"), read_by_two=[Q[0], Q[3]], read_by_none=[Q[1]]
    )
    assert (kind, about) == (Kind.STRATEGIES_DIFFER, "")
    assert text.startswith("T:0, T:3 read by two members and T:1 read by nobody, although")
    assert "read by two" not in found(member("alice"), read_by_none=Q[:1])[0][2]


def test_one_client_id_on_two_hosts_is_reported():
    ((kind, about, text),) = found(member("a@1"), member("a@1", "10.0.0.8", joined=50))
    assert (kind, about) == (Kind.DUPLICATE_CLIENT_IDS, "a@1")
    assert "from 10.0.0.7, 10.0.0.8" in text


def test_one_client_id_on_one_host_is_reported_only_when_both_keep_sending_heartbeats():
    """A client that has reconnected sends heartbeats only on its new connection."""
    assert found(member("a", joined=0, beat=100), member("a", joined=200, beat=200)) == []
    ((kind, _, text),) = found(member("a", joined=0, beat=300), member("a", joined=200, beat=200))
    assert kind is Kind.DUPLICATE_CLIENT_IDS
    assert "by 2 processes on 10.0.0.7" in text


def test_members_with_different_subscriptions_are_reported():
    ((kind, _, text),) = found(
        member("alice"), member("bob"), member("carol", subscriptions={"T": "a || b", "U": "*"})
    )
    assert kind is Kind.SUBSCRIPTIONS_DIFFER
    assert text.startswith("alice, bob subscribe to T *; carol subscribe to T a || b, U *: ")


def test_the_order_of_tags_does_not_matter():
    assert (
        found(member("alice", subscriptions={"T": "a || b"}), member("bob", subscriptions={"T": "b||a"}))
        == []
    )


def test_in_a_coordinated_group_different_tags_and_different_topics_are_reported():
    one = member("alice", subscriptions={"T": "a", "U": "*"})
    assert found(one, member("bob", subscriptions={"U": "*", "T": "a"}), is_coordinated=True) == []
    ((kind, _, text),) = found(one, member("bob", subscriptions={"T": "a"}), is_coordinated=True)
    assert kind is Kind.SUBSCRIPTIONS_DIFFER
    assert text.startswith("alice subscribe to T, U; bob subscribe to T: retries go through the broker")
    ((kind, _, text),) = found(one, member("bob", subscriptions={"T": "b"}), is_coordinated=True)
    assert kind is Kind.SUBSCRIPTIONS_DIFFER
    assert text.startswith("of T, alice wants 'a' and bob wants 'b': ")


def test_retry_topics_are_not_compared():
    """Java's client subscribes to %RETRY%group_topic only while it has queues."""
    assert found(member("alice"), member("bob", subscriptions={"T": "*", "%RETRY%G_T": "*"})) == []


def test_more_members_than_queues_are_reported():
    ((kind, _, text),) = found(member("alice"), member("bob"), member("carol"), queue_count=2)
    assert kind is Kind.IDLE_MEMBERS
    assert text.startswith("3 members share 2 queues, so 1 of them is idle")
    assert no_members(1).text.startswith("1 message waits, and")
    assert no_members(1_200).text.startswith("1,200 messages wait, and")
    assert found(member("alice"), member("bob"), queue_count=2) == []
    assert found(member("alice"), member("bob"), queue_count=None) == []


def test_topics_that_no_broker_has_are_reported():
    ((kind, _, text),) = found(member("alice"), queue_count=0, missing=["Ordres", "Bils"])
    assert kind is Kind.NO_TOPIC
    assert text.startswith(
        "members wait for topics that no broker has: Bils, Ordres; create them, or correct"
    )


def test_heartbeats_too_far_apart_are_reported():
    assert found(member("alice", heartbeat_gap_ms=HEARTBEAT_GAP_MS_MAX)) == []
    ((kind, about, text),) = found(member("alice", heartbeat_gap_ms=60_000))
    assert (kind, about) == (Kind.SLOW_HEARTBEATS, "alice")
    assert "every 60 s" in text


def test_a_sentence_names_a_limited_number():
    ((_, _, text),) = found(member("alice"), read_by_two=Q)
    assert f"and {len(Q) - NAMED_MAX} more read by two" in text


def test_each_diagnosis_begins_once_and_ends_once():
    diagnoses = Diagnoses()
    idle = diagnose(GroupSeen(connected=[member("alice"), member("bob")], queue_count=1))
    more = diagnose(GroupSeen(connected=[member("a"), member("b"), member("c")], queue_count=1))
    assert diagnoses.update(idle) == (idle, [])
    assert diagnoses.update(more) == ([], [])
    assert diagnoses.current == more
    assert diagnoses.update([]) == ([], more)
    assert diagnoses.update(idle) == (idle, [])
