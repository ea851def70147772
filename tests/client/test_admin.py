"""Tests of the admin client with several brokers."""

import asyncio

import pytest

from libramq.client import Admin, PushConsumer
from libramq.errors import (
    ConfigError,
    ConsumerNotOnline,
    InvalidName,
    NameServerUnavailable,
    RouteNotFound,
)
from libramq.message.queue import MessageQueue
from tests.client.fake_cluster import FakeBroker, FakeNameServer


@pytest.fixture
async def brokers(start):
    return [await start(FakeBroker(name, T=2)) for name in "ab"]


@pytest.fixture
async def cluster(start, brokers):
    return await start(FakeNameServer(*brokers))


async def test_a_topic_is_created_at_every_master(cluster, brokers):
    async with Admin(namesrv=cluster.address) as admin:
        assert await admin.create_topic("New", queues=3) == [broker.address for broker in brokers]
        assert await admin.topics() == ["New", "T"]
        route = await admin.topic_route("New")
        assert [data.write_queue_nums for data in route.queue_datas] == [3, 3]
        assert set((await admin.cluster_info()).broker_addr_table) == {"a", "b"}


async def test_a_topic_is_deleted_at_every_name_server(start, brokers):
    """Name servers share nothing: one that still had the topic would send producers to it."""
    servers = [await start(FakeNameServer(*brokers)) for _ in range(2)]
    async with Admin(namesrv=[server.address for server in servers]) as admin:
        await admin.delete_topic("T")
        assert await admin.topics() == []
    assert [server.deleted for server in servers] == [["T"], ["T"]]


async def test_a_brokers_address_is_not_taken_for_a_name_servers(cluster, brokers):
    async with Admin(namesrv=brokers[0].address) as admin:
        with pytest.raises(NameServerUnavailable, match=f"{brokers[0].address} is the address of a broker"):
            await admin.topics()
    async with Admin(namesrv=[brokers[0].address, cluster.address]) as admin:
        assert await admin.topics() == ["T"]


async def test_offsets_of_queues_are_collected_from_all_brokers(cluster, brokers):
    """The result is one table."""
    brokers[1].put("T", 1, b"x")
    async with Admin(namesrv=cluster.address) as admin:
        stats = await admin.topic_stats("T")
    assert {queue: ends.max_offset for queue, ends in stats.items()} == {
        MessageQueue("T", "a", 0): 0,
        MessageQueue("T", "a", 1): 0,
        MessageQueue("T", "b", 0): 0,
        MessageQueue("T", "b", 1): 1,
    }


async def test_members_are_listed_once(cluster, brokers, watch):
    """They are connected to every broker."""
    members = [PushConsumer(group="g", namesrv=cluster.address) for _ in range(2)]
    async with Admin(namesrv=cluster.address) as admin:
        for member in members:
            member.subscribe("T", "*", print)
            await member.start()
        await watch.until(lambda: all(len(broker.members["g"]) == 2 for broker in brokers))
        connection = await admin.consumer_connection("g")
        assert [each.client_id for each in connection.connection_set] == sorted(
            member.client_id for member in members
        )
        await asyncio.gather(*(member.stop() for member in members))
        with pytest.raises(ConsumerNotOnline):
            await admin.consumer_connection("g")


async def test_mistakes_are_named(cluster):
    """Each is reported in one clear line."""
    async with Admin(namesrv=cluster.address) as admin:
        with pytest.raises(InvalidName):
            await admin.create_topic("../x")
        with pytest.raises(ConfigError, match="knows: c"):
            await admin.create_topic("New", cluster="other")
        with pytest.raises(ConfigError, match="queues is between 1 and 65536, not 0"):
            await admin.create_topic("New", queues=0)
        with pytest.raises(RouteNotFound, match="updateTopic"):
            await admin.topic_route("Missing")
        with pytest.raises(RouteNotFound, match="group"):
            await admin.consume_stats("nobody")


async def test_who_is_away_is_logged_when_a_group_is_asked_for(cluster, brokers, caplog):
    """Its lag silently covered only the other brokers."""
    brokers[0].topics["%RETRY%g"] = 1
    async with Admin(namesrv=cluster.address) as admin:
        for absent in (None, ["c"]):
            cluster.absent = absent
            assert "are away" not in caplog.text
            for _ in range(2):
                with pytest.raises(ConsumerNotOnline):
                    await admin.consumer_connection("g")
    assert caplog.text.count("brokers that had a group are away") == 1
