"""The calls of POP: take messages, acknowledge them, change when they are visible again; each request and the
form of its answer.

Upstream: MQClientAPIImpl.popMessageAsync, ackMessageAsync, changeInvisibleTimeAsync.
"""

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from libramq.codes import RequestCode, ResponseCode
from libramq.formats.document import encode_body
from libramq.remoting import headers as h
from libramq.remoting.body.pop import BatchAckBody, BatchAckText
from libramq.remoting.command import Command
from libramq.remoting.headers import encode_header
from libramq.rpc.call import Call, header_call, nothing

_POPPED: Final = frozenset({ResponseCode.SUCCESS, ResponseCode.PULL_NOT_FOUND, ResponseCode.POLLING_TIMEOUT})


class PopReply(NamedTuple):
    """The result of a pop. starts: the first offset by kind of topic and queue, `0 3` for queue 3.

    counts: from one of our brokers, if asked for many messages: kind and queue, first offset and number of
    messages of each check point, in the order of the body. None: from another broker, whose queues have one
    check point each. held_ms: how long the broker had the pop before it took the messages, or None.
    """

    code: int
    pop_time_ms: int
    invisible_ms: int
    revive_queue: int
    starts: dict[str, int]
    body: bytes
    counts: Sequence[tuple[str, int, int]] | None = None
    held_ms: int | None = None


class Changed(NamedTuple):
    """The numbers of a message's new handle."""

    pop_time_ms: int
    invisible_ms: int
    revive_queue: int


def pop_message(header: h.PopMessageHeader) -> Call[PopReply]:
    """Take messages; the broker may hold the request until there are some."""
    return Call(RequestCode.POP_MESSAGE, _pop_reply, encode_header(header), accepts=_POPPED)


def _pop_reply(reply: Command) -> PopReply:
    ext = reply.ext
    counted = ext.get(h.MESSAGE_COUNTS)
    if reply.code != ResponseCode.SUCCESS:
        return PopReply(reply.code, 0, 0, 0, {}, b"", None if counted is None else ())
    starts = []
    for entry in ext.get("startOffsetInfo", "").split(";"):
        kind_and_queue, _, start = entry.rpartition(" ")
        starts.append((kind_and_queue, int(start)))
    counts = None
    if counted is not None:
        numbers = map(int, counted.split(";"))
        counts = [(*start, number) for start, number in zip(starts, numbers, strict=True)]
    held = ext.get(h.HELD_MS)
    held_ms = None if held is None else int(held)
    return PopReply(reply.code, *_numbers(ext), dict(starts), reply.body, counts, held_ms)


def _numbers(ext: Mapping[str, str]) -> Changed:
    return Changed(int(ext["popTime"]), int(ext["invisibleTime"]), int(ext["reviveQid"]))


def ack_message(header: h.AckMessageHeader) -> Call[None]:
    """Acknowledge one message."""
    return header_call(RequestCode.ACK_MESSAGE, header, nothing)


def batch_ack(broker_name: str, acks: Sequence[BatchAckText]) -> Call[None]:
    """Acknowledge messages of several check points; messages that are visible again are ignored."""
    body = encode_body(BatchAckBody(broker_name=broker_name, acks=list(acks)))
    return header_call(RequestCode.BATCH_ACK_MESSAGE, None, nothing, body=body)


def change_invisible_time(header: h.ChangeInvisibleTimeHeader) -> Call[Changed]:
    """Change when a message becomes visible again."""
    return header_call(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, header, lambda reply: _numbers(reply.ext))
