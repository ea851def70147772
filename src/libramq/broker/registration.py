"""The registration: what a broker tells name servers about itself, and when.

At start, every 30 s and at each change of its topics, to every name server; and once a second that it is
still there, so that one that stands still is forgotten, and its groups live elsewhere, within seconds.
Upstream: BrokerController, BrokerOuterAPI.registerBrokerAll, sendHeartbeat.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from libramq.broker.config import BrokerConfig
from libramq.catalog import TopicTable
from libramq.errors import LibraError
from libramq.logs import get_logger
from libramq.remoting.body.topic_config import (
    PERM_INHERIT,
    DataVersion,
    RegisterBrokerBody,
    TopicConfig,
    TopicConfigSerializeWrapper,
)
from libramq.remoting.headers import BrokerHeartbeatHeader, RegisterBrokerHeader, UnregisterBrokerHeader
from libramq.rpc.call import Call
from libramq.rpc.name_server_calls import broker_heartbeat, register_broker, unregister_broker
from libramq.transport.remote import Remotes

log = get_logger(__name__)

#: BrokerConfig.registerBrokerTimeoutMills.
REGISTER_TIMEOUT_MS: Final = 24_000
#: BrokerController.start clamps registerNameServerPeriod to these.
PERIOD_MS_MIN: Final = 10_000
PERIOD_MS_MAX: Final = 60_000
#: BrokerConfig.brokerHeartbeatInterval, brokerNotActiveTimeoutMillis: upstream's where slaves act as masters;
#: elsewhere it sends none, and a broker that stands still is believed in for two minutes. Name servers before
#: 5.0 know neither.
HEARTBEAT_MS: Final = 1_000
HEARTBEAT_TIMEOUT_MS: Final = 10_000
#: Ours: several topics created in one turn make one registration.
CHANGE_DELAY_MS: Final = 2
#: Ours: leaving must not take longer than a user waits; name servers notice the closed connection anyway.
UNREGISTER_TIMEOUT_MS: Final = 1_000
#: Ours: how long a start waits for name servers that do not answer; they are told when they do.
FIRST_ROUND_MS_MAX: Final = 3_000
#: Ours: a name server that was not there is asked again soon, so that starting order does not matter.
RETRY_MS: Final = 1_000
#: Ours: who created a topic is answered then at the latest; clients wait 3 s and more.
TOLD_MS_MAX: Final = 2_000


def introduction(config: BrokerConfig, topics: TopicTable) -> tuple[RegisterBrokerHeader, RegisterBrokerBody]:
    """Who the broker is, and which topics it has."""
    table = {topic.topic_name: _permitted(topic, config) for topic in topics}
    wrapper = TopicConfigSerializeWrapper(data_version=topics.data_version, topic_config_table=table)
    header = RegisterBrokerHeader(
        broker_name=config.broker_name,
        broker_addr=config.address,
        cluster_name=config.cluster_name,
        broker_id=config.broker_id,
        ha_server_addr=f"{config.broker_ip}:{config.listen_port + 1}",
    )
    return header, RegisterBrokerBody(topic_config_serialize_wrapper=wrapper)


def farewell(config: BrokerConfig) -> UnregisterBrokerHeader:
    """Who leaves."""
    return UnregisterBrokerHeader(
        broker_name=config.broker_name,
        broker_addr=config.address,
        cluster_name=config.cluster_name,
        broker_id=config.broker_id,
    )


def _permitted(topic: TopicConfig, config: BrokerConfig) -> TopicConfig:
    """What clients may do here: no more than the broker as a whole allows (registerBrokerAll)."""
    perm = topic.perm & (config.broker_permission | PERM_INHERIT)
    return topic if perm == topic.perm else msgspec.structs.replace(topic, perm=perm)


@dataclass(slots=True)
class _Waiting:
    """Somebody who waits until name servers have been told. addresses: those that have not been yet."""

    addresses: set[str]
    then: Callable[[], None]
    timer: asyncio.TimerHandle | None = None


class Registration:
    """Keeps every name server informed, each at its own pace: one that hangs delays no other."""

    def __init__(
        self, config: BrokerConfig, topics: TopicTable, remotes: Remotes, name_servers: Sequence[str]
    ) -> None:
        self._config = config
        self._topics = topics
        self._remotes = remotes
        self._changed = {address: asyncio.Event() for address in name_servers}
        self._untried = set(name_servers)
        self._tried_all = asyncio.Event()
        self._failed: set[str] = set()
        self._waiting: list[_Waiting] = []
        self._encoded: tuple[DataVersion, Call[object]] | None = None

    def announce(self) -> None:
        """The topics changed: tell the name servers soon."""
        for event in self._changed.values():
            event.set()

    def when_told(self, then: Callable[[], None]) -> None:
        """Go on when all name servers know the topics as they are now; those that fail are not waited for."""
        waiting = _Waiting(self._changed.keys() - self._failed, then)
        if not waiting.addresses:
            then()
            return
        waiting.timer = asyncio.get_running_loop().call_later(TOLD_MS_MAX / 1000, self._go_on, waiting)
        self._waiting.append(waiting)
        self.announce()

    def _go_on(self, waiting: _Waiting) -> None:
        assert waiting.timer is not None
        waiting.timer.cancel()
        self._waiting.remove(waiting)
        waiting.then()

    def lost(self, address: str) -> None:
        """The connection to a name server ended: it may have forgotten us by the time it is back."""
        if address in self._changed:
            self._changed[address].set()

    async def run(self) -> None:
        """Register again and again, until cancelled."""
        async with asyncio.TaskGroup() as group:
            for address in self._changed:
                group.create_task(self._keep(address))
                group.create_task(self._beat(address))

    async def wait_tried(self) -> None:
        """Wait until every name server was told once, or could not be; not for ever."""
        if self._untried:
            try:
                async with asyncio.timeout(FIRST_ROUND_MS_MAX / 1000):
                    await self._tried_all.wait()
            except TimeoutError:
                log.warning("name servers that do not answer", addresses=sorted(self._untried))

    async def unregister(self) -> None:
        """Tell every name server that we leave."""
        header = farewell(self._config)
        async with asyncio.TaskGroup() as group:
            for address in self._changed:
                if self._remotes.is_connected(address):
                    group.create_task(self._tell(address, unregister_broker(header), UNREGISTER_TIMEOUT_MS))

    async def _keep(self, address: str) -> None:
        period_ms = min(max(self._config.register_name_server_period_ms, PERIOD_MS_MIN), PERIOD_MS_MAX)
        changed = self._changed[address]
        while True:
            changed.clear()
            heard = [waiting for waiting in self._waiting if address in waiting.addresses]
            await self._tell(address, await self._registration(), REGISTER_TIMEOUT_MS)
            for waiting in heard:
                waiting.addresses.discard(address)
                if not waiting.addresses and waiting in self._waiting:
                    self._go_on(waiting)
            self._untried.discard(address)
            if not self._untried:
                self._tried_all.set()
            try:
                async with asyncio.timeout((RETRY_MS if address in self._failed else period_ms) / 1000):
                    await changed.wait()
                await asyncio.sleep(CHANGE_DELAY_MS / 1000)
            except TimeoutError:
                pass

    async def _beat(self, address: str) -> None:
        header = BrokerHeartbeatHeader(
            broker_name=self._config.broker_name,
            broker_addr=self._config.address,
            cluster_name=self._config.cluster_name,
        )
        call = broker_heartbeat(header)
        while True:
            await asyncio.sleep(HEARTBEAT_MS / 1000)
            if self._remotes.is_connected(address):
                # Whether it was heard is for registrations to find out.
                self._remotes.send(address, call.command(), lambda _: None, timeout_ms=HEARTBEAT_MS)

    async def _registration(self) -> Call[object]:
        """Who we are and which topics we have; encoded on a thread, as ten thousand topics take 100 ms."""
        version = self._topics.data_version
        if self._encoded is None or self._encoded[0] != version:
            header, body = introduction(self._config, self._topics)
            header.heartbeat_timeout_millis = HEARTBEAT_TIMEOUT_MS
            call = await asyncio.to_thread(register_broker, header, body)
            self._encoded = (version, call)
        return self._encoded[1]

    async def _tell(self, address: str, call: Call[object], timeout_ms: int) -> None:
        try:
            reply = await self._remotes.call(address, call.command(), timeout_ms=timeout_ms)
            call.result(reply, where=f"name server {address}")
        except LibraError as error:
            if address not in self._failed:
                log.warning("name server not reached; tried again soon", address=address, reason=str(error))
            self._failed.add(address)
        else:
            self._failed.discard(address)
