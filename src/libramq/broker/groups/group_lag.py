"""The lag of groups: how many messages of a topic wait for a group at this broker, the age of the oldest, and
when lag is unknown.

    stored:     ── deleted ──┬─────── read ───────┬──────── lag ────────┬──► end
                             first                committed             end

Messages in flight of a group that pops also count as lag. If a group has committed nothing, its lag begins at
its members' first pull; without any pull the lag is unknown, and never 0.
Upstream: ConsumerLagCalculator.java.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from libramq.broker.files.tables import Tables
from libramq.broker.groups.consumer_clients import ConsumerClients
from libramq.broker.groups.offset_commits import OffsetCommits
from libramq.kernel.work import Work
from libramq.message import names
from libramq.pop.in_flight import InFlight
from libramq.store.message_store import MessageStore

#: Ours: queues per round whose first message's age is read; the ages of others are unknown.
AGES_MAX: Final = 5_000


class Lag(NamedTuple):
    """The lag of a group in a topic.

    messages: waiting messages of the queues whose lag is known; None: unknown. oldest_ms: when the oldest of
    them was stored (wall clock); None: none waits, or unknown. is_partial: there are messages in other
    queues.
    """

    messages: int | None
    oldest_ms: int | None = None
    is_partial: bool = False


@dataclass(frozen=True, slots=True)
class GroupProgress:
    """A group's progress at this broker.

    queue_count: of the topics that it reads. committed: changes with every commit.
    """

    lags: Mapping[str, Lag]
    queue_count: int
    has_members: bool
    committed: int

    @property
    def messages(self) -> int:
        """Return the number of messages known to wait."""
        return sum(lag.messages or 0 for lag in self.lags.values())

    @property
    def waits(self) -> bool:
        """Return whether messages wait for a group that has no members.

        Members pull every queue that they read, so messages in other queues arrived after the members left.
        """
        return self.messages > 0 or any(lag.is_partial for lag in self.lags.values())


class GroupLags:
    """Examines all groups of a broker, in steps between which others run."""

    def __init__(
        self,
        store: MessageStore,
        tables: Tables,
        offsets: OffsetCommits,
        clients: ConsumerClients,
        in_flight: InFlight,
    ) -> None:
        self._store = store
        self._tables = tables
        self._offsets = offsets
        self._clients = clients
        self._in_flight = in_flight
        self._ages = 0

    def look(self, groups: Sequence[str]) -> Work[dict[str, GroupProgress]]:
        """Return the progress of these groups, without those that read nothing here."""
        popped: dict[tuple[str, str, int], int] = {}
        for number, each in enumerate(list(self._in_flight)):
            place = each.group, each.topic, each.queue_id
            popped[place] = popped.get(place, 0) + len(each.diffs) - each.done.bit_count()
            if number % 64 == 0:
                yield None
        found = {}
        self._ages = 0
        for group in groups:
            progress = yield from self._progress(group, popped)
            if progress is not None:
                found[group] = progress
        return found

    def _progress(self, group: str, popped: Mapping[tuple[str, str, int], int]) -> Work[GroupProgress | None]:
        connected = self._clients.group(group)
        if connected is not None and connected.is_broadcasting:
            return None  # Each member has its own offsets.
        lags: dict[str, Lag] = {}
        queue_count = committed_sum = 0
        for topic in topics_read(group, self._offsets, self._clients, self._tables):
            config = self._tables.topics.get(topic)
            if config is None:
                yield None
                continue
            committed = self._offsets.offsets(group, topic)
            committed_sum += sum(committed.values())
            if not topic.startswith(names.RETRY_PREFIX):
                queue_count += config.read_queue_nums
            lags[topic] = yield from self._lag(group, topic, config.read_queue_nums, committed, popped)
        if not lags:
            return None
        has_members = connected is not None or self._clients.foreign.get(group) is not None
        return GroupProgress(lags, queue_count, has_members, committed_sum)

    def _lag(
        self,
        group: str,
        topic: str,
        queue_count: int,
        committed: Mapping[int, int],
        popped: Mapping[tuple[str, str, int], int],
    ) -> Work[Lag]:
        messages, oldest_ms, is_unknown = 0, None, False
        for queue_id in range(queue_count):
            if queue_id % 64 == 0:
                yield None
            end, first = self._store.max_offset(topic, queue_id), self._store.min_offset(topic, queue_id)
            offset = committed.get(queue_id)
            if offset is None:
                offset = self._offsets.read_from(group, topic, queue_id)
            if offset is None:
                is_unknown = is_unknown or end > first
                continue
            offset = max(offset, first)
            waiting = max(0, end - offset)
            messages += waiting + popped.get((group, topic, queue_id), 0)
            if waiting and self._ages < AGES_MAX:
                self._ages += 1
                stored_ms = yield from self._store.stored_ms(topic, queue_id, offset)
                if stored_ms > 0:
                    oldest_ms = stored_ms if oldest_ms is None else min(oldest_ms, stored_ms)
        return Lag(None if is_unknown and not messages else messages, oldest_ms, is_unknown)


def topics_read(group: str, offsets: OffsetCommits, clients: ConsumerClients, tables: Tables) -> list[str]:
    """Return the topics that a group reads or has read, and its POP retry topics."""
    connected, foreign = clients.group(group), clients.foreign.get(group)
    topics = {*offsets.topics_read(group)}
    topics |= set(() if connected is None else connected.subscriptions)
    topics |= set(() if foreign is None else foreign.topics)
    # Messages that were not acknowledged in time wait there, and may not have been popped again.
    retries = [names.pop_retry_topic(topic, group, is_new=new) for topic in topics for new in (False, True)]
    for topic in retries:
        # An old name may be another group's.
        if topic in tables.topics and topic.removeprefix(names.RETRY_PREFIX) not in tables.groups:
            topics.add(topic)
    return sorted(topics)
