"""Forged peers: attackers with sockets of their own, who pretend to be brokers of a cluster of two."""

import msgspec
import pytest

from libramq.broker.config import BrokerConfig
from libramq.broker.shell import BrokerServer
from libramq.clock import SystemClock
from libramq.codes import RequestCode as R
from libramq.codes import ResponseCode as C
from libramq.errors import ConfigError
from libramq.filesystem import LocalFileSystem
from libramq.remoting.body import coordination as bodies
from libramq.remoting.body.codec import encode_body
from libramq.remoting.command import Command
from libramq.remoting.credentials import Credentials, sign, sign_for
from libramq.transport.remote import Remotes
from tests.broker.clusters import Cluster, group_at
from tests.transport.loops import until

A, B = "broker-a", "broker-b"
NAMES = [A, B]
PAIR = Credentials("libra", "only brokers know this")
GROUP = group_at(A, NAMES)
#: Every request between brokers, each as if broker-b had made it.
FORGED: dict[R, bodies.Body] = {
    R.PEER_GRANT: bodies.PeerGrantBody(group=GROUP, epoch=1_000, complete=True),
    R.PEER_MEMBERS: bodies.PeerMembersBody(broker_name=B, masters=NAMES, complete=True),
    R.PEER_LIST: bodies.PeerListBody(broker_name=B, group=GROUP, version=1, client_ids=["x"]),
    R.PEER_GATHER: bodies.PeerGatherBody(group=GROUP),
    R.PEER_STARTED: bodies.PeerStartedBody(group=GROUP, epoch=1, reason="joined"),
    R.PEER_ASSIGN: bodies.PeerAssignBody(broker_name=B, group=GROUP, client_id="x", topic="T"),
    R.PEER_GIVEN: bodies.PeerGivenBody(broker_name=B, group=GROUP, version=1),
    R.PEER_REMOVED: bodies.PeerRemovedBody(broker_name=B, topic="T"),
}


@pytest.fixture
async def attacker():
    remotes = Remotes(SystemClock().monotonic_ms)
    yield remotes
    await remotes.close()


def forged(code: R) -> Command:
    return Command(code=code, ext={"lbVersion": "1"}, body=encode_body(FORGED[code]))


async def test_a_broker_that_is_alone_believes_nobody(tmp_path, attacker):
    """Before, every program on its host was one of its peers."""
    async with Cluster(tmp_path, {A: 2}) as cluster:
        for code in FORGED:
            reply = await attacker.call(cluster.servers[A].address, forged(code))
            assert reply.code == C.NO_PERMISSION, code.name
        assert cluster.servers[A].broker.fences.epoch(GROUP) == 0


async def test_who_names_a_broker_as_itself_is_no_peer_of_it(tmp_path, attacker):
    async with Cluster(tmp_path, {A: 2, B: 2}) as cluster:
        body = bodies.PeerMembersBody(broker_name=A, masters=NAMES)
        command = Command(code=R.PEER_MEMBERS, ext={"lbVersion": "1"}, body=encode_body(body))
        reply = await attacker.call(cluster.servers[A].address, command)
        assert reply.code == C.NO_PERMISSION


async def test_what_is_not_signed_for_a_broker_changes_nothing_there(tmp_path, attacker):
    """Unsigned, signed with another secret, for another broker, for another request, or without a purpose."""
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


async def test_brokers_that_sign_are_a_cluster(tmp_path):
    """A group that lives at one broker has the queues of both, and goes on as its broker restarts."""
    async with Cluster(tmp_path, {A: 2, B: 2}, credentials=PAIR) as cluster:
        one, two = await cluster.join(GROUP, "one"), await cluster.join(GROUP, "two")
        await cluster.even(one, two)
        await cluster.kill(A)
        await cluster.start(A)
        await until(cluster.sees_all)
        await cluster.new_producer()
        await cluster.send(3)
        await cluster.all_handled()


async def test_an_epoch_beyond_all_others_shuts_no_group_out(tmp_path, attacker):
    """On a host with two brokers and without credentials everybody is a peer; 2^63 - 1 ended the group."""
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
