"""The registration: what a broker reports to name servers."""

from pathlib import Path

import pytest

from libramq.broker.cluster.registration import (
    ANNOUNCED_MS_MAX,
    HEARTBEAT_TIMEOUT_MS,
    PERIOD_MS_MIN,
    RETRY_MS,
    UNREGISTER_TIMEOUT_MS,
    introduction,
)
from libramq.broker.config import BrokerConfig
from libramq.codes import RequestCode as R
from libramq.codes import ResponseCode
from libramq.errors import ConnectFailed, broker_error
from libramq.formats.tables import DataVersion, TopicConfig
from libramq.kernel.effect import Thread
from libramq.remoting import headers as h
from libramq.remoting.command import Command
from libramq.rpc.question import Question
from libramq.rpc.request_table import BROKER_REQUESTS
from tests.broker.brokers import Conversation, find_answer, heartbeat, send_header
from tests.fakes import FakePeer
from tests.nameserver.test_processor import Server

ONE, TWO = "127.0.0.1:9876", "127.0.0.1:9877"


class Registering(Conversation):
    """A broker and its name servers, which a test plays."""

    def __init__(self, root: Path, **options: object) -> None:
        super().__init__(
            root, namesrv_addr=f"{ONE};{TWO}", register_name_server_period_ms=PERIOD_MS_MIN, **options
        )
        self.tried = 0
        self.broker.registration.begin(self._tried)
        self.encode()

    def _tried(self) -> None:
        self.tried += 1

    def encode(self) -> None:
        """Encode the registrations that are due now."""
        self.coordinate()
        self.threads.run_all(Thread.COMPUTE)

    def take(self, code: R, address: str) -> list[Question]:
        found = [each for each in self.performer.asked if each.call.code == code and each.address == address]
        self.performer.asked = [each for each in self.performer.asked if each not in found]
        return found

    def answer(self, address: str, outcome: object = None) -> None:
        (question,) = self.take(R.REGISTER_BROKER, address)
        question.answered(outcome)
        self.performer.follow()

    def answer_both(self) -> None:
        self.answer(ONE)
        self.answer(TWO)

    def begin_send(self, peer: FakePeer, topic: str) -> Command:
        """Send a message whose answer may have to wait."""
        command = self.command(R.SEND_MESSAGE_V2, send_header(topic), b"hello")
        self.give(peer, command)
        return command


@pytest.fixture
def talk(tmp_path):
    talk = Registering(tmp_path)
    yield talk
    talk.close()


def test_a_slaves_topics_count_at_a_name_server_that_has_never_seen_its_master(tmp_path: Path):
    """Otherwise one that restarted while the master is away would have no route to the slave."""
    config = BrokerConfig(
        broker_role="SLAVE", broker_id=1, namesrv_addr=ONE, store_path=str(tmp_path), broker_name="b"
    )
    topics = [TopicConfig(topic_name=name, read_queue_nums=4, write_queue_nums=4) for name in ("T", "U")]
    server = Server()
    sent = introduction(config, topics, DataVersion()).command()
    assert server.ask(sent.code, sent.ext, sent.body).code == ResponseCode.SUCCESS
    route = server.routes.route("T")
    assert route is not None
    assert route.broker_datas[0].broker_addrs == {1: config.address}


def test_a_broker_serves_the_rows_of_its_table(talk):
    assert {*talk.broker.processors.singly, *talk.broker.processors.in_batches} == BROKER_REQUESTS.keys()


def test_a_broker_sends_a_heartbeat_every_second_and_expires_after_ten(talk):
    """All name servers thus forget a broker that stands still, and its groups move to others."""
    (first,) = talk.take(R.REGISTER_BROKER, ONE)
    assert first.call.ext["heartbeatTimeoutMillis"] == str(HEARTBEAT_TIMEOUT_MS) == "10000"
    assert talk.take(R.BROKER_HEARTBEAT, ONE) == []
    first.answered(None)
    talk.performer.follow()
    for _ in range(2):
        talk.advance(1_000)
        (beat,) = talk.take(R.BROKER_HEARTBEAT, ONE)
        assert beat.call.ext == {
            "clusterName": "DefaultCluster", "brokerAddr": talk.config.address, "brokerName": "broker-a",
        }  # fmt: skip
    assert talk.take(R.BROKER_HEARTBEAT, TWO) == [], "it has not answered yet"


