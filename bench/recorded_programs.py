"""Record the frames that Apache's programs send to our servers, in order, for bench/replayed_frames.

    producers, consumers, mqadmin ──► 127.0.0.2:N ──► name server 127.0.0.1:N
    Apache's master and slave         127.0.0.2:B ──► broker      127.0.0.1:B

The recording has only the programs' frames, and the positions of answers and of our servers' own requests:

    ["request", connection, server, frame]      server: "name server" or that of NAME
    ["answer", connection, opaque, pop time]    the pop time is null but in POP's answers
    ["asked", connection, code, opaque]         the server asked its client,
    ["reply", connection, frame]                which answered
    ["close", connection]
"""

import asyncio
import itertools
import json
import sys
import time
from collections.abc import Mapping
from contextlib import ExitStack
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from tests.interop import wire
from tests.interop.apache import (
    BINARY_HEADERS,
    SMALL_STORE,
    VERSION,
    ApacheBroker,
    MqAdmin,
    set_up,
    start_program,
)
from tests.interop.capture import CLIENT_HOST, RESPONSE_FLAG, Exchange, Proxy, Recording, proxies_running
from tests.interop.libra import LibraServers
from tests.interop.process import Process, Program

NAME = "recorded"
TOPIC, ORDERED, POPPED = "FramesTopic", "FramesOrdered", "FramesPopped"
START_S = 60.0
SLAVE_S = 12.0

#: Settings of the recorded broker and of the brokers that replay the recording.
SETTINGS: Mapping[str, object] = {
    "brokerIP1": CLIENT_HOST,
    "bindAddress": "127.0.0.1",
    # No delayed delivery, so that log offsets are the same in each run.
    "messageDelayLevel": "1h 1h 1h 1h",
    "transactionTimeOut": 1_000,
    "transactionCheckInterval": 1_000,
    "enablePropertyFilter": "true",
}

Event = list[Any]
_connection: ContextVar[int] = ContextVar("connection")
_numbers = itertools.count()


class Tape(Proxy):
    """A proxy that adds the events of its connections to a list."""

    def __init__(self, events: list[Event], *, server: str, target: tuple[str, int]) -> None:
        super().__init__(Recording(), client="client", server=server, target=target)
        self._events = events
        self._server = server

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        _connection.set(number := next(_numbers))
        try:
            await super().serve(reader, writer)
        finally:
            self._events.append(["close", number])

    def _note(self, frame: bytes, sender: str, receiver: str, asked: dict[tuple[str, int], Exchange]) -> None:
        header, _ = wire.decode_header(frame)
        number = _connection.get()
        if sender == "client" and header["flag"] & RESPONSE_FLAG:
            self._events.append(["reply", number, frame.hex()])
        elif sender == "client":
            self._events.append(["request", number, self._server, frame.hex()])
        elif header["flag"] & RESPONSE_FLAG:
            popped = header["extFields"].get("popTime")
            self._events.append(["answer", number, header["opaque"], popped])
        else:
            self._events.append(["asked", number, header["code"], header["opaque"]])


def record(home: Path) -> dict[str, Any]:
    """Run Apache's programs against this tree's servers and return the recorded events."""
    set_up()
    events: list[Event] = []
    with ExitStack() as stack:
        servers = LibraServers(home, NAME, settings=SETTINGS)
        stack.callback(servers.stop)
        ports = {"name server": int(servers.namesrv.rpartition(":")[2]), NAME: servers.ports[NAME]}
        tapes = [
            (Tape(events, server=server, target=("127.0.0.1", port)), CLIENT_HOST, port)
            for server, port in ports.items()
        ]
        stack.enter_context(proxies_running(tapes))
        play(home, f"{CLIENT_HOST}:{ports['name server']}", f"{CLIENT_HOST}:{ports[NAME]}")
    return {
        "programs": f"Apache RocketMQ {VERSION}: Java clients, mqadmin, a master and a slave",
        "command": "bench/replayed_frames --record",
        "ports": ports,
        "events": events,
    }


