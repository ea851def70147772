"""Consumer filters: the SQL92 filters that groups register by heartbeats; which one counts if there are
several, and the limits of their number and length (consumerFilter.json).

Heartbeats register them with a version that grows with each change of a client's subscriptions; the highest
one counts. A group without members leaves *dead* filters, which its next heartbeat revives or replaces, and
which are removed after a day. Filters loaded from `consumerFilter.json` are dead at first.

Upstream: broker/filter/ConsumerFilterManager.java, ConsumerFilterData.java.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Final

from libramq.clock import WallMs
from libramq.errors import ConfigError
from libramq.filter.sql import SQL92, parse_sql
from libramq.filter.subscription import MessageFilter, SubscriptionData
from libramq.filter.tag import TAG
from libramq.formats.document import Document
from libramq.logs import get_logger
from libramq.message.properties import RETRY_TOPIC, find_property

log = get_logger(__name__)

#: BrokerConfig.filterDataCleanTimeSpan.
DEAD_KEPT_MS: Final = 24 * 3600 * 1000
#: ConsumerFilterManager.decode: the time for which loaded filters count as dead.
DEAD_BEFORE_START_MS: Final = 30 * 1000
#: Ours: at most this many filters of dead groups are kept; the oldest are removed first.
DEAD_MAX: Final = 10_000
#: Ours: characters of all expressions kept: 500 groups with ten of 100 each. Parsed, a character takes up to
#: 50 bytes; eight times as many took 190 MB.
CHARACTERS_MAX: Final = 512 * 1024


class BloomFilterData(Document, frozen=True, kw_only=True):
    """A group's place in Apache's bloom filter: three bits that its broker may set for a message it stores.

    Our broker sets none; but Apache's ignores a whole consumerFilter.json if one place is missing or has
    another size. The size is that of its default options (maxErrorRateOfBloomFilter,
    expectConsumerNumUseFilter).
    Upstream: filter/util/BloomFilter.java; Guava's murmur3_128 with seed 0.
    """

    bit_pos: list[int] | None = None
    bit_num: int = 0


class ConsumerFilterData(Document, frozen=True, kw_only=True):
    """One group's filter of a topic, as stored in the file."""

    consumer_group: str
    topic: str
    expression: str = ""
    expression_type: str = ""
    born_time: int = 0
    dead_time: int = 0
    bloom_filter_data: BloomFilterData | None = None
    client_version: int = 0


class FiltersOfTopic(Document, frozen=True, kw_only=True):
    """A topic's filters by group, as stored in the file."""

    group_filter_data: dict[str, ConsumerFilterData] = {}
    topic: str | None = None


class ConsumerFiltersFile(Document, frozen=True, kw_only=True):
    """The content of `consumerFilter.json`."""

    filter_data_by_topic: dict[str, FiltersOfTopic] = {}


def is_tag(expression_type: str | None) -> bool:
    """Return whether an expression consists of tags (ExpressionType.isTagType)."""
    return not expression_type or expression_type == TAG


def parse_filter(expression: str, expression_type: str | None) -> MessageFilter:
    """Parse an expression other than tags; raises ConfigError."""
    if expression_type != SQL92:
        raise ConfigError(f"expressions of the type {expression_type!r} are not known; TAG and SQL92 are")
    return parse_sql(expression)


@dataclass(slots=True)
class ConsumerFilter:
    """One group's filter of a topic. dead_ms: since when the group has had no members; None: it has some."""

    group: str
    topic: str
    expression: str
    expression_type: str
    filter: MessageFilter
    version: int
    born_ms: WallMs
    dead_ms: WallMs | None = None

    def is_same(self, expression: str, expression_type: str) -> bool:
        """Return whether this is the filter of an expression."""
        return self.expression == expression and self.expression_type == expression_type


