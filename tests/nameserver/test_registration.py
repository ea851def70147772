"""The bytes of a registration: plain JSON, compressed, or broken."""

import zlib
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from libramq.errors import BrokerError, RemoteProtocolError
from libramq.formats import fastjson
from libramq.formats.document import encode_body
from libramq.formats.tables import TopicConfig, TopicConfigSerializeWrapper
from libramq.nameserver import registration
from libramq.nameserver.registration import TOPICS_PER_BROKER_MAX, decode_registration
from libramq.remoting.body.cluster import RegisterBrokerBody
from tests.nameserver.tables import table

WRAPPER = table("TopicA", "%RETRY%group", queues=3, counter=7)
JSON = encode_body(RegisterBrokerBody(topic_config_serialize_wrapper=WRAPPER))
NOW = 479


def encode_compressed(wrapper: TopicConfigSerializeWrapper) -> bytes:
    """Encode in the compressed form, as a broker of 5.0 or later does."""
    texts = [encode_body(wrapper.data_version)]
    parts = [_sized(texts[0]), len(wrapper.topic_config_table).to_bytes(4)]
    parts.extend(_sized(_topic_text(config)) for config in wrapper.topic_config_table.values())
    parts.append(_sized(b"[]"))
    parts.append(len(wrapper.topic_queue_mapping_info_map).to_bytes(4))
    parts.extend(_sized(encode_body(info)) for info in wrapper.topic_queue_mapping_info_map.values())
    return zlib.compress(b"".join(parts), level=9)


def _topic_text(config: TopicConfig) -> bytes:
    attributes = fastjson.dumps(config.attributes).decode()
    return (
        f"{config.topic_name} {config.read_queue_nums} {config.write_queue_nums} {config.perm} "
        f"{config.topic_filter_type} {attributes}"
    ).encode()


def _sized(text: bytes) -> bytes:
    return len(text).to_bytes(4) + text


def test_json_and_compressed_bodies_are_equivalent():
    compressed = encode_compressed(WRAPPER)
    assert decode_registration(JSON, compressed=False, version=NOW) == WRAPPER
    assert decode_registration(compressed, compressed=True, version=NOW) == WRAPPER


def test_a_compressed_body_is_known_by_its_first_byte():
    """Apache's broker sends compressed=false with a body that it has compressed."""
    assert decode_registration(encode_compressed(WRAPPER), compressed=False, version=NOW) == WRAPPER


def test_a_broker_before_5_0_sends_no_mappings():
    raw = zlib.decompress(encode_compressed(WRAPPER))
    without_mappings = zlib.compress(raw[:-4])
    assert decode_registration(without_mappings, compressed=True, version=399) == WRAPPER
    with pytest.raises(RemoteProtocolError):
        decode_registration(without_mappings, compressed=True, version=NOW)


def test_a_broker_before_3_0_11_sends_the_bare_table():
    assert decode_registration(encode_body(WRAPPER), compressed=False, version=36) == WRAPPER


def test_no_body_is_an_empty_table():
    assert decode_registration(b"", compressed=False, version=NOW).topic_config_table == {}


def test_the_checksum_is_crc32_without_its_sign():
    crc = zlib.crc32(JSON) & 0x7FFF_FFFF
    assert decode_registration(JSON, compressed=False, version=NOW, crc=crc) == WRAPPER
    with pytest.raises(BrokerError, match="crc32 not match"):
        decode_registration(JSON, compressed=False, version=NOW, crc=crc ^ 1)
    assert zlib.crc32(b"hello") & 0x7FFF_FFFF == 907060870  # The vector of the protocol notes.


def test_a_decompression_bomb_is_not_inflated(monkeypatch):
    monkeypatch.setattr(registration, "INFLATED_BYTES_MAX", 1000)
    with pytest.raises(RemoteProtocolError, match="grows beyond 1000 bytes"):
        decode_registration(zlib.compress(bytes(1_000_000)), compressed=True, version=NOW)


def test_an_impossible_count_is_refused_before_it_is_used():
    raw = bytearray(zlib.decompress(encode_compressed(WRAPPER)))
    count_at = 4 + int.from_bytes(raw[:4])
    raw[count_at : count_at + 4] = (1 << 30).to_bytes(4)
    with pytest.raises(RemoteProtocolError, match="1073741824 entries"):
        decode_registration(zlib.compress(bytes(raw)), compressed=True, version=NOW)


@given(st.data())
def test_a_torn_or_flipped_stream_is_a_protocol_error(data):
    raw = zlib.decompress(encode_compressed(WRAPPER))
    cut = data.draw(st.integers(0, len(raw) - 1))
    with pytest.raises(RemoteProtocolError):
        decode_registration(zlib.compress(raw[:cut]), compressed=True, version=NOW)
    flipped = bytearray(raw)
    flipped[data.draw(st.integers(0, len(raw) - 1))] ^= data.draw(st.integers(1, 255))
    with suppress(RemoteProtocolError):
        decode_registration(zlib.compress(bytes(flipped)), compressed=True, version=NOW)


@given(st.binary(max_size=200), st.booleans())
def test_garbage_is_a_protocol_error(garbage, compressed):
    with suppress(RemoteProtocolError):
        decode_registration(garbage, compressed=compressed, version=NOW)


def test_a_small_stream_cannot_repeat_one_topic_for_ever():
    """A 12.7 KB stream contained the same topic 200,000 times, and took 3.3 s."""
    plain = zlib.decompress(encode_compressed(table("T")))
    size = 4 + int.from_bytes(plain[:4])
    entry = plain[size + 4 :][: 4 + int.from_bytes(plain[size + 4 : size + 8])]
    data = zlib.compress(plain[:size] + (90_000).to_bytes(4) + entry * 90_000 + bytes(8))
    assert len(data) < 20_000
    with pytest.raises(RemoteProtocolError, match="twice"):
        decode_registration(data, compressed=True, version=NOW)


def test_too_many_topics_are_refused_by_their_count():
    plain = (2).to_bytes(4) + b"{}" + (TOPICS_PER_BROKER_MAX + 1).to_bytes(4) + bytes(4) * 200_000
    with pytest.raises(RemoteProtocolError, match="entries"):
        decode_registration(zlib.compress(plain), compressed=True, version=NOW)
