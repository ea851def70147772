"""Where clients are authenticated, only a slave that knows the brokers' secret copies the log."""

import asyncio
import itertools
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from libramq.broker.config import BrokerConfig
from libramq.broker.shell import HA_CONNECTIONS_MAX, BrokerServer
from libramq.client import Producer
from libramq.clock import SystemClock
from libramq.errors import ConfigError
from libramq.filesystem import LocalFileSystem
from libramq.formats.access import UserInfo
from libramq.message import Message
from libramq.nameserver import NameServer
from libramq.remoting.credentials import Credentials
from libramq.replication.blocks import CHALLENGE_OFFSET, BlockReader, encode_report
from libramq.replication.ha_service import SLAVES_MAX
from libramq.replication.slave_proof import PROOF_MS_MAX, UNPROVEN_MAX, slave_proof
from tests.broker.brokers import Conversation
from tests.fakes import FakePeer
from tests.interop.ports import free_broker_port
from tests.replication.slaves import Slave
from tests.transport.loops import until

BROKERS = Credentials("brokers", "only brokers know this")
ROOT = UserInfo(username="root", password="r00t")
SECRET = BROKERS.secret_key.encode()
SECURED: dict[str, object] = {
    "authentication_enabled": True,
    "authorization_enabled": True,
    "init_authentication_user": ROOT,
    "credentials": BROKERS,
}


def server(root: Path, name: str, namesrv: str, **options: object) -> BrokerServer:
    config = BrokerConfig(
        store_path=str(root / name),
        listen_port=free_broker_port(),
        namesrv_addr=namesrv,
        **(SECURED | options),  # type: ignore[arg-type]
    )
    return BrokerServer(config, clock=SystemClock(), filesystem=LocalFileSystem())


@pytest.fixture
async def master(tmp_path: Path) -> AsyncIterator[BrokerServer]:
    """A master with a message, and its name server."""
    async with NameServer("127.0.0.1", 0, credentials=BROKERS) as namesrv:
        made = server(tmp_path, "master", namesrv.address, ha_listen_port=free_broker_port())
        await made.start()
        producer = Producer(group="p", namesrv=namesrv.address, credentials=Credentials("root", "r00t"))
        await producer.start()
        await producer.send(Message("T", b"a secret"))
        await producer.stop()
        yield made
        await made.stop()


async def copied(master: BrokerServer, *answers: bytes) -> bytes:
    """Return all that the slaves' port sends to a program that reports, and then sends something else."""
    reader, writer = await asyncio.open_connection("127.0.0.1", master.broker.config.ha_listen_port)
    writer.write(encode_report(0))
    received = await reader.readexactly(28)
    for answer in answers:
        writer.write(answer)
    async with asyncio.timeout(20):
        received += await reader.read()
    writer.close()
    return received


async def test_a_program_without_the_secret_copies_nothing(master: BrokerServer) -> None:
    """The log was sent to any program at an allowed address."""
    for answer in (encode_report(0), encode_report(-1), encode_report(slave_proof(b"a guess", bytes(16)))):
        (challenge,) = BlockReader().receive(await copied(master, answer))
        assert challenge.offset == CHALLENGE_OFFSET
    assert master.broker.replication.service.slaves() == []


async def test_a_slave_with_the_secret_copies_the_log(master: BrokerServer, tmp_path: Path) -> None:
    namesrv = master.broker.config.namesrv_addr or ""
    slave = server(tmp_path, "slave", namesrv, broker_role="SLAVE", broker_id=1)
    await slave.start()
    await until(lambda: slave.broker.store.visible_offset == master.broker.store.end > 0)
    await slave.stop()


