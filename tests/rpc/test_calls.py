"""Calls: their requests, and how responses are read."""

import pytest

from libramq.codes import RequestCode as R
from libramq.codes import ResponseCode as C
from libramq.errors import BrokerError, RemoteError, RequestCodeNotSupported, SystemBusy, TopicNotExist
from libramq.formats.document import encode_body
from libramq.message.queue import MessageQueue
from libramq.remoting import headers as h
from libramq.remoting.body.cluster import KVTable, TopicList
from libramq.remoting.body.heartbeat import HeartbeatData
from libramq.remoting.command import Command
from libramq.rpc import admin_calls, broker_calls, name_server_calls
from libramq.rpc.request_table import REQUESTS
from tests.broker.brokers import Conversation
from tests.fakes import FakePeer

Q = MessageQueue("T", "broker-a", 1)


@pytest.fixture
def broker(tmp_path):
    """Return a function that makes calls to a real broker."""
    talk = Conversation(tmp_path)
    peer = FakePeer()

    def make(call):
        command = call.command()
        talk.opaque += 1
        command.opaque = talk.opaque
        talk.give(peer, command)
        return None if call.oneway else call.result(peer.replies.pop(), where="broker-a")

    yield make
    talk.close()


def send(broker, **fields: object):
    from tests.broker.brokers import send_header

    return broker(broker_calls.send_message(send_header(queue_id=1, **fields), b"hello"))


def test_the_broker_reads_every_client_call(broker):
    known = broker(broker_calls.heartbeat(HeartbeatData(client_id="c")))
    assert known == broker_calls.HeartbeatReply(version=479, coordinates=True)
    sent = send(broker, properties={"UNIQ_KEY": "K"})
    assert (sent.code, sent.queue_id, sent.queue_offset, sent.transaction_id) == (0, 1, 0, "K")
    pulled = broker(
        broker_calls.pull_message(
            h.PullMessageHeader(
                consumer_group="G",
                topic="T",
                queue_id=1,
                queue_offset=0,
                max_msg_nums=1,
                sys_flag=4,
                subscription="*",
            )
        )
    )
    assert (pulled.code, pulled.next_offset, pulled.min_offset, pulled.max_offset) == (0, 1, 0, 1)
    assert b"hello" in pulled.body
    assert (broker(broker_calls.min_offset(Q)), broker(broker_calls.max_offset(Q))) == (0, 1)
    assert broker(broker_calls.search_offset(Q, 0)) == 0
    assert broker(broker_calls.query_consumer_offset("G", Q)) is None
    assert broker(broker_calls.query_consumer_offset("G", Q, zero_if_not_found=True)) == 0
    broker(broker_calls.update_consumer_offset("G", Q, 1))
    broker(broker_calls.update_consumer_offset("G", Q, 1, oneway=True))
    assert broker(broker_calls.query_consumer_offset("G", Q)) == 1
    assert broker(broker_calls.lock_batch("G", "c", [Q])) == [Q]
    broker(broker_calls.unlock_batch("G", "c", [Q]))
    broker(broker_calls.unregister_client("c", producer_group=None, consumer_group="G"))
    with pytest.raises(BrokerError):
        broker(broker_calls.consumer_list("G"))
    broker(broker_calls.send_back(h.SendBackHeader(offset=0, group="G", delay_level=0)))


def test_the_broker_reads_every_admin_call(broker):
    from libramq.formats.tables import TopicConfig

    broker(admin_calls.create_topic(TopicConfig(topic_name="T", read_queue_nums=2, write_queue_nums=2)))
    send(broker)
    assert broker(admin_calls.topic_stats("T")).offset_table[Q].max_offset == 1
    assert broker(admin_calls.consume_stats("G", "T")).offset_table[Q].broker_offset == 1
    assert broker(admin_calls.RUNTIME_INFO)["brokerActive"] == "true"
    assert broker(admin_calls.topic_consumers("T")) == []
    with pytest.raises(BrokerError, match="not online"):
        broker(admin_calls.consumer_connection("G"))
    broker(admin_calls.delete_topic("T"))
    with pytest.raises(TopicNotExist, match="broker-a answered 17"):
        broker(admin_calls.topic_stats("T"))


def test_an_error_answer_raises_with_code_remark_and_address():
    call = broker_calls.max_offset(Q)
    with pytest.raises(SystemBusy, match="b:1 answered 2 SYSTEM_BUSY: flow control") as raised:
        call.result(Command(code=C.SYSTEM_BUSY, remark="flow control"), where="b:1")
    assert raised.value.response_code == 2


def test_a_request_that_the_broker_does_not_know_is_named():
    """Apache's brokers answer with the code's number alone."""
    answer = Command(code=C.REQUEST_CODE_NOT_SUPPORTED, remark="request type 30 not supported")
    with pytest.raises(RequestCodeNotSupported, match=r"b:1 answered GET_MAX_OFFSET with 3 .* type 30 not"):
        broker_calls.max_offset(Q).result(answer, where="b:1")


@pytest.mark.parametrize("code", [C.FLUSH_DISK_TIMEOUT, C.FLUSH_SLAVE_TIMEOUT, C.SLAVE_NOT_AVAILABLE])
def test_a_message_stored_less_safely_is_no_error(code):
    reply = Command(code=code, ext={"queueId": "1", "queueOffset": "2", "msgId": "A"})
    call = broker_calls.send_message(h.SendMessageHeaderV2(
        producer_group="P", topic="T", default_topic="D", default_topic_queue_nums=1, queue_id=1, sys_flag=0,
        born_timestamp=0, flag=0,
    ), b"")  # fmt: skip
    assert call.result(reply, where="") == (code, 1, 2, "A", "", "", "")


def test_a_call_makes_a_new_command_each_time():
    call = broker_calls.max_offset(Q)
    first, second = call.command(), call.command()
    assert first is not second
    assert REQUESTS[first.code].code == R.GET_MAX_OFFSET


def test_name_server_calls_read_their_answers():
    reply = Command(code=0, body=encode_body(TopicList(topic_list=["T"])))
    assert name_server_calls.all_topics().result(reply, where="") == ["T"]
    reply = Command(code=0, body=encode_body(KVTable(table={"a": "b"})))
    assert admin_calls.RUNTIME_INFO.result(reply, where="") == {"a": "b"}
    route = name_server_calls.topic_route("T")
    assert route.ext == {"topic": "T", "acceptStandardJsonOnly": "true"}
    with pytest.raises(TopicNotExist):
        route.result(Command(code=C.TOPIC_NOT_EXIST), where="ns:1")


@pytest.mark.parametrize("ext", [{}, {"offset": "many"}])
def test_an_unreadable_answer_is_a_remote_protocol_error(ext):
    """Admin used to raise the KeyError or ValueError of its own parser."""
    with pytest.raises(RemoteError, match="the answer of broker-a cannot be read"):
        broker_calls.max_offset(Q).result(Command(code=C.SUCCESS, ext=ext), where="broker-a")