def test_a_name_server_that_knows_no_heartbeats_is_not_taken_for_silent(talk):
    """Apache's before 5.0 refuses them. Brokers registered twice, and a master held deliveries."""
    talk.answer(ONE)
    for _ in range(PERIOD_MS_MIN // 1_000):
        talk.advance(1_000)
        for beat in talk.take(R.BROKER_HEARTBEAT, ONE):
            beat.answered(broker_error(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, None, where=ONE))
    talk.encode()
    talk.answer(ONE)
    talk.advance(5)
    talk.encode()
    assert talk.take(R.REGISTER_BROKER, ONE) == []


def test_name_servers_are_registered_with_independently(talk):
    talk.answer(ONE)
    assert talk.tried == 0
    talk.answer(TWO, ConnectFailed("nobody there"))
    assert talk.tried == 1, "every one was tried"
    talk.advance(RETRY_MS)
    assert len(talk.take(R.REGISTER_BROKER, TWO)) == 1
    assert talk.take(R.REGISTER_BROKER, ONE) == []
    talk.advance(PERIOD_MS_MIN)
    assert len(talk.take(R.REGISTER_BROKER, ONE)) == 1


def test_a_change_is_registered_at_once_and_many_changes_together(talk):
    talk.answer_both()
    for number in range(3):
        talk.begin_send(FakePeer(), f"T{number}")
    talk.advance(5)
    talk.encode()
    (question,) = talk.take(R.REGISTER_BROKER, ONE)
    assert b"T2" in question.call.body or question.call.ext["compressed"] == "true"


def test_the_first_heartbeat_of_a_group_is_answered_once_all_name_servers_know_its_retry_topic(talk):
    """Tools find the group by that topic; later heartbeats and other members' are answered at once."""
    talk.answer_both()
    peer = FakePeer()
    command = talk.command(R.HEART_BEAT, {}, heartbeat("alice", "G"))
    talk.give(peer, command)
    talk.advance(5)
    talk.encode()
    talk.answer(ONE)
    assert find_answer(peer, command) is None
    talk.answer(TWO)
    assert find_answer(peer, command) is not None
    assert talk.beat(peer, "alice").code == ResponseCode.SUCCESS
    assert talk.beat(FakePeer("10.0.0.2:2"), "bob").code == ResponseCode.SUCCESS
    assert talk.take(R.REGISTER_BROKER, ONE) == []


def test_a_lost_connection_causes_a_new_registration(talk):
    talk.answer_both()
    talk.performer.lost(ONE)
    talk.advance(5)
    talk.encode()
    assert len(talk.take(R.REGISTER_BROKER, ONE)) == 1
    assert talk.take(R.REGISTER_BROKER, TWO) == []


def test_creating_a_topic_is_answered_once_all_name_servers_know_it(talk):
    peer = FakePeer()
    talk.answer_both()
    command = talk.command(R.UPDATE_AND_CREATE_TOPIC, create("T"))
    talk.give(peer, command)
    talk.advance(5)
    talk.encode()
    assert find_answer(peer, command) is None
    talk.answer(ONE)
    assert find_answer(peer, command) is None
    talk.answer(TWO)
    assert find_answer(peer, command) is not None


def test_a_topic_that_is_created_once_more_is_registered_again(talk):
    """A send had made it again while it was deleted, and name servers had forgotten it afterwards.

    Clients could not see the topic at this broker for half a minute, and its messages were not consumed.
    """
    peer = FakePeer()
    talk.answer_both()
    versions = []
    for _ in range(2):
        command = talk.command(R.UPDATE_AND_CREATE_TOPIC, create("T"))
        talk.give(peer, command)
        talk.advance(5)
        talk.encode()
        assert find_answer(peer, command) is None
        talk.answer_both()
        assert find_answer(peer, command) is not None
        versions.append(talk.broker.topics.data_version)
    assert versions[0] != versions[1]


def test_a_registration_under_way_does_not_cover_later_changes(talk):
    peer = FakePeer()
    command = talk.command(R.UPDATE_AND_CREATE_TOPIC, create("T"))
    talk.give(peer, command)
    talk.answer_both()
    assert find_answer(peer, command) is None
    talk.advance(5)
    talk.encode()
    talk.answer_both()
    assert find_answer(peer, command) is not None


def test_deleting_a_topic_is_answered_once_no_registration_under_way_has_it(talk):
    """Tools then delete it at name servers, which do not drop topics missing from later registrations."""
    peer = FakePeer()
    talk.broker.topics.put(TopicConfig(topic_name="T"), talk.clock.wall_ms())
    talk.answer_both()
    talk.advance(5)
    talk.encode()  # It has the topic.
    command = talk.command(R.DELETE_TOPIC_IN_BROKER, h.TopicHeader(topic="T"))
    talk.give(peer, command)
    talk.answer_both()
    assert find_answer(peer, command) is None
    talk.advance(5)
    talk.encode()
    talk.answer_both()
    assert find_answer(peer, command).code == ResponseCode.SUCCESS


def test_hanging_name_servers_are_not_awaited_for_long(talk):
    peer = FakePeer()
    command = talk.command(R.UPDATE_AND_CREATE_TOPIC, create("T"))
    talk.give(peer, command)
    talk.advance(ANNOUNCED_MS_MAX - 1)
    assert find_answer(peer, command) is None
    talk.advance(1)
    assert find_answer(peer, command) is not None


def test_a_send_that_creates_a_topic_is_answered_once_all_name_servers_know_it(talk, peer):
    """The producer may look the topic up at once, or have a consumer do so."""
    talk.answer_both()
    creates, follows = talk.begin_send(peer, "T"), talk.begin_send(peer, "T")
    assert find_answer(peer, follows) is not None, "only who created it waits"
    talk.advance(5)
    talk.encode()
    talk.answer(ONE)
    assert find_answer(peer, creates) is None
    talk.answer(TWO)
    reply = find_answer(peer, creates)
    assert reply is not None
    assert (reply.code, reply.ext["queueOffset"]) == (ResponseCode.SUCCESS, "0")


def test_a_send_that_creates_a_topic_under_sync_flush_waits_for_the_disk_and_for_the_name_servers(
    tmp_path, peer
):
    talk = Registering(tmp_path, flush_disk_type="SYNC_FLUSH")
    talk.answer_both()
    disk_first, names_first = talk.begin_send(peer, "T"), None
    talk.flush()
    assert find_answer(peer, disk_first) is None
    talk.advance(5)
    talk.encode()
    names_first = talk.begin_send(peer, "U")
    talk.answer_both()
    assert find_answer(peer, disk_first) is not None
    talk.advance(5)
    talk.encode()
    talk.answer_both()
    assert find_answer(peer, names_first) is None
    talk.flush()
    assert find_answer(peer, names_first) is not None, "the name servers know it already"
    talk.close()


def test_hanging_name_servers_delay_only_one_creation(talk, peer):
    talk.answer_both()
    first = talk.begin_send(peer, "T1")
    talk.advance(5)
    talk.encode()
    talk.answer(ONE)
    talk.advance(ANNOUNCED_MS_MAX)
    assert find_answer(peer, first) is not None
    second = talk.begin_send(peer, "T2")
    assert find_answer(peer, second) is None, "one name server answers, and does not know it yet"
    talk.advance(5)
    talk.encode()
    talk.answer(ONE)
    assert find_answer(peer, second) is not None, "the other one is not waited for"
    talk.answer(TWO)
    third = talk.begin_send(peer, "T3")
    talk.advance(5)
    talk.encode()
    talk.answer(ONE)
    assert find_answer(peer, third) is None, "it answers again"


def test_unreachable_name_servers_delay_no_creation(talk, peer):
    talk.answer(ONE, ConnectFailed("nobody there"))
    talk.answer(TWO, ConnectFailed("nobody there"))
    assert find_answer(peer, talk.begin_send(peer, "T")) is not None


def test_a_stopping_broker_unregisters_and_waits_for_the_answers(talk):
    left: list[bool] = []
    talk.answer(ONE)
    talk.answer(TWO, ConnectFailed("nobody there"))
    talk.broker.leave(lambda: left.append(True))
    talk.performer.follow()
    (goodbye,) = talk.take(R.UNREGISTER_BROKER, ONE)
    assert goodbye.timeout_ms == UNREGISTER_TIMEOUT_MS
    assert talk.take(R.UNREGISTER_BROKER, TWO) == []
    assert left == []
    goodbye.answered(None)
    assert left == [True]
    talk.advance(PERIOD_MS_MIN)
    assert talk.take(R.REGISTER_BROKER, ONE) == talk.take(R.BROKER_HEARTBEAT, ONE) == []


def create(topic: str) -> dict[str, str]:
    return {
        "topic": topic, "defaultTopic": "TBW102", "readQueueNums": "1", "writeQueueNums": "1", "perm": "6",
        "topicFilterType": "SINGLE_TAG",
    }  # fmt: skip


def test_a_registration_that_was_being_encoded_when_the_broker_left_is_not_sent(talk):
    """Name servers would consider the broker alive again, after its goodbye."""
    talk.answer_both()
    talk.begin_send(FakePeer(), "late")
    talk.advance(5)
    assert talk.threads.work
    talk.broker.leave(lambda: None)
    talk.performer.follow()
    talk.threads.run_all(Thread.COMPUTE)
    assert talk.take(R.UNREGISTER_BROKER, ONE)
    assert talk.take(R.REGISTER_BROKER, ONE) == []


def test_the_first_member_of_a_group_waits_although_a_topic_is_deleted_meanwhile(talk):
    """The number of topics was compared: it is the same then, and tools did not find the group at once."""
    talk.broker.topics.put(TopicConfig(topic_name="Old"), talk.clock.wall_ms())
    for address in (ONE, TWO):
        talk.answer(address)
    talk.advance(5)
    talk.encode()
    for address in (ONE, TWO):
        talk.answer(address)
    peer = FakePeer()
    find = talk.broker.groups.find

    def deleted_meanwhile(*arguments):
        talk.broker.topics.delete("Old", talk.clock.wall_ms())
        return find(*arguments)

    talk.broker.groups.find = deleted_meanwhile
    command = talk.command(R.HEART_BEAT, None, heartbeat("alice", "G"))
    talk.give(peer, command)
    assert find_answer(peer, command) is None
    talk.encode()
    for address in (ONE, TWO):
        talk.answer(address)
    assert find_answer(peer, command).code == ResponseCode.SUCCESS
