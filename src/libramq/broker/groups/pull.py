"""The pull: the values of a read on behalf of a group's consumer, and the filter that selects its messages:
its own expression, or the group's subscription; also the filter of a consumer without a heartbeat.

            own expression          the group's subscription
    TAG     its hashes              its hashes, once it is as new as the reader's
    SQL92   parsed                  the group's consumer filter; refused while that is missing or older

Upstream: PullMessageProcessor.processRequest, ClientManageProcessor.checkClientConfig.
"""

from collections.abc import Sequence
from contextlib import suppress
from enum import Enum, auto
from functools import partial
from typing import Final, NamedTuple
from weakref import WeakValueDictionary

import msgspec

from libramq.broker.config import BrokerConfig
from libramq.broker.groups.consumer_clients import ConsumerClients
from libramq.clock import Clock
from libramq.codes import ResponseCode
from libramq.errors import ConfigError, broker_error
from libramq.filter.consumer_filters import ConsumerFilters, RetryTopicFilter, is_tag, parse_filter
from libramq.filter.sql import SQL92, is_parsed
from libramq.filter.subscription import MessageFilter, SubscriptionData
from libramq.filter.tag import ALL, parse_tag_filter
from libramq.kernel.effect import Thread
from libramq.kernel.purgatory import Waiter
from libramq.kernel.work import InThread, Work
from libramq.message.names import RETRY_PREFIX
from libramq.store.reading.read import ReadResult

#: Ours: characters of an expression that the loop parses itself, in 1 ms; one of 250 tests takes 9.
PARSED_AT_ONCE_MAX: Final = 512
#: Ours: characters of tag expressions whose codes are cached: 8 MB if each tag has three.
TAG_CHARACTERS_MAX: Final = 256 * 1024


class PullStatus(Enum):
    """The outcome of a pull."""

    FOUND = auto()
    NOTHING_YET = auto()  # The offset is the queue's end.
    # Messages before `next_offset` were filtered out or have expired: continue there.
    NOTHING_MATCHED = auto()
    OFFSET_MOVED = auto()  # The queue has no such offset; `next_offset` is the nearest one it has.


class PullResult(msgspec.Struct, frozen=True):
    """The result of a pull. read: the records, back to back, and the ends of the queue."""

    status: PullStatus
    read: ReadResult


class Pull(msgspec.Struct, eq=False, kw_only=True):
    """A read on behalf of a consumer. A Struct, because every pull needs one.

    expression: selects messages, by `expression_type`; None: the group's subscription (from heartbeats), of
    which the reader knows `subscription_version`.
    member, epoch: of a coordinated group; the member must have the queue open under that epoch as long as the
    pull lasts.
    topic_start: see `messages.reading`. takes_batches: the reader unwraps inner batches itself.
    commit_offset: the group has read up to there. hold_ms: how long to wait for a message; None: not at all.
    tag_codes, message_filter: from `PullFilters`. warmings: how many times a thread has read for it.
    users_version: of the users table that permitted it; None: the present one.
    """

    waiter: Waiter[PullResult]
    group: str
    topic: str
    queue_id: int
    offset: int
    count_max: int
    bytes_max: int | None = None
    expression: str | None = "*"
    expression_type: str | None = None
    subscription_version: int = 0
    member: str | None = None
    epoch: int | None = None
    topic_start: int = 0
    takes_batches: bool = False
    commit_offset: int | None = None
    hold_ms: int | None = None
    tag_codes: frozenset[int] | None = None
    message_filter: MessageFilter | None = None
    warmings: int = 0
    users_version: int | None = None


def parse_ahead(expression: str, expression_type: str | None) -> Work[None]:
    """Parse a long SQL92 expression on a thread; its filter is cached, unless others evict it."""
    is_long = len(expression) > PARSED_AT_ONCE_MAX and expression_type == SQL92
    while is_long and not is_parsed(expression):
        yield InThread(Thread.COMPUTE, partial(_try_to_parse, expression, expression_type))


def _try_to_parse(expression: str, expression_type: str | None) -> None:
    with suppress(ConfigError):  # The error is cached, too.
        parse_filter(expression, expression_type)


class PullSelection(NamedTuple):
    """The messages that a pull selects. tag_codes: None: all; message_filter: a further condition."""

    tag_codes: frozenset[int] | None = None
    message_filter: MessageFilter | None = None


_EVERYTHING = PullSelection()


class TagExpressions:
    """The codes of pulls' tag expressions, parsed once; the oldest expressions are evicted first."""

    def __init__(self) -> None:
        self._codes: dict[str, frozenset[int] | None] = {}
        self._characters = 0

    def codes(self, expression: str) -> frozenset[int] | None:
        """Return an expression's codes; None for everything. Raises ConfigError."""
        if expression in self._codes:
            return self._codes[expression]
        codes = self._codes[expression] = parse_tag_filter(expression).codes
        self._characters += len(expression)
        while self._characters > TAG_CHARACTERS_MAX:
            oldest = next(iter(self._codes))
            self._characters -= len(oldest)
            del self._codes[oldest]
        return codes


