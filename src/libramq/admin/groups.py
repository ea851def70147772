"""Groups of a cluster: their current state, and their rebalances as recorded by all brokers."""

import asyncio
from collections.abc import Collection, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Final, Self

import msgspec

from libramq.admin.admin import Admin
from libramq.client.queue_reader import QueueReader
from libramq.clock import SystemClock
from libramq.errors import (
    BrokerError,
    ConfigError,
    ConsumerNotOnline,
    LibraError,
    RouteNotFound,
    did_you_mean,
    nearest_name,
)
from libramq.groups.diagnosis import NAMED_MAX, Kind, no_members
from libramq.groups.rebalance_history import BrokerEvent, Rebalance, broker_events, rebalances
from libramq.message.names import REBALANCE_EVENTS_TOPIC, RETRY_PREFIX, dlq_topic, retry_topic
from libramq.message.queue import MessageQueue
from libramq.remoting.body.consumers import ClientConnection, ConsumerConnection, GroupDiagnosis
from libramq.transport.access import environment_access
from libramq.transport.address import split_name_servers

READER_GROUP: Final = "LIBRA_GROUPS"
#: Ours: events read from each broker, the newest; about ten thousand rebalances.
EVENTS_MAX: Final = 30_000
#: Ours: groups queried concurrently.
GROUPS_AT_ONCE: Final = 16


class EventReader:
    """Reads the rebalance events of all brokers, each once. Blocking, for one thread at a time."""

    def __init__(self, namesrv: str) -> None:
        self._namesrv = namesrv
        access = environment_access()
        self._reader = QueueReader(split_name_servers(namesrv), group=READER_GROUP, access=access)
        self._positions: dict[MessageQueue, int] = {}

    def read(self) -> list[BrokerEvent]:
        """Return the new events; raises ConfigError if no broker records any."""
        try:
            queues = self._reader.queues(REBALANCE_EVENTS_TOPIC)
        except RouteNotFound:
            raise ConfigError(
                f"no broker at name server {self._namesrv} records rebalances: only LibraMQ's do; "
                "libra admin consumerProgress shows what others know"
            ) from None
        starts = self._reader.min_offsets(queue for queue in queues if queue not in self._positions)
        ends, _unreachable = self._reader.reachable_max_offsets(queues)
        found: list[BrokerEvent] = []
        for queue, end in ends.items():
            start = self._positions.get(queue)
            if start is None or start > end:  # A new queue, or a broker restarted with an empty store.
                start = max(starts.get(queue, 0), end - EVENTS_MAX)
            # Events deleted by age are skipped: the timeline begins later.
            messages = self._reader.messages(queue, start, end)
            found += broker_events((queue.broker_name, message.body) for message in messages)
            self._positions[queue] = end
        return found

    def close(self) -> None:
        """Close the connections."""
        self._reader.close()


def group_rebalances(namesrv: str, group: str, *, last: int) -> list[Rebalance]:
    """Return the last rebalances of a group; raises ConfigError if there was none."""
    with closing(EventReader(namesrv)) as reader:
        events = reader.read()
    recorded = {one.event.group for one in events}
    events = [one for one in events if one.event.group == group]
    found = rebalances(events, wall_ms=SystemClock().wall_ms())
    if not found:
        hint = did_you_mean(group, sorted(recorded - {group}))
        raise ConfigError(
            f"no rebalance of group {group} is recorded at name server {namesrv}{hint}; "
            "libra groups lists all"
        )
    return found[-last:]


def no_group(group: str, groups: Iterable[str]) -> RouteNotFound:
    """Return the error for a group that is not among these."""
    return RouteNotFound(
        f"no broker knows group {group}{did_you_mean(group, groups)}; libra groups lists all"
    )