def play(home: Path, namesrv: str, broker: str) -> None:
    """Make Apache's programs send one request of each kind they know."""
    admin = MqAdmin(home / "admin", namesrv)
    with ExitStack() as stack:
        stack.callback(admin.stop)
        at, cluster = ("-b", broker), ("-c", "DefaultCluster")
        for topic, queues in ((TOPIC, 2), (ORDERED, 1), (POPPED, 1)):
            run(admin, "updateTopic", *at, "-t", topic, "-r", str(queues), "-w", str(queues))
        for dialect in ({}, BINARY_HEADERS):
            name = "binary" if dialect else "json"
            settings = {**dialect, "namesrv": namesrv, "broker": broker, "brokerName": NAME}
            produce(home / name, settings)
            consume(home / name, settings, name, admin)
            ask_offsets(home / name, settings)
            pop(home / name, settings, name)
        settings = {"namesrv": namesrv}
        request_and_reply(home, settings)
        administer(home, admin, at, cluster)
    transact(home, settings)
    run_brokers(home, namesrv)


def run(admin: MqAdmin, *arguments: str) -> None:
    """Run a command; a failing command has sent its frames nevertheless."""
    try:
        admin(*arguments)
    except AssertionError as error:
        print(f"mqadmin {arguments[0]}: {str(error).splitlines()[-1][:120]}", file=sys.stderr)


def started(main: str, settings: Mapping[str, object], home: Path) -> Program:
    program = start_program(main, settings, home=home)
    program.wait_event("started")
    return program


def produce(home: Path, settings: Mapping[str, object]) -> None:
    with started("Produce", {**settings, "trace": True, "group": "producers"}, home / "produce") as producer:
        message = {"body": "café", "tags": "TagA", "keys": "key-1", "properties": {"colour": "blue"}}
        for kind in ("queue", "async", "oneway", "sync", "hash"):
            producer.ask("sent", {"kind": kind, "topic": TOPIC, "queueId": 1, "hashBy": "a", **message})
        producer.ask("sent", {"kind": "batch", "topic": TOPIC, "messages": [message, {"body": "second"}]})
        producer.ask("sent", {"kind": "sync", "topic": TOPIC, "body": "compressed ", "repeat": 500})
        producer.ask("sent", {"kind": "sync", "topic": TOPIC, "body": "delayed", "delayLevel": 2})
        producer.ask("sent", {"kind": "sync", "topic": f"Created-{home.name}", "body": "creates its topic"})
        for topic, count in ((ORDERED, 3), (POPPED, 4)):
            for number in range(count):
                producer.ask("sent", {"kind": "queue", "topic": topic, "queueId": 0, "body": str(number)})
        in_a_day = int(time.time() * 1_000) + 86_400_000
        timed = {"kind": "sync", "topic": TOPIC, "body": "tomorrow", "deliverAt": in_a_day}
        sent = producer.ask("sent", timed)
        if sent.get("handle"):
            producer.ask("sent", {"kind": "recall", "topic": TOPIC, "handle": sent["handle"]})
        producer.finish()


