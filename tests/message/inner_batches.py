"""Inner batches for tests: the records that a broker stores for them."""

from collections.abc import Sequence

from libramq.message import sys_flag as flags
from libramq.message.batch import BatchItem, encode_batch
from libramq.message.compression import compress_body
from libramq.message.properties import encode_properties
from libramq.message.record import encode_record


def items(*bodies: bytes, flag: int = 0) -> list[BatchItem]:
    """Return items with one property each."""
    return [
        BatchItem(flag, body, b"UNIQ_KEY\x01id%04d\x02TAGS\x01t%d\x02" % (number, number % 2))
        for number, body in enumerate(bodies)
    ]


def wrapped(
    found: Sequence[BatchItem],
    offset: int = 0,
    *,
    compression: int | None = None,
    count: int | None = None,
    sys_flag: int = flags.INNER_BATCH | flags.NEED_UNWRAP,
    body: bytes | None = None,
    topic: str = "T",
    born_host: bytes = bytes([10, 1, 2, 3, 0, 0, 1, 2]),
) -> bytes:
    """Return a batch's record, with `count` as the announced number, and `body` in place of the items'."""
    body = encode_batch(found) if body is None else body
    if compression is not None:
        body, sys_flag = compress_body(body, compression), sys_flag | flags.COMPRESSED | compression
    properties = {"INNER_NUM": str(len(found) if count is None else count), "INNER_BASE": str(offset)}
    return encode_record(
        topic=topic,
        queue_id=3,
        queue_offset=offset,
        physical_offset=5_000 + offset * 100,
        body=body,
        properties=encode_properties(properties),
        sys_flag=sys_flag,
        born_timestamp_ms=1_700_000_000_000 + offset,
        born_host=born_host,
        store_timestamp_ms=1_700_000_000_500 + offset,
        store_host=bytes([10, 1, 2, 4, 0, 0, 1, 2]),
    )


def single(offset: int, body: bytes = b"alone") -> bytes:
    """Return the record of a single message."""
    return encode_record(
        topic="T", queue_id=3, queue_offset=offset, physical_offset=5_000 + offset * 100, body=body,
        properties=b"TAGS\x01t\x02",
    )  # fmt: skip
