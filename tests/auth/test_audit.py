"""The audit: immediate events, events collected over a second, and how it survives a flood."""

from libramq.auth.audit import (
    CHARACTERS_MAX,
    COLLECTED_MS,
    KINDS_A_SECOND,
    KINDS_MAX,
    LEFT_OUT_MAX,
    OTHERS,
    REFUSED_MAX,
    RESOURCES_MAX,
    SIGN_INS_MAX,
    SIGNED_IN_AGAIN_MS,
    Audit,
    AuditedAuthorizer,
    AuditEvent,
    Kind,
    decode_event,
    encode_event,
)
from libramq.auth.authorizer import require_permission
from libramq.auth.operation import Action, Locate, Manage, Send, topic
from libramq.clock import MonotonicMs
from libramq.errors import NoPermission
from libramq.kernel.connection import Principal
from tests.auth.guards import Guard
from tests.fakes import ManualClock

ADA = Principal("ada", "10.0.0.5")


class Audited:
    """An audit, and the times at which it wants to be written."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.due: list[MonotonicMs] = []
        self.audit = Audit("broker-a", self.clock, self.due.append)

    def after(self, ms: int) -> list[AuditEvent]:
        self.clock.advance(ms)
        return self.audit.take(self.clock.monotonic_ms())


def test_a_change_is_due_at_once_and_names_what_it_changed():
    audited = Audited()
    audited.audit.changed(Kind.DELETED, ADA, "DELETE_TOPIC_IN_BROKER", ["Topic:orders"])
    assert audited.due == [audited.clock.monotonic_ms()]
    (event,) = audited.after(0)
    assert (event.kind, event.user, event.host, event.request) == (
        "deleted", "ada", "10.0.0.5", "DELETE_TOPIC_IN_BROKER",
    )  # fmt: skip
    assert list(event.resources) == ["Topic:orders"]
    assert decode_event(encode_event(event)) == event
    assert audited.after(0) == []


def test_a_change_that_not_all_brokers_made_says_so():
    audited = Audited()
    audited.audit.changed(Kind.CREATED, ADA, "CreateTopics", ["Topic:orders"], "broker broker-b is away")
    assert [each.reason for each in audited.after(0)] == ["broker broker-b is away"]


def test_refusals_that_are_alike_are_one_event_a_second():
    audited = Audited()
    for _ in range(1_000):
        audited.audit.refused("eve", "10.0.0.6", "SEND_MESSAGE_V2", "User:eve is not found.")
    audited.audit.refused("ada", "10.0.0.5", "SEND_MESSAGE_V2", "no matched policies.")
    assert audited.after(COLLECTED_MS - 1) == []
    assert [(each.user, each.count) for each in audited.after(1)] == [("eve", 1_000), ("ada", 1)]
    audited.audit.refused("eve", "10.0.0.6", "SEND_MESSAGE_V2", "User:eve is not found.")
    assert [each.count for each in audited.after(COLLECTED_MS)] == [1]


def test_a_flood_of_different_refusals_is_bounded():
    audited = Audited()
    for number in range(10_000):
        audited.audit.refused(
            f"user-{number}", "10.0.0.6", "SEND_MESSAGE_V2", f"User:user-{number} is not found."
        )
    events = audited.after(COLLECTED_MS)
    assert len(events) == KINDS_MAX + 1
    assert (events[-1].reason, events[-1].count) == (OTHERS, 10_000 - KINDS_MAX)


def test_a_flood_that_lasts_writes_little_until_it_is_over():
    audited, written = Audited(), []
    for number in range(60):
        for user in range(2 * KINDS_MAX):
            audited.audit.refused(f"{number}-{user}" + "\x01" * 300, "10.0.0.6", "HEART_BEAT", "\x01" * 300)
        written.append(audited.after(COLLECTED_MS))
    assert [len(each) for each in written[:2]] == [KINDS_MAX + 1, KINDS_A_SECOND + 1]
    assert sum(map(len, written)) == KINDS_MAX + 1 + 59 * (KINDS_A_SECOND + 1)
    assert sum(each.count for of_second in written for each in of_second) == 60 * 2 * KINDS_MAX
    assert max(len(encode_event(each)) for each in written[0]) < 1_000
    audited.after(COLLECTED_MS * KINDS_MAX // KINDS_A_SECOND)
    for user in range(2 * KINDS_MAX):
        audited.audit.refused(f"{user}", "10.0.0.6", "HEART_BEAT", "later")
    assert len(audited.after(COLLECTED_MS)) == KINDS_MAX + 1


def test_a_flood_from_one_address_hides_nothing_that_others_are_refused():
    """All addresses shared one limit: a client that sent many names first kept others out of the audit."""
    audited = Audited()
    for number in range(60):
        for user in range(2_000):
            audited.audit.refused(f"{number}-{user}", "10.0.0.6", "HEART_BEAT", "User is not found.")
        audited.audit.refused("eve", "10.0.0.7", "GET_USER", "User:eve is not found.")
        audited.audit.refused("ada", "10.0.0.6", "AUTH_GET_USER", "no matched policies.", is_proven=True)
        events = audited.after(COLLECTED_MS)
        alone = [(each.user, each.host, each.count) for each in events if each.user in ("eve", "ada")]
        assert sorted(alone) == [("ada", "10.0.0.6", 1), ("eve", "10.0.0.7", 1)]
        left_out = [each for each in events if each.reason == OTHERS]
        assert [(each.host, each.user) for each in left_out] == [("10.0.0.6", None)]
        assert sum(each.count for each in events) == 2_002


def test_each_address_is_written_in_turn():
    """The audit writes five of a hundred refused addresses a second, and each one within twenty seconds."""
    audited = Audited()
    written: set[str] = set()
    for user in range(2 * KINDS_MAX):
        audited.audit.refused(f"{user}", "10.0.0.1", "HEART_BEAT", "to use the room up")
    audited.after(COLLECTED_MS)
    for _ in range(100 // KINDS_A_SECOND):
        for number in range(100):
            audited.audit.refused("eve", f"10.0.1.{number}", "HEART_BEAT", "User:eve is not found.")
        events = audited.after(COLLECTED_MS)
        written |= {each.host for each in events if each.reason != OTHERS}
        assert len(events) == KINDS_A_SECOND + LEFT_OUT_MAX + 1
        assert sum(each.count for each in events) == 100
    assert len(written) == 100


def test_a_network_of_ipv6_addresses_is_one_and_there_is_a_bound_on_all():
    audited = Audited()
    for number in range(500):
        audited.audit.refused("eve", f"[2001:db8::{number:x}]", "HEART_BEAT", "User:eve is not found.")
    for number in range(2 * REFUSED_MAX):
        audited.audit.refused("eve", f"10.{number >> 8}.{number & 255}.1", "HEART_BEAT", "not found.")
    events = audited.after(COLLECTED_MS)
    assert len(events) == KINDS_MAX + LEFT_OUT_MAX + 1
    assert sum(each.count for each in events) == 500 + 2 * REFUSED_MAX
    assert ("2001:db8::/64", 499) in {(each.host, each.count) for each in events}
    assert (events[-1].host, events[-1].reason) == ("", OTHERS)


def test_a_flood_of_refusals_hides_no_sign_in():
    """Otherwise the user of a stolen password could first cause a flood."""
    audited = Audited()
    for number in range(2 * KINDS_MAX):
        audited.audit.refused(f"user-{number}", "10.0.0.6", "SEND_MESSAGE_V2", "User is not found.")
    audited.audit.signed(ADA, "RocketMQ")
    signed = [each for each in audited.after(COLLECTED_MS) if each.kind is Kind.SIGNED_IN]
    assert [(each.user, each.count) for each in signed] == [("ada", 1)]


def test_many_clients_that_come_back_at_once_are_no_refusals():
    audited = Audited()
    for number in range(SIGN_INS_MAX + 5):
        audited.audit.signed(Principal(f"user-{number}", "10.0.0.5"), "RocketMQ")
    events = audited.after(COLLECTED_MS)
    assert {each.kind for each in events} == {Kind.SIGNED_IN}
    assert (len(events), events[-1].reason, events[-1].count) == (SIGN_INS_MAX + 1, OTHERS, 5)


def test_a_signed_request_is_a_sign_in_once_an_hour_for_each_address():
    audited = Audited()
    for _ in range(3):
        audited.audit.signed(ADA, "RocketMQ")
        audited.audit.signed(Principal("ada", "10.0.0.7"), "RocketMQ")
    signed_in = [(each.kind, each.host, each.count) for each in audited.after(COLLECTED_MS)]
    assert signed_in == [("signedIn", "10.0.0.5", 1), ("signedIn", "10.0.0.7", 1)]
    audited.audit.signed(ADA, "RocketMQ")
    assert audited.after(SIGNED_IN_AGAIN_MS) == []
    audited.audit.signed(ADA, "RocketMQ")
    assert len(audited.after(COLLECTED_MS)) == 1


def test_any_input_of_a_client_is_cut_and_can_be_encoded():
    audited = Audited()
    audited.audit.refused("e\ud800" * 5_000, "10.0.0.6", "HEART_BEAT", "\n\x00" * 5_000)
    audited.audit.changed(
        Kind.CREATED, ADA, "UPDATE_AND_CREATE_TOPIC_LIST", [f"Topic:{n}" for n in range(5_000)]
    )
    events = audited.after(COLLECTED_MS)
    assert [decode_event(encode_event(each)) for each in events] == events
    changed, refused = events
    assert (len(changed.resources), changed.resource_count) == (RESOURCES_MAX, 5_000)
    assert len(refused.user or "") <= 2 * CHARACTERS_MAX
    assert len(refused.reason or "") == CHARACTERS_MAX


def test_an_authorizer_records_refusals_but_no_look_ups_and_nothing_that_is_permitted():
    audited = Audited()
    denied = AuditedAuthorizer(Guard({"Topic:secret"}), audited.audit, "Kafka")
    for operation in (
        Send(ADA, "secret"),
        Locate(ADA, "secret"),
        Manage(ADA, Action.DELETE, (topic("secret"),)),
    ):
        try:
            require_permission(denied, operation)
        except NoPermission:
            continue
        raise AssertionError(operation)
    for action in (Action.CREATE, Action.UPDATE, Action.DELETE, Action.GET):
        require_permission(denied, Manage(ADA, action, (topic("orders"),)))
    assert audited.after(0) == []
    assert [(each.kind, each.reason) for each in audited.after(COLLECTED_MS)] == [
        ("refused", "ada may not Pub Topic:secret"),
        ("refused", "ada may not Delete Topic:secret"),
    ]