def consume(home: Path, settings: Mapping[str, object], name: str, admin: MqAdmin) -> None:
    group = f"concurrent-{name}"
    subscribed = {**settings, "group": group, "topic": TOPIC, "tags": "TagA || TagB"}
    with start_program("Consume", {**subscribed, "fail": "first"}, home=home / "consume") as consumer:
        consumer.wait_count(5, "message")
        run(admin, "consumerProgress", "-g", group)
        run(admin, "consumerConnection", "-g", group)
        run(admin, "consumerStatus", "-g", group)
        run(admin, "resetOffsetByTime", "-g", group, "-t", TOPIC, "-s", "now", "-f", "true")
        with start_program("Consume", subscribed, home=home / "second") as second:
            second.wait_event("queues", topic=TOPIC)
            second.finish()
        consumer.finish()
    filtered = {**subscribed, "group": f"sql-{name}", "tags": "*", "sql": "colour = 'blue'"}
    for what, more in (
        (
            "orderly",
            {**subscribed, "group": f"orderly-{name}", "topic": ORDERED, "tags": "*", "orderly": True},
        ),
        ("filtered", filtered),
        ("broadcast", {**subscribed, "group": f"broadcast-{name}", "tags": "*", "broadcast": True}),
        ("heartbeat-v2", {**subscribed, "group": f"v2-{name}", "com.rocketmq.heartbeat.v2": True}),
        ("assigned", {**subscribed, "group": f"assigned-{name}", "clientRebalance": False}),
    ):
        with start_program("Consume", more, home=home / what) as consumer:
            consumer.wait_count(3, "message")
            consumer.finish()
    lite = {**settings, "group": f"lite-{name}", "topic": TOPIC, "tags": "*"}
    with start_program("LitePull", lite, home=home / "lite") as consumer:
        consumer.wait_count(3, "message")
        consumer.finish()


def ask_offsets(home: Path, settings: Mapping[str, object]) -> None:
    with started("Offsets", settings, home / "offsets") as offsets:
        queue = {"topic": TOPIC, "broker": NAME, "queueId": 1}
        for question in ("queues", "min", "max", "search", "earliest", "committed", "commit", "committed"):
            offsets.ask("answer", {**queue, "ask": question, "timestamp": 0, "offset": 2})
        for offset in (0, 1_000_000):
            offsets.ask("answer", {**queue, "ask": "pull", "tags": "*", "offset": offset, "count": 2})
        offsets.ask("answer", {**queue, "ask": "pull", "tags": "NoSuchTag", "offset": 0, "count": 32})
        offsets.ask("answer", {"ask": "queues", "topic": "NoSuchTopic"})
        offsets.finish()


def pop(home: Path, settings: Mapping[str, object], name: str) -> None:
    with started("Pop", settings, home / "pop") as program:
        for order in (True, False):
            wanted = {"group": f"poppers-{name}-{order}", "topic": POPPED, "queueId": 0, "order": order}
            for count in (1, 2):
                question = {
                    **wanted,
                    "ask": "pop",
                    "count": count,
                    "invisible": 60_000,
                    "attempt": str(count),
                }
                popped = program.ask("answer", question).get("answer") or []
                for message, ask in zip(popped, ("ack", "change"), strict=False):
                    handled = {**wanted, "ask": ask, "handle": message["handle"], "invisible": 30_000}
                    program.ask("answer", handled)
        program.finish()


def transact(home: Path, settings: Mapping[str, object]) -> None:
    with started("Transact", {**settings, "group": "transacting"}, home / "transact") as producer:
        for local in ("commit", "rollback", "unknown"):
            producer.ask("sent", {"topic": TOPIC, "body": local, "local": local, "check": "commit"})
        producer.wait_event("check")
        producer.finish()


def request_and_reply(home: Path, settings: Mapping[str, object]) -> None:
    replying = {**settings, "group": "asking", "replies": ORDERED}
    with started("Ask", replying, home / "ask") as asking:
        asking.ask("replied", {"topic": ORDERED, "body": "question", "timeout": 10_000})
        asking.finish()


