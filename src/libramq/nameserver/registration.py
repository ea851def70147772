"""A registration: the decoding of its body, and limits on its topics, queues and names.

    compressed = zlib( length (4), DataVersion JSON | topic count (4), { length (4), topic text } …
                       | length (4), filter server JSON | mapping count (4), { length (4), JSON } … )
    topic text = name readQueues writeQueues perm filterType attributesJSON

Upstream: body/RegisterBrokerBody.java, TopicConfig.encode, DefaultRequestProcessor.checksum.
"""

import zlib
from collections.abc import Set
from typing import Any, Final

from libramq.codes import ResponseCode
from libramq.errors import BrokerError, RemoteProtocolError
from libramq.formats import fastjson
from libramq.formats.document import decode_body, from_value
from libramq.formats.fastjson import Bounds
from libramq.formats.route import QueueData
from libramq.formats.tables import DataVersion, TopicConfig, TopicConfigSerializeWrapper
from libramq.remoting.body.cluster import RegisterBrokerBody
from libramq.remoting.headers import RegisterBrokerHeader

#: Ours: topics of one broker; a LibraMQ broker has at most 50,000 (catalog.topic_table.TOPICS_MAX).
TOPICS_PER_BROKER_MAX: Final = 100_000
#: Ours: size of a decompressed body: TOPICS_PER_BROKER_MAX topics of 160 bytes.
INFLATED_BYTES_MAX: Final = 16 * 1024 * 1024
#: Ours: TOPICS_PER_BROKER_MAX topics in JSON, of 18 marks each. 10,000 in fastjson's dialect, which brokers
#: with static topics use, take half a second on the thread.
REGISTRATION_BOUNDS: Final = Bounds(marks=2_000_000, loose_marks=200_000, loose_bytes=INFLATED_BYTES_MAX)
#: MQVersion.V3_0_11: older brokers send the bare topic table.
VERSION_WITH_BODY: Final = 37
#: MQVersion.V5_0_0: static topics' mappings follow in the compressed form.
VERSION_WITH_MAPPINGS: Final = 413
#: Ours: memory of a decoded topic table for each byte of its body. 50,000 topics take 29 MB, and have 114 KB
#: compressed or 8.3 MB in JSON.
DECODED_BYTES_PER_BYTE: Final = 5
DECODED_BYTES_PER_COMPRESSED_BYTE: Final = 250
#: The first byte of a zlib stream with the usual window; JSON never begins with it.
_ZLIB_MARK: Final = b"\x78"
#: Ours: a broker may ask for a longer timeout than 120 s, but not for an unlimited one.
HEARTBEAT_TIMEOUT_MS_MAX: Final = 3_600_000
#: Ours: broker names, far beyond the use of one name server. Apache has no limit.
BROKER_NAMES_MAX: Final = 10_000
#: Ours: brokers of one name, far beyond any use. Apache has no limit.
BROKERS_PER_NAME_MAX: Final = 100
#: Ours: topics, far beyond the use of one name server. Apache has no limit.
TOPICS_MAX: Final = 500_000
#: TopicValidator.RETRY_OR_DLQ_TOPIC_MAX_LENGTH; broker and cluster names are also registered as topics.
NAME_LENGTH_MAX: Final = 255
#: Ours: an address is a host name (at most 253 characters) and a port.
ADDRESS_LENGTH_MAX: Final = 260
#: Ours: clients create an object for every queue in a route.
QUEUES_PER_TOPIC_MAX: Final = 65_536


def decode_registration(
    data: bytes, *, compressed: bool, version: int, crc: int = 0
) -> TopicConfigSerializeWrapper:
    """Decode a broker's topic table.

    crc: CRC-32 of the bytes without its sign bit; 0 if the broker sent none.
    """
    if crc and crc != zlib.crc32(data) & 0x7FFF_FFFF:
        raise BrokerError(ResponseCode.SYSTEM_ERROR, "crc32 not match")
    if not data:
        return TopicConfigSerializeWrapper()
    if version < VERSION_WITH_BODY:
        return decode_body(data, TopicConfigSerializeWrapper, REGISTRATION_BOUNDS)
    if is_compressed(data, compressed):
        return _decode_inflated(_inflate(data), with_mappings=version >= VERSION_WITH_MAPPINGS)
    return decode_body(data, RegisterBrokerBody, REGISTRATION_BOUNDS).topic_config_serialize_wrapper


def is_compressed(data: bytes, header_says_so: bool) -> bool:
    """Return whether a body is a zlib stream, which can grow a thousandfold.

    Apache's broker sends `compressed=false` even with a compressed body, so the bytes are checked too.
    """
    return header_says_so or data.startswith(_ZLIB_MARK)


def decoded_bytes(data: bytes, header_says_so: bool) -> int:
    """Return roughly the memory of a decoded registration."""
    is_zlib = is_compressed(data, header_says_so)
    return len(data) * (DECODED_BYTES_PER_COMPRESSED_BYTE if is_zlib else DECODED_BYTES_PER_BYTE)


def _inflate(data: bytes) -> bytes:
    inflater = zlib.decompressobj()
    try:
        inflated = inflater.decompress(data, INFLATED_BYTES_MAX)
    except zlib.error as error:
        raise RemoteProtocolError(f"compressed registration: {error}") from None
    if not inflater.eof:
        raise RemoteProtocolError(
            f"compressed registration is cut short or grows beyond {INFLATED_BYTES_MAX} bytes"
        )
    return inflated


