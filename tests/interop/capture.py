"""The recorder: writes the bytes between Apache's programs as vectors for tests of the codec.

    python -m tests.interop.capture            # writes tests/vectors/remoting-json.json and -rocketmq.json

    client ──► 127.0.0.2:N ──► name server 127.0.0.1:N
    broker ──► 127.0.0.3:N ──► name server 127.0.0.1:N
    client ──► 127.0.0.2:B ──► broker      127.0.0.1:B

A proxy on the same port of another loopback address copies bytes both ways and keeps every frame; the broker
announces the address of its proxy. The first exchange of every kind is kept. Beside the hex a vector has the
header, read by a decoder independent of LibraMQ's, so that a test can compare field by field.
"""

import argparse
import asyncio
import json
import tempfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.interop import wire
from tests.interop.apache import (
    BINARY_HEADERS,
    SMALL_STORE,
    VERSION,
    ApacheBroker,
    ApacheNameServer,
    MqAdmin,
    set_up,
    start_program,
    wait_broker,
)

VECTORS = Path(__file__).parent.parent / "vectors"
FRAME_BYTES_MAX = 24 * 1024  # People should be able to read a vector; no exchange here needs more.
CLIENT_HOST = "127.0.0.2"
BROKER_HOST = "127.0.0.3"
RESPONSE_FLAG = 1
ONEWAY_FLAG = 2
TOPIC = "CaptureTopic"

NAMES = {
    10: "SEND_MESSAGE",
    11: "PULL_MESSAGE",
    14: "QUERY_CONSUMER_OFFSET",
    15: "UPDATE_CONSUMER_OFFSET",
    17: "UPDATE_AND_CREATE_TOPIC",
    28: "GET_BROKER_RUNTIME_INFO",
    29: "SEARCH_OFFSET_BY_TIMESTAMP",
    30: "GET_MAX_OFFSET",
    31: "GET_MIN_OFFSET",
    32: "GET_EARLIEST_MSG_STORETIME",
    34: "HEART_BEAT",
    35: "UNREGISTER_CLIENT",
    36: "CONSUMER_SEND_MSG_BACK",
    38: "GET_CONSUMER_LIST_BY_GROUP",
    40: "NOTIFY_CONSUMER_IDS_CHANGED",
    41: "LOCK_BATCH_MQ",
    42: "UNLOCK_BATCH_MQ",
    46: "CHECK_CLIENT_CONFIG",
    103: "REGISTER_BROKER",
    104: "UNREGISTER_BROKER",
    105: "GET_ROUTEINFO_BY_TOPIC",
    106: "GET_BROKER_CLUSTER_INFO",
    200: "UPDATE_AND_CREATE_SUBSCRIPTIONGROUP",
    202: "GET_TOPIC_STATS_INFO",
    203: "GET_CONSUMER_CONNECTION_LIST",
    206: "GET_ALL_TOPIC_LIST_FROM_NAMESERVER",
    208: "GET_CONSUME_STATS",
    304: "GET_SYSTEM_TOPIC_LIST_FROM_NS",
    307: "GET_CONSUMER_RUNNING_INFO",
    310: "SEND_MESSAGE_V2",
    320: "SEND_BATCH_MESSAGE",
    322: "QUERY_DATA_VERSION",
    351: "GET_TOPIC_CONFIG",
    361: "LITE_PULL_MESSAGE",
    904: "BROKER_HEARTBEAT",
}


@dataclass(slots=True)
class Exchange:
    during: str
    sender: str
    receiver: str
    request: bytes
    response: bytes | None = None

    def key(self) -> tuple[object, ...]:
        header, body_start = wire.decode_header(self.request)
        # The broker repeats its own queries in every scene; its registrations differ, so they are kept apart.
        during = (
            "" if self.sender == "broker" and header["code"] == wire.GET_BROKER_CLUSTER_INFO else self.during
        )
        asked = (during, self.sender, self.receiver, header["code"], len(self.request) > body_start)
        if self.response is None:
            return asked
        answer, answer_body_start = wire.decode_header(self.response)
        return *asked, answer["code"], len(self.response) > answer_body_start

    def as_json(self) -> dict[str, Any]:
        request_header, _ = wire.decode_header(self.request)
        code = request_header["code"]
        described = {
            "name": NAMES.get(code, f"CODE_{code}"),
            "code": code,
            "during": self.during,
            "from": self.sender,
            "to": self.receiver,
            "request": self.request.hex(),
            "request_header": request_header,
            "response": None,
            "response_header": None,
        }
        if self.response is not None:
            described["response"] = self.response.hex()
            described["response_header"], _ = wire.decode_header(self.response)
        return described


