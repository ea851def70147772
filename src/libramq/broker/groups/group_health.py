"""The health of consumer groups: how often groups are diagnosed, how long a problem must last before it is
reported, and where.

The beginning and the end of a problem are logged, counted and recorded with the group's rebalances.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

from libramq.broker.groups.consumer_clients import ConsumerClients
from libramq.broker.groups.offset_commits import OffsetCommits
from libramq.catalog.topic_table import TopicTable
from libramq.clock import Clock, MonotonicMs
from libramq.filter.subscription import BROADCASTING
from libramq.groups.consumer_group import ConsumerGroup, Member
from libramq.groups.coordinator.state import MemberProfile
from libramq.groups.diagnosis import (
    FAILURES_MIN,
    Connected,
    Diagnoses,
    Diagnosis,
    GroupSeen,
    Kind,
    diagnose,
)
from libramq.groups.queue_lock import QueueLocks
from libramq.kernel.connection import Connection, host_of
from libramq.logs import get_logger
from libramq.message.names import DLQ_PREFIX, LIGHT_PREFIX, RETRY_PREFIX
from libramq.message.queue import MessageQueue
from libramq.store.message_store import MessageStore

log = get_logger(__name__)

#: Ours: problems of groups last minutes.
LOOK_MS: Final = 5_000
#: Ours: if a look is this late, the process was paused.
LATE_LOOK_MS: Final = 20_000
#: Ours: how long a group counts as mixed after it was popped and pulled; a pull may be held for 30 s.
MIXED_MS: Final = 60_000
#: Ours: how long a group counts as failing after a failing message was waiting: the next attempt takes time.
FAILING_MS: Final = 60_000
#: Ours: the longest that a handler of LibraMQ's clients may take (max_processing_ms).
STALLED_MS: Final = 300_000
#: Ours: the limit in orderly consumption, where one message blocks its queue; Java's client repeats it every
#: second.
ORDERLY_STALLED_MS: Final = 60_000
#: Ours: queues with waiting messages, by group, of 320 bytes each; any beyond this count as moving. Without a
#: limit, 1,000 groups of one heartbeat took 300 MB for 1,000 queues.
WAITING_MAX: Final = 100_000
#: Ours: after fetching the list, the Java client waits 500 ms before it pulls, and held pulls must end.
SETTLING_MS: Final = 2_000


class Stalls:
    """Queues in which messages wait while the group's offset does not move."""

    def __init__(self, store: MessageStore, topics: TopicTable, offsets: OffsetCommits, clock: Clock) -> None:
        self._store, self._topics, self._offsets, self.clock = store, topics, offsets, clock
        #: By group, topic and queue id: an offset, and since when messages have been waiting there.
        self._since: dict[str, dict[tuple[str, int], tuple[int, MonotonicMs]]] = {}
        self._seen: dict[str, dict[tuple[str, int], tuple[int, MonotonicMs]]] = {}
        self._count = 0
        #: Total pauses of the process or its machine, during which members could not commit.
        self._pauses_ms = 0

    def begin_look(self, gap_ms: int) -> None:
        """Begin a look, gap_ms after the last one; pauses of the broker do not count as waiting."""
        self._pauses_ms += gap_ms - LOOK_MS if gap_ms > LATE_LOOK_MS else 0

    def look(self, group: ConsumerGroup[Connection]) -> Iterator[None]:
        """Look at the queues that a group's members read.

        A slave does not: its queues do not move while its master is away.
        """
        if self._store.config.is_copy:
            return
        before, found = self._since.get(group.name, {}), self._seen.setdefault(group.name, {})
        now_ms = self._now_ms()
        for topic in [*group.subscriptions]:
            config = self._topics.get(topic)
            committed = self._offsets.offsets(group.name, topic)
            for queue_id in range(config.read_queue_nums if config is not None else 0):
                if queue_id % 64 == 0:
                    yield
                if self._count >= WAITING_MAX:
                    return
                offset = committed.get(queue_id)
                if offset is None:
                    offset = self._offsets.read_from(group.name, topic, queue_id)
                if offset is not None and offset < self._store.max_offset(topic, queue_id):
                    known = before.get((topic, queue_id), (-1, now_ms))
                    self._count += (topic, queue_id) not in found
                    found[topic, queue_id] = known if known[0] == offset else (offset, now_ms)

    def end_look(self) -> None:
        """Forget the queues that this look has not found again."""
        self._since, self._seen, self._count = self._seen, {}, 0

    def found(self, group: str, after_ms: int) -> list[str]:
        """Return the queues of a group stalled for at least after_ms, by name, with their offsets."""
        now_ms, seen = self._now_ms(), self._seen.get(group, {})
        return [
            f"{topic}:{queue_id} at {offset}"
            for (topic, queue_id), (offset, since_ms) in sorted(seen.items())
            if now_ms - since_ms >= after_ms
        ]

    def _now_ms(self) -> MonotonicMs:
        return self.clock.monotonic_ms() - self._pauses_ms