class PullFilters:
    """Finds the filters of pulls."""

    def __init__(
        self, config: BrokerConfig, clients: ConsumerClients, filters: ConsumerFilters, clock: Clock
    ) -> None:
        self._clients = clients
        self._filters = filters
        self._is_enabled = config.enable_property_filter
        self._for_retries = config.filter_support_retry
        self._clock = clock
        #: The sets in use, by their hashes; all members of a group share them. A thousand tags are 64 KB.
        self._tag_codes: WeakValueDictionary[int, frozenset[int]] = WeakValueDictionary()
        self._tag_expressions = TagExpressions()
        clients.observe_members(self._members_changed)

    def register(self, group_name: str, subscriptions: Sequence[SubscriptionData]) -> Work[None]:
        """Keep the expressions of a member's heartbeat for its group."""
        for data in self._filters.register(group_name, subscriptions, wall_ms=self._clock.wall_ms()):
            yield from parse_ahead(data.sub_string, data.expression_type)
            yield None

    def _members_changed(self, group_name: str) -> None:
        if self._clients.group(group_name) is None:
            self._filters.unregister(group_name, wall_ms=self._clock.wall_ms())

    def own(self, expression: str, expression_type: str | None) -> PullSelection:
        """Return the filter of an expression; raises BrokerError."""
        if expression == ALL and is_tag(expression_type):  # The usual case.
            return _EVERYTHING
        try:
            if is_tag(expression_type):
                return self._by_codes(self._tag_expressions.codes(expression))
            message_filter = parse_filter(expression, expression_type)
        except ConfigError as error:
            raise broker_error(ResponseCode.SUBSCRIPTION_PARSE_FAILED, str(error)) from None
        self._check_enabled(expression_type)
        return PullSelection(None, message_filter)

    def subscribed(self, group_name: str, topic: str, version: int, *, may_broadcast: bool) -> PullSelection:
        """Return a group's filter of a topic; version: the reader's. Raises BrokerError."""
        subscription = self._subscription(group_name, topic, may_broadcast=may_broadcast)
        if is_tag(subscription.expression_type):
            # A newer version means that a heartbeat is under way, or that the Java client dropped it because
            # another of its threads was sending one. Upstream refuses (SUBSCRIPTION_NOT_LATEST) until the
            # next, up to 30 s later. Clients check tags exactly, so all messages may be returned meanwhile.
            if subscription.sub_string == ALL or subscription.sub_version < version:
                return _EVERYTHING
            return self._by_codes(frozenset(subscription.code_set))
        if subscription.sub_version < version:  # Clients do not check other expressions.
            raise broker_error(ResponseCode.SUBSCRIPTION_NOT_LATEST, "the consumer's subscription not latest")
        if self._for_retries and topic.startswith(RETRY_PREFIX):
            self._check_enabled(subscription.expression_type)
            return PullSelection(None, RetryTopicFilter(self._filters, group_name))
        found = self._filters.get(group_name, topic)
        if found is None:
            raise broker_error(
                ResponseCode.FILTER_DATA_NOT_EXIST,
                "The broker's consumer filter data is not exist!Your expression may be wrong!",
            )
        if found.version < version:
            raise broker_error(
                ResponseCode.FILTER_DATA_NOT_LATEST, "the consumer's consumer filter data not latest"
            )
        self._check_enabled(subscription.expression_type)
        return PullSelection(None, found.filter)

    def check(self, expression: str, expression_type: str | None) -> None:
        """Check an expression for a client that will subscribe by it; raises BrokerError."""
        if is_tag(expression_type):
            return
        self._check_enabled(expression_type)
        try:
            parse_filter(expression, expression_type)
        except ConfigError as error:
            raise broker_error(ResponseCode.SUBSCRIPTION_PARSE_FAILED, str(error)) from None

    def check_is_shared(self, group_name: str) -> None:
        """Raise BrokerError if a group broadcasts, so that every member gets all messages."""
        group = self._clients.group(group_name)
        if group is not None and group.is_broadcasting:
            raise broker_error(
                ResponseCode.NO_PERMISSION,
                f"the consumer group[{group.name}] can not consume by broadcast way",
            )

    def _subscription(self, group_name: str, topic: str, *, may_broadcast: bool) -> SubscriptionData:
        group = self._clients.group(group_name)
        if group is None:
            raise broker_error(
                ResponseCode.SUBSCRIPTION_NOT_EXIST,
                "the consumer's group info not exist; send a heartbeat first",
            )
        if not may_broadcast:
            self.check_is_shared(group_name)
        subscription = group.subscriptions.get(topic)
        if subscription is None:
            raise broker_error(
                ResponseCode.SUBSCRIPTION_NOT_EXIST,
                f"the consumer's subscription not exist: group {group.name}, topic {topic}",
            )
        return subscription

    def _by_codes(self, codes: frozenset[int] | None) -> PullSelection:
        if codes is None:
            return _EVERYTHING
        found = self._tag_codes.get(hash(codes))
        if found != codes:
            found = self._tag_codes[hash(codes)] = codes
        return PullSelection(found)

    def _check_enabled(self, expression_type: str | None) -> None:
        if not self._is_enabled:
            remark = f"The broker does not support consumer to filter message by {expression_type}"
            raise broker_error(ResponseCode.SYSTEM_ERROR, remark)
