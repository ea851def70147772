"""The smallest client of the remoting protocol: one request, one reply, JSON header.

It shares no code with LibraMQ, so that a test using it does not depend on the codec under test.
"""

import json
import re
import socket
import ssl
from typing import Any, NamedTuple

QUERY_CONSUMER_OFFSET = 14
UPDATE_CONSUMER_OFFSET = 15
UPDATE_AND_CREATE_TOPIC = 17
GET_MAX_OFFSET = 30
GET_ROUTEINFO_BY_TOPIC = 105
DELETE_TOPIC_IN_BROKER = 215
GET_BROKER_CLUSTER_INFO = 106
UPDATE_AND_CREATE_SUBSCRIPTIONGROUP = 200
INVOKE_BROKER_TO_RESET_OFFSET = 222
GET_TOPIC_CONFIG = 351
LANGUAGES = ("JAVA", "CPP", "DOTNET", "PYTHON")  # org.apache.rocketmq.remoting.protocol.LanguageCode
VERSION_NOW = 479  # V5_3_3 in org.apache.rocketmq.common.MQVersion
VERSION_BEFORE_STANDARD_JSON = 393  # V4_9_0: route replies in fastjson's dialect.


class Answer(NamedTuple):
    header: dict[str, Any]
    body: bytes
    request_frame: bytes
    reply_frame: bytes


def encode_request(
    code: int,
    ext: dict[str, str],
    body: bytes = b"",
    *,
    opaque: int = 1,
    version: int = VERSION_NOW,
    language: str = "JAVA",
) -> bytes:
    header = json.dumps(
        {
            "code": code,
            "language": language,
            "version": version,
            "opaque": opaque,
            "flag": 0,
            "extFields": ext,
            "serializeTypeCurrentRPC": "JSON",
        }
    ).encode()
    return (4 + len(header) + len(body)).to_bytes(4) + len(header).to_bytes(4) + header + body


def decode_header(frame: bytes) -> tuple[dict[str, Any], int]:
    """Return the header of a complete frame, and the position of its body."""
    size = int.from_bytes(frame[5:8])
    header = frame[8 : 8 + size]
    if frame[4] == 0:
        decoded = json.loads(header)
        decoded.setdefault("extFields", {})
        decoded.setdefault("remark", None)
        return decoded, 8 + size
    remark_end = 17 + int.from_bytes(header[13:17])
    ext: dict[str, str] = {}
    at = remark_end + 4
    while at < size:
        key_end = at + 2 + int.from_bytes(header[at : at + 2])
        value_end = key_end + 4 + int.from_bytes(header[key_end : key_end + 4])
        ext[header[at + 2 : key_end].decode()] = header[key_end + 4 : value_end].decode()
        at = value_end
    return {
        "code": int.from_bytes(header[0:2], signed=True),
        "language": LANGUAGES[header[2]],
        "version": int.from_bytes(header[3:5], signed=True),
        "opaque": int.from_bytes(header[5:9], signed=True),
        "flag": int.from_bytes(header[9:13], signed=True),
        "remark": header[17:remark_end].decode() or None,
        "extFields": ext,
        "serializeTypeCurrentRPC": "ROCKETMQ",
    }, 8 + size


def ask(
    address: str,
    code: int,
    ext: dict[str, str] | None = None,
    *,
    body: bytes = b"",
    version: int = VERSION_NOW,
    language: str = "JAVA",
    timeout_s: float = 5,
    tls: ssl.SSLContext | None = None,
) -> Answer:
    host, port = address.rsplit(":", 1)
    request = encode_request(code, ext or {}, body, version=version, language=language)
    plain = socket.create_connection((host, int(port)), timeout=timeout_s)
    with plain if tls is None else tls.wrap_socket(plain, server_hostname=host) as connection:
        connection.sendall(request)
        with connection.makefile("rb") as stream:
            prefix = stream.read(8)
            if len(prefix) < 8:
                raise ConnectionError(f"{address} closed the connection")
            rest = stream.read(int.from_bytes(prefix[:4]) - 4)
    reply = prefix + rest
    header, body_start = decode_header(reply)
    return Answer(header, reply[body_start:], request, reply)


def loads_loose(body: bytes) -> Any:
    """Parse fastjson's dialect as far as cluster info needs it: integer keys without quotes."""
    return json.loads(re.sub(r"([{,])(\d+):", r'\1"\2":', body.decode()))


def has_topic(address: str, topic: str) -> bool:
    """Return whether a broker knows a topic; a slave learns it later than the messages."""
    return ask(address, GET_TOPIC_CONFIG, {"topic": topic}).header["code"] == 0


def brokers_of(namesrv: str, tls: ssl.SSLContext | None = None) -> dict[str, Any]:
    """Return the data of every broker that the name server knows, by name."""
    answer = ask(namesrv, GET_BROKER_CLUSTER_INFO, tls=tls)
    if answer.header["code"] != 0 or not answer.body:
        return {}
    brokers: dict[str, Any] = loads_loose(answer.body).get("brokerAddrTable") or {}
    return brokers
