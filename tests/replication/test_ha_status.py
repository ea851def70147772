"""GET_BROKER_HA_STATUS and the tables that slaves copy."""

from pathlib import Path

import pytest

from libramq.codes import RequestCode as R
from libramq.codes import ResponseCode as C
from libramq.formats import fastjson
from libramq.formats.document import decode_body
from libramq.remoting import headers as h
from libramq.remoting.body.administration import HAStatus, SlaveStatus
from tests.broker.brokers import Conversation
from tests.fakes import FakePeer
from tests.replication.slaves import Slave


@pytest.fixture
def talk(tmp_path: Path):
    talk = Conversation(tmp_path, ha_listen_port=1)
    talk.create_topic("T")
    yield talk
    talk.close()


def test_a_slave_is_shown_with_what_it_lacks(talk: Conversation) -> None:
    talk.send(FakePeer())
    first = talk.broker.store.end
    slave = Slave(talk)
    slave.report(0)
    slave.report(first)
    talk.send(FakePeer())
    end = talk.broker.store.end
    status = decode_body(talk.ask(FakePeer(), R.GET_BROKER_HA_STATUS).body, HAStatus)
    assert status == HAStatus(
        master=True,
        master_commit_log_max_offset=end,
        in_sync_slave_nums=1,
        ha_connection_info=[
            SlaveStatus(
                addr=slave.address,
                slave_ack_offset=first,
                diff=end - first,
                in_sync=True,
                transferred_byte_in_second=0,
                transfer_from_where=end,
            )
        ],
    )


def test_the_rate_is_that_of_the_last_second(talk: Conversation) -> None:
    slave = Slave(talk)
    slave.report(0)
    talk.send(FakePeer())
    end = talk.broker.store.end
    talk.advance(1_000)
    status = decode_body(talk.ask(FakePeer(), R.GET_BROKER_HA_STATUS).body, HAStatus)
    assert status.ha_connection_info[0].transferred_byte_in_second == end
    talk.advance(1_000)
    status = decode_body(talk.ask(FakePeer(), R.GET_BROKER_HA_STATUS).body, HAStatus)
    assert status.ha_connection_info[0].transferred_byte_in_second == 0


def test_slaves_copy_committed_offsets_as_the_file_has_them(talk: Conversation) -> None:
    talk.send(FakePeer())
    commit = h.UpdateConsumerOffsetHeader(consumer_group="G", topic="T", queue_id=0, commit_offset=1)
    consumer = FakePeer()
    talk.beat(consumer, "c")
    assert talk.ask(consumer, R.UPDATE_CONSUMER_OFFSET, commit).code == C.SUCCESS
    body = talk.ask(FakePeer(), R.GET_ALL_CONSUMER_OFFSET).body
    document = fastjson.loads(body)
    assert document["offsetTable"] == {"T@G": {0: 1}}
    assert set(document["dataVersion"]) == {"counter", "stateVersion", "timestamp"}


def test_slaves_copy_how_far_delay_levels_are(talk: Conversation) -> None:
    talk.send(FakePeer(), properties={"DELAY": "1"})
    talk.advance(2_000)
    body = talk.ask(FakePeer(), R.GET_ALL_DELAY_OFFSET).body
    assert fastjson.loads(body)["offsetTable"] == {1: 1}
