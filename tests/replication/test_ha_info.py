"""NOTIFY_MIN_BROKER_ID_CHANGE and EXCHANGE_BROKER_HA_INFO at a master and at its slave."""

from pathlib import Path

import pytest

from libramq.codes import RequestCode as R
from libramq.codes import ResponseCode as C
from libramq.remoting.headers import HAInfoHeader, LowestIdHeader
from libramq.replication.ha_client import State
from tests.broker.brokers import Conversation
from tests.fakes import FakePeer
from tests.replication.pairs import HA, MASTER, NAME_SERVER, Pair

SECONDS = 1_000
STRANGER = "127.0.0.1:20912"
#: A master that starts, as it names itself to its slaves.
STARTS = HAInfoHeader(master_ha_address=HA, master_flush_offset=0, master_address=MASTER)


@pytest.fixture
def pair(tmp_path: Path):
    pair = Pair(tmp_path)
    pair.slave.close()
    pair.open_slave(enable_slave_acting_master=True)
    pair.master.create_topic("T", queues=1)
    pair.run(20 * SECONDS)
    yield pair
    pair.close()


def state(pair: Pair) -> State:
    slave = pair.slave.broker.replication.slave
    assert slave is not None
    return slave.client.state


def hide_master(pair: Pair) -> None:
    """Have the name server know no master, as while that waits for its slaves."""
    answer_of = pair._answer_of

    def answer(address: str, command):  # type: ignore[no-untyped-def]
        if address != NAME_SERVER:
            return answer_of(address, command)
        pair.is_reachable = False
        try:
            return answer_of(address, command)
        finally:
            pair.is_reachable = True

    pair._answer_of = answer  # type: ignore[method-assign]


def test_a_master_answers_with_its_addresses_and_where_its_log_ended_at_its_start(tmp_path: Path) -> None:
    talk = Conversation(tmp_path, ha_listen_port=10912)
    talk.create_topic("T")
    talk.send(FakePeer())
    end = talk.broker.store.end
    talk.close()
    talk = Conversation(tmp_path, ha_listen_port=10912)
    talk.send(FakePeer())
    answer = talk.ask(FakePeer(), R.EXCHANGE_BROKER_HA_INFO, HAInfoHeader())
    assert answer.code == C.SUCCESS
    assert answer.ext == {"masterHaAddress": HA, "masterAddress": MASTER, "masterFlushOffset": str(end)}
    talk.close()


def test_a_master_from_which_nobody_can_copy_names_no_such_address(tmp_path: Path) -> None:
    """Apache's slave then starts without a copy, instead of waiting for one."""
    talk = Conversation(tmp_path)
    answer = talk.ask(FakePeer(), R.EXCHANGE_BROKER_HA_INFO, HAInfoHeader())
    assert "masterHaAddress" not in (answer.ext or {})
    talk.close()


def test_a_slave_has_no_addresses_to_answer_with(pair: Pair) -> None:
    answer = pair.slave.ask(FakePeer(), R.EXCHANGE_BROKER_HA_INFO, HAInfoHeader())
    assert (answer.code, answer.ext or {}) == (C.SUCCESS, {})


def test_a_slave_copies_a_master_that_no_name_server_knows_yet(pair: Pair) -> None:
    """Apache's master with totalReplicas=2 registers only once its slave copies its log."""
    pair.slave.close()
    hide_master(pair)
    pair.open_slave(enable_slave_acting_master=True)
    pair.run(5 * SECONDS)
    assert state(pair) is State.IDLE
    assert pair.slave.ask(FakePeer(), R.EXCHANGE_BROKER_HA_INFO, STARTS).code == C.SUCCESS
    pair.master.send(FakePeer())
    pair.run(2 * SECONDS)
    assert state(pair) is State.COPYING
    assert pair.slave.broker.store.end == pair.master.broker.store.end


def test_nobody_takes_a_slave_away_from_a_master_that_name_servers_know(pair: Pair) -> None:
    forged = HAInfoHeader(master_ha_address=STRANGER, master_flush_offset=0, master_address=STRANGER)
    for is_gone in (False, True):
        if is_gone:  # Name servers do not know that yet.
            assert pair.wire is not None
            pair.wire.cut()
            pair.run()
        assert pair.slave.ask(FakePeer(), R.EXCHANGE_BROKER_HA_INFO, forged).code == C.SUCCESS
        slave = pair.slave.broker.replication.slave
        assert slave is not None
        assert slave.client.address == HA
    pair.run(2 * SECONDS)
    assert state(pair) is State.COPYING


def test_addresses_that_are_none_are_refused(pair: Pair) -> None:
    pair.part()
    pair.run(5 * SECONDS)
    for ha_address, address in (("", MASTER), (HA, None), ("x", MASTER), (HA, "127.0.0.1:0")):
        header = HAInfoHeader(master_ha_address=ha_address, master_address=address)
        assert pair.slave.ask(FakePeer(), R.EXCHANGE_BROKER_HA_INFO, header).code == C.INVALID_PARAMETER


@pytest.mark.parametrize("is_enabled", [True, False])
def test_a_notified_slave_asks_its_name_servers_at_once(pair: Pair, is_enabled: bool) -> None:
    """It acts within a round trip, and not after the 3 s in which it would ask by itself."""
    if not is_enabled:
        pair.slave.close()
        pair.open_slave()
        pair.run(20 * SECONDS)
    pair.part()
    pair.run()
    slave = pair.slave.broker.replication.slave
    assert slave is not None
    assert not slave.is_acting
    header = LowestIdHeader(min_broker_id=1, offline_broker_addr=MASTER)
    assert pair.slave.ask(FakePeer(), R.NOTIFY_MIN_BROKER_ID_CHANGE, header).code == C.SUCCESS
    pair.run(10)
    assert slave.is_acting == is_enabled


def test_a_forged_notification_changes_nothing(pair: Pair) -> None:
    header = LowestIdHeader(min_broker_id=1, offline_broker_addr=MASTER)
    assert pair.slave.ask(FakePeer(), R.NOTIFY_MIN_BROKER_ID_CHANGE, header).code == C.SUCCESS
    pair.run(10)
    assert state(pair) is State.COPYING
    assert pair.master.ask(FakePeer(), R.NOTIFY_MIN_BROKER_ID_CHANGE, header).code == C.SUCCESS


def test_a_flood_of_notifications_fills_no_log(pair: Pair, caplog: pytest.LogCaptureFixture) -> None:
    """Ten thousand wrote ten thousand lines; the slave asks its name servers once for those of a round."""
    caplog.set_level("INFO")
    header = LowestIdHeader(min_broker_id=1, offline_broker_addr="x" * 1_000)
    for _ in range(500):
        assert pair.slave.ask(FakePeer(), R.NOTIFY_MIN_BROKER_ID_CHANGE, header).code == C.SUCCESS
    pair.run(100)
    assert caplog.text.count("another lowest broker id") == 1
    assert state(pair) is State.COPYING
