"""The trace: the output of Apache's Java client, as Apache's decoder reads it; and arbitrary other input."""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from libramq.errors import RemoteProtocolError
from libramq.message.ids import born_ms, decode_unique_id
from libramq.message.trace import (
    TIME_MS_MAX,
    EndTransaction,
    Pub,
    Recall,
    SubAfter,
    SubBefore,
    Trace,
    decode_record,
    decode_trace,
    encode_trace,
)

VECTORS = json.loads((Path(__file__).parent.parent / "vectors" / "traces.json").read_text())["traces"]

#: The fields of Java's TraceContext and TraceBean that correspond to our records' fields.
JAVA: dict[str, str] = {
    "at_ms": "timeStamp", "region": "regionId", "group": "groupName", "topic": "topic", "unique_id": "msgId",
    "tags": "tags", "keys": "keys", "store_host": "storeHost", "body_size": "bodyLength",
    "cost_ms": "costTime",
    "message_type": "msgType", "offset_id": "offsetMsgId", "is_success": "success", "request_id": "requestId",
    "retry_times": "retryTimes", "context_code": "contextCode", "transaction_id": "transactionId",
    "transaction_state": "transactionState", "is_from_check": "fromTransactionCheck",
}  # fmt: skip

#: Traces of Apache's client before it included the offset id, the context code, the time and the group.
OLD = (
    "Pub\x01100\x01R\x01G\x01T\x01ID\x01tag\x01key\x01h:1\x015\x017\x010\x01true\x02"
    "SubAfter\x01RQ\x01ID\x013\x01false\x01key\x02SubAfter\x01RQ\x01ID\x013\x01true\x01key\x014\x02"
)


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector["what"])
def test_traces_of_apaches_client_are_read(vector: dict[str, Any]):
    body = vector["data"].encode()
    records, unreadable = decode_trace(body)
    assert (len(records), unreadable) == (len(vector["records"]), 0)
    for record, java in zip(records, vector["records"], strict=True):
        assert type(record).__name__ == java["type"]
        for name, value in record._asdict().items():
            if value is not None and name != "client_host":
                assert value == java[JAVA[name]], name
            elif name != "client_host" and "CLOUD" not in vector["what"]:
                assert java[JAVA[name]] == "null", name
    assert encode_trace(records) == body


def test_every_type_was_recorded():
    assert {record["type"] for vector in VECTORS for record in vector["records"]} == {
        "Pub", "SubBefore", "SubAfter", "EndTransaction", "Recall",
    }  # fmt: skip
    assert any(vector["what"] == "client" for vector in VECTORS)


def test_older_clients_write_fewer_fields():
    pub, first, second = decode_trace(OLD.encode()).records
    assert pub == Pub(100, "R", "G", "T", "ID", "tag", "key", "h:1", 5, 7, 0, None, True)
    assert first == SubAfter("RQ", "ID", 3, False, "key")
    assert second == SubAfter("RQ", "ID", 3, True, "key", 4)


def test_later_clients_may_add_fields():
    longer = "SubBefore\x011\x01R\x01G\x01RQ\x01ID\x010\x01key\x01and\x01more\x02"
    assert decode_trace(longer.encode()).records == [SubBefore(1, "R", "G", "RQ", "ID", 0, "key")]


def test_empty_keys_at_the_end_are_valid():
    assert decode_record("SubBefore\x011\x01R\x01G\x01RQ\x01ID\x010\x01") == SubBefore(
        1, "R", "G", "RQ", "ID", 0, ""
    )


@pytest.mark.parametrize(
    "wrong",
    [
        "Consumed\x011", "SubBefore\x011\x01R", "SubBefore\x01soon\x01R\x01G\x01RQ\x01ID\x010\x01key",
        f"SubBefore\x01{TIME_MS_MAX}\x01R\x01G\x01RQ\x01ID\x010\x01key", "\x01" * 5_000,
        f"SubBefore\x011\x01R\x01G\x01RQ\x01ID\x01{2**31}\x01key",
        f"SubBefore\x01{'1' * 10_000}\x01R\x01G\x01RQ\x01ID\x010\x01key",
    ],
)  # fmt: skip
def test_an_invalid_record_costs_no_other(wrong: str):
    with pytest.raises(RemoteProtocolError):
        decode_record(wrong)
    good = encode_trace([SubAfter("RQ", "ID", 3, True, None)])
    assert decode_trace(wrong.encode() + b"\x02" + good) == Trace([SubAfter("RQ", "ID", 3, True, None)], 1)