@dataclass(slots=True)
class Recording:
    """All exchanges, in the order in which their requests were sent."""

    during: str = ""
    exchanges: list[Exchange] = field(default_factory=list)

    def kept(self) -> list[Exchange]:
        first: dict[tuple[object, ...], Exchange] = {}
        for exchange in self.exchanges:
            oneway = wire.decode_header(exchange.request)[0]["flag"] & ONEWAY_FLAG
            if exchange.response is None and not oneway:
                continue
            if max(len(exchange.request), len(exchange.response or b"")) <= FRAME_BYTES_MAX:
                first.setdefault(exchange.key(), exchange)
        return list(first.values())


class Proxy:
    """Copies bytes between each connection and one address, and adds every frame to the recording."""

    def __init__(self, recording: Recording, *, client: str, server: str, target: tuple[str, int]) -> None:
        self._recording = recording
        self._names = (client, server)
        self._target = target

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            server_reader, server_writer = await asyncio.open_connection(*self._target)
        except OSError:
            writer.close()
            return
        asked: dict[tuple[str, int], Exchange] = {}
        client, server = self._names
        await asyncio.gather(
            self._copy(reader, server_writer, client, server, asked),
            self._copy(server_reader, writer, server, client, asked),
        )

    async def _copy(
        self,
        source: asyncio.StreamReader,
        sink: asyncio.StreamWriter,
        sender: str,
        receiver: str,
        asked: dict[tuple[str, int], Exchange],
    ) -> None:
        try:
            while True:
                prefix = await source.readexactly(4)
                frame = prefix + await source.readexactly(int.from_bytes(prefix))
                self._note(frame, sender, receiver, asked)
                sink.write(frame)
                await sink.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            sink.close()

    def _note(self, frame: bytes, sender: str, receiver: str, asked: dict[tuple[str, int], Exchange]) -> None:
        header, _ = wire.decode_header(frame)
        if header["flag"] & RESPONSE_FLAG:
            # The receiver of a response sent the request.
            exchange = asked.pop((receiver, header["opaque"]), None)
            if exchange is not None:
                exchange.response = frame
            return
        exchange = Exchange(self._recording.during, sender, receiver, frame)
        self._recording.exchanges.append(exchange)
        asked[sender, header["opaque"]] = exchange


