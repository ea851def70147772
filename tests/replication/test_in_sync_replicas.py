"""A master with acting slaves stores nothing while too few of them are in sync, as Apache's."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from libramq.broker.config import BrokerConfig
from libramq.codes import RequestCode, ResponseCode
from libramq.errors import ConfigError, broker_error
from libramq.message.names import TRANS_HALF_TOPIC
from libramq.protocols.kafka.refusals import code_of
from libramq.remoting import headers as h
from libramq.store.log.append import NOT_ENOUGH_REPLICAS
from libramq.wire.kafka.error_code import ErrorCode
from tests.broker.brokers import Conversation
from tests.broker.test_pop import Popper, popped
from tests.fakes import FakePeer
from tests.replication.pairs import Pair
from tests.replication.slaves import Slave
from tests.replication.test_escaping import ROUND_MS, SECONDS, lose_master
from tests.replication.test_escaping_pops import texts

OPTIONS = {
    "broker_role": "SYNC_MASTER",
    "in_sync_replicas": 2,
    "ha_listen_port": 1,
    "enable_slave_acting_master": True,
}


def open_broker(root: Path, **options: object) -> Conversation:
    talk = Conversation(root, **(OPTIONS | options))
    talk.create_topic("T")
    return talk


@pytest.fixture
def talk(tmp_path: Path) -> Iterator[Conversation]:
    talk = open_broker(tmp_path)
    yield talk
    talk.close()


def follower(talk: Conversation, host: str = "127.0.0.1") -> Slave:
    """Connect a slave that has the whole log."""
    slave = Slave(talk, f"{host}:60000")
    slave.report(0)
    slave.report(talk.broker.store.end)
    return slave


def send(
    talk: Conversation, slave: Slave | None, text: str = "hello", *, topic: str = "T", **properties: str
) -> tuple[int, str]:
    """Send a message; return the answer, once the slave has it, if there is one."""
    peer = FakePeer()
    command = talk.command(
        RequestCode.SEND_MESSAGE_V2,
        h.SendMessageHeaderV2(
            topic=topic, producer_group="P", default_topic="TBW102", default_topic_queue_nums=4, queue_id=0,
            sys_flag=0, born_timestamp=1, flag=0,
            properties="".join(f"{name}\x01{value}\x02" for name, value in properties.items()),
        ),
        text.encode(),
    )  # fmt: skip
    talk.give(peer, command)
    if slave is not None:
        slave.follow()
    (reply,) = peer.replies
    return reply.code, reply.remark or ""


REFUSED = (ResponseCode.SYSTEM_ERROR, NOT_ENOUGH_REPLICAS)
SENT = (ResponseCode.SUCCESS, "")


def test_without_enough_slaves_nothing_is_stored(talk: Conversation) -> None:
    log_end = talk.broker.store.end
    assert send(talk, None) == REFUSED
    assert talk.broker.store.end == log_end
    slave = follower(talk)
    assert send(talk, slave) == SENT
    slave.hang_up()
    log_end = talk.broker.store.end
    assert send(talk, None) == REFUSED
    assert talk.broker.store.end == log_end


def test_a_master_may_require_as_many_as_there_are(tmp_path: Path) -> None:
    talk = open_broker(tmp_path, enable_auto_in_sync_replicas=True)
    try:
        assert send(talk, None) == SENT
        assert len(talk.messages("T")) == 1, "consumers see it"
        slave = follower(talk)
        assert send(talk, slave) == SENT
        slave.hang_up()
        assert send(talk, None) == SENT
    finally:
        talk.close()


def test_a_master_requires_the_minimum_all_the_same(tmp_path: Path) -> None:
    options = {"in_sync_replicas": 3, "min_in_sync_replicas": 2, "total_replicas": 3}
    talk = open_broker(tmp_path, enable_auto_in_sync_replicas=True, **options)
    try:
        assert send(talk, None) == REFUSED
        slave = follower(talk)
        assert send(talk, slave) == SENT
    finally:
        talk.close()


def test_a_master_without_acting_slaves_stores_what_too_few_slaves_have(tmp_path: Path) -> None:
    talk = open_broker(tmp_path, enable_slave_acting_master=False)
    try:
        assert send(talk, None)[0] == ResponseCode.SLAVE_NOT_AVAILABLE
        assert len(talk.messages("T")) == 1
    finally:
        talk.close()


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"min_in_sync_replicas": 3}, "minInSyncReplicas"),
        ({"in_sync_replicas": 3, "total_replicas": 2}, "totalReplicas"),
    ],
)
def test_numbers_that_contradict_each_other_are_refused(options: dict[str, int], name: str) -> None:
    with pytest.raises(ConfigError, match=name):
        BrokerConfig(**(OPTIONS | options))  # type: ignore[arg-type]


def test_what_the_broker_stores_itself_waits_for_slaves(talk: Conversation) -> None:
    slave = follower(talk)
    popper = Popper(talk)
    for text in ("one", "two"):
        assert send(talk, slave, text) == SENT
    command = popper.command()
    talk.give(popper.peer, command)
    slave.follow()
    (reply,) = popper.peer.replies
    handed_out = popped(reply)
    assert texts(handed_out) == ["one", "two"]
    assert send(talk, slave, "delayed", DELAY="1") == SENT
    assert send(talk, slave, "timer", TIMER_DELAY_SEC="3") == SENT
    half = FakePeer()
    properties = "TRAN_MSG\x01true\x02PGROUP\x01P\x02UNIQ_KEY\x01K\x02"
    talk.give(half, talk.command(RequestCode.SEND_MESSAGE_V2, _half_header(talk, properties), b"half"))
    slave.follow()
    slave.hang_up()
    log_end = talk.broker.store.end
    back = h.SendBackHeader(group="G", offset=handed_out[0].physical_offset, delay_level=0)
    sent_back = talk.ask(FakePeer(), RequestCode.CONSUMER_SEND_MSG_BACK, back)
    assert (sent_back.code, sent_back.remark) == REFUSED
    talk.advance(60 * SECONDS)
    assert talk.broker.store.end == log_end, "nothing is stored"
    slave = follower(talk)
    for _ in range(40):
        talk.advance(1 * SECONDS)
        slave.follow()
    assert sorted(message.body for message in talk.messages("T")) == [b"delayed", b"one", b"timer", b"two"]
    assert texts(talk.messages("%RETRY%G_T")) == ["one", "two"]
    assert len(talk.messages(TRANS_HALF_TOPIC)) > 1, "its producer is asked about a copy"


def _half_header(talk: Conversation, properties: str) -> h.SendMessageHeaderV2:
    return h.SendMessageHeaderV2(
        topic="T", producer_group="P", default_topic="TBW102", default_topic_queue_nums=4, queue_id=0,
        sys_flag=4, born_timestamp=int(talk.clock.wall_ms()), flag=0, properties=properties,
    )  # fmt: skip


def test_a_pop_that_is_refused_hands_out_nothing(talk: Conversation) -> None:
    slave = follower(talk)
    assert send(talk, slave, "one") == SENT
    slave.hang_up()
    popper = Popper(talk)
    for _ in range(3):
        command = popper.command()
        talk.give(popper.peer, command)
        refused = popper.peer.replies.pop()
        assert (refused.code, refused.remark, refused.body) == (*REFUSED, b"")
    slave = follower(talk)
    command = popper.command()
    talk.give(popper.peer, command)
    slave.follow()
    (message,) = popped(popper.peer.replies.pop())
    assert (message.body, message.reconsume_times) == (b"one", 0)


def test_what_was_due_while_nothing_was_stored_is_redelivered(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Name servers had lost the master, so it asks its slave what that has done before it redelivers."""
    acting = {"enable_slave_acting_master": True}
    pair = Pair(
        tmp_path, namesrv_addr="127.0.0.1:9876", broker_role="SYNC_MASTER", in_sync_replicas=2, **acting
    )
    try:
        pair.slave.close()
        pair.open_slave(**acting)
        pair.master.create_topic("T", queues=1)
        pair.master.broker.registration.begin(lambda: None)
        pair.run(ROUND_MS)
        pair.master.give(FakePeer(), _sent(pair.master))
        pair.run(100)
        popper = Popper(pair.master)
        pair.master.give(popper.peer, popper.command())
        pair.run(100)
        assert texts(popped(popper.peer.replies.pop())) == ["one"]
        pair.part()
        pair.slave.kill()
        pair.is_reachable, pair.leaves_master_alone = True, True
        pair.run(15 * SECONDS)
        assert len([each for each in caplog.messages if "unacknowledged messages wait" in each]) == 1
        pair.leaves_master_alone = False
        pair.run(11 * SECONDS)
        pair.open_slave(**acting)
        pair.run(2 * ROUND_MS)
        assert texts(pair.master.messages("%RETRY%G_T")) == ["one"]
    finally:
        pair.close()