class ConsumerFilters:
    """The filters of all groups. version: grows with every change, for the file."""

    def __init__(self, loaded: ConsumerFiltersFile | None, *, wall_ms: WallMs) -> None:
        self.version = 0
        self._by_group: dict[str, dict[str, ConsumerFilter]] = {}
        self._characters = 0
        by_topic = loaded.filter_data_by_topic if loaded is not None else {}
        for data in chain.from_iterable(each.group_filter_data.values() for each in by_topic.values()):
            try:
                found = parse_filter(data.expression, data.expression_type)
            except ConfigError:  # Apache's parser accepts more; the group's next heartbeat reports the fault.
                continue
            born_ms = WallMs(data.born_time)
            dead_ms = max(wall_ms - DEAD_BEFORE_START_MS, born_ms)
            if data.dead_time:
                dead_ms = WallMs(data.dead_time)
            self._keep(
                ConsumerFilter(
                    data.consumer_group,
                    data.topic,
                    data.expression,
                    data.expression_type,
                    found,
                    data.client_version,
                    born_ms,
                    dead_ms,
                )
            )
        self.version = 0  # Equals the file.

    def get(self, group: str, topic: str) -> ConsumerFilter | None:
        """Return a group's filter of a topic."""
        return self._by_group.get(group, {}).get(topic)

    def register(
        self, group: str, subscriptions: Iterable[SubscriptionData], *, wall_ms: WallMs
    ) -> Iterator[SubscriptionData]:
        """Apply the subscriptions of a heartbeat; the group's filters of other topics become dead.

        Yields each subscription before parsing its expression, which may take 10 ms.
        """
        topics = set()
        for data in subscriptions:
            topics.add(data.topic)
            if not is_tag(data.expression_type) and not self._is_known(group, data):
                yield data
                self._register(group, data, wall_ms)
        for topic, consumer_filter in self._by_group.get(group, {}).items():
            if topic not in topics:
                self._die(consumer_filter, wall_ms)

    def _is_known(self, group: str, data: SubscriptionData) -> bool:
        """Return whether a group's expression is already known, and adopt its version if so."""
        known = self.get(group, data.topic)
        if known is None or (known.dead_ms is None and data.sub_version <= known.version):
            return known is not None
        if not known.is_same(data.sub_string, data.expression_type or ""):
            return False
        known.version, known.dead_ms = data.sub_version, None
        self.version += 1
        return True

    def _register(self, group: str, data: SubscriptionData, wall_ms: WallMs) -> None:
        if self._is_known(group, data):  # Another heartbeat has registered it meanwhile.
            return
        if self.get(group, data.topic) is not None:
            self._remove(group, data.topic)
        if not self._has_room(len(data.sub_string)):
            log.error("a filter is not kept: there are too many", group=group, topic=data.topic)
            return
        expression_type = data.expression_type or ""
        try:
            found = parse_filter(data.sub_string, expression_type)
        except ConfigError:  # Pulls report it to the client: FILTER_DATA_NOT_EXIST.
            return
        self._keep(
            ConsumerFilter(
                group, data.topic, data.sub_string, expression_type, found, data.sub_version, wall_ms
            )
        )

    def _has_room(self, characters: int) -> bool:
        """Return whether another expression can be kept, after removing dead ones if necessary."""
        if self._characters + characters > CHARACTERS_MAX:
            for _, group, topic in self._dead():
                self._remove(group, topic)
        return self._characters + characters <= CHARACTERS_MAX

    def _keep(self, consumer_filter: ConsumerFilter) -> None:
        self._by_group.setdefault(consumer_filter.group, {})[consumer_filter.topic] = consumer_filter
        self._characters += len(consumer_filter.expression)
        self.version += 1

    def _remove(self, group: str, topic: str) -> None:
        self._characters -= len(self._by_group[group].pop(topic).expression)
        if not self._by_group[group]:
            del self._by_group[group]
        self.version += 1

    def unregister(self, group: str, *, wall_ms: WallMs) -> None:
        """Mark a group's filters as dead, as its last member has left."""
        for consumer_filter in self._by_group.get(group, {}).values():
            self._die(consumer_filter, wall_ms)

    def _die(self, consumer_filter: ConsumerFilter, wall_ms: WallMs) -> None:
        if consumer_filter.dead_ms is None:
            consumer_filter.dead_ms = max(wall_ms, consumer_filter.born_ms)
            self.version += 1

    def clean(self, wall_ms: WallMs) -> None:
        """Remove filters dead for a day, and the oldest dead ones if there are many."""
        dead = self._dead()
        surplus = len(dead) - DEAD_MAX
        for number, (dead_ms, group, topic) in enumerate(dead):
            if number >= surplus and wall_ms < dead_ms + DEAD_KEPT_MS:
                break
            self._remove(group, topic)

    def _dead(self) -> list[tuple[WallMs, str, str]]:
        """Return the dead filters' groups and topics, longest dead first."""
        return sorted(
            (found.dead_ms, found.group, found.topic) for found in self._all() if found.dead_ms is not None
        )

    def file(self) -> ConsumerFiltersFile:
        """Return the content of `consumerFilter.json`."""
        by_topic: dict[str, dict[str, ConsumerFilterData]] = {}
        for found in self._all():
            by_topic.setdefault(found.topic, {})[found.group] = ConsumerFilterData(
                consumer_group=found.group,
                topic=found.topic,
                expression=found.expression,
                expression_type=found.expression_type,
                born_time=int(found.born_ms),
                dead_time=int(found.dead_ms) if found.dead_ms is not None else 0,
                bloom_filter_data=bloom_filter_data(found.group, found.topic),
                client_version=found.version,
            )
        return ConsumerFiltersFile(
            filter_data_by_topic={
                topic: FiltersOfTopic(group_filter_data=filters, topic=topic)
                for topic, filters in by_topic.items()
            }
        )

    def _all(self) -> Iterator[ConsumerFilter]:
        for filters in self._by_group.values():
            yield from filters.values()


