"""The scenes in which the earlier LibraMQ is recorded: a broker writes a directory; frames are exchanged.

    python -m tests.compat.scenes directory '{"data": …}'     # prints its contents, then waits to be killed
    python -m tests.compat.scenes pending '{"data": …}'       # the same, of what was not delivered or done
    python -m tests.compat.scenes frames '{"data": …}'        # prints the exchanges

`tests.compat.record` and tests run this module with the earlier LibraMQ on the import path: it uses the
modules of that one.
"""

import asyncio
import hashlib
import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from tests.interop import wire

BROKERS = ("broker-a", "broker-b")
TOPIC, DELAYED_LEVEL = "Recorded", 18
#: The directory is test data: files of Apache's size would be gigabytes of holes.
SMALL_FILES = {"commit_log_file_bytes": 1 << 17, "consume_queue_file_bytes": 2_000}
COORDINATED, STOCK, FAILING = "coordinated", "stock", "failing"
#: Short, because whoever opens the directory waits this long for members that will not come back.
SESSION_MS = 2_000
POLL_S, POLLS_MAX = 0.02, 1_500
WAITING, POPPED, POPPING, TRANSACTING = "Waiting", "Popped", "popping", "transacting"
ACKNOWLEDGED = (b"1", b"3")
#: Longer than a kill takes and the start after it; the level is as long.
WAITING_MS, WAITING_LEVEL = 10_000, 3
QUERY_OFFSET, COMMIT, HEARTBEAT, QUERY_ASSIGNMENT, OPEN_QUEUE = 14, 15, 34, 400, 31005
PEERS_TELL = {31015, 31016}  # PEER_ASSIGN, PEER_ASSIGNMENTS
RESPONSE_FLAG, ONEWAY_FLAG = 1, 2
NOT_FOUND = 22


