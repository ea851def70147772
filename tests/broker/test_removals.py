"""Removals while members of a coordinated group live: topics deleted and recreated, and the group itself.

Real brokers, a name server and real consumers in one loop. Afterwards every queue has a reader.
"""

import asyncio
from collections.abc import Iterable
from pathlib import Path

import pytest

from libramq.client import Admin
from libramq.clock import SystemClock
from libramq.formats.tables import TopicConfig
from libramq.rpc import admin_calls
from libramq.transport.asyncio_remotes import AsyncioRemotes
from tests.broker.clusters import TOPIC, Cluster, Member, group_at
from tests.transport.loops import until, until_asked

A, B = "broker-a", "broker-b"


async def ask(cluster: Cluster, names: Iterable[str], call) -> None:
    """Make a call at brokers, one after the other."""
    remotes = AsyncioRemotes(SystemClock().monotonic_ms)
    try:
        for name in names:
            address = cluster.servers[name].address
            reply = await remotes.call(address, call.command(), timeout_ms=3_000)
            call.result(reply, where=address)
    finally:
        await remotes.aclose()


async def make_again(cluster: Cluster, *names: str, after_ms: int = 0) -> None:
    """Delete the topic at these brokers, and create it again after a delay."""
    await ask(cluster, names, admin_calls.delete_topic(TOPIC))
    await asyncio.sleep(after_ms / 1000)  # The delay under test: the name servers' news take up to a second.
    for name in names:
        count = cluster._queues[name]
        config = TopicConfig(topic_name=TOPIC, read_queue_nums=count, write_queue_nums=count)
        await ask(cluster, [name], admin_calls.create_topic(config))


def readers(cluster: Cluster, group: str) -> dict:
    """Return the members that fences let read, by queue."""
    return {
        queue: member
        for server in cluster.servers.values()
        for queue, member in server.broker.fences.readers(group).items()
        if queue.topic == TOPIC
    }


async def all_is_read(cluster: Cluster, group: str, *members: Member) -> None:
    """Check that a member claims every queue, and that messages sent there are handled and committed."""
    await cluster.even(*members)
    await cluster.send(2)
    await cluster.all_handled()
    await until(lambda: set(readers(cluster, group)) == set(cluster.queues()))
    await until_asked(lambda: all_is_claimed(cluster, *members))


async def all_is_claimed(cluster: Cluster, *members: Member) -> bool:
    claimed = [queue for member in members for queue in await member.consumer.assignment()]
    return sorted(queue for queue in claimed if queue.topic == TOPIC) == cluster.queues()


@pytest.mark.parametrize("after_ms", [0, 300])
@pytest.mark.parametrize("names", [[A], [A, B]], ids=["one broker", "two brokers"])
async def test_a_topic_is_deleted_and_created_again(tmp_path: Path, names: list[str], after_ms: int):
    """Two members read it meanwhile, and it is deleted at every broker of the cluster."""
    async with asyncio.timeout(60), Cluster(tmp_path, dict.fromkeys(names, 4)) as cluster:
        group = group_at(names[-1], names)
        one, two = await cluster.join(group, "one"), await cluster.join(group, "two")
        await all_is_read(cluster, group, one, two)
        await make_again(cluster, *names, after_ms=after_ms)
        await all_is_read(cluster, group, one, two)


@pytest.mark.parametrize("deleted_at", [A, B], ids=["where the group lives", "elsewhere"])
async def test_a_topic_is_deleted_and_created_again_at_one_of_two_brokers(tmp_path: Path, deleted_at: str):
    async with asyncio.timeout(60), Cluster(tmp_path, {A: 4, B: 4}) as cluster:
        group = group_at(A, [A, B])
        one, two = await cluster.join(group, "one"), await cluster.join(group, "two")
        await all_is_read(cluster, group, one, two)
        kept = {queue for queue in one.gained if queue.broker_name != deleted_at}
        await make_again(cluster, deleted_at)
        await all_is_read(cluster, group, one, two)
        # It may have regained a queue it had briefly lost, since this process may have stalled.
        assert {queue for queue in one.gained if queue.broker_name != deleted_at} == kept


