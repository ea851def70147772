"""The successors: how a coordinator of Kafka's groups passes each change on to the broker that coordinates
next, and how long members wait for that.

    a group has changed ─► PEER_GROUPS to its successor ─► acknowledged ─► members hear of it
    another broker coordinates it now ─► PEER_GROUPS to that one

Requests to one broker follow each other, and each names the one before: after a failure all groups are sent
again. One that does not answer is waited for longer than it believes what it has (`group_copies.FRESH_MS`).
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Final, Protocol

from libramq.broker.cluster.kafka.group_copies import FRESH_MS, GroupCopy
from libramq.broker.cluster.peer_brokers import ANSWER_MS_MAX
from libramq.clock import MonotonicMs
from libramq.errors import LibraError
from libramq.groups.classic.saved_state import SavedClassicGroup
from libramq.groups.cluster_view import ClusterView
from libramq.groups.modern.saved_state import SavedEntry
from libramq.kernel.parts import Kernel
from libramq.remoting.body.kafka_cluster import PeerGroupsBody
from libramq.rpc import peer_calls
from libramq.rpc.question import Ask, Question

#: Ours: how often a successor with groups hears of us, and how soon one that failed is tried again.
BEAT_MS: Final = 500
#: Ours: how long members wait for a successor that does not answer: its copies are too old by then, also if
#: the last request took half a second to it.
WAIT_MS: Final = FRESH_MS + 500
#: Ours: groups in one request, and their memory. It may be twice this and base64 adds a third, which is less
#: than a body may have. A group that takes more is not passed on: its members join the next coordinator anew.
GROUPS_PER_REQUEST: Final = 100
COST_BYTES_MAX: Final = 4 * 1024 * 1024
#: Ours: about what a changed member of a group of KIP-848 takes.
MEMBER_BYTES: Final = 1_000


class Source(Protocol):
    """Groups of one protocol at this broker."""

    def names(self) -> Iterable[str]:
        """Return the names of those that have something to pass on, or may have."""

    def copy(self, name: str) -> GroupCopy | None:
        """Return what is passed on of a group; None if there is nothing."""


@dataclass(slots=True)
class _Change:
    """The part of a group that its successor does not have yet. entries: None: a member is gone.

    is_whole: what it got before is void. is_handed_over: the successor coordinates the group already.
    """

    since_ms: MonotonicMs
    is_whole: bool
    classic: SavedClassicGroup | None = None
    entries: dict[str, SavedEntry | None] = field(default_factory=dict)
    is_handed_over: bool = False
    cost_bytes: int = 0
    waiting: list[Callable[[], None]] = field(default_factory=list)


@dataclass(slots=True)
class _Successor:
    """One broker. sequence: of the last request; after: of the last one that it has taken, 0: of none.

    is_silent: it has not answered for so long that nobody waits for it.
    """

    sequence: int
    after: int = 0
    pending: dict[str, _Change] = field(default_factory=dict)
    sent: dict[str, _Change] | None = None
    is_silent: bool = False

    def find(self, name: str) -> _Change | None:
        """Return the last change of a group that it has not acknowledged."""
        return self.pending.get(name) or (self.sent or {}).get(name)

    def take(self) -> dict[str, _Change]:
        """Remove and return what goes into one request."""
        taken: dict[str, _Change] = {}
        cost_bytes = 0
        while self.pending and len(taken) < GROUPS_PER_REQUEST and cost_bytes < COST_BYTES_MAX:
            name = next(iter(self.pending))
            change = taken[name] = self.pending.pop(name)
            cost_bytes += change.cost_bytes
        return taken

    def release(self) -> list[Callable[[], None]]:
        """Return what waits for it, which waits no more."""
        found: list[Callable[[], None]] = []
        for change in (*(self.sent or {}).values(), *self.pending.values()):
            found += change.waiting
            change.waiting = []
        return found


class GroupSuccessors:
    """Passes groups on."""

    def __init__(self, broker_name: str, view: ClusterView, kernel: Kernel, ask: Ask) -> None:
        self._name = broker_name
        self._view = view
        self._clock = kernel.clock
        self._ask = ask
        self._sources: list[Source] = []
        self._successors: dict[str, _Successor] = {}
        #: The successor that has a group, or gets it.
        self._of: dict[str, str] = {}
        self._due = kernel.deadlines.new(self._beat, "successors of groups")
        view.observe(self._brokers_changed)

    def add(self, source: Source) -> None:
        """Pass on these groups."""
        self._sources.append(source)

    def changed(self, name: str, entries: Mapping[str, SavedEntry | None] | None = None) -> None:
        """Pass on a group that has changed. entries: of one of KIP-848; None: all of it."""
        if not self._view.others or self._view.coordinator_of(name) != self._name:
            return
        successor = self._view.successor_of(name)
        if successor is None:
            return
        known = self._of.get(name) == successor
        if entries is None or not known:
            self._pass_on(name, successor)
            return
        change = self._pending(successor, name, is_whole=False)
        change.entries.update(entries)
        change.cost_bytes += MEMBER_BYTES * len(entries)
        self._send(successor)

    def when_held(self, name: str, then: Callable[[], None]) -> None:
        """Call when the successor has all changes of a group so far, or believes none of what it has."""
        successor = self._successors.get(self._of.get(name, ""))
        change = successor.find(name) if successor is not None else None
        if successor is None or change is None or successor.is_silent:
            then()
        else:
            change.waiting.append(then)

    def hand_over(self, name: str) -> bool:
        """Send a broker the groups that it coordinates now, if that waits; return whether it has them all."""
        to = self._successors.get(name)
        if to is None:
            return True
        changes = (*to.pending.values(), *(to.sent or {}).values())
        if to.pending:
            self._send(name)
        return not any(change.is_handed_over for change in changes)

    # What is to be sent.

    def _copy(self, name: str) -> GroupCopy | None:
        found = (source.copy(name) for source in self._sources)
        copy = next((each for each in found if each is not None), None)
        return copy if copy is not None and copy.cost_bytes <= COST_BYTES_MAX else None

    def _pass_on(self, name: str, successor: str) -> None:
        """Send a whole group, or that it is gone."""
        copy = self._copy(name)
        if copy is None and self._of.get(name) != successor:
            self._of.pop(name, None)
            return
        self._put(name, successor, copy or GroupCopy())
        if copy is None:
            del self._of[name]
        else:
            self._of[name] = successor
        self._send(successor)

    def _put(self, name: str, successor: str, copy: GroupCopy, *, is_handed_over: bool = False) -> None:
        change = self._pending(successor, name, is_whole=True)
        change.is_whole, change.is_handed_over = True, is_handed_over
        change.classic, change.entries, change.cost_bytes = copy.classic, dict(copy.modern), copy.cost_bytes

    def _pending(self, successor: str, name: str, *, is_whole: bool) -> _Change:
        to = self._successors.get(successor)
        if to is None:
            now = self._clock.wall_ms()
            to = self._successors[successor] = _Successor(sequence=int(now))
            self._due.by(self._clock.monotonic_ms() + BEAT_MS)
        change = to.pending.get(name)
        if change is None:
            change = to.pending[name] = _Change(self._clock.monotonic_ms(), is_whole)
        return change

    # Requests.

    def _send(self, name: str) -> None:
        """Send a successor what it has to get, unless a request is under way.

        The first one, also after a failure, has nothing: the receiver may be away.
        """
        to, address = self._successors.get(name), self._view.others.get(name)
        if to is None or address is None or to.sent is not None:
            return
        to.sent = to.take() if to.after else {}
        to.sequence += 1
        entries = [item for change in to.sent.values() for item in change.entries.items()]
        body = PeerGroupsBody(
            broker_name=self._name,
            sequence=to.sequence,
            after=to.after,
            gone=[each for each, change in to.sent.items() if change.is_whole]
            + [key for key, entry in entries if entry is None],
            classic={each: change.classic for each, change in to.sent.items() if change.classic is not None},
            modern={key: entry for key, entry in entries if entry is not None},
        )
        call = peer_calls.pass_on_groups(body)
        self._ask(Question(address, call, partial(self._answered, name, to), ANSWER_MS_MAX))

    def _answered(self, name: str, to: _Successor, outcome: bool | LibraError) -> None:
        sent, to.sent = to.sent or {}, None
        if self._successors.get(name) is not to:
            return
        if outcome is True:
            to.after, to.is_silent = to.sequence, False
            for change in sent.values():
                _call(change.waiting)
            if to.pending:
                self._send(name)
            return
        self._begin_again(name, to, sent)
        if outcome is False:
            self._send(name)  # Otherwise with the next beat.

    def _begin_again(self, name: str, to: _Successor, sent: Mapping[str, _Change]) -> None:
        """Have all groups sent again that a successor should have."""
        to.after = 0
        for each, change in sent.items():
            later = to.pending.get(each)
            if later is None:
                to.pending[each] = change
            else:
                later.since_ms, later.waiting = change.since_ms, change.waiting + later.waiting
                later.is_handed_over |= change.is_handed_over
        for each in [each for each, successor in self._of.items() if successor == name]:
            copy = self._copy(each)
            if copy is not None:
                self._put(each, name, copy)
            else:
                del self._of[each]
        for each, change in list(to.pending.items()):
            if self._of.get(each) != name and not change.is_handed_over and not change.waiting:
                del to.pending[each]  # It says only that the group is gone, of which nothing is there.

    # The time, and other brokers.

    def _beat(self, now_ms: MonotonicMs) -> None:
        in_use = set(self._of.values())
        for name, to in list(self._successors.items()):
            changes = (*to.pending.values(), *(to.sent or {}).values())
            if any(change.waiting and now_ms - change.since_ms >= WAIT_MS for change in changes):
                to.is_silent = True
            if to.is_silent:
                _call(to.release())
            for each, change in list(to.pending.items()):
                if change.is_handed_over and now_ms - change.since_ms >= WAIT_MS:
                    del to.pending[each]  # That broker has begun without it.
            if name not in in_use and not to.pending and to.sent is None:
                del self._successors[name]
            self._send(name)
        if self._successors:
            self._due.at(now_ms + BEAT_MS)

    def _brokers_changed(self) -> None:
        """Pass groups on to other successors, and those that another broker coordinates now to that one."""
        released: list[Callable[[], None]] = []
        here = (each for source in self._sources for each in source.names())
        for name in dict.fromkeys((*self._of, *here)):
            coordinator, successor = self._view.coordinator_of(name), self._view.successor_of(name)
            is_ours = coordinator in (None, self._name)
            before = self._of.get(name)
            if is_ours and successor == before:
                continue
            waiting = self._withdraw(name, before)
            if not is_ours and coordinator is not None:
                copy = self._copy(name)
                if copy is not None:
                    self._put(name, coordinator, copy, is_handed_over=True)
                    self._send(coordinator)
            elif successor is not None:
                self._pass_on(name, successor)
                change = self._successors[successor].find(name) if self._of.get(name) == successor else None
                if change is not None:
                    change.waiting += waiting
                    continue
            released += waiting
        for name in sorted(self._successors.keys() - self._view.others.keys()):
            released += self._successors.pop(name).release()
        _call(released)

    def _withdraw(self, name: str, successor: str | None) -> list[Callable[[], None]]:
        """Pass a group on to a successor no more; return what waited for that."""
        self._of.pop(name, None)
        to = self._successors.get(successor or "")
        if to is None:
            return []
        waiting: list[Callable[[], None]] = []
        for change in (to.pending.pop(name, None), (to.sent or {}).get(name)):
            if change is not None:
                waiting += change.waiting
                change.waiting = []
        return waiting


def _call(waiting: Iterable[Callable[[], None]]) -> None:
    for then in waiting:
        then()