class Tap:
    """All frames that this process wrote, as exchanges in the order of their requests."""

    def __init__(self) -> None:
        self.exchanges: list[dict[str, Any]] = []
        self._open: dict[tuple[Any, int], dict[str, Any]] = {}

    def install(self) -> None:
        """Intercept the writes of asyncio's transports."""
        from asyncio.selector_events import _SelectorSocketTransport as Transport  # type: ignore[attr-defined]

        write, seen = Transport.write, self._seen

        def tapped(transport: Any, data: bytes) -> None:
            seen(transport, bytes(data))
            write(transport, data)

        Transport.write = Transport.writelines = tapped
        Transport.writelines = lambda transport, parts: tapped(transport, b"".join(parts))

    def requests(self, code: int) -> Iterator[dict[str, str]]:
        """Yield the ext fields of requests of a code."""
        for exchange in self.exchanges:
            header, _ = wire.decode_header(bytes.fromhex(exchange["request"]))
            if header["code"] == code:
                yield header["extFields"]

    def kinds(self) -> list[dict[str, Any]]:
        """Return the first exchange of every kind: request code, answer code and fields, with body or not."""
        first: dict[Any, dict[str, Any]] = {}
        for exchange in self.exchanges:
            header, start = wire.decode_header(bytes.fromhex(exchange["request"]))
            if exchange["response"] is None and not header["flag"] & ONEWAY_FLAG:
                continue
            answer: Any = None
            if exchange["response"] is not None:
                frame = bytes.fromhex(exchange["response"])
                answered, answer_start = wire.decode_header(frame)
                answer = answered["code"], len(frame) > answer_start, sorted(answered["extFields"])
            first.setdefault(repr((header["code"], len(exchange["request"]) // 2 > start, answer)), exchange)
        return sorted(first.values(), key=lambda exchange: exchange["code"])

    def _seen(self, transport: Any, data: bytes) -> None:
        here, there = (transport.get_extra_info(name) for name in ("sockname", "peername"))
        while data:
            frame, data = data[: 4 + int.from_bytes(data[:4])], data[4 + int.from_bytes(data[:4]) :]
            header, _ = wire.decode_header(frame)
            if header["flag"] & RESPONSE_FLAG:
                exchange = self._open.pop((there, header["opaque"]), None)
                if exchange is not None:
                    exchange["response"] = frame.hex()
            else:
                exchange = {"code": header["code"], "request": frame.hex(), "response": None}
                self.exchanges.append(exchange)
                self._open[here, header["opaque"]] = exchange


async def directory(options: dict[str, Any], tap: Tap) -> None:
    """Write messages, topics, groups, offsets, claims, a delayed message and one awaiting redelivery."""
    from libramq.client import Admin, ConsumeFrom, Producer, PushConsumer
    from libramq.message import Message, MessageExt
    from libramq.testing import Broker

    broker = Broker(Path(options["data"]), broker_name=BROKERS[0], **SMALL_FILES)
    await broker.start()
    results: list[tuple[Any, Message]] = []
    async with Admin(namesrv=broker.namesrv) as admin:
        await admin.create_topic(TOPIC, queues=4)
        (address,) = (await admin.cluster_info()).broker_addr_table[BROKERS[0]].broker_addrs.values()
    handled: dict[str, int] = {COORDINATED: 0, FAILING: 0}
    owned: list[set[int]] = []

    async def handle(messages: list[MessageExt]) -> None:
        handled[COORDINATED] += len(messages)

    # Both have their queues before there is a message: claims are read from the commits of their last owners.
    for instance in ("one", None):
        queues: set[int] = set()
        owned.append(queues)
        member = PushConsumer(
            group=COORDINATED,
            namesrv=broker.namesrv,
            consume_from=ConsumeFrom.FIRST_OFFSET,
            instance_id=instance,
            session_ms=SESSION_MS,
            on_assigned=lambda new, queues=queues: queues.update(q.queue_id for q in new if q.topic == TOPIC),
            on_revoked=lambda old, queues=queues: queues.difference_update(
                q.queue_id for q in old if q.topic == TOPIC
            ),
        )
        member.subscribe(TOPIC, "*", handle)
        await member.start()
    await until(lambda: [len(queues) for queues in owned] == [2, 2])
    async with Producer(group="producers", namesrv=broker.namesrv) as producer:
        for number in range(40):
            message = Message(
                TOPIC,
                b"message %d" % number,
                tags="even" if number % 2 == 0 else "odd",
                keys=f"key{number}",
                properties={"number": str(number)},
            )
            results.append((await producer.send(message), message))
        batch = [Message(TOPIC, b"of a batch %d" % number) for number in range(8)]
        results += zip(await producer.send_batch(batch), batch, strict=True)
        large = Message(TOPIC, b"compressed " * 1_000)
        results.append((await producer.send(large), large))
        await producer.send(Message("Delayed", b"in two hours", delay_level=DELAYED_LEVEL))
    failed = asyncio.Event()

    async def fail_once(messages: list[MessageExt]) -> None:
        handled[FAILING] += 1
        if handled[FAILING] == 1:
            failed.set()
            raise ValueError("to be delivered again")

    failing = PushConsumer(group=FAILING, namesrv=broker.namesrv, consume_from=ConsumeFrom.FIRST_OFFSET)
    failing.subscribe(TOPIC, "*", fail_once)
    async with failing:
        await failed.wait()
        await until(lambda: handled[FAILING] >= len(results))
    connection = await connect(address)
    await exchange(connection, HEARTBEAT, body=heartbeat("stock-client", STOCK))
    for queue_id in range(4):
        fields = {"consumerGroup": STOCK, "topic": TOPIC, "queueId": str(queue_id), "commitOffset": "3"}
        await exchange(connection, COMMIT, fields)
    ends: dict[str, int] = {}
    for result, _ in results:
        queue = str(result.queue.queue_id)
        ends[queue] = max(ends.get(queue, 0), result.queue_offset + 1)
    offsets = {COORDINATED: ends, STOCK: dict.fromkeys(ends, 3)}
    await wait_committed(connection, offsets[COORDINATED])
    claims = {
        ext["queueId"]: [ext["lbMember"], int(ext["lbQueueEpoch"])]
        for ext in tap.requests(COMMIT)
        if ext["consumerGroup"] == COORDINATED and ext["topic"] == TOPIC
    }
    messages = [
        {
            "id": result.message_id,
            "queue": result.queue.queue_id,
            "offset": result.queue_offset,
            "body": hashlib.sha256(message.body).hexdigest(),
            "properties": message.all_properties(),
        }
        for result, message in results
    ]
    output({"messages": messages, "offsets": offsets, "claims": claims})
    await asyncio.to_thread(sys.stdin.readline)  # Either we are killed, or the broker stops cleanly.
    await broker.stop()
    os._exit(0)  # The members do not leave the group.


async def pending(options: dict[str, Any], tap: Tap) -> None:
    """Leave messages that wait for their time, messages that were popped, and transactions of each state."""
    from libramq.client import Producer, SimpleConsumer, TransactionState
    from libramq.message import Message
    from libramq.testing import Broker

    async with Broker(Path(options["data"]), broker_name=BROKERS[0], **SMALL_FILES) as broker:
        producer = Producer(
            group=TRANSACTING, namesrv=broker.namesrv, check_transaction=lambda _: TransactionState.UNKNOWN
        )
        await producer.start()
        for number in range(4):
            await producer.send(Message(POPPED, b"%d" % number))
        popper = SimpleConsumer(group=POPPING, namesrv=broker.namesrv, prefetch=False)
        popper.subscribe(POPPED)
        await popper.start()
        popped: list[Any] = []
        while len(popped) < 4:
            popped += await popper.receive(4, invisible_ms=WAITING_MS)
        for message in popped:
            if message.body in ACKNOWLEDGED:
                await popper.ack(message)
        async with producer.transaction(Message(WAITING, b"committed")):
            pass
        async with producer.transaction(Message(WAITING, b"rolled back")) as transaction:
            transaction.rollback()
        async with producer.transaction(Message(WAITING, b"open")) as transaction:
            transaction.leave_open()
        await producer.send(Message(WAITING, b"timer", delay_ms=WAITING_MS))
        await producer.send(Message(WAITING, b"level", delay_level=WAITING_LEVEL))
        output({"popped": len(popped)})
        await asyncio.to_thread(sys.stdin.readline)
    os._exit(0)


async def frames(options: dict[str, Any], tap: Tap) -> None:
    """Run a coordinated group over two brokers, an operator, members that query queues, an orderly group."""
    from libramq.client import Admin, ConsumeFrom, Producer, PushConsumer
    from libramq.message import Message, MessageExt
    from libramq.testing import Broker

    received = []

    async def handle(messages: list[MessageExt]) -> None:
        received.extend(messages)

    def member(**more: Any) -> PushConsumer:
        consumer = PushConsumer(
            group=COORDINATED, namesrv=first.namesrv, consume_from=ConsumeFrom.FIRST_OFFSET, **more
        )
        consumer.subscribe(TOPIC, "*", handle)
        return consumer

    async with AsyncExitStack() as stack:
        data = Path(options["data"])
        first = await stack.enter_async_context(Broker(data / "a", broker_name=BROKERS[0], **SMALL_FILES))
        # It starts its own name server, too, but registers with the first broker's.
        other = Broker(data / "b", broker_name=BROKERS[1], namesrv_addr=first.namesrv, **SMALL_FILES)
        await stack.enter_async_context(other)
        async with Admin(namesrv=first.namesrv) as admin:
            await admin.create_topic(TOPIC, queues=2)
            table = (await admin.cluster_info()).broker_addr_table
            addresses = [table[name].broker_addrs[0] for name in BROKERS]
        producer = await stack.enter_async_context(Producer(group="producers", namesrv=first.namesrv))
        for number in range(20):
            await producer.send(Message(TOPIC, b"message %d" % number, tags="even"))
        await producer.send_batch([Message(TOPIC, b"of a batch")] * 2)
        async with member(), member(instance_id="two"):
            await until(lambda: len(received) >= 22)
            static = member(instance_id="three")
            await static.start()
            await until(lambda: len({ext["lbMember"] for ext in tap.requests(OPEN_QUEUE)}) == 3)
            async with Admin(namesrv=first.namesrv) as admin:
                await admin.remove_member(COORDINATED, "three", operator="somebody")
            await static.stop()
        connections = [await connect(address) for address in addresses]
        while not PEERS_TELL.issubset(exchange["code"] for exchange in tap.exchanges):
            for position, connection in enumerate(connections):
                await ask_for_queues(connection, f"client-{position}")
        for _, writer in connections:
            writer.close()
        ordered = PushConsumer(group="orderly", namesrv=first.namesrv, orderly=True)
        ordered.subscribe(TOPIC, "*", handle)
        await ordered.start()
        await ordered.stop()
    output({"exchanges": tap.kinds()})


Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def connect(address: str) -> Connection:
    host, _, port = address.rpartition(":")
    return await asyncio.open_connection(host, int(port))


async def exchange(
    connection: Connection, code: int, ext: dict[str, str] | None = None, body: dict[str, Any] | None = None
) -> dict[str, str]:
    """Make a request and return the ext fields of its answer."""
    reader, writer = connection
    writer.write(wire.encode_request(code, ext or {}, json.dumps(body).encode() if body else b""))
    header: dict[str, Any] = {"flag": 0}
    while not header["flag"] & RESPONSE_FLAG:  # A notification that members changed may come first.
        size = await reader.readexactly(4)
        header, _ = wire.decode_header(size + await reader.readexactly(int.from_bytes(size)))
    assert header["code"] in (0, NOT_FOUND), header
    fields: dict[str, str] = header["extFields"]
    return fields


def heartbeat(client_id: str, group: str) -> dict[str, Any]:
    """Return the heartbeat of a stock consumer."""
    subscription = {"topic": TOPIC, "subString": "*", "tagsSet": [], "codeSet": [], "subVersion": 1}
    consumer = {
        "groupName": group,
        "consumeType": "CONSUME_PASSIVELY",
        "messageModel": "CLUSTERING",
        "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
        "subscriptionDataSet": [subscription],
        "unitMode": False,
    }
    return {"clientID": client_id, "producerDataSet": [], "consumerDataSet": [consumer]}


async def ask_for_queues(connection: Connection, client_id: str) -> None:
    """Act as a member that queries a broker for its queues."""
    await exchange(connection, HEARTBEAT, body=heartbeat(client_id, "asking"))
    question = {
        "topic": TOPIC,
        "consumerGroup": "asking",
        "clientId": client_id,
        "strategyName": "AVG",
        "messageModel": "CLUSTERING",
    }
    await exchange(connection, QUERY_ASSIGNMENT, body=question)


async def wait_committed(connection: Connection, offsets: dict[str, int]) -> None:
    """Wait until the coordinated group has committed these offsets."""
    for queue_id, offset in offsets.items():
        fields = {"consumerGroup": COORDINATED, "topic": TOPIC, "queueId": queue_id}
        for _ in range(POLLS_MAX):
            if (await exchange(connection, QUERY_OFFSET, fields)).get("offset") == str(offset):
                break
            await asyncio.sleep(POLL_S)
        else:
            raise TimeoutError(f"queue {queue_id} is not committed up to {offset}")


async def until(condition: Callable[[], bool]) -> None:
    """Wait until a condition holds."""
    for _ in range(POLLS_MAX):
        if condition():
            return
        await asyncio.sleep(POLL_S)
    raise TimeoutError


def output(value: dict[str, Any]) -> None:
    """Print a value as one line of JSON."""
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    # uvloop's transports are written in C: their writes could not be intercepted.
    sys.modules["uvloop"] = None  # type: ignore[assignment]
    the_tap = Tap()
    the_tap.install()
    scenes = {"directory": directory, "pending": pending, "frames": frames}
    asyncio.run(scenes[sys.argv[1]](json.loads(sys.argv[2]), the_tap))
