"""The rebalance as a broker sees it: derives queue owners from pulls and openings, detects queues that
members take from each other, and decides when a rebalance has settled.

Ownership and settling depend on who allocates:

        the members      the last member to pull a queue owns it; settled when every queue is owned by a
                         present member, no member is idle without need, and nothing has moved for a while
        a coordinator    the last member to open a queue owns it; settled when the coordinator has granted
                         every queue to its target, and all targets have opened theirs

All times are monotonic; events have wall times.
"""

from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final

from libramq.clock import MonotonicMs, Now
from libramq.groups.rebalance_event import STATIC_MEMBER_RESTARTED, EventWriter, Reason, RebalanceEvent
from libramq.groups.unsettled import Owner, Restart, Unsettled, repeated, sum_bounds
from libramq.message.queue import MessageQueue

#: Ours: twice the 500 ms after which the Java client starts pulling a new queue.
QUIET_MS: Final = 1_000
#: Ours: a bit more than one of the Java client's 20 s rounds. Members without a queue here by then have
#: queues at other brokers or none at all.
IDLE_MS_MAX: Final = 25_000
#: Ours: one and a half times a member's limit for giving up a queue (state.REVOKE_TIMEOUT_MS). If nothing has
#: moved for this long, the report that another broker's coordinator has granted everything was lost, or its
#: release sends none. A queue's first opening this long before the report of a rebalance belongs to an
#: earlier, unreported rebalance.
UNREPORTED_MS: Final = 15_000
#: Ours: three of the Java client's 20 s rounds; a rebalance not settled by then is reported as unsettled.
SETTLE_MS_MAX: Final = 60_000
#: A member that ended for one of these reasons may not have committed all handled messages.
_KILLED: Final = frozenset({Reason.CONNECTION_CLOSED, Reason.SESSION_EXPIRED, Reason.PROCESSING_TIMEOUT})