@contextmanager
def proxies_running(proxies: list[tuple[Proxy, str, int]]) -> Iterator[None]:
    """Serve the proxies on an event loop in a separate thread."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="proxies")
    thread.start()

    async def start() -> None:
        for proxy, host, port in proxies:
            await asyncio.start_server(proxy.serve, host, port)

    async def cancel_all() -> None:
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    try:
        asyncio.run_coroutine_threadsafe(start(), loop).result()
        yield
    finally:
        asyncio.run_coroutine_threadsafe(cancel_all(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def capture(home: Path, properties: dict[str, str]) -> Recording:
    """Record every kind of request that stock programs send."""
    recording = Recording(during="start of the broker")
    with ExitStack() as stack:
        nameserver = ApacheNameServer(home / "namesrv", properties=properties)
        stack.callback(nameserver.stop)
        nameserver.wait_ready()
        target = ("127.0.0.1", nameserver.port)
        stack.enter_context(
            proxies_running(
                [
                    (
                        Proxy(recording, client="client", server="name server", target=target),
                        CLIENT_HOST,
                        nameserver.port,
                    ),
                    (
                        Proxy(recording, client="broker", server="name server", target=target),
                        BROKER_HOST,
                        nameserver.port,
                    ),
                ]
            )
        )
        broker = ApacheBroker(
            home / "broker",
            namesrv=f"{BROKER_HOST}:{nameserver.port}",
            properties=properties,
            settings={**SMALL_STORE, "brokerIP1": CLIENT_HOST},
        )
        stack.callback(broker.stop)
        # Not through the proxy: requests of this module must not be recorded as the broker's.
        wait_broker(broker.process, nameserver.address)
        to_broker = Proxy(recording, client="client", server="broker", target=("127.0.0.1", broker.port))
        stack.enter_context(proxies_running([(to_broker, CLIENT_HOST, broker.port)]))
        namesrv = f"{CLIENT_HOST}:{nameserver.port}"
        admin = MqAdmin(home / "admin", namesrv, properties=properties)
        stack.callback(admin.stop)
        play(recording, home, namesrv, broker, admin, properties)
        recording.during = "stop of the broker"
        broker.stop()
    return recording


def play(
    recording: Recording,
    home: Path,
    namesrv: str,
    broker: ApacheBroker,
    admin: MqAdmin,
    properties: dict[str, str],
) -> None:
    settings: dict[str, object] = {**properties, "namesrv": namesrv}

    recording.during = "mqadmin updateTopic"
    admin("updateTopic", "-c", broker.cluster, "-t", TOPIC, "-r", "2", "-w", "2")

    recording.during = "producer"
    with start_program("Produce", settings, home=home / "produce") as producer:
        producer.wait_event("started")
        message = {"body": "caf\u00e9", "tags": "TagA", "keys": "key-1", "properties": {"colour": "blue"}}
        for kind in ("queue", "async", "oneway"):
            producer.ask("sent", {"kind": kind, "topic": TOPIC, "queueId": 1, **message})
        second_of_batch = {"body": "second"}
        producer.ask("sent", {"kind": "batch", "topic": TOPIC, "messages": [message, second_of_batch]})
        producer.ask("sent", {"kind": "sync", "topic": TOPIC, "body": "compressed ", "repeat": 500})
        producer.ask("sent", {"kind": "sync", "topic": "CaptureCreatedTopic", "body": "creates its topic"})
        producer.finish()

    recording.during = "concurrent consumer"
    concurrent = {**settings, "group": "capture_concurrent", "topic": TOPIC, "tags": "TagA || TagB"}
    with start_program("Consume", {**concurrent, "fail": "first"}, home=home / "consume") as consumer:
        consumer.wait_count(4, "message")
        for subcommand in ("consumerProgress", "consumerConnection"):
            recording.during = f"mqadmin {subcommand}"
            admin(subcommand, "-g", "capture_concurrent")
        recording.during = "concurrent consumer, a second joins"
        with start_program("Consume", concurrent, home=home / "consume-2") as second:
            second.wait_event("queues", topic=TOPIC)
            consumer.wait_count(2, "queues", topic=TOPIC)
            second.finish()
        consumer.finish()

    recording.during = "consumer with heartbeat V2"
    heartbeat_v2 = {
        **settings,
        "group": "capture_heartbeat_v2",
        "topic": TOPIC,
        "com.rocketmq.heartbeat.v2": True,
    }
    with start_program("Consume", heartbeat_v2, home=home / "heartbeat-v2") as consumer:
        consumer.wait_count(6, "message")
        consumer.finish()

    recording.during = "orderly consumer"
    with start_program(
        "Consume",
        {**settings, "group": "capture_orderly", "topic": TOPIC, "orderly": True},
        home=home / "orderly",
    ) as orderly:
        orderly.wait_count(6, "message")
        orderly.finish()

    recording.during = "pull consumer"
    with start_program("Offsets", settings, home=home / "offsets") as offsets:
        offsets.wait_event("started")
        queue = {"topic": TOPIC, "broker": broker.name, "queueId": 1}
        for question in ("queues", "min", "max", "search", "earliest", "committed", "commit", "committed"):
            offsets.ask("answer", {**queue, "ask": question, "timestamp": 0, "offset": 2})
        for offset in (0, 1_000_000):
            offsets.ask("answer", {**queue, "ask": "pull", "tags": "*", "offset": offset, "count": 2})
        end = offsets.ask("answer", {**queue, "ask": "max"})["answer"]
        offsets.ask("answer", {**queue, "ask": "pull", "tags": "*", "offset": end, "count": 2})
        offsets.ask("answer", {**queue, "ask": "pull", "tags": "NoSuchTag", "offset": 0, "count": 32})
        offsets.ask("answer", {"ask": "queues", "topic": "NoSuchTopic"})
        offsets.finish()

    for subcommand, options in (
        ("topicStatus", ("-t", TOPIC)),
        ("topicRoute", ("-t", TOPIC)),
        ("topicList", ()),
        ("clusterList", ()),
    ):
        recording.during = f"mqadmin {subcommand}"
        admin(subcommand, *options)

    if not properties:
        # No current program sends these requests, so this module does; the answers are Apache's.
        recording.during = "a client of version 4.9.0"
        wire.ask(
            namesrv,
            wire.GET_ROUTEINFO_BY_TOPIC,
            {"topic": TOPIC},
            version=wire.VERSION_BEFORE_STANDARD_JSON,
        )
        recording.during = "a client with an unknown code"
        wire.ask(namesrv, 9_999)
        wire.ask(f"{CLIENT_HOST}:{broker.port}", 9_999)


def write(recording: Recording, path: Path, serialization: str) -> None:
    exchanges = [exchange.as_json() for exchange in recording.kept()]
    described = {
        "program": "Apache RocketMQ: name server, broker, Java client, mqadmin",
        "version": VERSION,
        "command": "python -m tests.interop.capture",
        "serialization": serialization,
        "exchanges": exchanges,
    }
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(described, indent=1) + "\n")
    print(f"{path.name}: {len(exchanges)} exchanges, {path.stat().st_size // 1024} KiB")


def main() -> None:
    parser = argparse.ArgumentParser(description="Record what Apache's programs say to each other.")
    parser.add_argument("--to", type=Path, default=VECTORS, help="directory of the vectors")
    to: Path = parser.parse_args().to
    set_up()
    with tempfile.TemporaryDirectory() as home:
        write(capture(Path(home) / "json", {}), to / "remoting-json.json", "JSON")
        write(capture(Path(home) / "binary", BINARY_HEADERS), to / "remoting-rocketmq.json", "ROCKETMQ")


if __name__ == "__main__":
    main()
