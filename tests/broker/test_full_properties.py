"""Messages whose properties fill all available room, or have odd values.

The broker's additions must not lose them, and they must not block later messages.
"""

from collections.abc import Mapping

import pytest

from libramq.broker.transactions.half import COPY_PROPERTIES_BYTES
from libramq.codes import RequestCode as R
from libramq.codes import ResponseCode as C
from libramq.message.names import TIMER_TOPIC, TRANS_CHECK_MAX_TIME_TOPIC, TRANS_HALF_TOPIC
from libramq.message.properties import PROPERTIES_BYTES_MAX, encode_properties
from libramq.remoting import headers as h
from libramq.remoting.command import Command
from libramq.store.log.append import StoreMessage
from tests.broker.brokers import Conversation
from tests.broker.test_pop import Popper
from tests.broker.test_transactions import INTERVAL_MS, checks, end, place_of, prepare
from tests.broker.test_transactions import bodies as committed_bodies
from tests.fakes import FakePeer

NOW_MS = 1_700_000_000_000


def send_full(
    talk: Conversation,
    peer: FakePeer,
    stored_in: str,
    properties: Mapping[str, str],
    *,
    bytes_max: int = PROPERTIES_BYTES_MAX,
    **fields: object,
) -> Command:
    """Send a message with as many bytes of properties as are allowed where it is stored first."""

    def send(filler: int) -> Command:
        named = {**properties, "FILL": "x" * filler}
        return talk.send(peer, body=b"full", properties=named, **fields)

    assert send(1).code == C.SUCCESS
    room = bytes_max - len(encode_properties(talk.messages(stored_in)[-1].properties))
    assert send(2 + room).code == C.MESSAGE_ILLEGAL
    sent = send(1 + room)
    assert sent.code == C.SUCCESS, sent.remark
    return sent


def test_a_full_timer_message_that_is_stored_again_for_later_is_delivered(tmp_path, peer):
    talk = Conversation(tmp_path, timer_roll_window_slot=10)
    send_full(talk, peer, TIMER_TOPIC, {"TIMER_DELIVER_MS": str(NOW_MS + 25_000)})
    talk.advance(26_000)
    assert [message.body for message in talk.messages("T")] == [b"full", b"full"]
    talk.close()


@pytest.mark.parametrize("times", ["9" * 5_000, "-1", "x"])
def test_a_number_that_only_the_broker_counts_does_not_stop_the_timers(tmp_path, peer, times):
    talk = Conversation(tmp_path, timer_roll_window_slot=10)
    for properties in ({"TIMER_ROLL_TIMES": times}, {}):
        named = {"TIMER_DELIVER_MS": str(NOW_MS + 25_000), **properties}
        assert talk.send(peer, properties=named).code == C.SUCCESS
    talk.advance(26_000)
    assert len(talk.messages("T")) == 2
    talk.close()


@pytest.fixture
def producer(talk):
    peer = FakePeer("10.0.0.7:1")
    talk.beat_producer(peer, "producer")
    return peer


HALF = {"TRAN_MSG": "true", "PGROUP": "P"}


def prepare_full(talk, peer, **properties):
    reply = send_full(
        talk,
        peer,
        TRANS_HALF_TOPIC,
        HALF | properties,
        bytes_max=PROPERTIES_BYTES_MAX - COPY_PROPERTIES_BYTES,
        born_timestamp=NOW_MS,
        queue_id=2,
        sys_flag=4,
    )
    return {
        "tran_state_table_offset": int(reply.ext["queueOffset"]),
        "commit_log_offset": int(reply.ext["msgId"][16:], 16),
    }


def test_a_full_half_message_does_not_stop_the_checks_and_can_be_committed(talk, peer, producer):
    prepare_full(talk, peer)
    prepare(talk, peer, b"behind")
    talk.advance(INTERVAL_MS + 1_000)
    asked = checks(producer)
    assert [message.body for _, message in asked] == [b"full", b"full", b"behind"]
    for ext, _ in asked:
        assert end(talk, producer, place_of(ext)).code == C.SUCCESS
    assert committed_bodies(talk) == [b"full", b"full", b"behind"]
    talk.advance(5 * INTERVAL_MS)
    assert checks(producer) == []


