"""The client of torture: one connection to a broker, with a method for each operation."""

import asyncio
from collections.abc import AsyncIterator
from typing import Final, NamedTuple, TypeVar

from bench.torturing.ledger import Identity, body_of, identity_of

from libramq.clock import SystemClock
from libramq.codes import ResponseCode
from libramq.errors import BrokerError, ConnectFailed, LibraError
from libramq.formats.tables import TopicConfig
from libramq.message import MessageExt, MessageQueue, decode_records
from libramq.message.ids import decode_offset_id
from libramq.message.properties import (
    PRODUCER_GROUP,
    TIMER_DELIVER_MS,
    TRANSACTION_PREPARED,
    UNIQ_KEY,
    properties_to_text,
)
from libramq.message.sys_flag import TRANSACTION_COMMIT, TRANSACTION_ROLLBACK
from libramq.message.sys_flag import TRANSACTION_PREPARED as PREPARED
from libramq.remoting import headers as h
from libramq.rpc import admin_calls, broker_calls
from libramq.rpc.broker_calls import SendReply
from libramq.rpc.call import Call
from libramq.transport.asyncio_remotes import AsyncioRemotes

T = TypeVar("T")

TOPIC: Final = "torture"
#: The topics where committed transaction messages and due timer messages are delivered.
TRANSACTIONS_TOPIC: Final = "torture-transactions"
TIMERS_TOPIC: Final = "torture-timers"
TOPICS: Final = (TOPIC, TRANSACTIONS_TOPIC, TIMERS_TOPIC)
TRANSACTIONS_GROUP: Final = "torture"
QUEUE_COUNT: Final = 4
#: Ours: longer than any answer can take; a flush times out after 5 s, a slave after 3 s.
TIMEOUT_MS: Final = 60_000
#: Ours: on a very busy machine an attempt to connect may exceed its time limit.
CONNECT_TRIES: Final = 20
CONNECT_AGAIN_SECONDS: Final = 0.1


class Half(NamedTuple):
    """A half message, its position, and whether it is as safe as it should be."""

    identity: Identity
    queue_offset: int
    physical_offset: int
    is_safe: bool


class Client:
    """One connection to the broker.

    is_serving: the broker is known to serve, so failed attempts to connect are retried.
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

    async def create_topics(self) -> None:
        """Create the topics of all messages."""
        for name in TOPICS:
            topic = TopicConfig(topic_name=name, read_queue_nums=QUEUE_COUNT, write_queue_nums=QUEUE_COUNT)
            await self.make(admin_calls.create_topic(topic))

    async def serves_topics(self) -> bool:
        """Return whether the broker knows the topics and their groups; a slave learns of them later."""
        try:
            for topic in TOPICS:
                await self.records("check", 0, 0, topic=topic)
        except BrokerError:
            return False
        return True

    async def send(self, identity: Identity, queue_id: int) -> int | None:
        """Send a message; return its offset, or None if it is not as safe as it should be."""
        reply = await self._send(identity, queue_id)
        return reply.queue_offset if reply.code == ResponseCode.SUCCESS else None

    async def send_timer(self, identity: Identity, queue_id: int, deliver_ms: int) -> bool:
        """Send a timer message; return whether it is safe."""
        properties = properties_to_text({TIMER_DELIVER_MS: str(deliver_ms)})
        reply = await self._send(identity, queue_id, topic=TIMERS_TOPIC, properties=properties)
        return reply.code == ResponseCode.SUCCESS

    async def send_half(self, identity: Identity, queue_id: int) -> Half:
        """Send a half message; return it with its position."""
        key = f"{identity.producer}-{identity.serial}"
        properties = properties_to_text(
            {UNIQ_KEY: key, TRANSACTION_PREPARED: "true", PRODUCER_GROUP: TRANSACTIONS_GROUP}
        )
        reply = await self._send(
            identity, queue_id, topic=TRANSACTIONS_TOPIC, properties=properties, sys_flag=PREPARED
        )
        physical_offset = decode_offset_id(reply.offset_message_id).physical_offset
        return Half(identity, reply.queue_offset, physical_offset, reply.code == ResponseCode.SUCCESS)

    async def end_transaction(self, half: Half, *, is_commit: bool) -> None:
        """Commit or roll back."""
        header = h.EndTransactionHeader(
            producer_group=TRANSACTIONS_GROUP,
            tran_state_table_offset=half.queue_offset,
            commit_log_offset=half.physical_offset,
            commit_or_rollback=TRANSACTION_COMMIT if is_commit else TRANSACTION_ROLLBACK,
        )
        await self.make(broker_calls.end_transaction(header))

    async def _send(
        self,
        identity: Identity,
        queue_id: int,
        *,
        topic: str = TOPIC,
        properties: str = "",
        sys_flag: int = 0,
    ) -> SendReply:
        header = h.SendMessageHeaderV2(
            producer_group="torture",
            topic=topic,
            default_topic="TBW102",
            default_topic_queue_nums=QUEUE_COUNT,
            queue_id=queue_id,
            sys_flag=sys_flag,
            born_timestamp=int(SystemClock().wall_ms()) if properties else 0,
            flag=0,
            properties=properties,
        )
        return await self.make(broker_calls.send_message(header, body_of(identity)))

    async def records(
        self, group: str, queue_id: int, offset: int, *, topic: str = TOPIC, hold_ms: int = 0
    ) -> list[MessageExt]:
        """Return the next messages of a queue."""
        header = h.PullMessageHeader(
            consumer_group=group,
            topic=topic,
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
        return decode_records(reply.body) if reply.code == ResponseCode.SUCCESS else []

    async def pull(
        self, group: str, queue_id: int, offset: int, *, hold_ms: int = 0
    ) -> list[tuple[int, Identity | None]]:
        """Return the next messages of a queue, with their offsets."""
        found = await self.records(group, queue_id, offset, hold_ms=hold_ms)
        return [(each.queue_offset, identity_of(each.body)) for each in found]

    async def messages(self, queue_id: int, first: int) -> AsyncIterator[Identity | None]:
        """Yield all messages of a queue from an offset; raises LibraError if an offset has none."""
        async for message in self.messages_of(TOPIC, queue_id, first):
            yield identity_of(message.body)

    async def messages_of(self, topic: str, queue_id: int, first: int) -> AsyncIterator[MessageExt]:
        """Yield all messages of a topic's queue, as `messages` does."""
        end = await self.make(broker_calls.max_offset(MessageQueue(topic, "", queue_id)))
        while first < end:
            found = await self.records("check", queue_id, first, topic=topic)
            if not found:
                raise LibraError(f"queue {queue_id}: nothing can be read at {first}, and it ends at {end}")
            for message in found:
                if message.queue_offset != first:
                    raise LibraError(
                        f"queue {queue_id}: message {first} is missing before {message.queue_offset}"
                    )
                first += 1
                yield message

    async def commit(self, group: str, queue_id: int, offset: int) -> None:
        """Commit a group's offset; it is acknowledged when this returns."""
        await self.make(broker_calls.update_consumer_offset(group, MessageQueue(TOPIC, "", queue_id), offset))

    async def committed(self, group: str, queue_id: int) -> int | None:
        """Return a group's offset."""
        return await self.make(broker_calls.query_consumer_offset(group, MessageQueue(TOPIC, "", queue_id)))