def test_a_topic_that_is_deleted_while_nothing_is_stored_makes_no_other_wait(talk: Conversation) -> None:
    talk.create_topic("U")
    slave = follower(talk)
    assert send(talk, slave, "one") == SENT
    assert send(talk, slave, "two", topic="U") == SENT
    pop_with(talk, slave, "T", 60 * SECONDS)
    slave.hang_up()
    assert talk.ask(FakePeer(), RequestCode.DELETE_TOPIC_IN_BROKER, h.TopicHeader(topic="T")).code == 0
    talk.advance(1 * SECONDS)
    slave = follower(talk)
    pop_with(talk, slave, "U", 5 * SECONDS)
    for _ in range(10):
        talk.advance(1 * SECONDS)
        slave.follow()
    assert texts(talk.messages("%RETRY%G_U")) == ["two"]


@pytest.mark.parametrize("is_killed", [False, True])
def test_what_was_popped_of_a_topic_that_is_deleted_then_is_no_message_of_the_next_one(
    talk: Conversation, is_killed: bool
) -> None:
    slave = follower(talk)
    assert send(talk, slave, "one") == SENT
    pop_with(talk, slave, "T", 20 * SECONDS)
    slave.hang_up()
    assert talk.ask(FakePeer(), RequestCode.DELETE_TOPIC_IN_BROKER, h.TopicHeader(topic="T")).code == 0
    talk.create_topic("T")
    if is_killed:
        talk.kill()
        talk = Conversation(talk.broker.store.config.root, clock=talk.clock, **OPTIONS)
    slave = follower(talk)
    assert send(talk, slave, "new") == SENT
    for _ in range(60):
        talk.advance(1 * SECONDS)
        slave.follow()
    assert talk.messages("%RETRY%G_T") == []
    if is_killed:
        talk.close()