class GroupRebalance:
    """One group's owners and rebalances.

    sent_before: returns the offset up to which a queue's messages were sent to the group, for queues without
    a known owner; None if unknown.
    """

    def __init__(
        self, group: str, *, sent_before: Callable[[MessageQueue], int | None] = lambda _: 0
    ) -> None:
        self._write = EventWriter(group)
        self._sent_before = sent_before
        self._members: list[str] = []
        self._owners: dict[MessageQueue, Owner] = {}
        self._unsettled: Unsettled | None = None
        self._early: Unsettled | None = None  # Moves before the coordinator's PEER_STARTED.
        self._opened_by_unknown: dict[MessageQueue, int | None] = {}  # The values are ends of sent messages.
        self.contested = ContestedQueues()
        #: Returned static members that do not read all of their queues yet, by client id.
        self.restarts: dict[str, Restart] = {}

    @property
    def is_settled(self) -> bool:
        """Return whether no rebalance is under way."""
        return self._unsettled is None

    @property
    def is_forgettable(self) -> bool:
        """Return whether there is nothing left to observe."""
        return self._unsettled is None and not self._members

    @property
    def owners(self) -> Mapping[MessageQueue, str]:
        """Return the last reader of each queue."""
        return {queue: owner.client_id for queue, owner in self._owners.items()}

    def changed(
        self,
        reason: Reason,
        who: str | None,
        members: Iterable[str],
        *,
        epoch: int | None = None,
        is_part: bool = False,
        now: Now,
    ) -> RebalanceEvent:
        """Begin a rebalance, or continue the one under way with new members.

        epoch: the group's, if it has a coordinator; otherwise changes are counted. is_part: another broker is
        the coordinator and reports the whole.
        """
        former, self._members = self._members, sorted(set(members))
        self.contested.clear()
        self._write.epoch = epoch if epoch is not None else self._write.epoch + 1
        if self._early is not None and self._unsettled is None:
            self._unsettled, self._early = self._early, None
            self._unsettled.begin(now.monotonic_ms, first_since_ms=now.monotonic_ms - UNREPORTED_MS)
        elif self._unsettled is None:
            self._unsettled = Unsettled(now.monotonic_ms, now.monotonic_ms, dict(self.owners))
        self._unsettled.changed_at_ms = now.monotonic_ms
        self._unsettled.has_lost_members |= not set(former).issubset(self._members)
        self._unsettled.has_killed |= reason in _KILLED
        self._unsettled.is_complete = False
        self._unsettled.is_part = is_part
        return self._write.started(reason, who, self._members, now)

    def gone(self, client_id: str, now_ms: MonotonicMs) -> None:
        """Note that a client's last connection has ended, so that it reads no more."""
        for owner in self._owners.values():
            if owner.client_id == client_id:
                owner.gone_ms = now_ms

    def restarted(self, *, now: Now) -> list[RebalanceEvent]:
        """Return the events of static members that read all of their queues again, or should by now."""
        found = []
        for client_id, restart in list(self.restarts.items()):
            if not restart.stopped_ms or now.monotonic_ms - restart.began_ms >= SETTLE_MS_MAX:
                del self.restarts[client_id]
                found.append(
                    self._write.event(
                        "restarted",
                        now,
                        reason=STATIC_MEMBER_RESTARTED,
                        who=restart.name,
                        member_count=len(self._members),
                        moved=0,
                        minimum=0,
                        time_to_stable_ms=restart.pause_ms,
                        worst_pause_ms=restart.pause_ms,
                        redelivered_upper_bound=restart.redelivered,
                        unowned=len(restart.stopped_ms),
                    )
                )
        return found

    def replaced(self, former: str, client_id: str, name: str, *, now_ms: MonotonicMs) -> None:
        """Note that a client has taken another's place, as a returning static member `name` does."""
        stopped_ms = {
            queue: each.stopped_ms for queue, each in self._owners.items() if each.client_id == former
        }
        unfinished = self.restarts.pop(former, None)
        if stopped_ms:
            restart = self.restarts[client_id] = Restart(name, now_ms, stopped_ms)
            if unfinished is not None:
                restart.include(unfinished)
        self._members = sorted(client_id if member == former else member for member in self._members)
        for owner in self._owners.values():
            if owner.client_id == former:
                owner.client_id, owner.gone_ms = client_id, None
        for unsettled in (self._unsettled, self._early):
            if unsettled is not None:
                unsettled.rename(former, client_id)

    def completed(
        self,
        members: Iterable[str],
        *,
        holders: Mapping[MessageQueue, str] | None = None,
        uncommitted: Iterable[MessageQueue] = (),
        duplicates: int = 0,
        minimum: int | None = None,
    ) -> None:
        """Note that the coordinator has granted every queue to its target.

        holders: their client ids, as far as known. uncommitted: queues that were lost, or released before all
        handled messages were committed. duplicates: redelivered messages that members reported meanwhile.
        minimum: the number of queues that had to move, across all brokers.
        """
        self._members = sorted(set(members))
        if self._unsettled is not None:
            self._unsettled.is_complete = True
            self._unsettled.holders = holders or {}
            # A queue's first owner repeats nothing, because the group was never sent a message of it.
            sent = (queue for queue in uncommitted if self._sent(queue, self._owners.get(queue)) != 0)
            self._unsettled.uncommitted.update(sent)
            self._unsettled.duplicates += duplicates
            if minimum is not None:
                self._unsettled.minimum = (self._unsettled.minimum or 0) + minimum

    def opened(
        self, queue: MessageQueue, client_id: str | None, *, was_open: bool = False, now_ms: MonotonicMs
    ) -> None:
        """Note that a member opens a queue: it owns the queue from now on, and reads it from its first pull.

        client_id: None before the member's heartbeat; its first pull names it. was_open: the queue was open
        before. If a coordinator elsewhere reports a rebalance later, the move belongs to that rebalance.
        """
        former = self._owners.get(queue)
        sent_before = self._sent(queue, former)
        if was_open and former is None and not sent_before:
            sent_before = None  # The former reader committed nothing.
            if self._unsettled is not None:
                self._unsettled.uncommitted.add(queue)
        if client_id is None:
            self._opened_by_unknown[queue] = sent_before
        else:
            self._opened(queue, former, client_id, sent_before, now_ms)

    def _opened(
        self,
        queue: MessageQueue,
        former: Owner | None,
        client_id: str,
        sent_before: int | None,
        now_ms: MonotonicMs,
    ) -> None:
        self._opened_by_unknown.pop(queue, None)
        if former is None or former.client_id != client_id:
            self._note_early(now_ms)
            owner = self._take(queue, former, client_id, 0, now_ms)
            owner.has_begun, owner.sent_before = False, sent_before

    def pulled(
        self,
        queue: MessageQueue,
        client_id: str,
        offset: int,
        *,
        is_opened: bool = False,
        now_ms: MonotonicMs,
    ) -> None:
        """Note a member's pull of a queue from `offset`; is_opened: the member has the queue open."""
        owner = self._owners.get(queue)
        if owner is None and is_opened and queue not in self._opened_by_unknown:
            # The member had opened the queue before this process began, so nothing has moved.
            self._owners[queue] = Owner(client_id, now_ms, offset)
            return
        if owner is not None and owner.client_id == client_id:
            if self.restarts and (restart := self.restarts.get(client_id)) is not None:
                restart.resumed(queue, repeated(self._sent(queue, owner), offset), now_ms)
            self._opened_by_unknown.pop(queue, None)
            if not owner.has_begun:
                self._began(queue, owner, offset, now_ms)
            if owner.next_offset is None:
                owner.next_offset = offset
            owner.read_at_ms = now_ms
            owner.is_waiting = True
            return
        sent = self._opened_by_unknown.pop(queue, self._sent(queue, owner))
        if is_opened:
            self._note_early(now_ms)
        self._take(queue, owner, client_id, repeated(sent, offset), now_ms).next_offset = offset

    def _sent(self, queue: MessageQueue, owner: Owner | None) -> int | None:
        """Return the offset up to which a queue's messages were sent to former readers; None if unknown."""
        if owner is None:
            return self._sent_before(queue)
        return owner.next_offset if owner.has_begun else owner.sent_before

    def answered(
        self, queue: MessageQueue, client_id: str, next_offset: int | None, *, now_ms: MonotonicMs
    ) -> None:
        """Note the answer to a member's pull: messages before `next_offset`; None: no messages."""
        owner = self._owners.get(queue)
        if owner is None or owner.client_id != client_id:
            return
        was_held = now_ms > owner.read_at_ms  # There was nothing to read: the owner has caught up.
        owner.read_at_ms = now_ms
        owner.is_waiting = False
        owner.is_catching_up = owner.is_catching_up and next_offset is not None and not was_held
        if next_offset is not None:
            before = next_offset if owner.next_offset is None else owner.next_offset
            if owner.is_catching_up and self._unsettled is not None:
                self._unsettled.catch_up.read(next_offset - before, now_ms=now_ms)
            owner.next_offset = max(before, next_offset)

    def diagnosed(self, kind: str, text: str | None, *, now: Now) -> RebalanceEvent:
        """Return the event of a problem of the group; text: None if the problem is over."""
        state = "diagnosed" if text is not None else "recovered"
        return self._write.event(state, now, diagnosis=kind, text=text)

    def settle(
        self,
        queues: Iterable[MessageQueue] | None,
        *,
        openings: Mapping[MessageQueue, bool] | None = None,
        pops: Callable[[], bool] = lambda: False,
        now: Now,
    ) -> list[RebalanceEvent]:
        """Return the last events of the rebalance if it has settled.

        queues: the queues that the group should own here; None if none of its members is connected. openings:
        open or granted queues, and whether they are open to the member of the last grant; None if members
        allocate for themselves. pops: returns whether the group pops; messages of departed members are then
        redelivered, and it is unknown which they are.
        """
        unsettled = self._unsettled
        if unsettled is None or now.monotonic_ms - unsettled.changed_at_ms < QUIET_MS:
            return []
        if openings is not None:
            self._name_owners(unsettled, openings, now.monotonic_ms)
        owned = {
            queue: owner.client_id
            for queue, owner in self._owners.items()
            if owner.client_id in self._members
            and queue not in self._opened_by_unknown
            and (openings is None or openings.get(queue))
        }
        wanted = set(queues or ())
        unidentified: set[MessageQueue] = set()
        if openings is not None:
            wanted |= owned.keys()  # The owner's subscription may not have arrived yet.
            wanted |= {queue for queue, is_open in openings.items() if queues is None and not is_open}
            named = self._owners.keys() - self._opened_by_unknown.keys()
            unidentified = {queue for queue in wanted if openings.get(queue) and queue not in named}
        loads = Counter(dict.fromkeys(self._members, 0))
        loads.update(owned[queue] for queue in wanted if queue in owned)
        unowned = len(wanted) - loads.total() - len(unidentified)
        is_over = self._is_over(unsettled, loads, wanted, openings, now.monotonic_ms)
        is_over = is_over and unidentified.isdisjoint(self._opened_by_unknown)  # Those are about to pull.
        if self._members and not is_over and now.monotonic_ms - unsettled.started_at_ms < SETTLE_MS_MAX:
            return []
        self._owners = {queue: owner for queue, owner in self._owners.items() if queue in wanted}
        return self._settled(unsettled, loads, unowned, pops, now)

    def _name_owners(
        self, unsettled: Unsettled, openings: Mapping[MessageQueue, bool], now_ms: MonotonicMs
    ) -> None:
        """Record owners from the coordinator's report if they are not known here yet.

        Some opened their queue before this process began; others have not sent a heartbeat yet.
        """
        for queue, client_id in unsettled.holders.items():
            if not openings.get(queue):
                continue
            if queue in self._opened_by_unknown:
                former, sent_before = self._owners.get(queue), self._opened_by_unknown[queue]
                self._opened(queue, former, client_id, sent_before, now_ms)
            elif queue not in self._owners:
                self._owners[queue] = Owner(client_id, now_ms, is_waiting=False)

    def _is_over(
        self,
        unsettled: Unsettled,
        loads: Mapping[str, int],
        wanted: Collection[MessageQueue],
        openings: Mapping[MessageQueue, bool] | None,
        now_ms: MonotonicMs,
    ) -> bool:
        """Return whether every queue has its final owner."""
        if openings is not None:
            is_complete = unsettled.is_complete or (
                unsettled.is_part and now_ms - unsettled.changed_at_ms >= UNREPORTED_MS
            )
            return is_complete and all(openings.get(queue, True) for queue in wanted)
        may_wait = now_ms - unsettled.started_at_ms < IDLE_MS_MAX
        is_idle_needlessly = len(wanted) >= len(self._members) and 0 in loads.values()
        return len(wanted) == sum(loads.values()) and not (is_idle_needlessly and may_wait)

    def read_by_none(self, queues: Iterable[MessageQueue]) -> list[MessageQueue]:
        """Return which of these queues no member reads; none while a rebalance is under way."""
        if self._unsettled is not None:
            return []
        owned = {queue for queue, owner in self._owners.items() if owner.client_id in self._members}
        return [queue for queue in queues if queue not in owned]

    def _settled(
        self,
        unsettled: Unsettled,
        loads: Counter[str],
        unowned: int,
        pops: Callable[[], bool],
        now: Now,
    ) -> list[RebalanceEvent]:
        self._unsettled = None
        not_begun = {q for q, each in self._owners.items() if not each.has_begun and each.sent_before != 0}
        settled_moves = unsettled.settled_moves(not_begun)
        if not self._members:
            self._owners.clear()
            self._opened_by_unknown.clear()
        moved = {
            queue: move
            for queue, move in settled_moves.items()
            if move.from_ != move.to and move.to in self._members  # Not those that came and went.
        }
        returned_ms = unsettled.returned_ms
        moves = [move.record(queue, returned_ms.get(queue), now) for queue, move in moved.items()]
        before = {queue: owner for queue, owner in unsettled.owners_before.items() if queue in self._owners}
        last_move_ms = max(
            (max(move.resumed_ms, returned_ms.get(queue, move.resumed_ms)) for queue, move in moved.items()),
            default=unsettled.changed_at_ms,
        )
        redelivered = sum_bounds(move.redelivered for move in settled_moves.values())
        if unsettled.has_lost_members and pops():
            redelivered = None
        if unsettled.has_killed and unsettled.owners_before and not self._members:
            redelivered = None  # The next member's first pulls will show it.
        return self._write.settled(
            moves,
            self._members,
            loads,
            now,
            minimum=unsettled.least(before, loads),
            time_to_stable_ms=max(0, last_move_ms - unsettled.started_at_ms),
            worst_pause_ms=max((move.pause_ms for move in moves), default=0),
            redelivered_upper_bound=redelivered,
            duplicates_reported=unsettled.duplicates,
            peak_catch_up_rate=unsettled.catch_up.peak_rate,
            unowned=unowned,
        )

    def _note_early(self, now_ms: MonotonicMs) -> None:
        """Begin to record moves before a rebalance is reported; `changed` continues with them."""
        if self._unsettled is None and self._early is None:
            self._early = Unsettled(now_ms, now_ms, dict(self.owners))

    def _take(
        self,
        queue: MessageQueue,
        former: Owner | None,
        client_id: str,
        redelivered: int | None,
        now_ms: MonotonicMs,
    ) -> Owner:
        self.contested.taken(queue, now_ms)
        unsettled = self._unsettled or self._early
        if unsettled is not None:
            unsettled.take(queue, former, client_id, redelivered, now_ms)
        owner = self._owners[queue] = Owner(client_id, now_ms, is_catching_up=self._unsettled is not None)
        return owner

    def _began(self, queue: MessageQueue, owner: Owner, offset: int, now_ms: MonotonicMs) -> None:
        """Note the first pull of a member that has opened a queue, which reads from now on."""
        redelivered = repeated(owner.sent_before, offset)
        owner.has_begun, owner.next_offset = True, offset
        unsettled = self._unsettled or self._early
        if unsettled is not None:
            unsettled.began(queue, owner.client_id, redelivered, now_ms)


#: Ours: a bit more than two of the Java client's long polls (brokerSuspendMaxTimeMillis), by when every
#: reader of a queue has pulled again.
READING_MS_MAX: Final = 40_000


class ContestedQueues:
    """The queues that members of one group take from each other, with the times of the last two takes."""

    def __init__(self) -> None:
        self._taken_at_ms: dict[MessageQueue, deque[MonotonicMs]] = {}

    def taken(self, queue: MessageQueue, now_ms: MonotonicMs) -> None:
        """Note that a queue has changed owners."""
        self._taken_at_ms.setdefault(queue, deque(maxlen=2)).append(now_ms)

    def clear(self) -> None:
        """Start over, because the group has changed and queues have a reason to move."""
        self._taken_at_ms.clear()

    def read_by_two(self, *, since_ms: MonotonicMs, now_ms: MonotonicMs) -> list[MessageQueue]:
        """Return the queues that were taken twice since `since_ms`, the last time recently."""
        return sorted(
            queue
            for queue, taken_at_ms in self._taken_at_ms.items()
            if len(taken_at_ms) == 2
            and taken_at_ms[0] > since_ms
            and taken_at_ms[1] > now_ms - READING_MS_MAX
        )
