"""The attack corpus: small or legal frames that are expensive to process, built without any libramq code.

Each attack is a function of the round's number, so successive rounds vary.
"""

import json
import random
import socket
import struct
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

BODY = b"x" * 1024
VECTORS = Path(__file__).resolve().parent.parent / "tests" / "vectors"
TARGETS = "(20 ms, 50 ms, +100 MB)"

HEART_BEAT, GET_MAX_OFFSET, GET_ALL_TOPIC_CONFIG, GET_ALL_GROUPS, CREATE_TOPIC = 34, 30, 21, 201, 17
RUNTIME_INFO, SEND_V2, SEND_BATCH, PULL, CONSUME_STATS, TOPIC_STATS = 28, 310, 320, 11, 208, 202
REGISTER_BROKER, CLUSTER_INFO, LOCK_BATCH, GROUP_JOIN = 103, 106, 41, 9001
BROKER_CONSUME_STATS, CORRECTION_OFFSET, LIST_OFFSETS = 317, 308, 2
POP, NOTIFICATION, BATCH_ACK, END_TRANSACTION, PUT_KV, CREATE_TOPIC_LIST = 200050, 200054, 200151, 37, 100, 18
WIDE, STORED, LARGE = "W", "Stored", "Large"
#: A body slightly below the largest message size (maxMessageSize, 4 MiB).
LARGE_BYTES = 4 * 1024 * 1024 - 1024
#: Queues of the topic for statistics requests, and 1 KiB messages for pulls.
WIDE_QUEUES, STORED_MESSAGES = 1_024, 2_048


@dataclass(frozen=True)
class Attack:
    """One attack.

    data: the bytes that one round sends. answers: the number of answers to wait for; with reads=False and 0
    the attacker does not read. config: files of the broker's config directory, by name. crowd: the number of
    connections that each send `data` in a round and then close together.
    """

    name: str
    data: Callable[[int], bytes]
    answers: int = 1
    connections: int = 20
    reads: bool = True
    needs_topics: bool = False
    at_name_server: bool = False
    at_kafka: bool = False
    config: Callable[[], Mapping[str, str]] = dict
    crowd: int = 0


def frame(code: int, body: bytes = b"", **fields: str) -> bytes:
    """Return a request."""
    command = {"code": code, "language": "JAVA", "version": 479, "opaque": 1, "flag": 0}
    header = json.dumps(command | {"extFields": fields, "serializeTypeCurrentRPC": "JSON"}).encode()
    return (4 + len(header) + len(body)).to_bytes(4) + len(header).to_bytes(4) + header + body


def read_kafka_answer(line: socket.socket) -> None:
    """Read the next answer of the Kafka port."""
    _read(line, int.from_bytes(_read(line, 4)))


def read_answer(line: socket.socket) -> tuple[dict[str, object], bytes]:
    """Return the next answer's header and body; raise OSError if the connection ends first."""
    data = _read(line, int.from_bytes(_read(line, 4)))
    body_start = 4 + int.from_bytes(data[1:4])
    return json.loads(data[4:body_start]), data[body_start:]


