"""The check reads all messages from a real broker, and compares them with the ledger."""

from pathlib import Path

from bench.torturing.client import Client
from bench.torturing.ledger import Identity, Ledger
from bench.torturing.load import check

from libramq.broker.config import BrokerConfig
from tests.broker.test_shell import running
from tests.interop.ports import free_broker_port
from tests.transport.loops import run_on


def test_what_the_broker_has_is_compared_with_what_it_acknowledged(tmp_path: Path) -> None:
    async def scenario() -> None:
        settings = BrokerConfig(store_path=str(tmp_path), listen_port=free_broker_port())
        ledger, ends = Ledger(), dict[int, int]()
        async with running(settings) as broker, Client(broker.address) as client:
            await client.create_topics()
            for serial in range(8):
                offset = await client.send(Identity(0, serial), serial % 4)
                assert offset is not None
                assert ledger.acknowledged(serial % 4, offset, Identity(0, serial)) == []
            assert await client.pull("one", 2, 0) == [(0, Identity(0, 2)), (1, Identity(0, 6))]
            ledger.requested("one", 2, 1)
            await client.commit("one", 2, 1)
            ledger.committed("one", 2, 1)
            assert await check(broker.address, ledger, ends) == []
            assert ends == dict.fromkeys(range(4), 2)
            ledger.acknowledged(3, 2, Identity(0, 99))
            ledger.requested("two", 0, 2)
            ledger.committed("two", 0, 2)
            message, commit = await check(broker.address, ledger, ends)
            assert "group two, queue 0: acknowledged commit 2 went back" in commit
            assert "queue 3: acknowledged message 2 is lost" in message

    run_on("asyncio", scenario)
