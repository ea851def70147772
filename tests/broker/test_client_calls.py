"""Operators' requests that members answer: each is forwarded to the member, and the answer returned."""

import pytest

from libramq.codes import RequestCode as R
from libramq.codes import ResponseCode as C
from libramq.formats.document import decode_body, encode_body
from libramq.message.queue import MessageQueue
from libramq.message.record import decode_records
from libramq.remoting import headers as h
from libramq.remoting.body.administration import ConsumerStatus
from libramq.remoting.command import FLAG_RESPONSE, Command
from tests.broker.brokers import Conversation, answer, find_answer
from tests.fakes import FakePeer

INFO = h.RunningInfoHeader(consumer_group="G", client_id="one")


@pytest.fixture
def member(talk) -> FakePeer:
    member = FakePeer("10.0.0.8:4000")
    assert talk.beat(member, "one").code == C.SUCCESS
    member.replies.clear()
    return member


def passed_on(member: FakePeer) -> Command:
    """Remove the forwarded request from the member's replies and return it."""
    (request,) = [each for each in member.replies if not each.is_response]
    member.replies.remove(request)
    return request


def respond(talk: Conversation, member: FakePeer, request: Command, body: bytes = b"", code: int = 0) -> None:
    talk.give(member, Command(code=code, opaque=request.opaque, flag=FLAG_RESPONSE, body=body))


def test_a_members_running_info_is_passed_on_and_back(talk, peer, member):
    command = talk.command(R.GET_CONSUMER_RUNNING_INFO, INFO)
    command.ext |= {"AccessKey": "ak", "Signature": "s"}
    talk.give(peer, command)
    assert peer.replies == []
    request = passed_on(member)
    assert request.code == R.GET_CONSUMER_RUNNING_INFO
    assert request.ext == {"consumerGroup": "G", "clientId": "one", "jstackEnable": "false"}
    respond(talk, member, request, b'{"jstack":"x"}')
    assert answer(peer, command).body == b'{"jstack":"x"}'


def test_a_members_error_is_passed_back(talk, peer, member):
    command = talk.command(R.GET_CONSUMER_RUNNING_INFO, INFO)
    talk.give(peer, command)
    respond(talk, member, passed_on(member), code=C.SYSTEM_ERROR)
    assert answer(peer, command).code == C.SYSTEM_ERROR


def test_an_absent_member_is_not_online(talk, peer, member):
    for header in (
        h.RunningInfoHeader(consumer_group="G", client_id="two"),
        h.RunningInfoHeader(consumer_group="H", client_id="one"),
    ):
        reply = talk.ask(peer, R.GET_CONSUMER_RUNNING_INFO, header)
        assert (reply.code, reply.remark) == (
            C.SYSTEM_ERROR,
            f"The Consumer <{header.consumer_group}> <{header.client_id}> not online",
        )


def test_a_member_that_does_not_answer_is_reported_after_ten_seconds(talk, peer, member):
    command = talk.command(R.GET_CONSUMER_RUNNING_INFO, INFO)
    talk.give(peer, command)
    request = passed_on(member)
    talk.advance(9_999)
    assert find_answer(peer, command) is None
    talk.advance(1)
    assert answer(peer, command).code == C.CONSUME_MSG_TIMEOUT
    respond(talk, member, request)  # It is too late and matches no request.
    assert peer.replies == []


def test_a_member_that_leaves_is_reported_at_once(talk, peer, member):
    command = talk.command(R.GET_CONSUMER_RUNNING_INFO, INFO)
    talk.give(peer, command)
    member.is_open = False
    talk.performer.closed(member)
    reply = answer(peer, command)
    assert reply.code == C.SYSTEM_ERROR
    assert "its connection ended" in (reply.remark or "")


def test_an_operator_that_leaves_is_forgotten(talk, peer, member):
    talk.give(peer, talk.command(R.GET_CONSUMER_RUNNING_INFO, INFO))
    peer.is_open = False
    talk.performer.closed(peer)
    assert talk.broker.purgatory.statistics().parked == 0
    respond(talk, member, passed_on(member))
    assert peer.replies == []


