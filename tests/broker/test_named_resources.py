"""Attempts to reach forbidden resources: by names in properties, batches and headers, or by offsets."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from libramq.codes import RequestCode as R
from libramq.codes import ResponseCode as C
from libramq.message.batch import encode_batch_item
from libramq.message.message import Message
from libramq.message.properties import KAFKA_PRODUCER
from libramq.remoting import headers as h
from libramq.remoting.body.consumers import LockBatchBody, QueueRef
from libramq.remoting.body.heartbeat import HeartbeatData, ProducerData
from libramq.remoting.command import Command
from libramq.remoting.credentials import Credentials, sign
from tests.broker.brokers import send_header
from tests.broker.test_users import ALICE, ROOT, Secured
from tests.fakes import FakePeer

EVE = Credentials("eve", "wonder")
DISPATCH = "INNER_MULTI_DISPATCH"


@pytest.fixture
def secured(tmp_path: Path) -> Iterator[Secured]:
    """Alice may do everything with T, the group G and the light queue %LMQ%mine."""
    made = Secured(
        tmp_path,
        enable_lmq=True,
        enable_multi_dispatch=True,
        transaction_timeout_ms=1_000,
        transaction_check_interval_ms=1_000,
    )
    made.make("alice")
    made.make("eve")
    made.allow("Topic:T", "Group:G", "Topic:%LMQ%mine")
    yield made
    made.close()


def refusal(reply: Command) -> str:
    assert reply.code == C.NO_PERMISSION
    return reply.remark.partition(" to access ")[2].partition(" from ")[0]


def batch(*messages: Message) -> bytes:
    return b"".join(
        encode_batch_item(0, each.body, text(*each.properties.items()).encode()) for each in messages
    )


def text(*pairs: tuple[str, str]) -> str:
    return "".join(f"{name}\x01{value}\x02" for name, value in pairs)


class TestLightQueues:
    def test_each_that_the_properties_name_must_be_allowed(self, secured: Secured):
        allowed = secured.sends(ALICE, properties={DISPATCH: "%LMQ%mine"})
        assert allowed.code == C.SUCCESS
        for value in ("%LMQ%other", "%LMQ%mine,%LMQ%other", "%LMQ%other,%LMQ%mine"):
            assert refusal(secured.sends(ALICE, properties={DISPATCH: value})) == "Topic:%LMQ%other"

    @pytest.mark.parametrize("order", [1, -1])
    def test_a_property_that_is_there_twice_counts_twice(self, secured: Secured, order: int):
        pairs = [(DISPATCH, "%LMQ%mine"), (DISPATCH, "%LMQ%other")][::order]
        header = send_header("T")
        header.properties = text(*pairs)
        assert refusal(secured.signed(ALICE, R.SEND_MESSAGE_V2, header, b"x")) == "Topic:%LMQ%other"

    @pytest.mark.parametrize("code", [R.SEND_BATCH_MESSAGE, R.SEND_MESSAGE_V2])
    def test_those_of_a_batchs_messages_count(self, secured: Secured, code: R):
        messages = [Message("T", b"one"), Message("T", b"two", properties={DISPATCH: "%LMQ%other"})]
        header = send_header("T", batch=True)
        assert refusal(secured.signed(ALICE, code, header, batch(*messages))) == "Topic:%LMQ%other"
        plain = [Message("T", b"one"), Message("T", b"two")]
        assert secured.signed(ALICE, code, header, batch(*plain)).code == C.SUCCESS


class TestMarksOfKafka:
    """A forged mark would make a Kafka producer's next batch look like a duplicate."""

    def test_a_message_loses_it(self, secured: Secured):
        secured.sends(ALICE, properties={KAFKA_PRODUCER: "1,2,3", "a": "b"})
        (message,) = secured.messages("T")
        assert KAFKA_PRODUCER not in message.properties
        assert message.properties["a"] == "b"

    def test_a_batchs_messages_lose_it(self, secured: Secured):
        messages = [Message("T", b"%d" % n, properties={KAFKA_PRODUCER: "1,2,3", "a": "b"}) for n in range(3)]
        header = send_header("T", batch=True)
        assert secured.signed(ALICE, R.SEND_BATCH_MESSAGE, header, batch(*messages)).code == C.SUCCESS
        stored = secured.messages("T")
        assert [message.properties["a"] for message in stored] == ["b"] * 3
        assert not any(KAFKA_PRODUCER in message.properties for message in stored)