def _decode_inflated(data: bytes, *, with_mappings: bool) -> TopicConfigSerializeWrapper:
    data_version, position = _take(data, 0)
    topic_count, position = _count(data, position)
    topics: dict[str, TopicConfig] = {}
    for _ in range(topic_count):
        text, position = _take(data, position)
        config = _decode_topic(text)
        if config.topic_name in topics:  # A small stream could repeat a name for ever.
            raise RemoteProtocolError(f"compressed registration: topic {config.topic_name[:40]} twice")
        topics[config.topic_name] = config
    _filter_servers, position = _take(data, position)
    mappings: dict[str, Any] = {}
    if with_mappings:
        mapping_count, position = _count(data, position)
        for _ in range(mapping_count):
            text, position = _take(data, position)
            info = fastjson.loads(text, REGISTRATION_BOUNDS)
            if not isinstance(info, dict) or not isinstance(info.get("topic"), str):
                raise RemoteProtocolError("compressed registration: a queue mapping without its topic")
            if info["topic"] in mappings:
                raise RemoteProtocolError(f"compressed registration: mapping {info['topic'][:40]} twice")
            mappings[info["topic"]] = info
    return TopicConfigSerializeWrapper(
        data_version=decode_body(data_version, DataVersion, REGISTRATION_BOUNDS),
        topic_config_table=topics,
        topic_queue_mapping_info_map=mappings,
    )


def _decode_topic(text: bytes) -> TopicConfig:
    parts = text.decode(errors="replace").split(" ", 5)
    if len(parts) < 5:
        raise RemoteProtocolError(f"compressed registration: topic of {len(parts)} parts, 5 are needed")
    members = dict(
        zip(("topicName", "readQueueNums", "writeQueueNums", "perm", "topicFilterType"), parts, strict=False)
    )
    return from_value(members, TopicConfig)


def _count(data: bytes, position: int) -> tuple[int, int]:
    """Read the number of entries, each of which takes at least four bytes."""
    count = int.from_bytes(data[position : position + 4], signed=True)
    position += 4
    if not 0 <= count <= min(TOPICS_PER_BROKER_MAX, (len(data) - position) // 4):
        raise RemoteProtocolError(f"compressed registration: {count} entries in {len(data)} bytes")
    return count, position


def _take(data: bytes, position: int) -> tuple[bytes, int]:
    """Read a length and that many bytes."""
    size = int.from_bytes(data[position : position + 4], signed=True)
    start = position + 4
    if not 0 <= size <= len(data) - start:
        raise RemoteProtocolError(f"compressed registration: {size} bytes at {position} of {len(data)}")
    return data[start : start + size], start + size


def check_registration(
    header: RegisterBrokerHeader,
    table: TopicConfigSerializeWrapper,
    *,
    broker_names: Set[str],
    broker_ids: Set[int],
    topics: Set[str],
) -> None:
    """Raise BrokerError if a registration exceeds a limit, together with the existing ones.

    `check_topics` has checked the topics before.
    """
    _check_name("cluster name", header.cluster_name, NAME_LENGTH_MAX)
    _check_name("broker name", header.broker_name, NAME_LENGTH_MAX)
    _check_name("broker address", header.broker_addr, ADDRESS_LENGTH_MAX)
    if len(header.ha_server_addr) > ADDRESS_LENGTH_MAX:
        raise _refused(f"haServerAddr has over {ADDRESS_LENGTH_MAX} characters")
    if not 0 <= header.broker_id < 1 << 63:
        raise _refused(f"brokerId {header.broker_id} is negative or too large")
    if not 0 <= (header.heartbeat_timeout_millis or 0) <= HEARTBEAT_TIMEOUT_MS_MAX:
        raise _refused(f"heartbeatTimeoutMillis is 0 to {HEARTBEAT_TIMEOUT_MS_MAX}")
    if header.broker_name not in broker_names and len(broker_names) >= BROKER_NAMES_MAX:
        raise _refused(f"{BROKER_NAMES_MAX} broker names are registered already")
    if header.broker_id not in broker_ids and len(broker_ids) >= BROKERS_PER_NAME_MAX:
        raise _refused(f"{BROKERS_PER_NAME_MAX} brokers have the name {header.broker_name} already")
    registered = table.topic_config_table
    room = TOPICS_MAX - len(topics)
    if len(registered) > room and sum(name not in topics for name in registered) > room:
        raise _refused(f"over {TOPICS_MAX} topics")


def check_topics(table: TopicConfigSerializeWrapper) -> None:
    """Raise BrokerError for a topic that exceeds a limit."""
    for name, config in table.topic_config_table.items():
        check_topic_name(name)
        if config.topic_name != name:
            raise _refused(f"topic {name} has the name {config.topic_name[:40]!r} inside")
        check_queues(name, config)


def check_topic_name(name: str) -> None:
    """Raise BrokerError for an invalid topic name."""
    _check_name("topic", name, NAME_LENGTH_MAX)


def check_queues(topic: str, queues: TopicConfig | QueueData) -> None:
    """Raise BrokerError for more queues than a topic may have at a broker."""
    for count in (queues.read_queue_nums, queues.write_queue_nums):
        if not 0 <= count <= QUEUES_PER_TOPIC_MAX:
            raise _refused(f"topic {topic} has {count} queues; 0 to {QUEUES_PER_TOPIC_MAX} are allowed")


def _check_name(what: str, name: str, length_max: int) -> None:
    if not 0 < len(name) <= length_max or not name.isprintable():
        raise _refused(f"the {what} {name[:40]!r} is empty, unprintable or over {length_max} characters")


def _refused(remark: str) -> BrokerError:
    return BrokerError(ResponseCode.SYSTEM_ERROR, remark)