def test_an_answer_of_another_connection_is_nobodys(talk, peer, member):
    command = talk.command(R.GET_CONSUMER_RUNNING_INFO, INFO)
    talk.give(peer, command)
    request = passed_on(member)
    respond(talk, FakePeer("10.0.0.9:1"), request)
    assert find_answer(peer, command) is None
    respond(talk, member, request)
    assert answer(peer, command).code == C.SUCCESS


def test_a_member_processes_a_stored_message(talk, peer, member):
    talk.create_topic("T")
    sent = talk.send(peer, body=b"again")
    header = h.ConsumeDirectlyHeader(consumer_group="G", client_id="one", msg_id=sent.ext["msgId"], topic="T")
    command = talk.command(R.CONSUME_MESSAGE_DIRECTLY, header)
    talk.give(peer, command)
    request = passed_on(member)
    assert request.ext["brokerName"] == talk.config.broker_name
    assert (request.ext["topicSysFlag"], request.ext["groupSysFlag"]) == ("0", "0")
    (message,) = decode_records(request.body)
    assert message.body == b"again"
    respond(talk, member, request, b'{"consumeResult":"CR_SUCCESS"}')
    assert answer(peer, command).body == b'{"consumeResult":"CR_SUCCESS"}'


@pytest.mark.parametrize(
    ("message_id", "remark"),
    [
        (None, "an offset id has 32 or 56 characters"),
        ("zz" * 16, "not hexadecimal"),
        ("00" * 8 + "7F" * 8, "can not find message by the id"),
        ("00" * 8 + "FF" * 8, "can not find message by the id"),
    ],
)
def test_a_message_that_is_not_there_is_not_processed(talk, peer, member, message_id, remark):
    header = h.ConsumeDirectlyHeader(consumer_group="G", client_id="one", msg_id=message_id)
    reply = talk.ask(peer, R.CONSUME_MESSAGE_DIRECTLY, header)
    assert reply.code == C.SYSTEM_ERROR
    assert remark in (reply.remark or "")
    assert member.replies == []


def test_the_offsets_of_all_members_are_collected(talk, peer, member):
    """One answers, one answers unreadably, one is silent: after 5 s the operator gets the partial result."""
    others = [FakePeer(f"10.0.0.9:{number}") for number in range(2)]
    for number, other in enumerate(others):
        talk.beat(other, f"other-{number}")
    for each in (member, *others):
        each.replies.clear()
    command = talk.command(
        R.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, h.ConsumerStatusHeader(group="G", topic="T")
    )
    talk.give(peer, command)
    queue = MessageQueue("T", "broker-a", 0)
    respond(talk, member, passed_on(member), encode_body(ConsumerStatus(message_queue_table={queue: 7})))
    respond(talk, others[0], passed_on(others[0]), b"{")
    talk.advance(4_999)
    assert find_answer(peer, command) is None
    talk.advance(1)
    reply = answer(peer, command)
    assert reply.code == C.SUCCESS
    assert decode_body(reply.body, ConsumerStatus).consumer_table == {"one": {queue: 7}}


def test_a_group_without_members_has_no_status(talk, peer):
    reply = talk.ask(
        peer, R.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, h.ConsumerStatusHeader(group="G", topic="T")
    )
    assert (reply.code, reply.remark) == (
        C.SYSTEM_ERROR,
        "No Any Consumer online in the consumer group: [G]",
    )


def test_probes_are_still_answered(talk, peer, member):
    """The probe of a silent member uses another range of numbers than requests that are passed on."""
    talk.advance(76_000)  # Until then it has been notified of its own arrival a few times.
    (probe,) = [each for each in member.replies if each.code == R.GET_CONSUMER_RUNNING_INFO]
    assert probe.opaque < 1 << 30
    respond(talk, member, probe)
    talk.advance(30_000)
    assert talk.broker.members.consumers.group("G") is not None
