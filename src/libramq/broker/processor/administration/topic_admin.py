"""UPDATE_AND_CREATE_TOPIC(_LIST), DELETE_TOPIC_IN_BROKER, GET_ALL_TOPIC_CONFIG, GET_TOPIC_CONFIG: topics; and
which queues with unread messages may not be removed.

Upstream: AdminBrokerProcessor.java.
"""

from collections.abc import Mapping
from itertools import islice
from typing import Final

import msgspec

from libramq.broker.groups.consumer_clients import ConsumerClients
from libramq.broker.groups.offset_commits import OffsetCommits
from libramq.broker.groups.removal import Removal
from libramq.broker.processor.listing import Listing, requested_page
from libramq.catalog.topic_attributes import changed_attributes, parse_changes
from libramq.catalog.topic_table import TopicTable
from libramq.clock import WallMs
from libramq.codes import RequestCode, ResponseCode
from libramq.errors import broker_error
from libramq.formats.document import encode_body
from libramq.formats.tables import TopicConfig, TopicConfigSerializeWrapper
from libramq.kernel.work import Work
from libramq.message import names
from libramq.remoting import headers as h
from libramq.remoting.body.administration import TopicConfigList
from libramq.remoting.body.cluster import TopicList
from libramq.rpc.outcome import SUCCESS, Outcome, Reply, ReplyWhenAnnounced
from libramq.rpc.request import Request, serves
from libramq.store.message_store import MessageStore

_PERM_MAX = 7
#: Ours: a group without members retains a queue only if it has read a message younger than this.
IDLE_MS: Final = 7 * 24 * 3600 * 1000
#: Ours: groups named in a refusal.
GROUPS_NAMED_MAX: Final = 10
#: Ours: a list is created in slices, between which others run; a topic takes 0.3 ms to journal.
TOPICS_PER_LIST_MAX: Final = 1_000


class UnreadQueues:
    """Finds unread messages in queues that a topic would lose; no group could read them afterwards.

    may_abandon: abandonUnreadQueues.
    """

    def __init__(
        self, store: MessageStore, offsets: OffsetCommits, clients: ConsumerClients, *, may_abandon: bool
    ) -> None:
        self._store = store
        self._offsets = offsets
        self._clients = clients
        self._may_abandon = may_abandon

    def require_none(self, before: TopicConfig, queues: int, wall_ms: WallMs) -> Work[None]:
        """Raise BrokerError if a topic's read queues may not be reduced to this number.

        A group counts if it has members, or if the last message that it has read there was stored within
        `IDLE_MS`, since a commit has no time of its own. If that message is gone, the first existing one
        decides.
        """
        topic, unread = before.topic_name, dict[str, int]()
        if self._may_abandon:
            return
        stored: dict[int, tuple[int, int]] = {}
        for queue_id in range(queues, before.read_queue_nums):
            first, end = self._store.min_offset(topic, queue_id), self._store.max_offset(topic, queue_id)
            if end > first:
                stored[queue_id] = first, end
            yield None
        groups = self._offsets.groups_of_topic(topic) | set(self._clients.groups_of(topic)) if stored else ()
        for group in sorted(groups):
            lag = yield from self._lag(group, topic, stored, wall_ms)
            if lag:
                unread[group] = lag
        if unread:
            named = ", ".join(f"{group} {lag}" for group, lag in islice(unread.items(), GROUPS_NAMED_MAX))
            others = f" and {len(unread) - GROUPS_NAMED_MAX} more" if len(unread) > GROUPS_NAMED_MAX else ""
            raise broker_error(
                ResponseCode.INVALID_PARAMETER,
                f"topic {topic} would lose queues from {queues} on, with messages that groups have not read:"
                f" {named}{others}. Reduce the queues to write first (-w), and let them be read; or abandon"
                " them by --abandon-unread or abandonUnreadQueues=true",
            )

    def _lag(
        self, group: str, topic: str, stored: Mapping[int, tuple[int, int]], wall_ms: WallMs
    ) -> Work[int]:
        """Return a group's number of unread messages in queues with these first and next offsets."""
        lag = 0
        connected, committed = self._clients.group(group), self._offsets.offsets(group, topic)
        is_foreign = self._clients.foreign.get(group) is not None
        is_live = is_foreign or (connected is not None and bool(connected.members))
        for queue_id in stored if is_live else committed.keys() & stored.keys():
            first, end = stored[queue_id]
            read = committed.get(queue_id)
            if read is None:  # Until its first commit.
                read = self._offsets.pull_offsets.get(group, topic, queue_id) or first
            read, is_unread = max(read, first), end > read
            if is_unread and not is_live:
                read_to = max(committed[queue_id] - 1, first)
                read_ms = yield from self._store.stored_ms(topic, queue_id, read_to)
                is_unread = int(wall_ms) - read_ms <= IDLE_MS
            lag += end - read if is_unread else 0
            yield None
        yield None
        return lag


