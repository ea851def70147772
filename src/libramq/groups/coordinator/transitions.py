"""The table of the coordinated group: the action for each event in each state, and the states that may
follow.

    TABLE[event][state]  =  action, possible next states

A combination that is not in the table is impossible: `handle` refuses it and logs an error. `draw` renders
the table for `docs/design/coordinated-groups.md`.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from libramq.clock import MonotonicMs
from libramq.codes import ResponseCode
from libramq.errors import broker_error
from libramq.groups.coordinator import actions as do
from libramq.groups.coordinator import event as ev
from libramq.groups.coordinator.coordinated_group import CoordinatedGroup
from libramq.groups.coordinator.member import GroupMember
from libramq.groups.coordinator.shared_tables import MemberKey
from libramq.groups.coordinator.state import ASSIGNED, INQUIRING, SELF_ALLOCATED, UNKNOWN, State
from libramq.logs import get_logger

log = get_logger(__name__)

E, A, R, S, G, W, C, P, B, D = State
ALIVE: Final = (E, A, R, S, G, W, C, P, B)
#: With members.
WITH_MEMBERS: Final = (A, R, S, G, W, C, P, B)
#: The states in which an inquiry may end.
CONCLUDED: Final = (E, A, R, S)

Group = CoordinatedGroup[Any, Any]
Action = Callable[[Group, Any, MonotonicMs], None]


class Cell(NamedTuple):
    """A rule: the action, and the states that may follow."""

    action: Action
    then: frozenset[State]


Row = Mapping[State, Cell]


def _to(action: Action, *then: State) -> Cell:
    return Cell(action, frozenset(then))


def _stay(action: Action, *states: State) -> dict[State, Cell]:
    """Return cells for states in which the group stays."""
    return {state: _to(action, state) for state in states}


TABLE: Final[Mapping[type[ev.Event], Row]] = {
    ev.Begun: _stay(do.begin, E, S, C),
    # Requests of members and operators.
    ev.Joined: {
        E: _to(do.join_first, A, S, G),
        A: _to(do.join, A, G),
        R: _to(do.join, R, A, S, G),
        S: _to(do.join, S, A, G),
        G: _to(do.join_inquiry, G),
        W: _to(do.join_inquiry, W, A, R, S),
        C: _to(do.join, C),
        P: _to(do.join_inquiry, P),
        B: _to(do.join_inquiry, B, A, R, S),
    },
    ev.Polled: {
        A: _to(do.poll, A, G),
        R: _to(do.poll, R, A, S, G),
        S: _to(do.poll, S, A, G),
        G: _to(do.poll_inquiry, G),
        W: _to(do.poll_inquiry, W, A, R, S),
        C: _to(do.poll, C),
        P: _to(do.poll_inquiry, P),
        B: _to(do.poll_inquiry, B, A, R, S),
    },
    ev.Released: {
        **_stay(do.release, A, G, W, C, P, B),
        R: _to(do.release, R, A, S),
        S: _to(do.release, S, A, R),
    },
    ev.Left: {
        **{state: _to(do.leave, A) for state in (A, R, S)},
        W: _to(do.leave, W, *CONCLUDED),
        B: _to(do.leave, B, *CONCLUDED),
        **_stay(do.leave, G, C, P),
    },
    ev.Removed: {
        **{state: _to(do.remove, state, A) for state in ASSIGNED},
        E: _to(do.remove, E),
        G: _to(do.remove, G),
        W: _to(do.remove, W, *CONCLUDED),
        **_stay(do.refuse_removal, *SELF_ALLOCATED),
    },
    # Silent members.
    ev.ConnectionClosed: _stay(do.close, *WITH_MEMBERS),
    ev.SessionEnded: {
        **{state: _to(do.end_session, A) for state in (A, R, S)},
        W: _to(do.end_session, W, *CONCLUDED),
        B: _to(do.end_session, B, *CONCLUDED),
        **_stay(do.end_session, G, C, P),
    },
    # Topics.
    ev.QueuesChanged: {
        **{state: _to(do.change_queues, A) for state in (A, R, S)},
        **_stay(do.change_queues, G, W, C, P, B),
    },
    ev.QueuesRemoved: {
        **{state: _to(do.remove_queues, A) for state in ASSIGNED},
        **_stay(do.remove_queues, G, W, C, P, B),
    },
    # Stock members.
    ev.StockMembersJoined: {
        **{state: _to(do.hand_to_members, C) for state in (*ASSIGNED, *UNKNOWN)},
        **{state: _to(do.leave_to_members, C) for state in SELF_ALLOCATED},
    },
    ev.StockMembersLeft: {
        **_stay(do.ignore, *ALIVE),
        C: _to(do.await_last_commits, P),
    },
    # Fences.
    ev.GrantRefused: {
        **{state: _to(do.gather_refused, state, G) for state in ASSIGNED},
        C: _to(do.gather_refused, C),
        **_stay(do.raise_epoch, *INQUIRING),
    },
    ev.FencesInDoubt: {
        **{state: _to(do.gather, G) for state in (*ASSIGNED, *UNKNOWN)},
        **_stay(do.gather, *SELF_ALLOCATED),
    },
    ev.FencesReported: {
        **_stay(do.ignore, *ALIVE),
        G: _to(do.take_reports, W, *CONCLUDED),
    },
    # Time.
    ev.InquiryTimedOut: {
        G: _to(do.continue_without, W, *CONCLUDED),
        W: _to(do.stop_waiting, *CONCLUDED),
        P: _to(do.ask_members, B, E),
        B: _to(do.stop_waiting, A, R, S),
    },
    ev.ChangesCollected: {
        A: _to(do.assign, *CONCLUDED),
        **_stay(do.postpone, *UNKNOWN),
        **_stay(do.forget_changes, *SELF_ALLOCATED),
    },
    ev.Assigned: {
        **_stay(do.ignore, *ALIVE),
        A: _to(do.take_assignment, A, R, S),
    },
    ev.HandoverDue: {
        A: _to(do.hand_over, A),
        R: _to(do.hand_over, R, S),
    },
    ev.Stalled: _stay(do.extend_deadlines, *ALIVE),
    ev.Dissolved: {state: _to(do.dissolve, D) for state in ALIVE},
}


def handle(group: Group, event: ev.Event, *, now_ms: MonotonicMs) -> None:
    """Run the table's action for an event in the group's state; raises BrokerError if refused.

    A combination that the table lacks is a bug in LibraMQ. It is logged, the event is refused (or the
    unexpected state kept), and the broker continues.
    """
    before = group.state
    cell = TABLE[type(event)].get(before)
    if cell is None:
        name = type(event).__name__
        log.error("impossible event in this state", group=group.name, happened=name, state=before.name)
        raise broker_error(
            ResponseCode.SYSTEM_ERROR,
            f"{name} cannot happen while group {group.name} is {before.name}: an error of the broker,"
            " please report it with its log",
        )
    cell.action(group, event, now_ms)
    after = group.state
    if after not in cell.then:
        log.error(
            "impossible transition",
            group=group.name, happened=type(event).__name__, before=before.name, after=after.name,
        )  # fmt: skip


def look(group: Group, *, now_ms: MonotonicMs) -> None:
    """Handle the group's due timers."""
    if group.inquiry is not None and now_ms >= group.inquiry.until_ms:
        handle(group, ev.InquiryTimedOut(), now_ms=now_ms)
    if group.balance.flush_at_ms is not None and now_ms >= group.balance.flush_at_ms:
        handle(group, ev.ChangesCollected(), now_ms=now_ms)
    if not group.balance.queues.is_complete:
        handle(group, ev.HandoverDue(), now_ms=now_ms)


