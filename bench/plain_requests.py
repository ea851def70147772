"""Requests as bytes and a connection that waits for the answers, independent of the tree under test."""

import json
import socket
from collections.abc import Mapping

TIMEOUT_S = 120.0
UPDATE_AND_CREATE_TOPIC, SEND_MESSAGE_V2, POP_MESSAGE = 17, 310, 200050
SUCCESS, POLLING_TIMEOUT = 0, 210
KEY = f"UNIQ_KEY\x01{'A' * 32}\x02WAIT\x01true\x02"


class Connection:
    """A plain connection. The broker reads requests written in one piece in one piece."""

    def __init__(self, address: str) -> None:
        host, port = address.rsplit(":", 1)
        self._socket = socket.create_connection((host, int(port)), timeout=TIMEOUT_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._stream = self._socket.makefile("rb")

    def exchange(self, *frames: bytes) -> list[dict[str, str]]:
        """Write requests in one piece and read as many answers; return their ext fields."""
        self.write(*frames)
        return self.read(len(frames))

    def write(self, *frames: bytes) -> None:
        self._socket.sendall(b"".join(frames))

    def read(self, count: int) -> list[dict[str, str]]:
        """Return the ext fields of this many answers. A pop that found nothing counts as answered."""
        answers = []
        for _ in range(count):
            frame = self._stream.read(int.from_bytes(self._stream.read(4)))
            header = json.loads(frame[4 : 4 + int.from_bytes(frame[1:4])])
            if header["code"] not in (SUCCESS, POLLING_TIMEOUT):
                raise SystemExit(f"the broker answers {header['code']}: {header.get('remark')}")
            answers.append(header.get("extFields") or {})
        return answers

    def close(self) -> None:
        self._stream.close()
        self._socket.close()


def request(code: int, ext: Mapping[str, object], body: bytes = b"") -> bytes:
    """Return a request as Java's client encodes it."""
    fields = {name: str(value) for name, value in ext.items()}
    header = json.dumps(
        {"code": code, "language": "JAVA", "version": 479, "opaque": 1, "flag": 0, "extFields": fields,
         "serializeTypeCurrentRPC": "JSON"},
        separators=(",", ":"),
    ).encode()  # fmt: skip
    return (4 + len(header) + len(body)).to_bytes(4) + len(header).to_bytes(4) + header + body


def create_topic(topic: str, queues: int) -> bytes:
    fields = {"topic": topic, "defaultTopic": "TBW102", "readQueueNums": queues, "writeQueueNums": queues,
              "perm": 6, "topicFilterType": "SINGLE_TAG", "topicSysFlag": 0, "order": "false"}  # fmt: skip
    return request(UPDATE_AND_CREATE_TOPIC, fields)


def send(topic: str, queue: int, body: bytes, properties: str = "") -> bytes:
    fields = {"a": "producers", "b": topic, "c": "TBW102", "d": 4, "e": queue, "f": 0, "g": 1700000000000,
              "h": 0, "i": KEY + properties, "j": 0, "k": "false", "m": "false", "n": "ours"}  # fmt: skip
    return request(SEND_MESSAGE_V2, fields, body)


def pop(topic: str, group: str, *, count: int, invisible_ms: int, hold_ms: int = 0) -> bytes:
    """Return a pop of any queue, held for `hold_ms`; a new group begins at the topic's first messages."""
    fields = {"consumerGroup": group, "topic": topic, "queueId": -1, "maxMsgNums": count, "initMode": 0,
              "invisibleTime": invisible_ms, "pollTime": hold_ms, "bornTime": 0, "expType": "TAG",
              "exp": "*"}  # fmt: skip
    return request(POP_MESSAGE, fields)
