"""Resets at brokers that cannot set offsets themselves: Apache's before 5.2."""

from typing import Any

import pytest

from libramq.admin.offset_resets import reset_queue, reset_topic
from libramq.admin.operator import Operator
from libramq.codes import RequestCode as R
from libramq.codes import ResponseCode as C
from libramq.errors import BrokerError, ConnectFailed, FeatureNotSupported
from libramq.formats.document import encode_body
from libramq.message.queue import MessageQueue
from libramq.nameserver import NameServer
from libramq.remoting.body.consumers import ConsumerConnection, TopicOffset, TopicStatsTable
from libramq.remoting.command import VERSION, VERSION_5_0, Command
from libramq.rpc import name_server_calls
from libramq.rpc.call import Call
from tests.interop.ports import free_port

V4_9_7 = VERSION_5_0 - 5
QUEUES = [MessageQueue("T", "a", number) for number in range(2)]


class OldBroker:
    """A broker whose queues hold the messages 10 to 99; message 50 is the first at time 7."""

    def __init__(self, *, online: bool, config: str | C = "", version: int = V4_9_7) -> None:
        self.online, self.config, self.version = online, config, version
        self.committed: dict[int, int] = {0: 40}
        self.resets = 0

    async def ask(self, call: Call[Any]) -> Any:
        reply = getattr(self, R(call.code).name.lower())(call.ext)
        reply.version = self.version
        return call.result(reply, where="broker a")

    def invoke_broker_to_reset_offset(self, _: dict[str, str]) -> Command:
        self.resets += 1
        if len(self.committed) < len(QUEUES):
            return Command(code=C.SYSTEM_ERROR, remark="THe consumer group <G> not exist")
        return Command(code=C.CONSUMER_NOT_ONLINE, remark="Consumer not online")

    def get_consumer_connection_list(self, _: dict[str, str]) -> Command:
        if not self.online:
            return Command(code=C.CONSUMER_NOT_ONLINE)
        connection = ConsumerConnection(connection_set=[], subscription_table={})
        return Command(code=0, body=encode_body(connection))

    def get_broker_config(self, _: dict[str, str]) -> Command:
        if isinstance(self.config, C):
            return Command(code=self.config)
        return Command(code=0, body=self.config.encode())

    def get_topic_stats_info(self, _: dict[str, str]) -> Command:
        ends = TopicOffset(min_offset=10, max_offset=100)
        return Command(code=0, body=encode_body(TopicStatsTable(offset_table=dict.fromkeys(QUEUES, ends))))

    def get_max_offset(self, _: dict[str, str]) -> Command:
        return Command(code=0, ext={"offset": "100"})

    def get_min_offset(self, _: dict[str, str]) -> Command:
        return Command(code=0, ext={"offset": "10"})

    def search_offset_by_timestamp(self, ext: dict[str, str]) -> Command:
        assert ext["timestamp"] == "7"
        return Command(code=0, ext={"offset": "50"})

    def query_consumer_offset(self, ext: dict[str, str]) -> Command:
        offset = self.committed.get(int(ext["queueId"]))
        return (
            Command(code=C.QUERY_NOT_FOUND)
            if offset is None
            else Command(code=0, ext={"offset": str(offset)})
        )

    def update_consumer_offset(self, ext: dict[str, str]) -> Command:
        self.committed[int(ext["queueId"])] = int(ext["commitOffset"])
        return Command(code=0)


@pytest.mark.parametrize("known", [{0: 40}, {0: 40, 1: 60}])
@pytest.mark.parametrize(("timestamp_ms", "force", "first"), [(7, True, 50), (7, False, 40), (-1, True, 100)])
async def test_a_group_without_members_gets_its_offsets_committed(
    known: dict[int, int], timestamp_ms: int, force: bool, first: int
) -> None:
    """This includes queues that the group has not read yet."""
    broker = OldBroker(online=False)
    broker.committed = dict(known)
    offsets = await reset_topic(broker.ask, "G", "T", timestamp_ms=timestamp_ms, force=force)
    assert offsets == {QUEUES[0]: first, QUEUES[1]: 100 if timestamp_ms == -1 else 50}
    assert broker.committed == {queue.queue_id: offset for queue, offset in offsets.items()}


async def test_a_group_with_members_keeps_the_brokers_error() -> None:
    """Its members would overwrite what we commit."""
    with pytest.raises(BrokerError, match="not exist"):
        await reset_topic(OldBroker(online=True).ask, "G", "T", timestamp_ms=-1, force=True)


@pytest.mark.parametrize(("offset", "reached"), [(0, 10), (30, 30), (200, 100), (None, 50)])
@pytest.mark.parametrize(
    ("version", "config"), [(V4_9_7, ""), (VERSION_5_0, "useServerSideResetOffset=false\n")]
)
async def test_one_queue_of_a_group_without_members_is_set(
    offset: int | None, reached: int, version: int, config: str
) -> None:
    """The broker's own reset would set all of them."""
    broker = OldBroker(online=False, version=version, config=config)
    done = await reset_queue(broker.ask, "G", QUEUES[1], offset, timestamp_ms=7, where="broker a")
    assert done == reached
    assert (broker.committed, broker.resets) == ({0: 40, 1: reached}, 0)


async def test_one_queue_of_a_group_with_members_is_refused() -> None:
    broker = OldBroker(online=True)
    with pytest.raises(FeatureNotSupported, match=r"broker a answers as RocketMQ 4\.9\.7"):
        await reset_queue(broker.ask, "G", QUEUES[1], 5, timestamp_ms=-1, where="broker a")
    assert broker.resets == 0


async def test_the_commands_reset_as_the_admin_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """`libra admin skipAccumulatedMessage` and `resetOffsetByTime` failed at these brokers."""
    broker = OldBroker(online=False)
    operator = Operator("127.0.0.1:9876")

    async def ask(_: str, call: Call[Any]) -> Any:
        return await broker.ask(call)

    async def brokers_of(_: str) -> list[str]:
        return ["127.0.0.1:10911"]

    monkeypatch.setattr(operator, "ask", ask)
    monkeypatch.setattr(operator, "brokers_of", brokers_of)
    assert await operator.reset("G", "T") == dict.fromkeys(QUEUES, 100)
    assert broker.committed == {0: 100, 1: 100}


async def test_a_broker_that_is_away_keeps_a_call_from_no_other() -> None:
    """`libra admin deleteTopic -c` stopped at the first unreachable broker."""
    absent = f"127.0.0.1:{free_port()}"
    async with NameServer(port=0) as other, Operator("127.0.0.1:9876") as operator:
        call = name_server_calls.cluster_info()
        with pytest.raises(ConnectFailed, match=absent) as failed:
            await operator.ask_each([absent, other.address], call)
    assert failed.value.__notes__ == [f"These have answered: {other.address}"]


@pytest.mark.parametrize("config", ["", "useServerSideResetOffset=true\n", C.NO_PERMISSION])
async def test_a_broker_that_sets_offsets_is_asked_to(config: str | C) -> None:
    """The caller may reset offsets; permission to read the broker's options makes no difference."""
    broker = OldBroker(online=True, version=VERSION, config=config)
    with pytest.raises(BrokerError, match="not exist"):
        await reset_queue(broker.ask, "G", QUEUES[1], 5, timestamp_ms=-1, where="broker a")
    assert broker.resets == 1
