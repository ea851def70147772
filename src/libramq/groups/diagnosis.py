"""The diagnosis: detects problems of a consumer group, such as differing strategies or subscriptions, idle
members and duplicate ids, and names their remedies.

        strategies_differ       queues that two members read, or none, although all know the member list;
                                members that differ in strategy, in popping or in consuming in order
        duplicate_client_ids    two connections under one client id: both take the same queues
        subscriptions_differ    members with different topics or tags in one group
        idle_members            more members than queues
        slow_heartbeats         fewer than three heartbeats in the time after which brokers remove a member
        leases_ended            members that handle nothing, because their coordinator does not answer
        no_members              messages wait, and no member is connected
        no_topic                members subscribe to a topic that no broker has
        failing                 messages that failed repeatedly and wait for another attempt
        stalled                 messages wait, and the group's offset does not move

Each problem is recorded once when it appears, once when it is over, and again when it reappears.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from libramq.clock import MonotonicMs
from libramq.errors import counted
from libramq.groups.tag_conflict import canonical, tag_conflict
from libramq.message.names import RETRY_PREFIX
from libramq.message.queue import MessageQueue

#: A third of Apache's limit, BrokerConfig.channelExpiredTimeout (120 s). Here pulls also count as a sign of
#: life, and a silent member is probed before it is removed.
HEARTBEAT_GAP_MS_MAX: Final = 40_000
#: Ours: messages that failed this often are reported; by default the next attempt is then a minute away.
FAILURES_MIN: Final = 3
#: A diagnosis names at most this many members, queues or subscriptions.
NAMED_MAX: Final = 8


class Kind(StrEnum):
    """The kinds of problems a group can have."""

    STRATEGIES_DIFFER = "strategies_differ"
    DUPLICATE_CLIENT_IDS = "duplicate_client_ids"
    SUBSCRIPTIONS_DIFFER = "subscriptions_differ"
    IDLE_MEMBERS = "idle_members"
    SLOW_HEARTBEATS = "slow_heartbeats"
    LEASES_ENDED = "leases_ended"
    NO_MEMBERS = "no_members"
    NO_TOPIC = "no_topic"
    FAILING = "failing"
    STALLED = "stalled"


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """One problem, the client it concerns ("" for the group), and a sentence with the remedy."""

    kind: Kind
    about: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Connected:
    """One connection of a group. heartbeat_gap_ms: the shorter of the last two gaps, 0 before there are two.
    subscriptions: the expression by topic. lease_ended: the member reports it.
    """

    client_id: str
    host: str
    joined_at_ms: MonotonicMs
    heartbeat_at_ms: MonotonicMs
    heartbeat_gap_ms: int = 0
    subscriptions: Mapping[str, str] = field(default_factory=dict)
    lease_ended: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSeen:
    """The known facts about a group. queue_count: at all brokers; None if unknown. missing: topics without
    queues at any broker.

    is_coordinated: a coordinator assigns its queues, by topic. strategies: the members' strategies, by client
    id. popped_and_pulled: topics that some members pop and others pull. orderly: members that lock the queues
    they read or report that they consume in order; unordered: the others. retries: the number of messages
    that wait for another attempt, by number of failures. stalled: queues with waiting messages whose offset
    has not moved for minutes.
    """

    connected: Sequence[Connected] = ()
    queue_count: int | None = None
    missing: Sequence[str] = ()
    is_coordinated: bool = False
    read_by_two: Sequence[MessageQueue] = ()
    read_by_none: Sequence[MessageQueue] = ()
    strategies: Mapping[str, str] = field(default_factory=dict)
    popped_and_pulled: Sequence[str] = ()
    orderly: Sequence[str] = ()
    unordered: Sequence[str] = ()
    retries: Mapping[int, int] = field(default_factory=dict)
    stalled: Sequence[str] = ()


def diagnose(group: GroupSeen) -> list[Diagnosis]:
    """Return all problems of a group."""
    return [
        *_strategies(group.read_by_two, group.read_by_none),
        *_ways_of_reading(group),
        *_client_ids(group.connected),
        *_subscriptions(group),
        *_no_topic(group.missing),
        *_idle(group),
        *_heartbeats(group.connected),
        *_leases(group.connected),
        *_failing(group.retries),
        *_stalled(group.stalled),
    ]


def no_members(waiting: int, retries: int = 0) -> Diagnosis:
    """Return the diagnosis of a group without members for which messages wait.

    retries: the waiting messages that have failed before.
    """
    wait = f"{counted(waiting, 'message')} wait{'s' if waiting == 1 else ''}" if waiting else "messages wait"
    wait += f" ({retries:,} for another attempt)" if retries else ""
    text = f"{wait}, and no member is connected; start its members, or delete the group"
    return Diagnosis(Kind.NO_MEMBERS, "", text)


class Diagnoses:
    """The current diagnoses of one group."""

    def __init__(self) -> None:
        self.current: Sequence[Diagnosis] = ()

    def update(self, found: Sequence[Diagnosis]) -> tuple[list[Diagnosis], list[Diagnosis]]:
        """Take the current problems; return the new ones, and the ones that are over."""
        before, self.current = self.current, found
        known, now = ({(each.kind, each.about) for each in lot} for lot in (before, found))
        return (
            [each for each in found if (each.kind, each.about) not in known],
            [each for each in before if (each.kind, each.about) not in now],
        )


def _strategies(by_two: Sequence[MessageQueue], by_none: Sequence[MessageQueue]) -> Iterable[Diagnosis]:
    if by_two or by_none:
        parts = [
            f"{_named([f'{queue.topic}:{queue.queue_id}' for queue in queues])} read by {readers}"
            for queues, readers in ((by_two, "two members"), (by_none, "nobody"))
            if queues
        ]
        yield Diagnosis(
            Kind.STRATEGIES_DIFFER,
            "",
            f"{' and '.join(parts)}, although all members know the member list; "
            "give all members the same allocation strategy",
        )


def _ways_of_reading(group: GroupSeen) -> Iterable[Diagnosis]:
    """Yield differences in how members read, which the readers of queues do not reveal."""
    named: dict[str, list[str]] = {}
    for client_id, strategy in sorted(group.strategies.items()):
        named.setdefault(strategy, []).append(client_id)
    if len(named) > 1:
        lots = [f"{_named(ids)} with strategy {name}" for name, ids in named.items()]
        text = f"{_named(lots, '; ')}: one of them applies to all; give all members the same strategy"
        yield Diagnosis(Kind.STRATEGIES_DIFFER, "strategy", text)
    if group.popped_and_pulled:
        yield Diagnosis(
            Kind.STRATEGIES_DIFFER,
            "pop",
            f"members pop {_named(group.popped_and_pulled)} beside others that own its queues, so both get "
            "each message; have all of them pop, or none",
        )
    if group.orderly and group.unordered:
        yield Diagnosis(
            Kind.STRATEGIES_DIFFER,
            "order",
            f"{_named(group.orderly)} consume in order, and {_named(group.unordered)} do not: the order of "
            "their queues is lost; make all members orderly, or none",
        )


def _client_ids(connected: Iterable[Connected]) -> Iterable[Diagnosis]:
    by_id: dict[str, list[Connected]] = {}
    for one in connected:
        by_id.setdefault(one.client_id, []).append(one)
    for client_id, lot in by_id.items():
        newest_ms = max(one.joined_at_ms for one in lot)
        # A client that has reconnected sends no heartbeat on its old connection, which may end much later.
        live = [one for one in lot if one.heartbeat_at_ms > newest_ms or one.joined_at_ms == newest_ms]
        hosts = sorted({one.host for one in lot})
        if len(hosts) > 1 or len(live) > 1:
            where = f"from {_named(hosts)}" if len(hosts) > 1 else f"by {len(live)} processes on {hosts[0]}"
            yield Diagnosis(
                Kind.DUPLICATE_CLIENT_IDS,
                client_id,
                f"client id {client_id} is used {where}: all of them read the same queues; "
                "give each its own instanceName",
            )


def _subscriptions(group: GroupSeen) -> Iterable[Diagnosis]:
    conflict = ""
    if group.is_coordinated:
        conflict = tag_conflict((one.client_id, one.subscriptions) for one in group.connected)
    members: dict[tuple[str, ...], list[str]] = {}
    known: dict[int, tuple[str, ...]] = {}
    for one in () if conflict else group.connected:
        wanted = known.get(id(one.subscriptions))  # Members with equal subscriptions share one mapping.
        if wanted is None:
            wanted = known[id(one.subscriptions)] = tuple(
                sorted(
                    topic if group.is_coordinated else f"{topic} {canonical(tags)}"
                    for topic, tags in one.subscriptions.items()
                    if not topic.startswith(RETRY_PREFIX)  # Java's client has one while it has queues.
                )
            )
        members.setdefault(wanted, []).append(one.client_id)
    if len(members) > 1:
        lots = [
            f"{_named(ids)} subscribe to {_named(wanted) or 'nothing'}" for wanted, ids in members.items()
        ]
        what = (
            "retries go through the broker to members that subscribe to their topics, one at a time"
            if group.is_coordinated
            else "queues go to members that do not read them; Apache's clients get what any member's newest "
            "tags select, LibraMQ's what their own do, and the rest is passed over"
        )
        conflict = (
            f"{_named(lots, '; ')}: {what}; give all members the same subscriptions, or separate groups"
        )
    if conflict:
        yield Diagnosis(Kind.SUBSCRIPTIONS_DIFFER, "", conflict)


def _no_topic(missing: Sequence[str]) -> Iterable[Diagnosis]:
    if missing:
        yield Diagnosis(
            Kind.NO_TOPIC,
            "",
            f"members wait for topics that no broker has: {_named(sorted(missing))}; create them, or correct "
            "their names: libra admin consumerConnection shows who subscribes to what",
        )


def _idle(group: GroupSeen) -> Iterable[Diagnosis]:
    count = len({one.client_id for one in group.connected})
    if group.queue_count and group.queue_count < count:
        idle = count - group.queue_count
        yield Diagnosis(
            Kind.IDLE_MEMBERS,
            "",
            f"{count} members share {counted(group.queue_count, 'queue')}, so {idle} of them "
            f"{'is' if idle == 1 else 'are'} idle; give the topics more queues or run fewer members",
        )


def _heartbeats(connected: Iterable[Connected]) -> Iterable[Diagnosis]:
    for one in connected:
        if one.heartbeat_gap_ms > HEARTBEAT_GAP_MS_MAX:
            yield Diagnosis(
                Kind.SLOW_HEARTBEATS,
                one.client_id,
                f"{one.client_id} sends a heartbeat every {one.heartbeat_gap_ms / 1000:.0f} s: losing one or "
                "two may end its membership; set its heartbeatBrokerInterval to 30000 or less",
            )


def _leases(connected: Iterable[Connected]) -> Iterable[Diagnosis]:
    ended = sorted({one.client_id for one in connected if one.lease_ended})
    if ended:
        yield Diagnosis(
            Kind.LEASES_ENDED,
            "",
            f"{_named(ended)} handle no messages: their leases have ended, because the group's coordinator "
            "does not answer them; check their connections to the broker that coordinates the group",
        )


def _failing(retries: Mapping[int, int]) -> Iterable[Diagnosis]:
    counts = {times: count for times, count in retries.items() if times >= FAILURES_MIN and count}
    if counts:
        yield Diagnosis(
            Kind.FAILING,
            "",
            f"messages that failed {FAILURES_MIN} times or more and wait for another attempt: "
            f"{sum(counts.values()):,}, of which one failed {max(counts)} times; the members' logs have the "
            "reason (a handler failed); after the last attempt a message becomes a dead letter",
        )


def _stalled(queues: Sequence[str]) -> Iterable[Diagnosis]:
    if queues:
        yield Diagnosis(
            Kind.STALLED,
            "",
            f"messages wait, and the group has not moved on for minutes: {_named(queues)}; a handler"
            " hangs, or fails again and again at a message of an ordered queue: the members' logs say why",
        )


def _named(names: Sequence[str], separator: str = ", ") -> str:
    counted = Counter(names)
    distinct = list(counted)
    more = f" and {len(distinct) - NAMED_MAX} more" if len(distinct) > NAMED_MAX else ""
    return separator.join(distinct[:NAMED_MAX]) + more
