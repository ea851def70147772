"""SEND_MESSAGE, SEND_MESSAGE_V2, SEND_BATCH_MESSAGE: RocketMQ's sends as drafts for
`broker.messages.sending`, and the codes of their replies.

All sends of one read are stored by one append. Upstream: SendMessageProcessor.java.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from libramq.broker.messages.drafts import Draft
from libramq.broker.messages.sending import Prepared, Sending, Sent, Steps, Stored
from libramq.clock import MonotonicMs
from libramq.codes import RequestCode
from libramq.kernel.work import Work
from libramq.message import properties as p
from libramq.remoting.headers import SendMessageHeader
from libramq.rpc.outcome import Outcome, Reply, ReplyWhenAnnounced, ReplyWhenDurable
from libramq.rpc.request import BatchProcessor, Request, failure

#: MQVersion.V3_4_9: older clients do not fill in maxReconsumeTimes.
_VERSION_WITH_MAX_RECONSUME_TIMES: Final = 121


class SendMessage:
    """The processor of all sends."""

    def __init__(self, sending: Sending) -> None:
        self._sending = sending
        self._tail_ext = {
            p.MSG_REGION: sending.properties.region,
            p.TRACE_ON: sending.properties.trace_on,
        }

    def batch_processors(self) -> Mapping[int, BatchProcessor]:
        """Return the requests that are served in batches, all of one read together."""
        return {
            RequestCode.SEND_MESSAGE: self.handle_many,
            RequestCode.SEND_MESSAGE_V2: self.handle_many,
            RequestCode.SEND_BATCH_MESSAGE: self.handle_many,
        }

    def handle_many(self, requests: Sequence[Request]) -> Sequence[Outcome]:
        """Store the messages of several requests by one append."""
        first = requests[0]
        if len(requests) == 1:
            sent = self._sending.send_one(draft_of(first), first.peer, first.wall_ms, first.monotonic_ms)
            return [self._outcome(sent, first)]
        drafts = list(map(draft_of, requests))
        sent_all = self._sending.send(drafts, first.peer, wall_ms=first.wall_ms, now_ms=first.monotonic_ms)
        return list(map(self._outcome, sent_all, requests))

    def _in_steps(self, steps: Steps, request: Request) -> Work[Outcome]:
        return self._outcome((yield from steps), request)

    def _outcome(self, stored: Sent, request: Request) -> Outcome:
        if not isinstance(stored, Stored):
            if isinstance(stored, Exception):
                return failure(stored, request)
            return self._in_steps(stored, request)
        ext = {
            "msgId": stored.offset_ids,
            "queueId": str(stored.queue_id),
            "queueOffset": str(stored.queue_offset),
            "transactionId": stored.unique_key,
            **self._tail_ext,
        }
        if stored.recall_handle:
            ext["recallHandle"] = stored.recall_handle
        if stored.record_count:
            ext["lbInnerNum"] = str(stored.record_count)  # For our clients: each message has an id.
            if stored.unique_key:
                ext["batchUniqId"] = stored.unique_key  # For Java's: the id is the batch's.
        reply = Reply(ext=ext)
        later = ReplyWhenAnnounced(reply) if stored.creates_topic else reply
        return ReplyWhenDurable(stored.end, later, is_send=True) if stored.waits else later

    def prepare_reply(self, request: Request) -> Prepared:
        """Check a reply to another client's request, and build its message; raises BrokerError."""
        draft = draft_of(request)
        ready = self._sending.prepare(draft, request.peer, request.wall_ms, request.monotonic_ms)
        assert isinstance(ready, Prepared), "only a batch is prepared in steps"
        return ready

    def append_reply(self, reply: Prepared, now_ms: MonotonicMs, *, stores: bool) -> dict[str, str]:
        """Store a reply if requested and there is room; return the fields of the answer."""
        stored = self._sending.store_unawaited(reply, now_ms) if stores else None
        return {
            "msgId": "0" if stored is None else stored.offset_ids,
            "queueId": str(reply.queue_id),
            "queueOffset": "0" if stored is None else str(stored.queue_offset),
            **self._tail_ext,
        }


def draft_of(request: Request) -> Draft:
    """Return a request as a draft."""
    command = request.command
    header: SendMessageHeader = request.header
    times_max = header.max_reconsume_times if command.version >= _VERSION_WITH_MAX_RECONSUME_TIMES else None
    return Draft(
        header.topic,
        header.queue_id,
        command.body,
        header.properties or "",
        header.born_timestamp,
        header.flag,
        header.sys_flag,
        header.reconsume_times or 0,
        times_max,
        header.default_topic,
        header.default_topic_queue_nums,
        header.unit_mode or False,
        header.batch or False,
        header.lb_inner or False,
    )