def administer(home: Path, admin: MqAdmin, at: tuple[str, str], cluster: tuple[str, str]) -> None:
    """Run mqadmin's commands; modifying commands come last or touch only unused objects."""
    topics, groups = home / "topics.json", home / "groups.json"
    topics.write_text(
        json.dumps([{"topicName": "Listed", "readQueueNums": 1, "writeQueueNums": 1, "perm": 6}])
    )
    groups.write_text(json.dumps([{"groupName": "listed", "retryMaxTimes": 7}]))
    group, topic = ("-g", "concurrent-json"), ("-t", TOPIC)
    queue = ("-b", NAME, "-i", "0")
    for line in (
        ("topicList",), ("topicList", "-c"), ("clusterList",), ("topicRoute", *topic),
        ("topicStatus", *topic),
        ("topicClusterList", *topic), ("allocateMQ", *topic, "-i", "10.0.0.1,10.0.0.2"),
        ("brokerStatus", *at), ("brokerConsumeStats", *at), ("getBrokerConfig", *at), ("getNamesrvConfig",),
        ("consumerProgress",), ("consumerProgress", *group), ("getConsumerConfig", *group),
        ("producerConnection", "-g", "producers", *topic), ("producer", *at),
        ("queryMsgByKey", *topic, "-k", "key-1"), ("queryMsgByOffset", *topic, *queue, "-o", "0"),
        ("queryCq", *topic, "-q", "0", "-i", "0", "-c", "2", *at), ("statsAll", *topic), ("haStatus", *at),
        ("printMsg", *topic, "-s", "TagA"), ("consumeMessage", *topic, *queue, "-o", "0", "-c", "1"),
        ("printMsgByQueue", *topic, "-a", NAME, "-i", "0", "-f", "true", "-p", "true"),
        ("exportMetadata", *cluster, "-f", str(home / "exported")),
        ("exportMetrics", *cluster, "-f", str(home / "exported")),
        ("updateTopicList", *at, "-f", str(topics)), ("updateSubGroupList", *at, "-f", str(groups)),
        ("updateSubGroup", *at, "-g", "made"),
        ("setConsumeMode", *at, *topic, "-g", "made", "-m", "POP", "-q", "2"),
        ("cloneGroupOffset", "-s", "concurrent-json", "-d", "made", *topic),
        ("updateTopicPerm", *at, "-t", "Listed", "-p", "4"), ("skipAccumulatedMessage", "-g", "made", *topic),
        ("updateKvConfig", "-s", "frames", "-k", "key", "-v", "value"),
        ("deleteKvConfig", "-s", "frames", "-k", "key"),
        ("updateOrderConf", *topic, "-m", "put", "-v", f"{NAME}:2"), ("updateOrderConf", *topic, "-m", "get"),
        ("updateBrokerConfig", *at, "-k", "fileReservedTime", "-v", "70"),
        ("wipeWritePerm", "-b", NAME), ("addWritePerm", "-b", NAME),
        ("sendMessage", "-t", "Listed", "-p", "refused", *queue),
        ("sendMessage", *topic, "-p", "sent", *queue),
        ("sendMsgStatus", "-b", NAME, "-c", "1", "-s", "10"), ("resetMasterFlushOffset", *at, "-o", "0"),
        ("cleanExpiredCQ", *at), ("cleanUnusedTopic", *at), ("deleteExpiredCommitLog", *at),
        ("getSyncStateSet", "-a", "127.0.0.2:1", "-b", NAME), ("listUser", *at), ("listAcl", *at),
        ("getColdDataFlowCtrInfo", *at), ("exportPopRecord", *at), ("getBrokerEpoch", *at),
        ("deleteSubGroup", *at, "-g", "made"), ("deleteTopic", *cluster, "-t", "Listed"),
    ):  # fmt: skip
        run(admin, *line)
    admin.may_read(at[1], "made", TOPIC, readable=False)


def run_brokers(home: Path, namesrv: str) -> None:
    """Start an Apache master, then an Apache slave that copies our broker's tables; both register."""
    settings: dict[str, object] = {**SMALL_STORE, "brokerIP1": CLIENT_HOST}
    of_ours = {**settings, "brokerId": 1, "brokerRole": "SLAVE"}
    for name, more in (("apache", settings), (NAME, of_ours)):
        broker = ApacheBroker(home / f"{name}-of-apache", namesrv=namesrv, name=name, settings=more)
        try:
            broker.process.wait_line("boot success", within_s=START_S)
            _let_run(broker.process)
        finally:
            broker.stop()


def _let_run(process: Process) -> None:
    """Wait for a broker's own requests: heartbeats, and a slave's polls every three seconds."""
    process.ended_within(SLAVE_S)
