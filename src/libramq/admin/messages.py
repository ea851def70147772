"""Stored messages: found by a key, a unique id or an offset id, and their traces.

Upstream: MQAdminImpl.queryMessage, TraceDataEncoder.decoderFromTraceDataString.
"""

from collections.abc import Iterator
from typing import Any

from libramq.admin.admin import addresses
from libramq.admin.operator import Operator
from libramq.errors import BrokerError, RemoteProtocolError
from libramq.message.ids import decode_offset_id
from libramq.message.message import MessageExt
from libramq.message.trace import Pub, SubAfter, SubBefore, decode_trace
from libramq.rpc import admin_calls as calls
from libramq.transport.address import join_address


async def by_offset_id(admin: Operator, topic: str, message_id: str) -> list[MessageExt]:
    """Return the message with an offset id; empty if the id is invalid, or of no broker of this topic."""
    try:
        host, physical_offset = decode_offset_id(message_id)
    except RemoteProtocolError:
        return []
    address = join_address(*host)
    for broker in (await admin.route(topic)).broker_datas:
        if address in broker.broker_addrs.values():
            try:
                message = await admin.ask(address, calls.view_message(physical_offset, topic))
            except BrokerError:
                return []  # The bytes of a unique id may look like this broker's address.
            message.broker_name = broker.broker_name
            return [message]
    return []


async def by_key(
    admin: Operator, topic: str, key: str, *, unique: bool = False, **limits: int
) -> list[MessageExt]:
    """Return the messages with a key, newest first. Brokers index hashes, so the keys are compared here."""
    call = calls.query_messages(topic, key, unique=unique, **limits)
    found: list[MessageExt] = []
    for broker in (await admin.route(topic)).broker_datas:
        for address in addresses([broker]):
            for message in await admin.ask(address, call):
                if key == message.message_id if unique else key in message.keys:
                    message.broker_name = broker.broker_name
                    found.append(message)
    return sorted(found, key=lambda message: -message.store_timestamp_ms)


def trace_rows(message: MessageExt, message_id: str) -> Iterator[dict[str, Any]]:
    """Yield a trace message's records of the sending and consumption of a message."""
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
