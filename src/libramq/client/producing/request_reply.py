"""Requests that are sent as messages: how a reply is matched with its request, how long a request waits, and
where a reply is sent.

    request ─ message with CORRELATION_ID, REPLY_TO_CLIENT, TTL ─► topic ─► a consumer, which replies
    reply ◄── PUSH_REPLY_MESSAGE_TO_CLIENT, found by its CORRELATION_ID ── broker ◄─┘

A reply is a message to the cluster's reply topic, which the broker passes on to the client that waits for it;
brokers know that client by its heartbeats.
Upstream: RequestFutureHolder.java, RequestResponseFuture.java, ClientRemotingProcessor.receiveReplyMessage,
MessageUtil.createReplyMessage.
"""

from collections.abc import Callable
from typing import Final

from libramq.codes import ResponseCode
from libramq.errors import ConfigError, LibraError, RemoteProtocolError, RequestTimeout
from libramq.logs import get_logger
from libramq.message import properties as names
from libramq.message.compression import decompress_body
from libramq.message.message import MessageExt
from libramq.message.sys_flag import COMPRESSED
from libramq.remoting.command import Command, reply_to
from libramq.remoting.headers import PushReplyHeader, decode_header
from libramq.runtime.seams import Timer, Timers
from libramq.secret_bits import SYSTEM_SECRETS
from libramq.transport.address import split_address

log = get_logger(__name__)


#: MixAll.REPLY_TOPIC_POSTFIX.
REPLY_TOPIC_SUFFIX: Final = "_REPLY_TOPIC"
#: MixAll.REPLY_MESSAGE_FLAG.
REPLY: Final = "reply"


def reply_topic(request: MessageExt) -> str:
    """Return the topic of replies to a request; raises ConfigError for anything else."""
    if not isinstance(request, MessageExt):
        raise ConfigError(f"a reply is to one message that was received, not to a {type(request).__name__}")
    cluster = request.properties.get(names.CLUSTER)
    if not is_request(request) or not cluster:
        raise ConfigError(
            f"message {request.message_id} of {request.topic} is no request: its sender waits for no reply"
        )
    return cluster + REPLY_TOPIC_SUFFIX


def is_request(message: MessageExt) -> bool:
    """Return whether the sender of a message waits for a reply."""
    return names.REPLY_TO_CLIENT in message.properties and names.CORRELATION_ID in message.properties


def reply_properties(request: MessageExt) -> dict[str, str]:
    """Return the properties that match a reply with its request."""
    own = request.properties
    found = {
        names.MESSAGE_TYPE: REPLY,
        names.CORRELATION_ID: own[names.CORRELATION_ID],
        names.REPLY_TO_CLIENT: own[names.REPLY_TO_CLIENT],
    }
    return found | ({names.TTL: own[names.TTL]} if names.TTL in own else {})


#: Ours: the length of a correlation id, as in Java's random UUIDs.
CORRELATION_BYTES: Final = 16

#: Called with the reply, or with the error.
Replied = Callable[[MessageExt | LibraError], None]


class Requests:
    """The requests that wait for their replies."""

    def __init__(self, timers: Timers, client_id: str) -> None:
        self._timers = timers
        self._client_id = client_id
        #: The callbacks and timeouts of requests, by correlation id.
        self._waiting: dict[str, tuple[Replied, Timer]] = {}

    def begin(self, topic: str, replied: Replied, *, timeout_ms: int) -> dict[str, str]:
        """Wait for a reply; return the properties that will match it. `replied` is called once."""
        correlation_id = SYSTEM_SECRETS.token_hex(CORRELATION_BYTES)

        def expired() -> None:
            remark = f"no reply in time to a request in {topic}; does a consumer of it reply?"
            self.end(correlation_id, RequestTimeout(remark))

        self._waiting[correlation_id] = replied, self._timers.after(timeout_ms, expired)
        return {
            names.CORRELATION_ID: correlation_id,
            names.REPLY_TO_CLIENT: self._client_id,
            names.TTL: str(timeout_ms),
        }

    def end(self, correlation_id: str, outcome: MessageExt | LibraError) -> bool:
        """Report the reply or the error; return whether the request still waited."""
        waiting = self._waiting.pop(correlation_id, None)
        if waiting is None:
            return False
        replied, timer = waiting
        timer.cancel()
        replied(outcome)
        return True

    def close(self, error: LibraError) -> None:
        """Fail the requests that still wait."""
        for correlation_id in list(self._waiting):
            self.end(correlation_id, error)

    def reply_received(self, request: Command) -> Command:
        """Handle PUSH_REPLY_MESSAGE_TO_CLIENT; return the answer, which the replier is waiting for."""
        try:
            reply = _decode_reply(request)
        except (LibraError, ValueError) as error:
            log.warning("a reply cannot be read", reason=str(error))
            return reply_to(request, ResponseCode.SYSTEM_ERROR, remark=f"the reply cannot be read: {error}")
        if not self.end(reply.properties.get(names.CORRELATION_ID, ""), reply):
            log.info("a reply came to a request that waits no longer", topic=reply.topic)
        return reply_to(request, ResponseCode.SUCCESS)


def _decode_reply(request: Command) -> MessageExt:
    header = decode_header(request, PushReplyHeader)
    body = request.body
    if header.sys_flag & COMPRESSED:
        body = decompress_body(body, header.sys_flag)
    properties = names.properties_from_text(header.properties or "")
    if names.CORRELATION_ID not in properties:
        raise RemoteProtocolError(f"a reply has no {names.CORRELATION_ID}")
    return MessageExt(
        topic=header.topic,
        queue_id=header.queue_id,
        queue_offset=0,
        physical_offset=0,
        flag=header.flag,
        sys_flag=header.sys_flag,
        born_timestamp_ms=header.born_timestamp,
        born_host=split_address(header.born_host),
        store_timestamp_ms=header.store_timestamp,
        store_host=split_address(header.store_host),
        reconsume_times=header.reconsume_times or 0,
        prepared_transaction_offset=0,
        body=body,
        properties=properties,
        store_size=0,
        body_crc=0,
    )
