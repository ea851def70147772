"""The observed group: who reads which queue of a classic group of Kafka's, and when its rebalance counts as
settled.

    a member joins          it reads on what it says it owns; its other queues have stopped
    a member is gone        its queues have stopped, at its last sign of life
    a member has synced     it reads its share, and nothing else
    all queues are read, or nothing has moved for a while      the rebalance has settled

Members read over connections that do not name them. So a queue's pause is what the coordinator sees of it,
without a member's own time, and what was delivered twice is unknown.
"""

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Final

from libramq.clock import MonotonicMs, Now
from libramq.groups.rebalance_event import EventWriter, Reason, RebalanceEvent
from libramq.groups.unsettled import Move, minimum_moves
from libramq.message.queue import MessageQueue

#: Ours: cooperative members that give up queues join again at their next poll, seldom later than this.
QUIET_MS: Final = 3_000


@dataclass(slots=True)
class _Reader:
    """The last reader of a queue. stopped_ms: when it stopped; None: it reads."""

    name: str
    stopped_ms: MonotonicMs | None = None


@dataclass(slots=True)
class _Rebalance:
    """A rebalance under way. stopped_ms: when queues stopped first; resumed_ms: when they were read last."""

    started_ms: MonotonicMs
    changed_ms: MonotonicMs
    before: dict[MessageQueue, str]
    stopped_ms: dict[MessageQueue, MonotonicMs] = field(default_factory=dict)
    resumed_ms: dict[MessageQueue, MonotonicMs] = field(default_factory=dict)
    worst_pause_ms: int = 0


class ObservedGroup:
    """One group's readers and its rebalance; members have names: of an instance, or a member's id."""

    def __init__(self, group: str) -> None:
        self._write = EventWriter(group)
        self._readers: dict[MessageQueue, _Reader] = {}
        #: The queues of each name, in the order in which it got them: a group may have a thousand members.
        self._queues: dict[str, dict[MessageQueue, None]] = {}
        self._rebalance: _Rebalance | None = None

    def __len__(self) -> int:
        return len(self._readers)

    @property
    def is_settled(self) -> bool:
        """Return whether no rebalance is under way."""
        return self._rebalance is None

    @property
    def quiet_at_ms(self) -> MonotonicMs | None:
        """Return when a rebalance settles although queues are without a reader."""
        return self._rebalance.changed_ms + QUIET_MS if self._rebalance is not None else None

    def queues(self, name: str) -> list[MessageQueue]:
        """Return the queues that a member reads, or read last."""
        return list(self._queues.get(name, ()))

    def begin(self, now_ms: MonotonicMs) -> None:
        """Begin a rebalance, unless one is under way."""
        if self._rebalance is None:
            before = {queue: reader.name for queue, reader in self._readers.items()}
            self._rebalance = _Rebalance(now_ms, now_ms, before)

    def started(
        self, reason: Reason, who: str | None, members: Collection[str], generation: int, now: Now
    ) -> RebalanceEvent:
        """Return the event of a change that began a rebalance, or came into one."""
        self._write.epoch = generation
        return self._write.started(reason, who, members, now)

    def reads_only(self, name: str, queues: Collection[MessageQueue], at_ms: MonotonicMs) -> None:
        """Note that a member has stopped to read its queues, except for these."""
        for queue in self._queues.get(name, ()):
            reader = self._readers[queue]
            if queue not in queues and reader.stopped_ms is None:
                reader.stopped_ms = at_ms
                if self._rebalance is not None:
                    self._rebalance.stopped_ms.setdefault(queue, at_ms)

    def reads_on(self, name: str) -> None:
        """Note that a member which seemed lost has read its queues all the time."""
        for queue in self._queues.get(name, ()):
            self._readers[queue].stopped_ms = None
            if self._rebalance is not None:
                self._rebalance.stopped_ms.pop(queue, None)

    def assigned(self, name: str, queues: Collection[MessageQueue], now_ms: MonotonicMs) -> None:
        """Note that a member has its share: it reads these queues, and no others."""
        self.reads_only(name, queues, now_ms)
        for queue in queues:
            reader = self._readers.get(queue)
            if reader is not None and reader.name == name and reader.stopped_ms is None:
                continue
            self._put(queue, _Reader(name))
            if self._rebalance is not None:
                self._resumed(self._rebalance, queue, reader, now_ms)

    def _put(self, queue: MessageQueue, reader: _Reader) -> None:
        self._remove(queue)
        self._readers[queue] = reader
        self._queues.setdefault(reader.name, {})[queue] = None

    def _remove(self, queue: MessageQueue) -> None:
        former = self._readers.pop(queue, None)
        if former is None:
            return
        queues = self._queues[former.name]
        del queues[queue]
        if not queues:
            del self._queues[former.name]

    def _resumed(
        self, rebalance: _Rebalance, queue: MessageQueue, former: _Reader | None, now_ms: MonotonicMs
    ) -> None:
        rebalance.changed_ms = now_ms
        rebalance.resumed_ms[queue] = now_ms
        if former is not None:
            stopped_ms = now_ms if former.stopped_ms is None else former.stopped_ms
            rebalance.stopped_ms.setdefault(queue, stopped_ms)
            rebalance.worst_pause_ms = max(rebalance.worst_pause_ms, now_ms - stopped_ms)

    def settle(
        self, members: Collection[str], wanted: Iterable[MessageQueue], generation: int, now: Now
    ) -> list[RebalanceEvent]:
        """Return the last events of a rebalance if it has settled; call once all members have synced.

        wanted: the queues that the group should read; none if it has no members.
        """
        rebalance = self._rebalance
        if rebalance is None:
            return []
        wanted = set(wanted)
        owned = {
            queue: reader.name
            for queue, reader in self._readers.items()
            if reader.stopped_ms is None and reader.name in members and queue in wanted
        }
        is_quiet = now.monotonic_ms - rebalance.changed_ms >= QUIET_MS
        if len(owned) < len(wanted) and not is_quiet:
            return []
        self._rebalance = None
        self._write.epoch = generation
        for queue in [each for each in self._readers if not members or each not in wanted]:
            self._remove(queue)
        return self._settled(rebalance, owned, members, len(wanted), now)

    def _settled(
        self,
        rebalance: _Rebalance,
        owned: dict[MessageQueue, str],
        members: Collection[str],
        wanted_count: int,
        now: Now,
    ) -> list[RebalanceEvent]:
        moves = [
            Move(
                from_=rebalance.before.get(queue),
                to=name,
                stopped_ms=rebalance.stopped_ms.get(queue),
                resumed_ms=rebalance.resumed_ms[queue],
                redelivered=None if queue in rebalance.before else 0,
            ).record(queue, None, now)
            for queue, name in sorted(owned.items())
            if rebalance.before.get(queue) != name
        ]
        loads = Counter(dict.fromkeys(members, 0))
        loads.update(owned.values())
        before = {queue: name for queue, name in rebalance.before.items() if queue in owned}
        last_ms = max(rebalance.resumed_ms.values(), default=rebalance.changed_ms)
        return self._write.settled(
            moves,
            members,
            loads,
            now,
            minimum=minimum_moves(before, loads),
            time_to_stable_ms=max(0, last_ms - rebalance.started_ms),
            worst_pause_ms=rebalance.worst_pause_ms,
            redelivered_upper_bound=None if any(move.from_ for move in moves) else 0,
            unowned=wanted_count - len(owned),
        )
