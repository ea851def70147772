"""HEART_BEAT, UNREGISTER_CLIENT, CHECK_CLIENT_CONFIG, GET_CONSUMER_LIST_BY_GROUP: what connected clients
register, and the answers and notices they get.

Notices are NOTIFY_CONSUMER_IDS_CHANGED, GET_CONSUMER_RUNNING_INFO for silent clients, and
CHECK_TRANSACTION_STATE for producers.

Upstream: ClientManageProcessor.java, ConsumerManageProcessor.java.
"""

from functools import lru_cache, partial

from libramq.broker.groups.consumer_clients import ConsumerClients
from libramq.broker.groups.heartbeats import GROUPS_PER_CLIENT_MAX, Heartbeat, Heartbeats
from libramq.broker.groups.pull import PullFilters, parse_ahead
from libramq.broker.processor.client_calls import check_request
from libramq.clock import MonotonicMs
from libramq.codes import RequestCode, ResponseCode
from libramq.formats.document import encode_body
from libramq.groups.consumer_group import Consumer
from libramq.groups.pending_notifications import (
    AreYouThere,
    GroupChanged,
    Notice,
    OffsetsReset,
    TransactionCheck,
)
from libramq.kernel.connection import Connection
from libramq.kernel.effect import Effects
from libramq.kernel.work import Work
from libramq.message.queue import MessageQueue
from libramq.remoting import headers as h
from libramq.remoting.body.consumers import CheckClientBody, ConsumerList, ResetOffsetBody
from libramq.remoting.body.heartbeat import ConsumerData, HeartbeatData
from libramq.remoting.command import FLAG_ONEWAY, Command
from libramq.remoting.frame import encode_frame
from libramq.rpc.broker_calls import COORDINATED, LEASE_ENDED
from libramq.rpc.outcome import SUCCESS, Outcome, Reply, ReplyWhenAnnounced
from libramq.rpc.request import Request, failure, serves


class ClientManagement:
    """The processor of heartbeats and clients' departures."""

    def __init__(
        self, heartbeats: Heartbeats, consumers: ConsumerClients, filters: PullFilters, effects: Effects
    ) -> None:
        self._heartbeats = heartbeats
        self._consumers = consumers
        self._filters = filters
        self._notify = partial(_send_notice, effects, consumers.broker_name)

    @serves(RequestCode.HEART_BEAT)
    def heartbeat(self, request: Request) -> Work[Outcome]:
        """Apply a client's heartbeat."""
        data: HeartbeatData = request.body
        command, count = request.command, GROUPS_PER_CLIENT_MAX + 1  # Any more are refused.
        heartbeat = Heartbeat(
            client_id=data.client_id,
            producer_groups=[producer.group_name for producer in data.producer_data_set[:count]],
            consumers=[_consumer(consumer) for consumer in data.consumer_data_set[:count]],
            language=command.language,
            version=command.version,
            is_stock=command.ext.get(COORDINATED) != "1",
            lease_ended=command.ext.get(LEASE_ENDED) == "1",
            fingerprint=data.heartbeat_fingerprint,
            without_subscriptions=data.without_sub,
            notify=self._notify,
            principal=request.principal,
        )
        result = yield from self._heartbeats.beat(heartbeat, request.peer, request.now)
        if result.refused is not None:
            return failure(result.refused, request)
        reply = Reply(
            ext={
                "IS_SUPPORT_HEART_BEAT_V2": "true",
                "IS_SUB_CHANGE": "true" if result.is_changed else "false",
                COORDINATED: "1",
            }
        )
        return ReplyWhenAnnounced(reply) if result.creates_topic else reply

    @serves(RequestCode.UNREGISTER_CLIENT)
    def unregister(self, request: Request) -> Outcome:
        """Remove a client from its groups."""
        header: h.UnregisterClientHeader = request.header
        self._heartbeats.leave(
            request.peer,
            request.now,
            producer_group=header.producer_group or "",
            consumer_group=header.consumer_group or "",
        )
        return SUCCESS

    @serves(RequestCode.CHECK_CLIENT_CONFIG)
    def check_config(self, request: Request) -> Work[Outcome]:
        """Check a client's filter before it subscribes, so that its `start` fails rather than its pulls."""
        body: CheckClientBody = request.body
        data = body.subscription_data
        if data is not None:
            yield from parse_ahead(data.sub_string, data.expression_type)
            self._filters.check(data.sub_string, data.expression_type)
        return SUCCESS

    @serves(RequestCode.GET_CONSUMER_LIST_BY_GROUP)
    def consumer_list(self, request: Request) -> Outcome:
        """Return the client ids of a group."""
        header: h.GroupHeader = request.header
        group = self._consumers.group(header.consumer_group)
        self._consumers.fetched(request.peer, header.consumer_group)
        if group is None:
            return Reply(ResponseCode.SYSTEM_ERROR, f"no consumer for this group, {header.consumer_group}")
        return Reply(body=encode_body(ConsumerList(consumer_id_list=list(self._consumers.client_ids(group)))))

    def answered(self, connection: Connection, answer: Command, now_ms: MonotonicMs) -> None:
        """Take a client's answer to a probe.

        Java's client answers SYSTEM_ERROR if it has no consumer of the group, or no longer has. A client that
        does not know the request is alive, too.
        """
        knows_group = answer.code != ResponseCode.SYSTEM_ERROR
        self._consumers.answered_question(connection, answer.opaque, knows_group=knows_group, now_ms=now_ms)


def _send_notice(effects: Effects, broker_name: str, notice: Notice[Connection]) -> None:
    """Send a client a notice.

    A change is announced again until the member has fetched the list, so a member that is not reading needs
    no second notice behind the unread ones.
    """
    ext = {"consumerGroup": notice.group}
    match notice:
        case GroupChanged():
            code = RequestCode.NOTIFY_CONSUMER_IDS_CHANGED
            effects.offer(notice.peer, encode_frame(Command(code=code, flag=FLAG_ONEWAY, ext=ext)))
        case AreYouThere():
            ext |= {"clientId": notice.client_id, "jstackEnable": "false"}
            code = RequestCode.GET_CONSUMER_RUNNING_INFO
            effects.send(notice.peer, encode_frame(Command(code=code, opaque=notice.number, ext=ext)))
        case TransactionCheck():
            effects.send(notice.peer, encode_frame(check_request(notice.message, broker_name)))
        case OffsetsReset():
            effects.send(notice.peer, _reset_frame(notice.group, notice.topic, broker_name, notice.offsets))


@lru_cache(maxsize=1)  # All members of a group get the same frame.
def _reset_frame(group: str, topic: str, broker_name: str, offsets: tuple[tuple[int, int], ...]) -> bytes:
    table = {MessageQueue(topic, broker_name, queue_id): offset for queue_id, offset in offsets}
    ext = h.encode_header(h.ResetOffsetHeader(topic=topic, group=group))
    body = encode_body(ResetOffsetBody(offset_table=table))
    code = RequestCode.RESET_CONSUMER_CLIENT_OFFSET
    return encode_frame(Command(code=code, flag=FLAG_ONEWAY, ext=ext, body=body))


def _consumer(data: ConsumerData) -> Consumer:
    return Consumer(
        group=data.group_name,
        subscriptions=data.subscription_data_set,
        consume_type=data.consume_type,
        message_model=data.message_model,
        consume_from_where=data.consume_from_where,
    )