def test_a_full_half_message_is_discarded_as_any_other(tmp_path, peer):
    talk = Conversation(tmp_path, transaction_check_max=2)
    prepare_full(talk, peer)
    talk.advance(6 * INTERVAL_MS)
    assert [message.body for message in talk.messages(TRANS_CHECK_MAX_TIME_TOPIC)] == [b"full", b"full"]
    talk.close()


@pytest.mark.parametrize("delay", [{"TIMER_DELAY_MS": "5000"}, {"DELAY": "1"}])
def test_a_full_half_message_with_a_delay_is_delivered_after_its_commit(talk, peer, delay):
    place = prepare_full(talk, peer, **delay)
    reply = end(talk, peer, place)
    assert reply.code == C.SUCCESS, reply.remark
    talk.advance(7_000)
    assert committed_bodies(talk) == [b"full"]


def test_a_half_message_without_room_for_its_copies_is_checked_once(talk, peer, producer):
    """Apache's broker accepts such messages, and a store may come from one."""
    prepare(talk, peer, b"x")
    (first,) = talk.messages(TRANS_HALF_TOPIC)
    text = encode_properties(first.properties | {"FILL": "x"})
    full = text.replace(b"FILL\x01x", b"FILL\x01" + b"x" * (PROPERTIES_BYTES_MAX - len(text) + 1))
    results = talk.broker.store.append_batch(
        [StoreMessage(TRANS_HALF_TOPIC, 0, b"full", full, born_timestamp_ms=NOW_MS)]
    )
    assert results[0].is_ok
    prepare(talk, peer, b"behind")
    talk.advance(INTERVAL_MS + 1_000)
    asked = {message.body: ext for ext, message in checks(producer)}
    assert list(asked) == [b"x", b"full", b"behind"]
    assert end(talk, producer, place_of(asked[b"full"])).code == C.SUCCESS
    assert committed_bodies(talk) == [b"full"]
    assert [message.body for message in talk.messages(TRANS_CHECK_MAX_TIME_TOPIC)] == [b"full"]
    talk.advance(INTERVAL_MS)
    assert [message.body for _, message in checks(producer)] == [b"x", b"behind"]


def test_a_full_message_that_is_popped_again_fits_and_has_its_handle(talk, peer):
    """Java's clients read the length of the properties as a signed number of 16 bits."""
    talk.create_topic("T", 1)
    send_full(talk, peer, "T", {})
    popper = Popper(talk)
    popper.pop()
    for _ in range(2):
        talk.advance(10_000)
        taken = popper.pop()
        assert [message.body for message in taken] == [b"full", b"full"]
        assert max(len(encode_properties(message.properties)) for message in taken) <= PROPERTIES_BYTES_MAX
    for message in taken:
        assert popper.ack(message).code == C.SUCCESS
    talk.advance(20_000)
    assert popper.pop() == []


def test_a_smaller_max_message_size_loses_nothing_that_waits(tmp_path, peer):
    """The limit is for producers: accepted messages are still delivered, committed, popped and sent back."""
    talk = Conversation(tmp_path)
    talk.create_topic("Popped", 1)
    large = b"x" * 5_000
    assert talk.send(peer, body=large, properties={"TIMER_DELIVER_MS": str(NOW_MS + 5_000)}).code == C.SUCCESS
    assert talk.send(peer, body=large, properties={"DELAY": "2"}).code == C.SUCCESS
    place = prepare(talk, peer, large)
    assert talk.send(peer, "Popped", body=large).code == C.SUCCESS
    assert len(Popper(talk, topic="Popped").pop()) == 1
    talk.close()
    again = Conversation(tmp_path, clock=talk.clock, max_message_size=1_000)
    assert again.send(peer, body=large).code == C.MESSAGE_ILLEGAL
    again.advance(11_000)
    assert [message.body for message in again.messages("T")] == [large, large]
    assert end(again, peer, place).code == C.SUCCESS
    assert committed_bodies(again) == [large]
    (retried,) = Popper(again, topic="Popped").pop()
    assert retried.body == large
    header = h.SendBackHeader(
        offset=again.messages("T")[0].physical_offset, group="G", delay_level=1, origin_msg_id=""
    )
    assert again.ask(peer, R.CONSUMER_SEND_MSG_BACK, header).code == C.SUCCESS
    again.close()
