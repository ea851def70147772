"""Load for one broker, byte-identical for all: requests in lockstep over plain sockets, and a consumer.

Requests are encoded here, so no code of the tree under test runs on the client side. Lockstep means that the
next requests are sent once the previous ones are answered: each read of the broker returns exactly `window`.
"""

import asyncio
import json
import socket
from collections.abc import Callable, Mapping
from typing import Any

QUEUES = 8
BODY = b"x" * 1024
TOPIC = "Load"
GROUP = "load"
TIMEOUT_S = 30.0
PULL_BATCH = 32
WAITS_30_S = {"sysFlag": "6", "suspendTimeoutMillis": "30000"}  # FLAG_SUSPEND and FLAG_SUBSCRIPTION.

UPDATE_AND_CREATE_TOPIC, SEND_MESSAGE_V2, PULL_MESSAGE, UPDATE_CONSUMER_OFFSET, GET_MAX_OFFSET = (
    17,
    310,
    11,
    15,
    30,
)
POP_MESSAGE, ACK_MESSAGE = 200050, 200051
SEND_BATCH_MESSAGE, HEART_BEAT, GET_CONSUMER_LIST_BY_GROUP = 320, 34, 38


class Load:
    """Two connections to a broker. Each measure runs a number of operations and returns when all are done."""

    def __init__(self, namesrv: str, address: str) -> None:
        host, port = address.rsplit(":", 1)
        self._namesrv = namesrv
        self._sender, self._puller = (
            _Connection(socket.create_connection((host, int(port)), timeout=TIMEOUT_S)) for _ in range(2)
        )
        self._consumed_by = 0
        self._sender.exchange(_create_topic())
        #: By name: the function that runs a number of operations of one kind.
        self.measures: Mapping[str, Callable[[int], None]] = {
            "send, 1 a read": lambda count: self.send(count, 1),
            "send, 32 a read": lambda count: self.send(count, 32),
            "pull of 32": self.pull,
            "pull that is held": self.hold,
            "commit, 1 a read": lambda count: self.commit(count, 1),
            "commit, 32 a read": lambda count: self.commit(count, 32),
            "pop and ack, 1 a read": lambda count: self.pop(count, 1),
            "pop and ack, 32 a read": lambda count: self.pop(count, 32),
            "consumed by a member": self.consume,
        }

    def send(self, count: int, window: int) -> None:
        """Store 1 KiB messages, round-robin over the queues."""
        frames = [_send(number % QUEUES) for number in range(window)]
        for _ in range(count // window):
            self._sender.exchange(*frames)

    def pull(self, count: int) -> None:
        """Pull the first 32 messages of each queue in turn; `count` counts messages."""
        frames = [_pull(queue, 0) for queue in range(QUEUES)]
        for number in range(count // PULL_BATCH):
            self._puller.exchange(frames[number % QUEUES])

    def hold(self, count: int) -> None:
        """Hold a pull at the end of every queue, then send the message that completes it."""
        ends = [int(self._sender.exchange(_max_offset(queue))[0]["offset"]) for queue in range(QUEUES)]
        sends = [_send(queue) for queue in range(QUEUES)]
        for _ in range(count // QUEUES):
            self._puller.write(*(_pull(queue, end, **WAITS_30_S) for queue, end in enumerate(ends)))
            self._sender.exchange(*sends)
            self._puller.read(QUEUES)
            ends = [end + 1 for end in ends]

    def commit(self, count: int, window: int) -> None:
        """Commit the offset of every queue again and again."""
        frames = [_commit(number % QUEUES, number % 2) for number in range(window)]
        for _ in range(count // window):
            self._sender.exchange(*frames)

    def pop(self, count: int, window: int) -> None:
        """Pop single messages from the queues in turn and acknowledge them; each is delivered once."""
        frames = [_pop(number % QUEUES) for number in range(window)]
        for number in range(count // window):
            pops = frames if window > 1 else [_pop(number % QUEUES)]
            self._puller.exchange(*[_ack(popped) for popped in self._puller.exchange(*pops)])

    def consume(self, count: int) -> None:
        """Consume this many messages with this tree's client as a member of a coordinated group."""
        self._consumed_by += 1
        asyncio.run(self._consume(count, f"member_{self._consumed_by}"))

    async def _consume(self, count: int, group: str) -> None:
        from libramq.client import ConsumeFrom, PushConsumer

        left, done = count, asyncio.Event()

        async def handle(messages: list[Any]) -> None:
            nonlocal left
            left -= len(messages)
            if left <= 0:
                done.set()

        consumer = PushConsumer(group=group, namesrv=self._namesrv, consume_from=ConsumeFrom.FIRST_OFFSET)
        consumer.subscribe(TOPIC, "*", handle)
        async with consumer:
            await asyncio.wait_for(done.wait(), TIMEOUT_S)

    def close(self) -> None:
        self._sender.close()
        self._puller.close()


class _Connection:
    def __init__(self, connection: socket.socket) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket = connection
        self._stream = connection.makefile("rb")

    def exchange(self, *frames: bytes) -> list[dict[str, str]]:
        """Write requests in one piece and read as many answers; return their ext fields."""
        self.write(*frames)
        return self.read(len(frames))

    def write(self, *frames: bytes) -> None:
        self._socket.sendall(b"".join(frames))

    def read(self, count: int) -> list[dict[str, str]]:
        answers = []
        for _ in range(count):
            frame = self._stream.read(int.from_bytes(self._stream.read(4)))
            header = json.loads(frame[4 : 4 + int.from_bytes(frame[1:4])])
            if header["code"] != 0:
                raise SystemExit(f"the broker answers {header['code']}: {header.get('remark')}")
            answers.append(header.get("extFields") or {})
        return answers

    def close(self) -> None:
        self._stream.close()
        self._socket.close()


def _frame(code: int, ext: Mapping[str, str], body: bytes = b"") -> bytes:
    header = json.dumps(
        {"code": code, "language": "JAVA", "version": 479, "opaque": 1, "flag": 0, "extFields": ext,
         "serializeTypeCurrentRPC": "JSON"},
        separators=(",", ":"),
    ).encode()  # fmt: skip
    return (4 + len(header) + len(body)).to_bytes(4) + len(header).to_bytes(4) + header + body


def _create_topic() -> bytes:
    fields = {"topic": TOPIC, "defaultTopic": "TBW102", "readQueueNums": str(QUEUES),
              "writeQueueNums": str(QUEUES), "perm": "6", "topicFilterType": "SINGLE_TAG",
              "topicSysFlag": "0", "order": "false"}  # fmt: skip
    return _frame(UPDATE_AND_CREATE_TOPIC, fields)


PROPERTIES = f"UNIQ_KEY\x01{'A' * 32}\x02WAIT\x01true\x02"


def _send(queue: int) -> bytes:
    return _frame(SEND_MESSAGE_V2, _send_fields(queue), BODY)


def _send_batch(queue: int, count: int, size: int) -> bytes:
    properties = PROPERTIES.encode()
    item = b"".join((
        (22 + size + len(properties)).to_bytes(4), bytes(12), size.to_bytes(4), b"x" * size,
        len(properties).to_bytes(2), properties,
    ))  # fmt: skip
    return _frame(SEND_BATCH_MESSAGE, _send_fields(queue) | {"m": "true"}, item * count)


def _send_fields(queue: int) -> dict[str, str]:
    return {"a": "producers", "b": TOPIC, "c": "TBW102", "d": "4", "e": str(queue), "f": "0",
            "g": "1700000000000", "h": "0", "i": PROPERTIES, "j": "0", "k": "false", "m": "false",
            "n": "broker-a"}  # fmt: skip


def _pull(queue: int, offset: int, **how: str) -> bytes:
    fields = {"consumerGroup": GROUP, "topic": TOPIC, "queueId": str(queue), "queueOffset": str(offset),
              "maxMsgNums": str(PULL_BATCH), "sysFlag": "4", "commitOffset": "0",
              "suspendTimeoutMillis": "0", "subVersion": "0", "subscription": "*",
              "expressionType": "TAG"}  # fmt: skip
    return _frame(PULL_MESSAGE, fields | how)


def _heartbeat(group: str) -> bytes:
    """Register the connection as a group member."""
    subscription = {"topic": TOPIC, "subString": "*", "tagsSet": [], "codeSet": [], "subVersion": 1}
    consumer = {"groupName": group, "consumeType": "CONSUME_PASSIVELY", "messageModel": "CLUSTERING",
                "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET", "subscriptionDataSet": [subscription],
                "unitMode": False}  # fmt: skip
    body = {"clientID": "10.0.0.1@1", "consumerDataSet": [consumer], "producerDataSet": []}
    return _frame(HEART_BEAT, {}, json.dumps(body).encode())


def _member_list(group: str) -> bytes:
    """Fetch a group's members; the caller is not notified of them again."""
    return _frame(GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": group})


def _member_pull(group: str, queue: int, offset: int) -> bytes:
    """Pull as Apache's push consumer does: by its subscription, with a commit, and willing to be held."""
    fields = {"consumerGroup": group, "topic": TOPIC, "queueId": str(queue), "queueOffset": str(offset),
              "maxMsgNums": str(PULL_BATCH), "maxMsgBytes": "262144", "sysFlag": "3",
              "commitOffset": str(offset), "suspendTimeoutMillis": "15000", "subVersion": "1",
              "expressionType": "TAG", "bname": "broker-a"}  # fmt: skip
    return _frame(PULL_MESSAGE, fields)


def _commit(queue: int, offset: int) -> bytes:
    fields = {"consumerGroup": GROUP, "topic": TOPIC, "queueId": str(queue), "commitOffset": str(offset)}
    return _frame(UPDATE_CONSUMER_OFFSET, fields)


def _pop(queue: int) -> bytes:
    fields = {"consumerGroup": GROUP, "topic": TOPIC, "queueId": str(queue), "maxMsgNums": "1",
              "invisibleTime": "60000", "pollTime": "0", "bornTime": "0", "initMode": "0", "expType": "TAG",
              "exp": "*", "order": "false"}  # fmt: skip
    return _frame(POP_MESSAGE, fields)


def _ack(popped: Mapping[str, str]) -> bytes:
    """Acknowledge the single message of a pop answer (ExtraInfoUtil.buildExtraInfo)."""
    _, queue, offset = popped["startOffsetInfo"].split(" ")
    numbers = [popped[name] for name in ("popTime", "invisibleTime", "reviveQid")]
    info = " ".join([offset, *numbers, "0", "broker-a", queue, offset])
    fields = {"consumerGroup": GROUP, "topic": TOPIC, "queueId": queue, "extraInfo": info, "offset": offset}
    return _frame(ACK_MESSAGE, fields)


def _max_offset(queue: int) -> bytes:
    return _frame(GET_MAX_OFFSET, {"topic": TOPIC, "queueId": str(queue)})