class TestTransactions:
    def beat(self, secured: Secured, who: Credentials) -> FakePeer:
        """Join the producers of P as a user, which anyone may do."""
        peer = FakePeer()
        data = HeartbeatData(client_id=who.access_key, producer_data_set=[ProducerData(group_name="P")])
        command = secured.command(R.HEART_BEAT, None, data)
        secured.give(peer, sign(command, who))
        assert peer.replies.pop().code == C.SUCCESS
        return peer

    def half(self, secured: Secured) -> dict[str, Any]:
        named = {"TRAN_MSG": "true", "PGROUP": "P", "UNIQ_KEY": "k"}
        reply = secured.sends(
            ALICE, properties=named, sys_flag=4, born_timestamp=int(secured.clock.wall_ms())
        )
        assert reply.code == C.SUCCESS
        return {
            "tran_state_table_offset": int(reply.ext["queueOffset"]),
            "commit_log_offset": int(reply.ext["msgId"][16:], 16),
        }

    def test_a_half_message_is_shown_to_producers_that_may_send_it_alone(self, secured: Secured):
        eve, alice = self.beat(secured, EVE), self.beat(secured, ALICE)
        self.half(secured)
        secured.advance(6_000)
        assert eve.replies == []
        assert {each.code for each in alice.replies} == {R.CHECK_TRANSACTION_STATE}

    @pytest.mark.parametrize("claim", [None, "", "E", "RMQ_SYS_TRANS_HALF_TOPIC"])
    def test_another_users_transaction_cannot_be_ended(self, secured: Secured, claim: str | None):
        body = b'{"policies":[{"entries":[{"resource":"Topic:E","actions":["All"],"decision":"Allow"}]}]}'
        assert secured.signed(ROOT, R.AUTH_CREATE_ACL, h.SubjectHeader(subject="User:eve"), body).code == 0
        place = self.half(secured)
        header = h.EndTransactionHeader(producer_group="P", commit_or_rollback=8, topic=claim, **place)
        assert refusal(secured.signed(EVE, R.END_TRANSACTION, header)) == "Topic:T"
        header.topic = "T"
        assert secured.signed(ALICE, R.END_TRANSACTION, header).code == C.SUCCESS


class TestNames:
    @pytest.mark.parametrize(
        ("topic", "resource"),
        [
            ("%RETRY%H", "Group:H"),
            ("%RETRY%H+T", "Group:H"),
            ("%RETRY%G_U", "Group:G_U"),
            ("%DLQ%G", "Topic:%DLQ%G"),
            ("%LMQ%other", "Topic:%LMQ%other"),
            ("SCHEDULE_TOPIC_XXXX", "Topic:SCHEDULE_TOPIC_XXXX"),
            ("RMQ_SYS_TRANS_HALF_TOPIC", "Topic:RMQ_SYS_TRANS_HALF_TOPIC"),
            ("rmq_sys_wheel_timer", "Topic:rmq_sys_wheel_timer"),
            ("*", "Topic:*"),
            ("TT", "Topic:TT"),
        ],
    )
    @pytest.mark.parametrize("code", [R.PULL_MESSAGE, R.LITE_PULL_MESSAGE, R.SEND_MESSAGE_V2])
    def test_a_topic_of_others_is_refused_by_its_own_name(
        self, secured: Secured, code: R, topic: str, resource: str
    ):
        header: h.Header = send_header(topic)
        if code != R.SEND_MESSAGE_V2:
            header = h.PullMessageHeader(
                consumer_group="G", topic=topic, queue_id=0, queue_offset=0, max_msg_nums=1, sys_flag=4,
                subscription="*",
            )  # fmt: skip
        body = b"x" if code == R.SEND_MESSAGE_V2 else b""
        assert refusal(secured.signed(ALICE, code, header, body)) == resource

    def test_a_retry_topic_is_its_groups(self, secured: Secured):
        header = h.PullMessageHeader(
            consumer_group="G", topic="%RETRY%G", queue_id=0, queue_offset=0, max_msg_nums=1, sys_flag=0
        )
        assert secured.signed(ALICE, R.PULL_MESSAGE, header).code != C.NO_PERMISSION

    def test_one_name_among_many_is_enough_for_a_refusal(self, secured: Secured):
        queues = [QueueRef(topic=topic, broker_name="broker-a", queue_id=0) for topic in ("T", "U")]
        body = LockBatchBody(consumer_group="G", client_id="c", mq_set=queues)
        assert refusal(secured.signed(ALICE, R.LOCK_BATCH_MQ, None, body)) == "Topic:U"

    @pytest.mark.parametrize("claim", [None, "", "T"])
    def test_a_message_by_its_offset_is_of_its_own_topic(self, secured: Secured, claim: str | None):
        offset = int(secured.sends(ROOT, "U").ext["msgId"][16:], 16)
        header = h.ViewMessageHeader(offset=offset, topic=claim)
        assert refusal(secured.signed(ALICE, R.VIEW_MESSAGE_BY_ID, header)) == "Topic:U"
        back = h.SendBackHeader(offset=offset, group="G", delay_level=0, origin_topic=claim)
        assert refusal(secured.signed(ALICE, R.CONSUMER_SEND_MSG_BACK, back)) == "Topic:U"

    def test_a_check_is_resumed_by_those_who_may_change_the_cluster(self, secured: Secured):
        header = h.ResumeCheckHeader(topic="T", msg_id="0" * 32)
        assert refusal(secured.signed(ALICE, R.RESUME_CHECK_HALF_MESSAGE, header)) == "Cluster:DefaultCluster"
