"""Apache's Java push consumer answers a broker's probe whether it is alive."""

import asyncio
from pathlib import Path

import pytest

from libramq.broker.config import BrokerConfig
from libramq.broker.shell import BrokerServer
from libramq.clock import SystemClock
from libramq.filesystem import LocalFileSystem
from libramq.groups import consumer_group
from libramq.groups.consumer_group import Session
from libramq.nameserver import NameServer
from tests.interop.apache import start_program
from tests.interop.ports import free_broker_port, free_port
from tests.interop.process import PATIENCE_S

pytestmark = pytest.mark.interop


@pytest.mark.usefixtures("_programs")
async def test_javas_client_answers_a_session_probe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Silence means 0.1 s here, so that the broker probes it between its heartbeats and pulls."""
    answers: asyncio.Queue[bool] = asyncio.Queue()

    class Watched(Session):
        def answered(self, *, knows_group: bool, now_ms: int) -> None:
            answers.put_nowait(knows_group)
            super().answered(knows_group=knows_group, now_ms=now_ms)  # type: ignore[arg-type]

    monkeypatch.setattr(consumer_group, "SILENCE_MS_MAX", 100)
    monkeypatch.setattr("libramq.groups.consumer_group.Session", Watched)
    names = NameServer("127.0.0.1", free_port())
    await names.start()
    namesrv = f"127.0.0.1:{names.port}"
    config = BrokerConfig(
        store_path=str(tmp_path / "store"), listen_port=free_broker_port(), namesrv_addr=namesrv
    )
    broker = BrokerServer(config, clock=SystemClock(), filesystem=LocalFileSystem())
    await broker.start()
    settings = {"namesrv": namesrv, "group": "G", "topic": "TBW102"}
    program = await asyncio.to_thread(
        start_program, "Consume", settings, name="asked", home=tmp_path / "asked"
    )
    try:
        await asyncio.to_thread(program.wait_event, "queues", topic="TBW102")
        async with asyncio.timeout(PATIENCE_S):
            assert [await answers.get() for _ in range(3)] == [True] * 3
        assert broker.broker.members.consumers.group("G") is not None
    finally:
        await asyncio.to_thread(program.stop)
        await broker.stop()
        await names.stop()