def _with_hints(found: GroupDiagnosis, subscribed: Iterable[str], topics: Collection[str]) -> GroupDiagnosis:
    """Add the nearest existing names to a diagnosis of missing topics; return others unchanged."""
    if found.kind != Kind.NO_TOPIC:
        return found
    near = {
        topic: nearest_name(topic, topics) for topic in sorted(set(subscribed).difference(topics))[:NAMED_MAX]
    }
    hints = ", ".join(f"{name} for {topic}" for topic, name in near.items() if name)
    return msgspec.structs.replace(found, text=f"{found.text} (did you mean {hints}?)") if hints else found


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupState:
    """The current state of a group. diagnoses: problems reported by its brokers.

    lag, dead_letters: counts of messages waiting and given up; None: unknown.
    protocol, generation, strategy: set if the members speak a protocol other than RocketMQ's.
    """

    group: str
    members: Sequence[ClientConnection] = ()
    queue_count: int
    lag: int | None
    last: Rebalance | None
    diagnoses: Sequence[GroupDiagnosis] = ()
    dead_letters: int | None = 0
    protocol: str | None = None
    generation: int | None = None
    strategy: str | None = None


class GroupWatch:
    """Polls the state of all groups. Use it as `async with`."""

    def __init__(self, namesrv: str) -> None:
        self._admin = Admin(namesrv=namesrv)
        self._reader = EventReader(namesrv)
        self._events: dict[str, list[BrokerEvent]] = {}
        self._at_once = asyncio.Semaphore(GROUPS_AT_ONCE)

    async def __aenter__(self) -> Self:
        await self._admin.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._reader.close()
        await self._admin.stop()

    async def look(self, group: str | None = None) -> list[GroupState]:
        """Return the current state of all groups, or of one; raises RouteNotFound for an unknown group."""
        events = await asyncio.to_thread(self._reader.read)
        last = self._last_rebalances(events)
        names, topics = await self._admin.groups(), set(await self._admin.topics())
        if group is not None:
            if group not in names:
                raise no_group(group, names)
            names = [group]
        return list(await asyncio.gather(*(self._state(each, last.get(each), topics) for each in names)))

    def _last_rebalances(self, events: Iterable[BrokerEvent]) -> dict[str, Rebalance]:
        """Return the last rebalance of each group, and drop older events."""
        for one in events:
            self._events.setdefault(one.event.group, []).append(one)
        last = {}
        for group, held in self._events.items():
            found = rebalances(held, wall_ms=SystemClock().wall_ms())
            if found:
                last[group] = found[-1]
                self._events[group] = [one for one in held if one.event.at_ms >= found[-1].at_ms]
        return last

    async def _state(self, group: str, last: Rebalance | None, topics: Collection[str]) -> GroupState:
        """Return a group's state. topics: all existing topics."""
        async with self._at_once:
            try:
                stats = await self._admin.consume_stats(group)
            except (BrokerError, RouteNotFound):
                stats = {}  # A group that never committed, or is being deleted.
            is_known = True
            try:
                connected = await self._admin.consumer_connection(group)
            except LibraError as error:
                connected = ConsumerConnection()
                is_known = isinstance(error, ConsumerNotOnline)  # No member is connected.
        queues = {queue: ends for queue, ends in stats.items() if not queue.topic.startswith(RETRY_PREFIX)}
        known = sum(max(0, offset.behind) for offset in stats.values() if not offset.is_unknown)
        lag = None if not known and any(offset.is_unknown for offset in stats.values()) else known
        diagnoses = [_with_hints(each, connected.subscription_table, topics) for each in connected.diagnoses]
        # Only groups that have had joining members have a retry topic; others pop or assign their queues.
        joins = retry_topic(group) in topics
        if lag != 0 and joins and is_known and not connected.connection_set:
            retries = (stats[queue].behind for queue in stats.keys() - queues.keys())
            found = no_members(lag or 0, sum(retries))
            diagnoses.append(GroupDiagnosis(kind=found.kind, about=found.about, text=found.text))
        return GroupState(
            group=group,
            members=connected.connection_set,
            queue_count=len(queues),
            lag=lag,
            last=last,
            diagnoses=diagnoses,
            dead_letters=await self._dead_letters(group),
            protocol=connected.protocol,
            generation=connected.generation,
            strategy=connected.strategy,
        )

    async def _dead_letters(self, group: str) -> int | None:
        try:
            ends = await self._admin.topic_stats(dlq_topic(group))
        except RouteNotFound:
            return 0  # The group has never had a dead letter.
        except LibraError:
            return None
        return sum(each.max_offset - each.min_offset for each in ends.values())
