"""The table of the owned queue: the action for each event, by the state the queue is in.

    TABLE[event][state]  =  action, states that the queue may be in afterwards

A combination that is not in the table is impossible: `Ownership.handle` ignores it, and logs an error.
`python -m tests.docs.generated` draws it into docs/design/client.md.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from libramq.client.consuming.ownership import claims, locks
from libramq.client.consuming.ownership import event as ev
from libramq.client.consuming.ownership import offset_actions as offsets
from libramq.client.consuming.ownership import release_actions as release
from libramq.client.consuming.ownership.ownership import Action, Cell, Ownership, Transitions
from libramq.client.consuming.queues.owned_queue import LETTERS, OwnedQueue, QueueState
from libramq.clock import MonotonicMs

N, L, W, O, R, P, D, F, S, M, G, V, E, Z = QueueState  # noqa: E741
#: The states of a queue that is being released, or about to be taken again.
ENDING: Final = (M, G, V, E)
#: The states after the first event, in which a queue is in the table.
ALL: Final = (L, W, O, R, P, D, F, S, *ENDING)

Row = Mapping[QueueState, Cell]


def ignore(own: Ownership, owned: OwnedQueue, event: ev.Event, now_ms: MonotonicMs) -> None:
    """Do nothing."""


def _to(action: Action, *then: QueueState) -> Cell:
    return Cell(action, frozenset(then))


def _stay(action: Action, *states: QueueState) -> dict[QueueState, Cell]:
    """Return cells for states in which the queue stays."""
    return {state: _to(action, state) for state in states}


def _end(action: Callable[..., Any], *states: QueueState) -> dict[QueueState, Cell]:
    """Return cells for states in which the queue stays, or ends."""
    return {state: _to(action, state, Z) for state in states}


IGNORED: Final = _stay(ignore, *ALL)

TABLE: Final[Transitions] = {
    ev.Taken: {N: _to(claims.take, L, W, O, R, P, Z)},
    # Locks.
    ev.LockGranted: {
        L: _to(locks.begin_locked, W, O, Z),
        **_stay(locks.keep_lock, W, O, R, P, F, S),
        D: _to(locks.query_doubt, D),
        **_stay(ignore, *ENDING),
    },
    ev.LockRefused: {
        L: _to(locks.retry_lock, L),
        **{state: _to(release.lose, Z) for state in (W, O, R, P, D, F, S)},
        **_stay(ignore, *ENDING),
    },
    ev.LockFailed: {
        L: _to(locks.lock_failed, L),
        W: _to(locks.lock_failed, W, L),
        O: _to(locks.lock_failed, O, L),
        **{state: _to(locks.lock_failed, state, D) for state in (R, P, F, S)},
        D: _to(locks.lock_failed, D),
        **_stay(ignore, *ENDING),
    },
    ev.LockDoubted: {
        **{state: _to(locks.doubt_lock, L) for state in (L, W, O)},
        **{state: _to(locks.doubt_lock, D) for state in (R, P, D, F, S)},
        **_stay(locks.doubt_lock, *ENDING),
    },
    ev.LocksLifted: {
        **_stay(locks.lift_lock, *ALL),
        D: _to(locks.lift_lock, R, P),
    },
    # The start offset.
    ev.OffsetDue: {
        **IGNORED,
        W: _to(offsets.load, W, O, Z),
        O: _to(offsets.load, O, Z),
        **_stay(offsets.open_if_newer, R, P),
        F: _to(offsets.load, F),
    },
    ev.OffsetAnswered: {
        **IGNORED,
        O: _to(offsets.begin, O, R, P, Z),
        D: _to(locks.resolve_doubt, D, R, P, Z),
    },
    ev.StartAnswered: {
        **IGNORED,
        O: _to(offsets.begin_at_start, O, R, P, Z),
        S: _to(offsets.move_to_newer, M, Z),
    },
    # Claims.
    ev.Granted: {
        **{state: _to(claims.grant, O) for state in (L, W, O, S)},
        **_stay(claims.grant, R, P, F),
        **_stay(claims.want_again, *ENDING),
    },
    ev.Opened: {
        **IGNORED,
        O: _to(claims.begin_opened, O, R, P),
        **{state: _to(claims.continue_opened, R, P, Z) for state in (R, P, F)},
    },
    ev.OpenFenced: {
        **IGNORED,
        **{state: _to(release.lose, Z) for state in (O, R, P, F)},
    },
    ev.OpenFailed: {
        **IGNORED,
        **_end(claims.not_opened, O, R, P, F),  # A queue may be read without a claim before its first one.
    },
    ev.PullRefused: {
        **IGNORED,
        **{state: _to(claims.refuse_pull, state, F, Z) for state in (R, P, F)},
    },
    ev.ClaimRefused: {
        **IGNORED,
        **{state: _to(claims.refuse, state, F, Z) for state in (R, P, F)},
        **_end(claims.refuse_last, *ENDING),
    },
    ev.ClaimsDropped: {
        **{state: _to(claims.drop_claim, L, W) for state in (L, W, O, S)},
        **{state: _to(claims.keep_reading, R, P) for state in (R, P, F)},
        **_stay(claims.forget_claim, *ENDING),
    },
    # Reading.
    ev.Pulled: {
        **IGNORED,
        R: _to(offsets.pulled, R, S, M, Z),
        P: _to(offsets.pulled, P, S, M, Z),
        **_stay(offsets.keep_pulled, D, F),
    },
    ev.Sought: {
        **_stay(offsets.seek_later, L, W, O),
        **_stay(offsets.seek, R, P, D, F),
        S: _to(offsets.seek_at_once, R, P),
        **_stay(ignore, *ENDING),
    },
    ev.OffsetSet: {
        **IGNORED,
        **{state: _to(offsets.move, state, M, Z) for state in (O, R, P, D, S)},
    },
    ev.Paused: {**IGNORED, R: _to(offsets.pause, R, P)},
    ev.Resumed: {**IGNORED, P: _to(offsets.resume, P, R)},
    ev.Continued: {**IGNORED, R: _to(offsets.go_on, R)},
    # The end.
    ev.Unassigned: {
        L: _to(release.revoke_unlocked, Z),
        **{state: _to(release.revoke, G, V, E, Z) for state in (W, O, R, P, D, F, S)},
        M: _to(release.revoke_moved, V, E, Z),
        G: _to(release.hurry_draining, G, V, E, Z),
        **_end(release.hurry, V, E),
    },
    ev.HandlerEnded: {
        G: _to(release.drain, G, V, E, Z),
        **_stay(ignore, M, V, E),
    },
    ev.DrainTimedOut: {**IGNORED, G: _to(release.end_draining, G, V, E, Z)},
    ev.ListenerDone: {**IGNORED, V: _to(release.leave, E, Z)},
    ev.ListenerTimedOut: {**IGNORED, V: _to(release.stop_waiting, E, Z)},
    ev.MayCommit: {
        **IGNORED,
        M: _to(offsets.begin_anew, M, Z),
        E: _to(release.leave, E, Z),
    },
    ev.TakenByOther: {state: _to(release.lose, Z) for state in ALL},
}


def draw() -> Iterator[str]:
    """Yield the table as lines of Markdown."""
    letters = dict(zip(QueueState, LETTERS, strict=True))
    yield "| state | | a queue that |"
    yield "|---|---|---|"
    for state in QueueState:
        yield f"| {state.name} | {letters[state]} | {state.value} |"
    yield ""
    columns = (N, *ALL)
    yield f"| event | {' | '.join(letters[state] for state in columns)} |"
    yield "|---" * (len(columns) + 1) + "|"
    for event, row in TABLE.items():
        cells = [_drawn(state, row.get(state), letters) for state in columns]
        yield f"| {event.__name__} | {' | '.join(cells)} |"


def _drawn(state: QueueState, cell: Cell | None, letters: Mapping[QueueState, str]) -> str:
    if cell is None:
        return ""
    if cell.action is ignore:
        return "–"
    then = "".join(letters[each] for each in QueueState if each in cell.then)
    return cell.action.__name__ + ("" if cell.then == {state} else f" → {then}")