texts = st.text(st.characters(exclude_characters="\x01\x02", exclude_categories=("Cs",)), min_size=1).filter(
    lambda text: text != "null"
)
maybe = st.none() | texts
times = st.integers(0, TIME_MS_MAX - 1)
ints = st.integers(-(2**31), 2**31 - 1)
sent = (times, maybe, maybe, maybe, maybe)


def made(kind: Any, *fields: Any) -> Any:
    return st.tuples(*fields).map(lambda values: kind(*values))


records = st.one_of(
    made(Pub, *sent, maybe, maybe, maybe, ints, ints, ints, maybe, st.booleans()),
    made(Pub, *sent, maybe, maybe, maybe, ints, ints, ints, texts, st.booleans(), texts),
    made(SubBefore, times, maybe, maybe, texts, texts, ints, maybe),
    made(SubAfter, texts, texts, ints, st.booleans(), maybe),
    made(SubAfter, texts, texts, ints, st.booleans(), maybe, ints),
    made(SubAfter, texts, texts, ints, st.booleans(), maybe, ints, times, maybe),
    made(EndTransaction, *sent, maybe, maybe, maybe, ints, maybe, texts, st.booleans()),
    made(Recall, *sent, st.booleans()),
)


@given(st.lists(records, max_size=4))
def test_records_round_trip(given_records):
    assert decode_trace(encode_trace(given_records)) == Trace(given_records, 0)


@given(st.binary() | st.text(alphabet="PubSAfter\x01\x02 019-null").map(str.encode))
def test_arbitrary_bodies_are_read_without_errors(body: bytes):
    decode_trace(body)


@given(st.lists(records, min_size=1, max_size=3), st.data())
def test_a_truncated_body_is_read_up_to_its_end(given_records, data):
    body = encode_trace(given_records)
    cut = decode_trace(body[: data.draw(st.integers(0, len(body)))])
    assert len(cut.records) + cut.unreadable <= len(given_records)


def test_a_unique_id_names_its_host_and_time():
    """A Java vector: the client of a traced message."""
    (pub,) = (
        record
        for vector in VECTORS
        if vector["what"] == "client"
        for record in decode_trace(vector["data"].encode()).records
        if isinstance(record, Pub) and record.keys == "k1 k2"
    )
    made = decode_unique_id(pub.unique_id or "")
    assert 0 <= pub.at_ms - born_ms(made.since_month_ms, pub.at_ms, UTC) + 5 < 1_000


@pytest.mark.parametrize(
    ("born", "seen", "zone"),
    [
        ("2026-05-01T00:00:00+00:00", "2026-05-01T00:00:00+00:00", "UTC"),
        ("2026-04-30T23:59:59+00:00", "2026-05-01T00:00:07+00:00", "UTC"),
        ("2025-12-31T23:59:59+00:00", "2026-01-02T00:00:00+00:00", "UTC"),
        ("2026-05-07T10:00:01+00:00", "2026-05-07T10:00:00+00:00", "UTC"),  # Its creator's clock is ahead.
        ("2026-04-30T20:00:00+00:00", "2026-04-30T20:00:01+00:00", "Asia/Shanghai"),  # It is May there.
    ],
)
def test_the_time_of_a_unique_id_is_found(born: str, seen: str, zone: str):
    made = datetime.fromisoformat(born)
    local = made.astimezone(ZoneInfo(zone))
    month = local.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    since = int((local - month).total_seconds() * 1000)
    seen_ms = int(datetime.fromisoformat(seen).timestamp() * 1000)
    assert born_ms(since, seen_ms, ZoneInfo(zone)) == int(made.timestamp() * 1000)


@pytest.mark.parametrize(
    "text", ["", "0A", "G" * 32, "0A00 0007049218B4AAC26BAFDBFB0000", "ä" * 32, "0" * 33]
)
def test_an_invalid_unique_id_is_refused(text: str):
    with pytest.raises(RemoteProtocolError):
        decode_unique_id(text)
