"""Forged peers: attackers with sockets of their own, who pretend to be brokers of a cluster of two."""

import asyncio
import logging

import msgspec
import pytest

from libramq.broker.config import BrokerConfig
from libramq.broker.shell import BrokerServer
from libramq.clock import SystemClock
from libramq.codes import RequestCode as R
from libramq.codes import ResponseCode as C
from libramq.errors import ConfigError
from libramq.filesystem import LocalFileSystem
from libramq.formats.document import Document, encode_body
from libramq.message.names import REBALANCE_EVENTS_TOPIC
from libramq.remoting.body import coordination as bodies
from libramq.remoting.body import kafka_cluster
from libramq.remoting.body.cluster import RegisterBrokerBody
from libramq.remoting.command import Command
from libramq.remoting.connection import FrameReader
from libramq.remoting.credentials import Credentials, sign, sign_for
from libramq.remoting.frame import encode_frame
from libramq.rpc.name_server_calls import register_broker
from libramq.transport.asyncio_remotes import AsyncioRemotes
from tests.broker.clusters import Cluster, group_at
from tests.nameserver.tables import header, table
from tests.transport.loops import until

A, B = "broker-a", "broker-b"
NAMES = [A, B]
PAIR = Credentials("libra", "only brokers know this")
GROUP = group_at(A, NAMES)
#: Every request between brokers, each as if broker-b had made it.
FORGED: dict[R, Document] = {
    R.PEER_GRANT: bodies.PeerGrantBody(group=GROUP, epoch=1_000, complete=True),
    R.PEER_MEMBERS: bodies.PeerMembersBody(broker_name=B, masters=NAMES, complete=True),
    R.PEER_LIST: bodies.PeerListBody(broker_name=B, group=GROUP, version=1, client_ids=["x"]),
    R.PEER_GATHER: bodies.PeerGatherBody(group=GROUP),
    R.PEER_STARTED: bodies.PeerStartedBody(group=GROUP, epoch=1, reason="joined"),
    R.PEER_ASSIGN: bodies.PeerAssignBody(broker_name=B, group=GROUP, client_id="x", topic="T"),
    R.PEER_ASSIGNMENTS: bodies.AssignmentUpdate(broker_name=B, group=GROUP, version=1),
    R.PEER_REMOVED: bodies.PeerRemovedBody(broker_name=B, topic="T"),
    R.PEER_REBALANCE: bodies.PeerRebalanceBody(group=GROUP, members=["x"], is_complete=True),
    R.PEER_NODE: kafka_cluster.PeerNodeBody(broker_name=B),
    R.PEER_TOPIC: kafka_cluster.PeerTopicBody(broker_name=B, topic="T", queues=0),
    R.PEER_OFFSETS: kafka_cluster.PeerOffsetsBody(broker_name=B, group=GROUP, is_deleted=True),
    R.PEER_GROUPS: kafka_cluster.PeerGroupsBody(broker_name=B, sequence=1, gone=[GROUP]),
    R.PEER_HANDOVER: kafka_cluster.PeerHandoverBody(broker_name=B),
}


@pytest.fixture
async def attacker():
    remotes = AsyncioRemotes(SystemClock().monotonic_ms)
    yield remotes
    await remotes.aclose()


class Raw:
    """A connection from another address of this machine to a server."""

    def __init__(self, address: str) -> None:
        self._host, _, self._port = address.partition(":")
        self._frames = FrameReader()

    async def open(self) -> None:
        self._reader, self._writer = await asyncio.open_connection(
            self._host, int(self._port), local_addr=("127.6.6.6", 0)
        )

    async def close(self) -> None:
        self._writer.close()
        await self._writer.wait_closed()

    async def call(self, command: Command) -> Command:
        self._writer.write(encode_frame(command))
        while True:
            for reply in self._frames.receive(await self._reader.read(65_536)):
                return reply

    async def register(self, name: str) -> Command:
        what = header(name, "127.6.6.6:10911")
        body = RegisterBrokerBody(topic_config_serialize_wrapper=table("T", REBALANCE_EVENTS_TOPIC))
        return await self.call(register_broker(what, body).command())


def forged(code: R) -> Command:
    return Command(code=code, ext={"lbVersion": "1"}, body=encode_body(FORGED[code]))


async def test_a_single_broker_accepts_no_peer(tmp_path, attacker):
    """Every program on its host used to count as one of its peers."""
    async with Cluster(tmp_path, {A: 2}) as cluster:
        for code in FORGED:
            reply = await attacker.call(cluster.servers[A].address, forged(code))
            assert reply.code == C.NO_PERMISSION, code.name
        assert cluster.servers[A].broker.fences.epoch(GROUP) == 0


async def test_a_peer_that_uses_a_brokers_own_name_is_refused(tmp_path, attacker):
    async with Cluster(tmp_path, {A: 2, B: 2}) as cluster:
        body = bodies.PeerMembersBody(broker_name=A, masters=NAMES)
        command = Command(code=R.PEER_MEMBERS, ext={"lbVersion": "1"}, body=encode_body(body))
        reply = await attacker.call(cluster.servers[A].address, command)
        assert reply.code == C.NO_PERMISSION