@pytest.mark.parametrize("deleted_at", [[A], [B], [A, B], [B, A]], ids="-".join)
@pytest.mark.parametrize("clean_offset", [False, True], ids=["keeps offsets", "without offsets"])
async def test_a_group_is_deleted_while_members_consume(
    tmp_path: Path, deleted_at: list[str], clean_offset: bool
):
    """It is deleted at its coordinator (a), at the other broker, or at both; members keep reading."""
    async with asyncio.timeout(60), Cluster(tmp_path, {A: 4, B: 4}) as cluster:
        group = group_at(A, [A, B])
        one, two = await cluster.join(group, "one"), await cluster.join(group, "two")
        await all_is_read(cluster, group, one, two)
        gained = len(one.gained) + len(two.gained)
        await ask(cluster, deleted_at, admin_calls.delete_group(group, clean_offset=clean_offset))
        await all_is_read(cluster, group, one, two)
        if not clean_offset:
            assert len(one.gained) + len(two.gained) == gained
            assert cluster.repeated == {}


@pytest.mark.parametrize("names", [[A], [A, B]], ids=["one broker", "two brokers"])
async def test_offsets_are_reset_while_members_consume(tmp_path: Path, names: list[str]):
    """Every message is redelivered once; every queue continues to be read and committed."""
    async with asyncio.timeout(60), Cluster(tmp_path, dict.fromkeys(names, 4)) as cluster:
        group = group_at(names[-1], names)
        one, two = await cluster.join(group, "one"), await cluster.join(group, "two")
        await all_is_read(cluster, group, one, two)
        await cluster.all_committed(group, 2)
        async with Admin(namesrv=cluster.namesrv.address) as admin:
            offsets = await admin.reset_offsets(group, TOPIC, 0)
        assert offsets == dict.fromkeys(cluster.queues(), 0)
        await until(lambda: len(cluster.repeated) == len(cluster.sent))
        await all_is_read(cluster, group, one, two)
        await cluster.all_committed(group, 4)
        assert set(cluster.handled.values()) == {1, 2}


async def test_offsets_of_a_coordinated_group_without_members_are_reset(tmp_path: Path):
    async with asyncio.timeout(60), Cluster(tmp_path, {A: 4, B: 4}) as cluster:
        group = group_at(A, [A, B])
        one = await cluster.join(group, "one")
        await all_is_read(cluster, group, one)
        await cluster.all_committed(group, 2)
        await cluster.leave("one")
        async with Admin(namesrv=cluster.namesrv.address) as admin:
            assert set((await admin.reset_offsets(group, TOPIC, 0)).values()) == {0}
        await cluster.join(group, "two")
        await until(lambda: len(cluster.repeated) == len(cluster.sent))


async def test_members_recover_from_a_fence_that_lost_its_claims(tmp_path: Path):
    """Members whose claims are refused for any reason report that after 2 s, and get other claims."""
    async with asyncio.timeout(60), Cluster(tmp_path, {A: 4, B: 4}) as cluster:
        group = group_at(A, [A, B])
        one, two = await cluster.join(group, "one"), await cluster.join(group, "two")
        await all_is_read(cluster, group, one, two)
        cluster.servers[B].broker.fences.remove_topic(TOPIC)
        await cluster.send(1)
        await all_is_read(cluster, group, one, two)


async def test_a_group_of_a_single_broker_is_deleted(tmp_path: Path):
    async with asyncio.timeout(60), Cluster(tmp_path, {A: 4}) as cluster:
        one, two = await cluster.join("g", "one"), await cluster.join("g", "two")
        await all_is_read(cluster, "g", one, two)
        await ask(cluster, [A], admin_calls.delete_group("g"))
        await all_is_read(cluster, "g", one, two)