def pop_with(talk: Conversation, slave: Slave, topic: str, invisible_ms: int) -> None:
    """Pop a message, once the slave has that it was."""
    popper = Popper(talk, topic=topic)
    talk.give(popper.peer, popper.command(invisible_time=invisible_ms))
    slave.follow()
    assert len(popped(popper.peer.replies.pop())) == 1


def test_kafkas_producers_try_again() -> None:
    assert code_of(broker_error(*REFUSED)) is ErrorCode.NOT_ENOUGH_REPLICAS


def test_a_master_that_returns_waits_for_a_slave_to_note_what_was_acknowledged(tmp_path: Path) -> None:
    acting = {"enable_slave_acting_master": True}
    replicas = {"broker_role": "SYNC_MASTER", "in_sync_replicas": 2}
    pair = Pair(tmp_path, namesrv_addr="127.0.0.1:9876", **acting, **replicas)
    try:
        pair.slave.close()
        pair.open_slave(**acting, enable_remote_escape=True)
        pair.master.create_topic("T", queues=1)
        pair.run(ROUND_MS)
        pair.master.give(FakePeer(), _sent(pair.master))
        pair.run(100)
        popper = Popper(pair.master)
        pair.master.give(popper.peer, popper.command())
        pair.run(100)
        (message,) = popped(popper.peer.replies.pop())
        pair.run(ROUND_MS - 4 * SECONDS)
        lose_master(pair)
        pair.run(4 * SECONDS)
        assert Popper(pair.slave).ack(message).code == ResponseCode.SUCCESS
        pair.run(1 * SECONDS)
        pair.return_master()
        pair.run(60 * SECONDS)
        assert texts(pair.master.messages("%RETRY%G_T")) == []
    finally:
        pair.close()


def _sent(talk: Conversation) -> object:
    header = h.SendMessageHeaderV2(
        topic="T", producer_group="P", default_topic="TBW102", default_topic_queue_nums=4, queue_id=0,
        sys_flag=0, born_timestamp=1, flag=0, properties="",
    )  # fmt: skip
    return talk.command(RequestCode.SEND_MESSAGE_V2, header, b"one")
