"""The recorded history: brokers' records of one group's rebalances, to be replayed.

        started ─ who joined, who left, and how ─► steps
        moved   ─ the existing queues           ─► queues

Events name no subscriptions: all members are taken to subscribe to all topics of the group.
"""

from collections.abc import Iterable, Sequence
from typing import Final

from libramq.balance.group import counts
from libramq.groups.coordinator.balance import COLLECT_MS
from libramq.groups.rebalance_event import Reason, RebalanceEvent
from libramq.groups.rebalance_history import BrokerEvent
from libramq.lab.cost import DEPARTURES
from libramq.lab.history import Departure, History, Step
from libramq.message.queue import MessageQueue

#: Ours: a group that rebalances once a minute for a day; later events are left out.
STEPS_MAX: Final = 1_440
KIND: Final = "recorded"


def recorded_history(group: str, reported: Iterable[BrokerEvent]) -> History | None:
    """Return the history in a group's events; None if they name no queue, or no member joined or left."""
    events = sorted((event for _, event in reported), key=lambda event: event.at_ms)
    started = [event for event in events if event.kind == "started"]
    queues = _queues(events)
    if not queues or not started:
        return None
    members = set(started[0].members or ())
    first = sorted(members)
    steps = _steps(started[1:], members, started[0].at_ms)
    if not first or not steps:
        return None
    topics = frozenset(queues)
    return History(
        group=group,
        kind=KIND,
        queues=queues,
        members=dict.fromkeys(first, topics),
        steps=[
            Step(at_ms=at_ms, what=what, gone=gone, joined=dict.fromkeys(joined, topics))
            for at_ms, what, gone, joined in steps
        ],
        has_zones=False,
    )


def _queues(events: Iterable[RebalanceEvent]) -> dict[str, list[MessageQueue]]:
    found = {
        MessageQueue(move.topic, move.broker, move.queue)
        for event in events
        for move in event.moves or ()
        if counts(move.topic)
    }
    by_topic: dict[str, list[MessageQueue]] = {}
    for queue in sorted(found):
        by_topic.setdefault(queue.topic, []).append(queue)
    return by_topic


def _steps(
    started: Sequence[RebalanceEvent], members: set[str], begun_at_ms: int
) -> list[tuple[int, str, dict[str, Departure], list[str]]]:
    """Group the events into steps: those within one collection interval of the coordinator are one step."""
    steps: list[tuple[int, str, dict[str, Departure], list[str]]] = []
    place = 0
    while place < len(started) and len(steps) < STEPS_MAX:
        at_ms = started[place].at_ms
        before, ways = set(members), dict[str, Departure]()
        reasons: dict[str, None] = {}
        while place < len(started) and started[place].at_ms <= at_ms + COLLECT_MS:
            event = started[place]
            place += 1
            if event.who is None or event.reason is None:
                continue
            if event.reason == Reason.MEMBER_JOINED:
                members.add(event.who)
            elif event.reason in DEPARTURES:
                members.discard(event.who)
                ways[event.who] = DEPARTURES[event.reason]
            reasons[event.reason] = None
        gone = {who: ways[who] for who in sorted(before - members)}
        joined = sorted(members - before)
        if gone or joined:
            steps.append((at_ms - begun_at_ms, ", ".join(reasons), gone, joined))
    return steps