@pytest.mark.parametrize("first", [b"", encode_report(0)])
async def test_programs_that_prove_nothing_keep_no_slave_away(
    master: BrokerServer, tmp_path: Path, first: bytes
) -> None:
    """128 that said nothing, or 64 that reported, were enough: the next one was closed, a slave or not."""
    crowd = []
    for _ in range(2 * HA_CONNECTIONS_MAX):
        _, writer = await asyncio.open_connection("127.0.0.1", master.broker.config.ha_listen_port)
        writer.write(first)
        crowd.append(writer)
    slave = server(
        tmp_path, "slave", master.broker.config.namesrv_addr or "", broker_role="SLAVE", broker_id=1
    )
    await slave.start()
    await until(lambda: slave.broker.store.visible_offset == master.broker.store.end > 0)
    await slave.stop()
    for writer in crowd:
        writer.transport.abort()


@pytest.fixture
def talk(tmp_path: Path):
    talk = Conversation(tmp_path, ha_listen_port=1, **SECURED)
    yield talk
    talk.close()


def test_every_connection_has_a_challenge_of_its_own(talk: Conversation) -> None:
    first, second = Slave(talk), Slave(talk, "127.0.0.1:60001")
    for each in (first, second):
        each.report(0)
    proof = slave_proof(SECRET, first.blocks[0].data)
    second.report(proof)
    assert not second.is_open
    first.report(proof)
    assert len(talk.broker.replication.service.slaves()) == 1


def test_who_answers_no_challenge_is_closed_and_keeps_no_place(talk: Conversation) -> None:
    crowd = [Slave(talk, f"127.0.0.1:{50_000 + number}") for number in range(UNPROVEN_MAX + 1)]
    for each in crowd:
        each.report(0)
    assert [each.is_open for each in crowd] == [False] + [True] * UNPROVEN_MAX
    talk.advance(PROOF_MS_MAX + 1)
    assert not any(each.is_open for each in crowd)
    assert SLAVES_MAX < UNPROVEN_MAX
    slave = Slave(talk)
    slave.report(0)
    slave.report(slave_proof(SECRET, slave.blocks[0].data))
    assert slave.is_open


def test_a_port_for_slaves_needs_the_secret(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="haListenPort=1 with authenticationEnabled=true"):
        Conversation(tmp_path, ha_listen_port=1, **(SECURED | {"credentials": None}))


def test_a_master_without_authentication_wants_no_proof(tmp_path: Path) -> None:
    talk = Conversation(tmp_path, ha_listen_port=1, credentials=BROKERS)
    talk.create_topic("T")
    talk.send(FakePeer())
    slave = Slave(talk)
    slave.report(0)
    assert slave.data
    talk.close()


#: The stages in which servers change over to another secret; each server is restarted once for each.
STAGES = (
    Credentials("brokers", "former"),
    Credentials("brokers", "former", second_secret_key="next"),
    Credentials("brokers", "next", second_secret_key="former"),
    Credentials("brokers", "next"),
)
#: Two servers while one has been restarted for the next stage and the other has not.
APART = [pair for each in itertools.pairwise(STAGES) for pair in (each, each[::-1])]


@pytest.mark.parametrize(("of_master", "of_slave"), APART)
async def test_brokers_that_change_over_to_another_secret_accept_each_other(
    tmp_path: Path, of_master: Credentials, of_slave: Credentials
) -> None:
    """The slave registers, copies the log, and the table of users, which only a signed request returns."""
    async with NameServer("127.0.0.1", 0, credentials=of_master) as namesrv:
        master = server(
            tmp_path, "master", namesrv.address, ha_listen_port=free_broker_port(), credentials=of_master
        )
        await master.start()
        producer = Producer(group="p", namesrv=namesrv.address, credentials=Credentials("root", "r00t"))
        await producer.start()
        await producer.send(Message("T", b"a secret"))
        await producer.stop()
        users = master.broker.tables.users
        master.call(lambda: users.create(UserInfo(username="alice", password="wonder")))
        options = {"init_authentication_user": None, "credentials": of_slave}
        slave = server(tmp_path, "slave", namesrv.address, broker_role="SLAVE", broker_id=1, **options)
        await slave.start()
        await until(lambda: slave.broker.store.visible_offset == master.broker.store.end > 0)
        await until(lambda: slave.broker.tables.users.get("alice") is not None)
        await slave.stop()
        await master.stop()