class RetryTopicFilter:
    """The filter of a group's retry topic: each message must pass the filter of its original topic.

    Upstream: ExpressionForRetryMessageFilter.java (filterSupportRetry).
    """

    __slots__ = ("_filters", "_group")
    #: Ours: an average, as the filters of the original topics differ.
    weight = 64

    def __init__(self, filters: ConsumerFilters, group: str) -> None:
        self._filters = filters
        self._group = group

    def matches(self, properties: bytes) -> bool:
        """Return whether a message passes; it does if its topic has no filter."""
        topic = find_property(properties, RETRY_TOPIC.encode())
        found = self._filters.get(self._group, topic.decode("utf-8", "replace")) if topic else None
        return found is None or found.filter.matches(properties)


#: BloomFilter.createByFn(20, 32): functions, and bits.
FUNCTIONS: Final = 3
BITS: Final = 112

_MASK: Final = (1 << 64) - 1
_C1: Final = 0x87C3_7B91_1142_53D5
_C2: Final = 0x4CF5_AD43_2745_937F


def bloom_filter_data(group: str, topic: str) -> BloomFilterData:
    """Return the bits of a group and topic."""
    code = murmur3(f"{group}#{topic}".encode("utf-8", "replace"))
    low, high = code & 0xFFFF_FFFF, code >> 32
    positions = []
    for number in range(1, FUNCTIONS + 1):
        combined = (low + number * high) & 0xFFFF_FFFF
        if combined >> 31:  # A negative int, for Java.
            combined ^= 0xFFFF_FFFF
        positions.append(combined % BITS)
    return BloomFilterData(bit_pos=positions, bit_num=BITS)


def murmur3(data: bytes) -> int:
    """Return the first 64 bits of a text's murmur3_128."""
    h1 = h2 = 0
    whole = len(data) // 16 * 16
    for start in range(0, whole, 16):
        h1 ^= _mixed_1(int.from_bytes(data[start : start + 8], "little"))
        h1 = (_rotated(h1, 27) + h2) * 5 + 0x52DC_E729 & _MASK
        h2 ^= _mixed_2(int.from_bytes(data[start + 8 : start + 16], "little"))
        h2 = (_rotated(h2, 31) + h1) * 5 + 0x3849_5AB5 & _MASK
    h1 ^= _mixed_1(int.from_bytes(data[whole : whole + 8], "little"))
    h2 ^= _mixed_2(int.from_bytes(data[whole + 8 :], "little"))
    h1, h2 = h1 ^ len(data), h2 ^ len(data)
    h1 = h1 + h2 & _MASK
    h2 = h2 + h1 & _MASK
    return _finished(h1) + _finished(h2) & _MASK


def _mixed_1(half: int) -> int:
    return _rotated(half * _C1 & _MASK, 31) * _C2 & _MASK


def _mixed_2(half: int) -> int:
    return _rotated(half * _C2 & _MASK, 33) * _C1 & _MASK


def _rotated(value: int, bits: int) -> int:
    return (value << bits | value >> 64 - bits) & _MASK


def _finished(value: int) -> int:
    value = (value ^ value >> 33) * 0xFF51_AFD7_ED55_8CCD & _MASK
    value = (value ^ value >> 33) * 0xC4CE_B9FE_1A85_EC53 & _MASK
    return value ^ value >> 33