async def test_requests_not_signed_for_a_broker_change_nothing_there(tmp_path, attacker):
    """They are unsigned, or signed with another secret, for another broker or request, or for no purpose."""
    async with Cluster(tmp_path, {A: 2, B: 2}, credentials=PAIR) as cluster:
        member = await cluster.join(GROUP, "victim")
        await cluster.even(member)
        server = cluster.servers[A]
        queues = cluster.queues(A)

        def readers() -> list[str | None]:
            known = server.broker.fences.readers(GROUP)
            return [known.get(queue) for queue in queues]

        await until(lambda: all(readers()))
        before = readers()
        for code in FORGED:
            other = R.PEER_GATHER if code != R.PEER_GATHER else R.PEER_GRANT
            renamed = msgspec.structs.replace(forged(code), code=other)
            for command in (
                forged(code),
                sign_for(forged(code), Credentials("libra", "a guess"), server.address),
                sign_for(forged(code), Credentials("other", PAIR.secret_key), server.address),
                sign_for(forged(code), PAIR, cluster.servers[B].address),
                msgspec.structs.replace(sign_for(renamed, PAIR, server.address), code=code),
                sign(forged(code), PAIR),
            ):
                reply = await attacker.call(server.address, command)
                assert reply.code == C.NO_PERMISSION, code.name
                assert "innerClientAuthenticationCredentials" in reply.remark
                assert PAIR.secret_key not in reply.remark
        assert readers() == before
        assert server.broker.fences.epoch(GROUP) < 1_000, "the forged grant was not taken"
        await cluster.send(5)
        await cluster.all_handled()
        await cluster.all_committed(GROUP, 5)
        assert not member.lost
        assert not cluster.repeated


async def test_brokers_with_credentials_form_a_cluster(tmp_path):
    """A group that lives at one broker has the queues of both, and continues when its broker restarts."""
    async with Cluster(tmp_path, {A: 2, B: 2}, credentials=PAIR) as cluster:
        one, two = await cluster.join(GROUP, "one"), await cluster.join(GROUP, "two")
        await cluster.even(one, two)
        await cluster.kill(A)
        await cluster.start(A)
        await until(cluster.sees_all)
        await cluster.new_producer()
        await cluster.send(3)
        await cluster.all_handled()


async def test_a_forged_epoch_locks_no_group_out(tmp_path, attacker):
    """On a host with two brokers and no credentials every program is a peer; 2^63 - 1 ended the group."""
    async with Cluster(tmp_path, {A: 2, B: 2}) as cluster:
        one = await cluster.join(GROUP, "one")
        await cluster.even(one)
        body = bodies.PeerGrantBody(group=GROUP, epoch=2**63 - 1)
        command = Command(code=R.PEER_GRANT, ext={"lbVersion": "1"}, body=encode_body(body))
        for server in cluster.servers.values():
            reply = await attacker.call(server.address, command)
            assert (reply.code, reply.remark[:24]) == (C.INVALID_PARAMETER, "epoch 9223372036854775807"[:24])
        two = await cluster.join(GROUP, "two")
        await cluster.even(one, two)
        await cluster.send(3)
        await cluster.all_handled()


async def test_a_forged_broker_takes_no_route_and_no_place(tmp_path, attacker):
    """The forger comes from its own address, as broker-a and as a third broker of the cluster."""
    async with Cluster(tmp_path, {A: 2, B: 2}, credentials=PAIR) as cluster:
        elsewhere = Raw(cluster.namesrv.address)
        await elsewhere.open()
        reply = await elsewhere.register(A)
        assert (reply.code, "a live broker" in reply.remark) == (C.NO_PERMISSION, True)
        await elsewhere.register("broker-x")
        raw = Raw(cluster.servers[A].address)
        await raw.open()
        for code in FORGED:
            assert (await raw.call(forged(code))).code == C.NO_PERMISSION, code.name
        masters = cluster.namesrv.route_info.clusters().broker_addr_table
        assert masters[A].master_address == cluster.servers[A].address
        for connection in (elsewhere, raw):
            await connection.close()
        assert masters[A].master_address == cluster.servers[A].address


async def test_a_broker_that_returns_over_another_connection_is_registered(tmp_path, caplog):
    """Its old connection has ended, so nothing waits for a probe, which takes a second."""
    caplog.set_level(logging.INFO, "libramq")

    def registrations() -> int:
        return sum(
            line.startswith("broker registered") and f"broker={A} " in line for line in caplog.messages
        )

    async def lose_connection(cluster: Cluster) -> None:
        before = registrations()
        cluster.servers[A]._remotes.close_connection(cluster.namesrv.address)
        await until(lambda: registrations() > before)

    async with Cluster(tmp_path, {A: 2, B: 2}) as cluster:
        for _ in range(3):
            await lose_connection(cluster)
        await until(cluster.sees_all)


def server_of(tmp_path, **options: object) -> BrokerServer:
    config = BrokerConfig(store_path=str(tmp_path), bind_address="0.0.0.0", allow_public=True, **options)
    return BrokerServer(config, clock=SystemClock(), filesystem=LocalFileSystem())


def test_a_public_broker_among_others_needs_credentials(tmp_path):
    sentence = (
        r"refusing to listen on 0\.0\.0\.0 among other brokers without "
        r"innerClientAuthenticationCredentials=.*the same at all brokers"
    )
    with pytest.raises(ConfigError, match=sentence):
        server_of(tmp_path, namesrv_addr="127.0.0.1:9876")
    server_of(tmp_path, namesrv_addr="127.0.0.1:9876", credentials=PAIR)
    server_of(tmp_path)
