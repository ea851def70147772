"""HEART_BEAT, UNREGISTER_CLIENT, CHECK_CLIENT_CONFIG, GET_CONSUMER_LIST_BY_GROUP: connected clients.

Upstream: ClientManageProcessor.java, ConsumerManageProcessor.java.
"""

from collections.abc import Callable, Generator, Mapping
from typing import Final

from libramq.broker.groups.consumer_clients import ConsumerClients
from libramq.broker.messages.pull_filters import PullFilters
from libramq.catalog import GroupTable, TopicTable
from libramq.clock import MonotonicMs
from libramq.codes import RequestCode, ResponseCode
from libramq.errors import BrokerError
from libramq.formats.document import encode_body
from libramq.groups.consumer import Consumer
from libramq.groups.consumer_group import ConsumerGroup, Member
from libramq.groups.producer_group import ProducerGroups
from libramq.groups.rebalance_event import Reason
from libramq.kernel.connection import Connection
from libramq.message import names
from libramq.remoting.body.consumers import CheckClientBody, ConsumerList
from libramq.remoting.body.heartbeat import ConsumerData, HeartbeatData
from libramq.remoting.command import Command
from libramq.remoting.headers import GroupHeader, UnregisterClientHeader
from libramq.rpc.outcome import SUCCESS, Outcome, Reply, ReplyWhenAnnounced
from libramq.rpc.request import Processor, Request, failure
from libramq.rpc.request_body import begin

#: The ext field by which a client declares that it uses a coordinator, and a broker that it has one.
COORDINATED: Final = "libraGroups"
#: Ours: groups of one process.
GROUPS_PER_CLIENT_MAX: Final = 1_000
#: Ours: clientIP@instanceName is some 40 characters.
CLIENT_ID_LENGTH_MAX: Final = 255
#: Ours: groups of a heartbeat that are processed before others are served; creating one takes 0.3 ms.
GROUPS_PER_STEP: Final = 4


