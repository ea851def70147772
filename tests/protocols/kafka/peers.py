"""A Kafka client as a performer sees it, on a broker with a manual clock."""

import sys
from typing import Any
from zlib import crc32

from libramq.kernel.effect import Thread
from libramq.protocols.kafka.node import Node
from libramq.protocols.kafka.translator import KafkaTranslator
from libramq.wire.kafka.api import API_VERSIONS, APIS
from libramq.wire.kafka.apis.fetch import (
    FetchedPartition,
    FetchPartition,
    FetchRequest,
)
from libramq.wire.kafka.apis.produce import (
    ProducedPartition,
    ProducePartition,
    ProduceRequest,
)
from libramq.wire.kafka.apis.topics import (
    CreatableTopic,
    CreateTopicsRequest,
)
from libramq.wire.kafka.frame import FrameReader
from libramq.wire.kafka.primitives import Reader, encode_int16, encode_int32
from libramq.wire.kafka.record_batch import Record, decode_batch, encode_batch, encode_headers
from libramq.wire.kafka.schema import Message, Request, Topic, decode, encode
from tests.broker.brokers import Conversation
from tests.fakes import FakePeer

NODE = Node("127.0.0.1", 9092, "DefaultCluster")
CLIENT_ID = "test"
#: Copied from DefaultBroker.
NODE_ID = crc32(b"broker-a") % (1 << 24)


def record(value: bytes | None = b"v", key: bytes | None = None, **fields: Any) -> Record:
    headers = fields.pop("headers", ())
    defaults = {"timestamp_ms": 1_700_000_000_000, "headers": headers, "raw_headers": encode_headers(headers)}
    return Record(key=key, value=value, **(defaults | fields))


def batch(*records: Record) -> bytes:
    """Return a batch as a producer sends it: offsets count from 0."""
    return encode_batch([each._replace(offset=number) for number, each in enumerate(records)])


class KafkaEndpoint:
    """The Kafka side of a broker."""

    def __init__(self, talk: Conversation) -> None:
        self.talk = talk
        self.translator = KafkaTranslator(talk.broker, NODE, talk.disk)
        self.translator.producers.recover()

    def peer(self, address: str = "127.0.0.1:60000") -> "KafkaPeer":
        return KafkaPeer(self, address)


class KafkaPeer(FakePeer):
    """A client's connection; `frames` are the answers that have arrived."""

    def __init__(self, endpoint: KafkaEndpoint, address: str) -> None:
        super().__init__(address)
        self.talk = endpoint.talk
        self.client_id = CLIENT_ID
        self.frames: list[bytes] = []
        self._frame_reader = FrameReader()
        self._correlation = 0
        self._asked: dict[int, tuple[type[Message], int, bool, bool]] = {}
        self._entrance = endpoint.talk.performer.entrance(endpoint.translator)
        self._entrance.connected(self)

    def write(self, data: bytes) -> None:
        # An answer may be shorter than any request, so they are cut here.
        while data:
            size = int.from_bytes(data[:4])
            self.frames.append(data[4 : 4 + size])
            data = data[4 + size :]

    def frame(self, request: Request, version: int) -> bytes:
        (api,) = [api for api in APIS.values() if api.request is type(request)]
        is_flexible = api.is_flexible(version)
        self._correlation += 1
        response = type(request).__name__.replace("Request", "Response")
        kind = getattr(sys.modules[type(request).__module__], response)
        has_tags = is_flexible and api.key != API_VERSIONS
        self._asked[self._correlation] = (kind, version, is_flexible, has_tags)
        return b"".join((
            encode_int16(api.key), encode_int16(version), encode_int32(self._correlation),
            encode_int16(len(self.client_id)), self.client_id.encode(), b"\0" if is_flexible else b"",
            encode(request, version, is_flexible),
        ))  # fmt: skip

    def give(self, *frames: bytes) -> None:
        """Deliver frames to the broker in a single read."""
        self._entrance.received(self, list(frames))
        self.compute()

    def compute(self) -> None:
        """Let threads finish their work, and run the turns of the connections that waited for them."""
        while True:
            self.talk.threads.run_all(Thread.COMPUTE)
            self.talk.threads.run_all(Thread.READ)
            turn = self.talk.performer.turns.timer
            if turn is None:
                return
            turn.cancel()
            turn.action()  # type: ignore[attr-defined]

    def tell(self, request: Request, version: int | None = None) -> None:
        """Send a request; `answers` returns the response once it has arrived."""
        self.give(self.frame(request, _version(request, version)))

    def answers(self) -> list[Any]:
        """Return the responses that have arrived, in order."""
        frames, self.frames = self.frames, []
        return [self._decoded(frame) for frame in frames]

    def ask(self, request: Request, version: int | None = None) -> Any:
        """Send a request, and return its response, which must arrive at once."""
        self.tell(request, version)
        (response,) = self.answers()
        return response

    def end(self) -> None:
        self.is_open = False
        self._entrance.closed(self)

    def _decoded(self, frame: bytes) -> Any:
        reader = Reader(frame)
        kind, version, is_flexible, has_tags = self._asked[reader.int32()]
        if has_tags:
            reader.skip_tags()
        response = decode(kind, version, is_flexible, reader)
        reader.finish()
        return response

    # The client's operations.

    def create(self, topic: str, partitions: int = 2) -> None:
        wanted = CreatableTopic(name=topic, num_partitions=partitions, replication_factor=1)
        (created,) = self.ask(CreateTopicsRequest(topics=(wanted,))).topics
        assert created.error_code == 0, created

    def produce_request(
        self, records: bytes, topic: str = "T", partition: int = 0, acks: int = -1
    ) -> Request:
        partitions = (ProducePartition(index=partition, records=records),)
        topics = (Topic(name=topic, partitions=partitions),)
        return ProduceRequest(acks=acks, timeout_ms=1_000, topics=topics)

    def produce(self, *records: Record, topic: str = "T", partition: int = 0) -> ProducedPartition:
        response = self.ask(self.produce_request(batch(*records), topic, partition))
        result: ProducedPartition = response.responses[0].partitions[0]
        return result

    def fetch_request(self, offset: int = 0, topic: str = "T", partition: int = 0, **fields: Any) -> Request:
        wanted = FetchPartition(partition=partition, fetch_offset=offset, partition_max_bytes=1 << 20)
        defaults = {"max_wait_ms": 0, "min_bytes": 1, "max_bytes": 50 << 20}
        return FetchRequest(topics=(Topic(name=topic, partitions=(wanted,)),), **(defaults | fields))

    def fetch(self, offset: int = 0, topic: str = "T", partition: int = 0, **fields: Any) -> FetchedPartition:
        response = self.ask(self.fetch_request(offset, topic, partition, **fields))
        result: FetchedPartition = response.responses[0].partitions[0]
        return result

    def records(self, offset: int = 0, topic: str = "T", partition: int = 0) -> list[Record]:
        """Fetch a partition, and return its records."""
        return fetched(self.fetch(offset, topic, partition), offset)


def fetched(partition: FetchedPartition, offset: int = 0) -> list[Record]:
    """Return a response's records and their offsets; like a client, skip records before the fetch offset."""
    data, records = partition.records or b"", list[Record]()
    while data:
        end = 12 + int.from_bytes(data[8:12])
        base = int.from_bytes(data[:8])
        records += [each._replace(offset=base + each.offset) for each in decode_batch(data[:end])]
        data = data[end:]
    return [each for each in records if each.offset >= offset]


def _version(request: Request, version: int | None) -> int:
    return (
        version if version is not None else max(a.last for a in APIS.values() if a.request is type(request))
    )
