"""A master sends slaves its commit log: from their end, as it grows, and no faster than they read it."""

from pathlib import Path

import pytest

from libramq.codes import RequestCode
from libramq.kernel.effect import Thread
from libramq.replication.blocks import BLOCK_BYTES, Block
from libramq.replication.ha_connection import WINDOW_BYTES
from libramq.replication.ha_service import HEARTBEAT_MS, SILENT_MS_MAX, SLAVES_MAX
from tests.broker.brokers import Conversation, send_header
from tests.fakes import FakePeer
from tests.replication.slaves import Slave

FILE_BYTES = 1 << 20


@pytest.fixture
def talk(tmp_path: Path):
    talk = Conversation(tmp_path, ha_listen_port=1, max_message_size=600_000)
    talk.create_topic("T")
    yield talk
    talk.close()


def log_bytes(talk: Conversation, start: int = 0) -> bytes:
    """Return the commit log from an offset on, read from its files."""
    end = talk.broker.store.end
    files = sorted(talk.broker.store.config.commit_log_directory.iterdir())
    return b"".join(path.read_bytes() for path in files)[start:end]


def test_a_slave_gets_the_log_and_then_what_is_added(talk: Conversation) -> None:
    talk.send(FakePeer())
    slave = Slave(talk)
    slave.report(0)
    assert slave.data == log_bytes(talk)
    before = slave.end
    talk.send(FakePeer(), body=b"more")
    assert slave.blocks[-1] == Block(before, log_bytes(talk, before))


def test_under_sync_flush_a_slave_gets_what_is_on_the_masters_disk(tmp_path: Path) -> None:
    """Members would read at the slave what the master loses in a power cut, and skip its replacement."""
    talk = Conversation(tmp_path, ha_listen_port=1, flush_disk_type="SYNC_FLUSH")
    talk.create_topic("T")
    talk.flush()
    slave = Slave(talk)
    slave.report(0)
    before = slave.data
    command = talk.command(RequestCode.SEND_MESSAGE_V2, send_header("T"), b"on its way to the disk")
    talk.give(FakePeer(), command)
    assert slave.data == before
    talk.flush()
    assert slave.data == log_bytes(talk)
    assert len(slave.data) > len(before)
    talk.close()


def test_a_slave_with_part_of_the_log_gets_the_rest(talk: Conversation) -> None:
    talk.send(FakePeer())
    middle = talk.broker.store.end
    talk.send(FakePeer(), body=b"the rest")
    slave = Slave(talk)
    slave.report(middle)
    assert slave.blocks == [Block(middle, log_bytes(talk, middle))]


def test_an_empty_slave_begins_at_the_newest_file(talk: Conversation) -> None:
    """Apache's master does the same; the blank behind a file's last record is sent, too."""
    for _ in range(5):
        talk.send(FakePeer(), body=bytes(500_000))
    assert talk.broker.store.end > 2 * FILE_BYTES
    late, early = Slave(talk), Slave(talk)
    late.report(0)
    late.follow()
    assert (late.blocks[0].offset, late.data) == (2 * FILE_BYTES, log_bytes(talk, 2 * FILE_BYTES))
    early.report(1)
    early.follow()
    assert early.data == log_bytes(talk, 1)


def test_blocks_are_as_large_as_apaches_and_stay_within_a_file(talk: Conversation) -> None:
    for _ in range(3):
        talk.send(FakePeer(), body=bytes(500_000))
    slave = Slave(talk)
    slave.report(1)
    slave.follow()
    assert max(len(block.data) for block in slave.blocks) == BLOCK_BYTES
    assert all(
        block.offset // FILE_BYTES == (block.offset + len(block.data) - 1) // FILE_BYTES
        for block in slave.blocks
    )


def test_unconfirmed_bytes_are_limited(talk: Conversation) -> None:
    slave = Slave(talk)
    talk.send(FakePeer())
    slave.report(0)
    for _ in range(12):
        talk.send(FakePeer(), body=bytes(500_000))
    talk.coordinate()
    assert WINDOW_BYTES - BLOCK_BYTES < len(slave.data) <= WINDOW_BYTES + BLOCK_BYTES
    slave.follow()
    assert slave.end == talk.broker.store.end