class ClientManagement:
    """The processor of heartbeats and clients' departures.

    gone: called with every connection that has left the last of its groups.
    """

    def __init__(
        self,
        *,
        consumers: ConsumerClients,
        producers: ProducerGroups[Connection],
        topics: TopicTable,
        groups: GroupTable,
        gone: Callable[[Connection], None],
        filters: PullFilters,
    ) -> None:
        self._consumers = consumers
        self._producers = producers
        self._topics = topics
        self._groups = groups
        self._gone = gone
        self._filters = filters

    def processors(self) -> Mapping[int, Processor]:
        """Return the requests that it serves."""
        return {
            RequestCode.HEART_BEAT: self.heartbeat,
            RequestCode.UNREGISTER_CLIENT: self.unregister,
            RequestCode.CHECK_CLIENT_CONFIG: self.check_config,
            RequestCode.GET_CONSUMER_LIST_BY_GROUP: self.consumer_list,
        }

    def heartbeat(self, request: Request) -> Outcome:
        """Apply a client's heartbeat; members that share a group with it are notified of changes."""
        data: HeartbeatData = request.body
        if not 0 < len(data.client_id) <= CLIENT_ID_LENGTH_MAX:
            return Reply(ResponseCode.INVALID_PARAMETER, f"a client id of {len(data.client_id)} characters")
        if len(data.consumer_data_set) + len(data.producer_data_set) > GROUPS_PER_CLIENT_MAX:
            return Reply(
                ResponseCode.INVALID_PARAMETER, f"over {GROUPS_PER_CLIENT_MAX} groups in one heartbeat"
            )
        return begin(self._beat(request, data))

    def _beat(self, request: Request, data: HeartbeatData) -> Generator[None, None, Outcome]:
        for producer in data.producer_data_set:
            if names.is_valid_group(producer.group_name):
                self._producers.beat(producer.group_name, self._member(request, data.client_id))
        refused: Reply | None = None
        is_topic_new = False
        is_changed = data.heartbeat_fingerprint == 0  # Version 1 always gets this, and ignores it.
        for number, consumer in enumerate(data.consumer_data_set, 1):
            if number % GROUPS_PER_STEP == 0:
                yield
            if not request.peer.is_open:  # It has disconnected meanwhile.
                break
            try:
                self._groups.require_not_taken(consumer.group_name)
                if not data.without_sub:
                    self._consumers.require_room(
                        consumer.group_name, request.peer, consumer.subscription_data_set
                    )
            except BrokerError as taken:
                # Its other groups are kept. The error itself would be in a cycle with this frame.
                refused = failure(taken, request)
                continue
            config = self._groups.find(consumer.group_name, request.wall_ms)
            if config is None:
                continue  # Upstream skips groups that may not be created.
            is_topic_new |= names.retry_topic(consumer.group_name) not in self._topics
            self._topics.for_retries(config, request.wall_ms)
            self._consumers.beat(
                self._member(request, data.client_id),
                _consumer(consumer),
                without_subscriptions=data.without_sub,
                now=request.now,
            )
            group = self._consumers.group(consumer.group_name)
            if group is not None:
                if not data.without_sub:
                    for _ in self._filters.register(consumer.group_name, consumer.subscription_data_set):
                        yield
                        if not request.peer.is_open:  # Its group's filters are dead already.
                            break
                is_changed = _fingerprint_changed(group, data.heartbeat_fingerprint) or is_changed
                # A client that omits its subscriptions must send them again after this broker's restart.
                is_changed = is_changed or (data.without_sub and not group.subscriptions)
        if refused is not None:
            return refused
        ext = {
            "IS_SUPPORT_HEART_BEAT_V2": "true",
            "IS_SUB_CHANGE": "true" if is_changed else "false",
            COORDINATED: "1",
        }
        reply = Reply(ext=ext)
        # A new group has a retry topic, by which tools find it. Its first member waits for the name servers.
        return ReplyWhenAnnounced(reply) if is_topic_new else reply

    def unregister(self, request: Request) -> Outcome:
        """Remove a client; only the connection that registered it can unregister it."""
        header: UnregisterClientHeader = request.header
        if header.producer_group:
            self._producers.remove(header.producer_group, request.peer)
        if not header.consumer_group:
            return SUCCESS
        self._consumers.leave(header.consumer_group, request.peer, Reason.MEMBER_LEFT, now=request.now)
        if not self._consumers.is_member(request.peer):
            self._gone(request.peer)
        return SUCCESS

    def check_config(self, request: Request) -> Outcome:
        """Check a client's filter before it subscribes, so that its `start` raises rather than its pulls."""
        body: CheckClientBody = request.body
        data = body.subscription_data
        if data is not None:
            self._filters.check(data.sub_string, data.expression_type)
        return SUCCESS

    def consumer_list(self, request: Request) -> Outcome:
        """Return the client ids of a group."""
        header: GroupHeader = request.header
        group = self._consumers.group(header.consumer_group)
        self._consumers.fetched(request.peer, header.consumer_group)
        if group is None:
            return Reply(ResponseCode.SYSTEM_ERROR, f"no consumer for this group, {header.consumer_group}")
        return Reply(body=encode_body(ConsumerList(consumer_id_list=list(self._consumers.client_ids(group)))))

    def answered(self, connection: Connection, answer: Command, now_ms: MonotonicMs) -> None:
        """Take a client's answer to a probe.

        Java's answers SYSTEM_ERROR if it has no consumer of the group (any more). A client that does not know
        the request is alive too.
        """
        knows_group = answer.code != ResponseCode.SYSTEM_ERROR
        self._consumers.answered_question(connection, answer.opaque, knows_group=knows_group, now_ms=now_ms)

    def _member(self, request: Request, client_id: str) -> Member[Connection]:
        command = request.command
        return Member(
            request.peer,
            client_id,
            command.language,
            command.version,
            request.monotonic_ms,
            is_stock=command.ext.get(COORDINATED) != "1",
        )


def _consumer(data: ConsumerData) -> Consumer:
    return Consumer(
        group=data.group_name,
        subscriptions=data.subscription_data_set,
        consume_type=data.consume_type,
        message_model=data.message_model,
        consume_from_where=data.consume_from_where,
    )


def _fingerprint_changed(group: ConsumerGroup[Connection], fingerprint: int) -> bool:
    """Return, for heartbeat version 2, whether another fingerprint was stored; a version 1 stores 0."""
    known, group.fingerprint = group.fingerprint, fingerprint
    return known is not None and known != fingerprint