class GroupHealth:
    """The current diagnoses of every group.

    here, queues: return the queues of a topic at this broker, and at all brokers; None while unknown.
    profiles: returns those of a group's members, if it is coordinated here.
    """

    def __init__(
        self,
        clients: ConsumerClients,
        *,
        here: Callable[[str], Sequence[MessageQueue]],
        queues: Callable[[str], Sequence[MessageQueue] | None],
        profiles: Callable[[str], Sequence[MemberProfile]],
        locks: QueueLocks,
        stalls: Stalls,
    ) -> None:
        self._clients = clients
        #: By group: when repeatedly failing messages were last seen waiting, and their counts.
        self._failing: dict[str, tuple[MonotonicMs, Mapping[int, int]]] = {}
        self._profiles = profiles
        self._locks = locks
        self._stalls = stalls
        #: When a topic was last seen popped and pulled by a group.
        self._mixed: dict[tuple[str, str], MonotonicMs] = {}
        #: By group: members that read without locks beside others with locks, in this look and the last.
        self._unlocked: dict[str, set[str]] = {}
        self._unlocked_before: dict[str, set[str]] = {}
        self._here = here
        self._queues = queues
        self._clock = stalls.clock
        self._diagnoses: dict[str, Diagnoses] = {}
        self._looked_at_ms: MonotonicMs | None = None
        self._topics: set[str] = set()
        self._found: dict[str, Diagnoses] = {}
        self._topics_found: set[str] = set()

    def topics(self) -> set[str]:
        """Return the topics whose queues at other brokers decide whether a group has idle members."""
        return self._topics

    def of(self, group: str) -> Sequence[Diagnosis]:
        """Return the latest diagnoses of a group; without clients here, those from its coordinator's view."""
        diagnoses = self._diagnoses.get(group)
        if diagnoses is not None:
            return diagnoses.current
        return diagnose(_coordinated(self._profiles(group)))

    def kinds(self) -> dict[str, frozenset[str]]:
        """Return the kinds of the latest diagnoses, by group."""
        return {
            name: frozenset(diagnosis.kind.value for diagnosis in diagnoses.current)
            for name, diagnoses in self._diagnoses.items()
            if diagnoses.current
        }

    @property
    def is_failing(self) -> bool:
        """Return whether a group fails, with members or without."""
        return bool(self._failing)

    @property
    def is_due(self) -> bool:
        """Return whether it is time to check the groups again."""
        return self._looked_at_ms is None or self._clock.monotonic_ms() - self._looked_at_ms >= LOOK_MS

    def look(self, retries: Mapping[str, Mapping[int, int]]) -> Iterator[None]:
        """Check all groups, and log new problems; yields to let others run.

        retries: how many messages of a group wait for another attempt, by their number of failures.
        """
        before_ms, now_ms = self._looked_at_ms, self._clock.monotonic_ms()
        self._looked_at_ms = now_ms
        self._stalls.begin_look(now_ms - before_ms if before_ms is not None else 0)
        self._found, self._topics_found = {}, set()
        self._unlocked_before, self._unlocked = self._unlocked, {}
        self._mixed |= dict.fromkeys(self._clients.rebalances.take_mixed(), now_ms)
        self._mixed = {key: at_ms for key, at_ms in self._mixed.items() if now_ms - at_ms < MIXED_MS}
        failing = {name: (now_ms, counts) for name, counts in retries.items() if max(counts) >= FAILURES_MIN}
        kept = {name: was for name, was in self._failing.items() if now_ms - was[0] < FAILING_MS}
        self._failing = kept | failing
        connected = [group.name for group in self._clients.groups()]
        # Groups without members can fail, too: the last member has left, or they pop without being members.
        for name in dict.fromkeys([*connected, *sorted(self._failing)]):
            yield
            group = self._clients.group(name)
            if group is not None and group.message_model != BROADCASTING:
                yield from self._stalls.look(group)
                group = self._clients.group(name)  # Its last member may have left meanwhile.
            if group is None:
                seen = diagnose(GroupSeen(retries=self._retries(name)))
            elif group.message_model == BROADCASTING:
                continue
            else:
                seen = self._diagnose(group, self._clock.monotonic_ms())
            diagnoses = self._found[name] = self._diagnoses.get(name) or Diagnoses()
            new, over = diagnoses.update(seen)
            self._report(name, new, over, diagnoses.current)
        self._diagnoses, self._topics = self._found, self._topics_found
        self._stalls.end_look()

    def _retries(self, group: str) -> Mapping[int, int]:
        """Return how many messages of a failing group wait, by their number of failures."""
        _, retries = self._failing.get(group, (None, {}))
        return retries

    def _report(
        self, group: str, new: Sequence[Diagnosis], over: Sequence[Diagnosis], now: Sequence[Diagnosis]
    ) -> None:
        for diagnosis in new:
            # Idle members may be standbys.
            say = log.info if diagnosis.kind is Kind.IDLE_MEMBERS else log.warning
            say("group", group=group, diagnosis=diagnosis.kind, text=diagnosis.text)
        for diagnosis in over:
            log.info("group is healthy again", group=group, diagnosis=diagnosis.kind, about=diagnosis.about)
        # One event per kind: every client of a large group may have slow heartbeats.
        for kind, diagnosis in {diagnosis.kind: diagnosis for diagnosis in reversed(new)}.items():
            self._clients.rebalances.diagnosed(group, kind, diagnosis.text)
        current = {diagnosis.kind for diagnosis in now}
        for kind in {diagnosis.kind: None for diagnosis in over if diagnosis.kind not in current}:
            self._clients.rebalances.diagnosed(group, kind, None)

    def _diagnose(self, group: ConsumerGroup[Connection], now_ms: MonotonicMs) -> list[Diagnosis]:
        if self._clients.allocates(group.name):
            seen = self._self_allocated(group, now_ms)
        else:
            seen = _coordinated(self._profiles(group.name))
        connected = [_connected(member) for member in group.members.values()]
        mixed = sorted(topic for topic, name in self._mixed if name == group.name)
        topics = [
            topic for topic in group.subscriptions if not topic.startswith((RETRY_PREFIX, LIGHT_PREFIX))
        ]
        absent = [topic for topic in topics if not self._here(topic)]
        self._topics_found.update(absent)
        missing = [topic for topic in absent if self._queues(topic) == []]
        return diagnose(
            replace(
                seen,
                connected=connected,
                queue_count=self._queue_count(group, topics),
                # The first dead letter creates its topic; a group that reads it before then is healthy.
                missing=[topic for topic in missing if not topic.startswith(DLQ_PREFIX)],
                popped_and_pulled=mixed,
                retries=self._retries(group.name),
                stalled=self._stalls.found(group.name, ORDERLY_STALLED_MS if seen.orderly else STALLED_MS),
            )
        )

    def _self_allocated(self, group: ConsumerGroup[Connection], now_ms: MonotonicMs) -> GroupSeen:
        by_two, by_none = self._readers(group, now_ms)
        orderly = self._locks.holders(group.name, now_ms=now_ms)
        unlocked = self._clients.rebalances.readers(group) - orderly if orderly else set()
        # A member locks a queue a moment after its assignment; only without locks in two looks is it not
        # orderly.
        unordered = unlocked & self._unlocked_before.get(group.name, set())
        self._unlocked[group.name] = unlocked
        return GroupSeen(
            read_by_two=by_two, read_by_none=by_none, orderly=sorted(orderly), unordered=sorted(unordered)
        )

    def _queue_count(self, group: ConsumerGroup[Connection], topics: Sequence[str]) -> int | None:
        if any(self._clients.rebalances.is_popped(topic, group.name) for topic in topics):
            return None  # Members that pop share queues; none is idle.
        count_here = sum(len(self._here(topic)) for topic in topics)
        if count_here >= len(group.client_ids):
            return None  # There are enough, regardless of other brokers.
        self._topics_found.update(topics)
        lots = [self._queues(topic) for topic in topics]
        return sum(len(lot or ()) for lot in lots) if None not in lots else None

    def _readers(
        self, group: ConsumerGroup[Connection], now_ms: MonotonicMs
    ) -> tuple[Sequence[MessageQueue], Sequence[MessageQueue]]:
        """Return the queues with two readers, and those without one, once all members are up to date."""
        looked_at_ms = self._clients.notifications.looked_at_ms(group.name)
        if looked_at_ms is None or now_ms - looked_at_ms < SETTLING_MS:
            return (), ()
        age_ms = now_ms - looked_at_ms - SETTLING_MS
        return self._clients.rebalances.read_by_two_and_by_none(group, age_ms=age_ms)


def _coordinated(profiles: Sequence[MemberProfile]) -> GroupSeen:
    """Return what members report of themselves: fences give each queue one reader, without locks."""
    return GroupSeen(
        is_coordinated=True,
        strategies={each.client_id: each.strategy for each in profiles},
        orderly=sorted(each.client_id for each in profiles if each.orderly),
        unordered=sorted(each.client_id for each in profiles if each.orderly is False),
    )


def _connected(member: Member[Connection]) -> Connected:
    return Connected(
        client_id=member.client_id,
        host=host_of(member.peer),
        joined_at_ms=member.joined_at_ms,
        heartbeat_at_ms=member.heartbeat_at_ms,
        heartbeat_gap_ms=min(member.heartbeat_gaps_ms),
        subscriptions=member.subscriptions,
        lease_ended=member.lease_ended,
    )