def look_at(group: Group, member: GroupMember[Any, Any], *, now_ms: MonotonicMs) -> None:
    """Handle the end of a member's session; a poll held for its full time is answered by `publish`."""
    reason = member.ended(now_ms=now_ms)
    if reason is not None:
        handle(group, ev.SessionEnded(member, reason), now_ms=now_ms)
    elif member.due_ms > now_ms:  # It moved; with many members, `publish` would get here late.
        group.timers.wake_by(MemberKey(group.name, member.id), member.due_ms)
    group.balance.queues.to_notify[member.id] = None


def draw() -> Iterator[str]:
    """Yield the table as lines of Markdown."""
    letters = dict(zip(State, "EARSGWCPBD", strict=True))
    yield "| state | | meaning |"
    yield "|---|---|---|"
    for state in State:
        yield f"| {state.name} | {letters[state]} | {state.value} |"
    yield ""
    yield f"| event | {' | '.join(letters[state] for state in ALIVE)} |"
    yield "|---" * (len(ALIVE) + 1) + "|"
    for event, row in TABLE.items():
        cells = [_drawn(state, row.get(state), letters) for state in ALIVE]
        yield f"| {event.__name__} | {' | '.join(cells)} |"


def _drawn(state: State, cell: Cell | None, letters: Mapping[State, str]) -> str:
    if cell is None:
        return ""
    then = "".join(letters[each] for each in State if each in cell.then)
    return cell.action.__name__ + ("" if cell.then == {state} else f" → {then}")