class TopicAdministration:
    """The processor of queries and changes of topics."""

    def __init__(
        self,
        *,
        topics: TopicTable,
        clients: ConsumerClients,
        removal: Removal,
        unread: UnreadQueues,
        address: str,
    ) -> None:
        self._unread = unread
        self._topics = topics
        self._clients = clients
        self._removal = removal
        self._address = address
        self._listing = Listing("topic_config_table")

    @serves(RequestCode.UPDATE_AND_CREATE_TOPIC)
    def create(self, request: Request) -> Work[Outcome]:
        """Create a topic or change it; the reply waits for the disk and the name servers."""
        header: h.CreateTopicHeader = request.header
        config = TopicConfig(
            topic_name=header.topic,
            read_queue_nums=header.read_queue_nums,
            write_queue_nums=header.write_queue_nums,
            perm=header.perm,
            topic_filter_type=header.topic_filter_type,
            topic_sys_flag=header.topic_sys_flag or 0,
            order=bool(header.order),
            attributes=parse_changes(header.attributes),
        )
        config = self._with_attributes(config)
        if not header.lb_abandon_unread:
            yield from self._require_read(config, request)
        self._put(config, request)
        return ReplyWhenAnnounced(SUCCESS)

    def _require_read(self, config: TopicConfig, request: Request) -> Work[None]:
        """Raise BrokerError if a topic would lose unread queues."""
        before = self._topics.get(config.topic_name)
        if before is not None and config.read_queue_nums < before.read_queue_nums:
            yield from self._unread.require_none(before, config.read_queue_nums, request.wall_ms)

    @serves(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST)
    def create_list(self, request: Request) -> Work[Outcome]:
        """Create or change topics: all of them, or none if one is invalid."""
        body: TopicConfigList = request.body
        if len(body.topic_config_list) > TOPICS_PER_LIST_MAX:
            raise broker_error(
                ResponseCode.INVALID_PARAMETER,
                f"{len(body.topic_config_list)} topics in one list; {TOPICS_PER_LIST_MAX} are allowed",
            )
        checked = [self._with_attributes(config) for config in body.topic_config_list]
        for config in checked:
            self._topics.check(config)
        for config in checked:
            yield from self._require_read(config, request)
        for config in checked:
            self._put(config, request)
            yield None
        return ReplyWhenAnnounced(SUCCESS)

    def _with_attributes(self, config: TopicConfig) -> TopicConfig:
        """Return a requested topic with its resulting attributes; raises BrokerError."""
        topic = config.topic_name
        before = self._topics.get(topic)
        if before is None or names.is_system_topic(topic):
            names.validate_topic(topic)
        if names.is_system_topic(topic):
            raise broker_error(
                ResponseCode.INVALID_PARAMETER, f"The topic[{topic}] is conflict with system topic."
            )
        if not 0 <= config.perm <= _PERM_MAX:
            raise broker_error(ResponseCode.INVALID_PARAMETER, f"perm {config.perm}; 2, 4 or 6 is usual")
        current = before.attributes if before is not None else None
        return msgspec.structs.replace(config, attributes=changed_attributes(current, config.attributes))

    def _put(self, config: TopicConfig, request: Request) -> None:
        """Create a topic or change it, and notify members if its queues change."""
        before = self._topics.get(config.topic_name)
        self._topics.put(config, request.wall_ms)
        if before is not None and before.read_queue_nums != config.read_queue_nums:
            self._clients.queue_count_changed(config.topic_name, now=request.now)

    @serves(RequestCode.DELETE_TOPIC_IN_BROKER)
    def delete(self, request: Request) -> Outcome:
        """Delete a topic, its queues, the offsets in it, and messages waiting to be popped again.

        Tools then delete it at the name servers: an earlier registration would list it there forever.
        """
        header: h.TopicHeader = request.header
        if not header.topic.strip() or names.is_system_topic(header.topic):
            return Reply(ResponseCode.INVALID_PARAMETER, f"the topic {header.topic!r} cannot be deleted")
        self._removal.remove_topic(header.topic, request.wall_ms)
        return ReplyWhenAnnounced(SUCCESS)

    @serves(RequestCode.GET_ALL_TOPIC_CONFIG)
    def list_all(self, request: Request) -> Outcome:
        """Return all topics with their configuration, or a page of them."""
        header: h.GetAllTopicsHeader = request.header
        page = requested_page(header.data_version, header.topic_seq, header.max_topic_num)
        file = self._topics.file()
        table = TopicConfigSerializeWrapper(
            data_version=file.data_version, topic_config_table=file.topic_config_table
        )
        return self._listing.answer(table, page, {"totalTopicNum": str(len(self._topics))})

    @serves(RequestCode.GET_TOPIC_CONFIG)
    def get(self, request: Request) -> Outcome:
        """Return one topic's configuration."""
        header: h.TopicHeader = request.header
        return Reply(body=encode_body(self._topics.require(header.topic)))

    @serves(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER)
    def system_topics(self, request: Request) -> Outcome:
        """Return the broker's own topics."""
        own = [config.topic_name for config in self._topics if self._topics.is_own(config.topic_name)]
        return Reply(body=encode_body(TopicList(topic_list=sorted(own), broker_addr=self._address)))