def test_cold_data_is_read_by_a_thread_first(talk: Conversation, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(3):
        talk.send(FakePeer(), body=bytes(500_000))
    monkeypatch.setattr(talk.disk, "pread_nowait", lambda *_: None)
    talk.broker.store._log.tail.restart(talk.broker.store.end)
    slave = Slave(talk)
    slave.report(1)
    assert slave.blocks == []
    talk.threads.run_all(Thread.READ)
    assert slave.blocks[0].offset == 1
    while slave.end < talk.broker.store.end:
        slave.follow()
        talk.threads.run_all(Thread.READ)
    assert slave.data == log_bytes(talk, 1)


@pytest.mark.parametrize("offset", [-1, 10_000_000])
def test_a_slave_whose_log_is_not_ours_is_refused(talk: Conversation, offset: int) -> None:
    talk.send(FakePeer())
    slave = Slave(talk)
    slave.report(offset)
    assert slave.close_reason is not None
    assert f"it has the log up to {offset}" in slave.close_reason
    assert talk.broker.replication.service.slaves() == []


def test_a_slave_that_confirms_unsent_bytes_is_refused(talk: Conversation) -> None:
    talk.send(FakePeer())
    slave = Slave(talk)
    slave.report(0)
    slave.report(slave.end + 1)
    assert slave.close_reason is not None
    talk.send(FakePeer())
    assert talk.broker.replication.service.slaves() == []


def test_only_listed_addresses_get_the_log(talk: Conversation) -> None:
    talk.send(FakePeer())
    stranger = Slave(talk, "10.0.0.9:60000")
    stranger.report(0)
    assert (stranger.blocks, stranger.close_reason) == (
        [],
        "its address is not among haAllowedAddresses",
    )


def test_the_slaves_of_a_master_are_limited(talk: Conversation) -> None:
    talk.send(FakePeer())
    slaves = [Slave(talk, f"127.0.0.1:{60_000 + number}") for number in range(SLAVES_MAX + 1)]
    for slave in slaves:
        slave.report(0)
    assert [bool(slave.blocks) for slave in slaves] == [True] * SLAVES_MAX + [False]
    assert slaves[-1].close_reason == f"{SLAVES_MAX} slaves are connected; a master has no more"
    slaves[0].hang_up()
    late = Slave(talk)
    late.report(0)
    assert late.blocks


def test_an_idle_slave_gets_heartbeats_and_a_silent_one_is_dropped(talk: Conversation) -> None:
    talk.send(FakePeer())
    slave = Slave(talk)
    slave.report(0)
    end = slave.end
    talk.advance(HEARTBEAT_MS + 1)
    assert slave.blocks[-1] == Block(end, b"")
    slave.report(end)
    talk.advance(SILENT_MS_MAX - HEARTBEAT_MS)
    assert slave.is_open
    talk.advance(2 * HEARTBEAT_MS)
    assert not slave.is_open


def test_a_slave_that_stalls_is_dropped(talk: Conversation) -> None:
    """Consumers of a SYNC_MASTER waited for ever for such a slave, for example one whose disk was full."""
    talk.send(FakePeer())
    slave = Slave(talk)
    slave.report(0)
    begin = slave.blocks[0].offset
    for _ in range(SILENT_MS_MAX // HEARTBEAT_MS + 2):
        slave.report(begin)
        talk.advance(HEARTBEAT_MS)
    assert not slave.is_open


def test_a_slave_that_is_up_to_date_is_kept(talk: Conversation) -> None:
    talk.send(FakePeer())
    slave = Slave(talk)
    slave.report(0)
    for _ in range(SILENT_MS_MAX // HEARTBEAT_MS + 2):
        slave.report(slave.end)
        talk.advance(HEARTBEAT_MS)
    talk.send(FakePeer())
    assert slave.is_open


def test_a_slave_that_disconnects_is_forgotten(talk: Conversation) -> None:
    slave = Slave(talk)
    slave.report(0)
    assert [each.connection for each in talk.broker.replication.service.slaves()] == [slave]
    slave.hang_up()
    assert talk.broker.replication.service.slaves() == []
    sent = len(slave.blocks)
    talk.send(FakePeer())
    talk.advance(2 * HEARTBEAT_MS)
    assert len(slave.blocks) == sent
