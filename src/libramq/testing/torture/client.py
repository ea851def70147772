"""The client of torture: one connection to a broker, and a call for each thing that is done to it."""

import asyncio
from collections.abc import AsyncIterator
from typing import Final, TypeVar

from libramq.clock import SystemClock
from libramq.codes import ResponseCode
from libramq.errors import BrokerError, ConnectFailed, LibraError
from libramq.formats.tables import TopicConfig
from libramq.message import MessageQueue, decode_records
from libramq.remoting import headers as h
from libramq.rpc import admin_calls, broker_calls
from libramq.rpc.call import Call
from libramq.testing.torture.bodies import Identity, body_of, identity_of
from libramq.transport.asyncio_remotes import AsyncioRemotes

T = TypeVar("T")

TOPIC: Final = "torture"
QUEUE_COUNT: Final = 4
#: Ours: more than any answer takes that still comes: a flush times out after 5 s, a slave after 3.
TIMEOUT_MS: Final = 60_000
#: Ours: on a machine that is very busy, an attempt to connect may take longer than its time limit.
CONNECT_TRIES: Final = 20
CONNECT_AGAIN_SECONDS: Final = 0.1


class Client:
    """One connection to the broker.

    is_serving: the broker is known to serve, so an attempt to connect that fails is made again.
    """

    def __init__(self, address: str, *, is_serving: bool = False) -> None:
        self._address = address
        self._is_serving = is_serving
        self._remotes = AsyncioRemotes(SystemClock().monotonic_ms)

    async def __aenter__(self) -> "Client":
        if self._is_serving:
            await self._connect()
        return self

    async def _connect(self) -> None:
        for _ in range(CONNECT_TRIES):
            try:
                await self.make(broker_calls.consumer_list("nobody"))
                return
            except ConnectFailed:
                await asyncio.sleep(CONNECT_AGAIN_SECONDS)
            except BrokerError:  # It has no such group.
                return
        raise ConnectFailed(f"{self._address} did not accept a connection in {CONNECT_TRIES} attempts")

    async def __aexit__(self, *_: object) -> None:
        await self._remotes.aclose()

    async def make(self, call: Call[T]) -> T:
        """Make a call; raises LibraError."""
        reply = await self._remotes.call(self._address, call.command(), timeout_ms=TIMEOUT_MS)
        return call.result(reply, where=self._address)

    async def create_topic(self) -> None:
        """Create the topic of all messages."""
        topic = TopicConfig(topic_name=TOPIC, read_queue_nums=QUEUE_COUNT, write_queue_nums=QUEUE_COUNT)
        await self.make(admin_calls.create_topic(topic))

    async def serves_topic(self) -> bool:
        """Return whether the broker knows the topic and its readers: a slave learns of them later."""
        try:
            await self.pull("check", 0, 0)
        except BrokerError:
            return False
        return True

    async def send(self, identity: Identity, queue_id: int) -> int | None:
        """Send a message; return its offset, or None if it is not as safe as it should be."""
        header = h.SendMessageHeaderV2(
            producer_group="torture",
            topic=TOPIC,
            default_topic="TBW102",
            default_topic_queue_nums=QUEUE_COUNT,
            queue_id=queue_id,
            sys_flag=0,
            born_timestamp=0,
            flag=0,
            properties="",
        )
        reply = await self.make(broker_calls.send_message(header, body_of(identity)))
        return reply.queue_offset if reply.code == ResponseCode.SUCCESS else None

    async def pull(
        self, group: str, queue_id: int, offset: int, *, hold_ms: int = 0
    ) -> list[tuple[int, Identity | None]]:
        """Return the next messages of a queue, with their offsets."""
        header = h.PullMessageHeader(
            consumer_group=group,
            topic=TOPIC,
            queue_id=queue_id,
            queue_offset=offset,
            max_msg_nums=32,
            sys_flag=6 if hold_ms else 4,
            suspend_timeout_millis=hold_ms,
            commit_offset=0,
            sub_version=0,
            subscription="*",
        )
        reply = await self.make(broker_calls.pull_message(header))
        if reply.code != ResponseCode.SUCCESS:
            return []
        return [(each.queue_offset, identity_of(each.body)) for each in decode_records(reply.body)]

    async def messages(self, queue_id: int, first: int) -> AsyncIterator[Identity | None]:
        """Yield all messages of a queue from an offset on; raises LibraError where a number has none."""
        end = await self.make(broker_calls.max_offset(MessageQueue(TOPIC, "", queue_id)))
        while first < end:
            found = await self.pull("check", queue_id, first)
            if not found:
                raise LibraError(f"queue {queue_id}: nothing can be read at {first}, and it ends at {end}")
            for offset, identity in found:
                if offset != first:
                    raise LibraError(f"queue {queue_id}: message {first} is missing before {offset}")
                first += 1
                yield identity

    async def commit(self, group: str, queue_id: int, offset: int) -> None:
        """Commit a group's offset; it is acknowledged when this returns."""
        await self.make(broker_calls.update_consumer_offset(group, MessageQueue(TOPIC, "", queue_id), offset))

    async def committed(self, group: str, queue_id: int) -> int | None:
        """Return a group's offset."""
        return await self.make(broker_calls.query_consumer_offset(group, MessageQueue(TOPIC, "", queue_id)))
