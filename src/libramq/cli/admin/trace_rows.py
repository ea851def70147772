"""The trace row: one record of a client's trace, as commands show it."""

from collections.abc import Iterator
from typing import Any

from libramq.message.message import MessageExt
from libramq.message.trace import Pub, SubAfter, SubBefore, decode_trace


def trace_rows(message: MessageExt, message_id: str) -> Iterator[dict[str, Any]]:
    """Yield what a trace message says about the sending and the consumption of a message."""
    records = decode_trace(message.body).records
    begun = {record.request_id: record for record in records if isinstance(record, SubBefore)}
    for record in records:
        if isinstance(record, Pub) and message_id in (record.unique_id or "").split(","):
            at_ms, group, host = record.at_ms, record.group, record.client_host
        elif isinstance(record, SubAfter) and record.unique_id == message_id:
            before = begun.get(record.request_id)
            at_ms = record.at_ms or (before.at_ms if before else message.born_timestamp_ms)
            group, host = record.group or (before.group if before else None), None
        else:
            continue
        yield {
            "type": "Pub" if isinstance(record, Pub) else "Sub",
            "group": group,
            "clientHost": host or message.born_host[0],
            "atTimestamp": at_ms,
            "costMs": record.cost_ms,
            "status": "success" if record.is_success else "failed",
        }