def _read(line: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        piece = line.recv(min(size - len(data), 1 << 20))
        if not piece:
            raise ConnectionResetError("the connection ended")
        data += piece
    return bytes(data)


def corpus(seed: int) -> Sequence[Attack]:
    """Return all attacks."""
    every_topic = _same(frame(GET_ALL_TOPIC_CONFIG) * 256)
    zeros = frame(HEART_BEAT, b"[" + b"0," * 2_000_000 + b"0]")
    bomb = _registration("T 8 8 6 SINGLE_TAG {}" for _ in range(200_000))
    few, many = _registration(_topics(5_000)), _registration(_topics(50_000))
    pulls = b"".join(_pull(number) for number in range(300))
    return (
        Attack(
            "all topics, 256 pipelined, read",
            every_topic,
            256,
            needs_topics=True,
        ),
        Attack(
            "all topics, 256 pipelined, unread",
            every_topic,
            reads=False,
            needs_topics=True,
        ),
        Attack("topic pages, 256 pipelined", _pages, 256, needs_topics=True),
        Attack("all groups, 256 pipelined", _same(frame(GET_ALL_GROUPS) * 256), 256),
        Attack("loose heartbeat, 4 MiB", _same(frame(HEART_BEAT, b"{a:[" + b"{}," * 1_390_000 + b"1]}"))),
        Attack("loose heartbeat, 60 KB", _same(frame(HEART_BEAT, b"{a:[" + b"{}," * 19_990 + b"1]}"))),
        Attack("loose heartbeat, 4 KB", _same(frame(HEART_BEAT, b"{a:[" + b"{}," * 1_350 + b"1]}"))),
        Attack("heartbeat of 4 MiB of text", _same(frame(HEART_BEAT, b'{a:"' + b"x" * 4_190_000 + b'"}'))),
        Attack("standard heartbeat, 4 MiB of zeros", _same(zeros)),
        Attack("heartbeat of 1,000 groups", _groups),
        Attack("5,000 references, one long path", _same(frame(HEART_BEAT, _references()))),
        Attack("references to references", _same(frame(HEART_BEAT, _laughs()))),
        Attack("190,650 empty messages", _same(_batch(190_650))),
        Attack("16,384 empty messages", _same(_batch(16_384))),
        Attack("128 empty messages, 64 pipelined", _same(_batch(128) * 64), 64),
        Attack("consume stats, W a hundred times", _same(_stats(f"{WIDE};" * 100))),
        Attack("consume stats, 16 pipelined", _same(_stats(WIDE) * 16), 16),
        Attack("topic stats, 16 pipelined", _same(frame(TOPIC_STATS, topic=WIDE) * 16), 16),
        Attack("locks of 20,000 queues", _same(_locks(20_000))),
        Attack("locks of 4,000 queues", _same(_locks(4_000))),
        Attack("pulls, 89 KB pipelined, unread", _same(pulls), reads=False),
        Attack("pulls, 89 KB pipelined, read", _same(pulls), 300),
        Attack("pulls of 4 MiB, unread", _same(_pull(0, LARGE)), reads=False),
        Attack("registration, 12.7 KB compressed", _same(bomb), at_name_server=True),
        Attack("registration, 5,000 topics", _same(few), at_name_server=True),
        Attack("registration, 50,000 topics", _same(many), at_name_server=True),
        Attack("captured requests, mutated", _mutated(seed), reads=False),
        Attack("pops of W, 256 groups held, a message", _held_pops, 1),
        Attack("notifications of W, 256 groups, a message", _held_notifications, 1),
        Attack("pops, 256 groups pipelined, unread", _pops, reads=False),
        Attack("pops by SQL of 250 tests, 64 pipelined", _sql_pops, 64),
        Attack("SQL heartbeat of 200 expressions", _sql_heartbeat),
        Attack("timers for one second, 256 pipelined", _timers, 256),
        Attack("half messages, 256 pipelined", _halves, 256),
        Attack("ends of transactions, 256 pipelined", _ends, 256),
        Attack("1,024 acknowledgements in a batch, 16 pipelined", _same(_acks(1_024) * 16), 16),
        Attack("values of 64 KB, 64 pipelined", _values, 64, at_name_server=True),
        Attack("lists of 5,000 topics", _topic_list),
        Attack(
            "progress of 8,000 groups",
            _same(frame(BROKER_CONSUME_STATS, isOrder="false", timeoutMillis="0")),
            config=_groups_config,
        ),
        Attack(
            "smallest offsets of 200 groups, 4,096 queues",
            _same(frame(CORRECTION_OFFSET, topic="Read", compareGroup="G0", filterGroups="")),
            config=_read_config,
        ),
        Attack("pulls held by SQL of 250 tests, messages of 32 KB", _sql_held),
        Attack("offsets by time, 400 times one partition", _same(_list_offsets(400)), at_kafka=True),
        Attack("1,000 members that end together", _member, connections=1, crowd=1_000),
        Attack("1,000 producers of 100 groups that end together", _producer, connections=1, crowd=1_000),
    )


def topics_file(count: int) -> str:
    """Return a config/topics.json with this many topics."""
    table = {
        name: {"topicName": name, "readQueueNums": 8, "writeQueueNums": 8, "perm": 6}
        for name in (f"Topic{number:05}" for number in range(count))
    }
    version = {"counter": count, "stateVersion": 0, "timestamp": 1}
    return json.dumps({"dataVersion": version, "topicConfigTable": table})


def prepare_frames() -> Iterator[bytes]:
    """Return the frames that prepare the broker for the attack."""
    yield _topic(WIDE, WIDE_QUEUES)
    yield _topic(STORED, 1)
    yield _topic(LARGE, 1)
    for _ in range(4):
        yield frame(SEND_V2, bytes(LARGE_BYTES), **_send(LARGE))
    for _ in range(STORED_MESSAGES):
        yield frame(SEND_V2, BODY, **_send(STORED))


def ping(line: socket.socket, at_name_server: bool) -> None:
    """Send a request that costs the server almost nothing, and read the answer."""
    line.sendall(frame(CLUSTER_INFO) if at_name_server else frame(GET_MAX_OFFSET, topic=STORED, queueId="0"))
    read_answer(line)


def runtime_info(line: socket.socket) -> dict[str, str]:
    line.sendall(frame(RUNTIME_INFO))
    table: dict[str, str] = json.loads(read_answer(line)[1])["table"]
    return table


def _same(data: bytes) -> Callable[[int], bytes]:
    return lambda _: data


def _topic(name: str, queues: int) -> bytes:
    numbers = {"readQueueNums": str(queues), "writeQueueNums": str(queues), "perm": "6"}
    fixed = {"defaultTopic": "TBW102", "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false"}
    return frame(CREATE_TOPIC, topic=name, **numbers, **fixed)


def _send(topic: str, **fields: str) -> dict[str, str]:
    names = {"a": "P", "b": topic, "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1", "h": "0", "i": ""}
    return names | fields


def _pages(number: int) -> bytes:
    """Request topic pages of a data version that never matches the table, at scattered sequences."""
    fields = {
        "topicSeq": str(number * 100 % 12_000),
        "dataVersion": "",
        "maxTopicNum": str(1_900 + number % 100),
    }
    return frame(GET_ALL_TOPIC_CONFIG, **fields) * 256


def _groups(number: int) -> bytes:
    data = {
        "clientID": f"10.0.0.1@{number}",
        "producerDataSet": [],
        "consumerDataSet": [
            {"groupName": f"Attack{index}", "subscriptionDataSet": [{"topic": STORED, "subString": "*"}]}
            for index in range(1_000)
        ],
    }
    return frame(HEART_BEAT, json.dumps(data).encode())


def _references() -> bytes:
    path = "$" + ".a" * 30
    nested = '{"a":' * 30 + "1" + "}" * 29
    return (nested + ',0:0,"b":[' + ",".join([json.dumps({"$ref": path})] * 4_900) + "]}").encode()


def _laughs() -> bytes:
    """Build lists that each refer ten times to the previous one: 10^9 values in 1.5 KB."""
    lists = ['"a0":[0,0,0,0,0,0,0,0,0,0]']
    for level in range(1, 9):
        reference = json.dumps({"$ref": f"$.a{level - 1}"})
        lists.append(f'"a{level}":[{",".join([reference] * 10)}]')
    return ("{0:0," + ",".join(lists) + "}").encode()


def _batch(count: int) -> bytes:
    item = (22).to_bytes(4) + bytes(18)
    return frame(SEND_BATCH, item * count, **_send(STORED, m="true"))


def _stats(topics: str) -> bytes:
    return frame(CONSUME_STATS, consumerGroup="G", topicList=topics)


def _locks(count: int) -> bytes:
    queues = [{"topic": WIDE, "brokerName": "broker-a", "queueId": number} for number in range(count)]
    return frame(LOCK_BATCH, json.dumps({"consumerGroup": "G", "clientId": "c", "mqSet": queues}).encode())


def _pull(number: int, topic: str = STORED) -> bytes:
    numbers = {"queueId": "0", "queueOffset": str(number % 512), "maxMsgNums": "2000", "sysFlag": "4"}
    fixed = {"commitOffset": "0", "suspendTimeoutMillis": "0", "subscription": "*", "subVersion": "0"}
    return frame(PULL, consumerGroup="G", topic=topic, **numbers, **fixed)


def _topics(count: int) -> Iterator[str]:
    return (f"Topic{number:06} 8 8 6 SINGLE_TAG {{}}" for number in range(count))


def _registration(topics: Iterable[str]) -> bytes:
    def sized(text: bytes) -> bytes:
        return len(text).to_bytes(4) + text

    version = sized(b'{"counter":1,"stateVersion":0,"timestamp":1}')
    entries = [sized(topic.encode()) for topic in topics]
    count = len(entries).to_bytes(4)
    body = zlib.compress(version + count + b"".join(entries) + sized(b"[]") + bytes(4), 9)
    names = {"brokerName": "evil", "brokerAddr": "127.0.0.1:1", "clusterName": "Evil", "brokerId": "0"}
    return frame(REGISTER_BROKER, body, compressed="true", haServerAddr="", bodyCrc32="0", **names)


def _pop(topic: str, group: str, wait_ms: int, **fields: str) -> bytes:
    numbers = {
        "queueId": "-1",
        "maxMsgNums": "32",
        "invisibleTime": "60000",
        "initMode": "0",
        "bornTime": "0",
    }
    return frame(POP, consumerGroup=group, topic=topic, pollTime=str(wait_ms), **numbers, **fields)


def _held_pops(number: int) -> bytes:
    """Hold pops of 256 groups on 1,024 empty queues, then send one message; only the send is answered."""
    held = b"".join(_pop(WIDE, f"Held{index}", 15_000) for index in range(256))
    return (held if number < 20 else b"") + frame(SEND_V2, BODY, **_send(WIDE, e="7"))


def _held_notifications(number: int) -> bytes:
    numbers = {"queueId": "-1", "pollTime": "15000", "bornTime": "0"}
    held = b"".join(
        frame(NOTIFICATION, consumerGroup=f"Held{index}", topic=WIDE, **numbers) for index in range(256)
    )
    return (held if number < 20 else b"") + frame(SEND_V2, BODY, **_send(WIDE, e="7"))


def _pops(number: int) -> bytes:
    return b"".join(_pop(STORED, f"Popper{(number * 256 + index) % 5_000}", 0) for index in range(256))


def _sql_pops(number: int) -> bytes:
    expression = " OR ".join(f"a{test} = {number}" for test in range(250))
    return b"".join(_pop(STORED, f"Sql{number % 500}", 0, exp=expression, expType="SQL92") for _ in range(64))


def _sql_heartbeat(number: int) -> bytes:
    expression = " OR ".join(f"a{test} = {number}" for test in range(250))
    subscriptions = [
        {
            "topic": f"T{index}",
            "subString": f"{expression} OR b = {index}",
            "expressionType": "SQL92",
            "subVersion": number,
        }
        for index in range(200)
    ]
    consumer = {"groupName": f"SqlBeat{number % 1_000}", "subscriptionDataSet": subscriptions}
    data = {"clientID": f"10.0.0.1@{number}", "producerDataSet": [], "consumerDataSet": [consumer]}
    return frame(HEART_BEAT, json.dumps(data).encode())


def _timers(number: int) -> bytes:
    second = (int(time.time()) // 4 + 1) * 4_000
    return frame(SEND_V2, b"x", **_send(STORED, i=f"TIMER_DELIVER_MS\x01{second}\x02")) * 256


def _halves(number: int) -> bytes:
    return frame(SEND_V2, b"x", **_send(STORED, f="4", i="TRAN_MSG\x01true\x02PGROUP\x01P\x02")) * 256


def _ends(number: int) -> bytes:
    return b"".join(
        frame(
            END_TRANSACTION,
            producerGroup="P",
            tranStateTableOffset=str(number),
            commitLogOffset=str((number * 256 + index) * 997 % 4_000_000),
            commitOrRollback="8",
            fromTransactionCheck="false",
        )
        for index in range(256)
    )


def _acks(count: int) -> bytes:
    ack = {"c": "G", "t": STORED, "r": "0", "so": 0, "q": 0, "rq": 0, "pt": 1, "it": 1, "b": "////"}
    return frame(BATCH_ACK, json.dumps({"brokerName": "broker-a", "acks": [ack] * count}).encode())


def _values(number: int) -> bytes:
    return b"".join(
        frame(PUT_KV, namespace="N", key=f"K{number}-{index}", value="x" * 65_536) for index in range(64)
    )


def _topic_list(number: int) -> bytes:
    topics = [
        {"topicName": f"List{number % 10}-{index}", "readQueueNums": 1, "writeQueueNums": 1, "perm": 6}
        for index in range(5_000)
    ]
    return frame(CREATE_TOPIC_LIST, json.dumps({"topicConfigList": topics}).encode())


def _groups_config() -> Mapping[str, str]:
    names = [f"Group{number}" for number in range(8_000)]
    groups = {name: {"groupName": name} for name in names}
    offsets = {f"{STORED}@{name}": {"0": 0} for name in names}
    return {
        "subscriptionGroup": json.dumps({"subscriptionGroupTable": groups}),
        "consumerOffset": json.dumps({"offsetTable": offsets}),
    }


def _read_config() -> Mapping[str, str]:
    queues = {str(number): 0 for number in range(4_096)}
    topic = {"topicName": "Read", "readQueueNums": 4_096, "writeQueueNums": 4_096, "perm": 6}
    return {
        "topics": json.dumps({"topicConfigTable": {"Read": topic}}),
        "consumerOffset": json.dumps({"offsetTable": {f"Read@G{number}": queues for number in range(200)}}),
    }


def _sql_held(number: int) -> bytes:
    """Hold pulls whose filters test 250 long properties, then send a message with all of them."""
    numbers = {"queueId": "3", "queueOffset": "0", "maxMsgNums": "32", "sysFlag": "6"}
    fixed = {
        "commitOffset": "0",
        "suspendTimeoutMillis": "15000",
        "subVersion": "0",
        "expressionType": "SQL92",
    }
    held = b"".join(
        frame(
            PULL,
            consumerGroup=f"Held{index}",
            topic=WIDE,
            subscription=" OR ".join(f"a{test:03} = '{number}-{index}'" for test in range(250)),
            **numbers,
            **fixed,
        )
        for index in range(11)
    )
    properties = "".join(f"a{test:03}\x01{'x' * 110}\x02" for test in range(250))
    return (held if number < 20 else b"") + frame(SEND_V2, b"x", **_send(WIDE, e="3", i=properties))


def _list_offsets(count: int) -> bytes:
    """Request ListOffsets v1 for a time later than every record, so that the broker examines all of them."""
    partitions = struct.pack(">iq", 0, 2) * count
    name = STORED.encode()
    body = struct.pack(">iih", -1, 1, len(name)) + name + struct.pack(">i", count) + partitions
    header = struct.pack(">hhih", LIST_OFFSETS, 1, 7, 1) + b"c"
    return struct.pack(">i", len(header) + len(body)) + header + body


def _member(number: int) -> bytes:
    subscription = {"topic": STORED, "subString": "*", "subVersion": 1}
    consumer = {
        "groupName": "Crowd",
        "consumeType": "CONSUME_PASSIVELY",
        "messageModel": "CLUSTERING",
        "subscriptionDataSet": [subscription],
    }
    data = {"clientID": f"10.0.0.1@{number}", "producerDataSet": [], "consumerDataSet": [consumer]}
    return frame(HEART_BEAT, json.dumps(data).encode())


def _producer(number: int) -> bytes:
    groups = [{"groupName": f"P{index}"} for index in range(100)]
    data = {"clientID": f"10.0.0.1@{number}", "producerDataSet": groups, "consumerDataSet": []}
    return frame(HEART_BEAT, json.dumps(data).encode())


def _mutated(seed: int) -> Callable[[int], bytes]:
    """Return captured requests of Apache's and our programs with a few bytes changed, 50 a round."""
    captured: list[bytes] = []
    for name in ("remoting-json.json", "remoting-rocketmq.json", "libramq-ddc5400c-frames.json"):
        exchanges = json.loads((VECTORS / name).read_text())["exchanges"]
        captured += [bytes.fromhex(exchange["request"]) for exchange in exchanges if exchange.get("request")]

    def data(number: int) -> bytes:
        source = random.Random(f"{seed} {number}")
        parts = []
        for _ in range(50):
            mutated = bytearray(source.choice(captured))
            for _ in range(source.randrange(1, 4)):
                # Never change the frame length: a wrong length only closes the connection.
                mutated[source.randrange(4, len(mutated))] = source.choice(b'0199"{}[],:;\x00\xff$W')
            parts.append(bytes(mutated))
        return b"".join(parts)

    return data
