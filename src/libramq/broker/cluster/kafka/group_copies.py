"""Group copies: how the coordinator of Kafka's groups replicates each change to the broker that would
coordinate next, what that broker keeps and for how long it is valid, and how long members wait for either.

    a group has changed ─► PEER_GROUPS to its successor ─► acknowledged ─► members hear of it
    another broker coordinates it now ─► PEER_GROUPS to that one
    PEER_GROUPS ─► copies, by the coordinator that sent them ─► this broker becomes the coordinator ─► claimed

Requests to one broker are sequential, and each names its predecessor: after a failure all groups are sent
again. A copy is valid only while its coordinator is heard from and this broker is its successor. A
coordinator that is cut off waits for its successor longer than the successor's copies are valid (`FRESH_MS`),
and gives out nothing meanwhile.

    the cluster is known ─► PEER_HANDOVER to each other broker, until it has none left ─► over
                                                 it has some ─► PEER_GROUPS ─► copies

While this broker was away, another one coordinated its groups. If a group has not arrived here yet, a member
would have to rejoin, and the group on its way would be dropped. So members' requests are answered by
COORDINATOR_LOAD_IN_PROGRESS, as by Kafka's coordinator while it reads its log.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Final, NamedTuple, Protocol, TypeVar

from libramq.broker.cluster.peer_brokers import ANSWER_MS_MAX, PeerBrokers
from libramq.clock import Clock, MonotonicMs
from libramq.errors import LibraError, RequestCodeNotSupported
from libramq.groups.classic.saved_state import SavedClassicGroup
from libramq.groups.cluster_view import ClusterView
from libramq.groups.modern.saved_state import SEPARATOR, SavedEntry
from libramq.groups.protocol_groups import GROUPS_MAX
from libramq.kernel.parts import Kernel
from libramq.logs import get_logger
from libramq.remoting.body.kafka_cluster import PeerGroupsBody, PeerHandoverBody
from libramq.rpc import peer_calls
from libramq.rpc.question import Ask, Question

T = TypeVar("T")

log = get_logger(__name__)

#: Ours: how long copies are valid after a coordinator's last request: four beats. The coordinator waits
#: longer.
FRESH_MS: Final = 2_000
#: Ours: the retry interval of a handover: less than clients pause (retry.backoff.ms).
AGAIN_MS: Final = 50
#: Ours: the interval at which a successor with groups is sent a request, and a failed request is repeated.
BEAT_MS: Final = 500
#: Ours: how long members wait for an unresponsive successor: by then its copies are invalid, even if the last
#: request took half a second to reach it.
WAIT_MS: Final = FRESH_MS + 500
#: Ours: at most this many groups go into one request.
GROUPS_PER_REQUEST: Final = 100
#: Ours: the estimated memory of a request's groups. A request may reach twice this, and base64 adds a third,
#: which is less than a body may have. Larger groups are not replicated: members rejoin at the next
#: coordinator.
COST_BYTES_MAX: Final = 4 * 1024 * 1024
#: Ours: the approximate size of a changed member of a KIP-848 group.
MEMBER_BYTES: Final = 1_000
#: Ours: how long unresponsive brokers are awaited: as long as they try to hand over.
LOAD_MS_MAX: Final = WAIT_MS


class GroupCopy(NamedTuple):
    """A group: classic, or one of KIP-848 by the keys of config/kafkaGroups.json. cost_bytes: estimated."""

    classic: SavedClassicGroup | None = None
    modern: Mapping[str, SavedEntry] = {}
    cost_bytes: int = 0


class _Sender:
    """A coordinator. sequence: that of its last request."""

    def __init__(self) -> None:
        self.sequence = 0
        self.last_request_ms = MonotonicMs(0)
        self.classic: dict[str, SavedClassicGroup] = {}
        self.modern: dict[str, dict[str, SavedEntry]] = {}

    def names(self) -> list[str]:
        return [*self.classic, *self.modern]

    def forget(self, name: str) -> None:
        self.classic.pop(name, None)
        self.modern.pop(name, None)

    def clear(self) -> None:
        self.sequence = 0
        self.classic.clear()
        self.modern.clear()

    def apply(self, body: PeerGroupsBody, room: int) -> None:
        """Apply a request's changes. room: how many groups are kept; each as a whole or not at all."""
        whole = set()
        for key in body.gone:
            name, is_member, _ = key.partition(SEPARATOR)
            if is_member:
                self.modern.get(name, {}).pop(key, None)
            else:
                self.forget(name)
                whole.add(name)
        for name, state in body.classic.items():
            if len(self.classic) + len(self.modern) < room:
                self.classic[name] = state
        for key, entry in body.modern.items():
            name = key.partition(SEPARATOR)[0]
            if name in whole and name not in self.modern and len(self.classic) + len(self.modern) < room:
                self.modern[name] = {}
            if name in self.modern:
                self.modern[name][key] = entry


class GroupCopies:
    """The copies kept by this broker."""

    def __init__(self, view: ClusterView, clock: Clock) -> None:
        self._view = view
        self._clock = clock
        self._senders: dict[str, _Sender] = {}
        self._observers: list[Callable[[], None]] = []
        view.observe(self._brokers_changed)

    def observe(self, observer: Callable[[], None]) -> None:
        """Call a function when copies arrive of groups that this broker already coordinates."""
        self._observers.append(observer)

    def take(self, body: PeerGroupsBody) -> bool:
        """Take a coordinator's changes; return False if it has to send all groups again."""
        sender = self._senders.setdefault(body.broker_name, _Sender())
        now_ms = self._clock.monotonic_ms()
        is_next = bool(body.after) and body.after == sender.sequence and self._is_fresh(sender, now_ms)
        if not is_next:
            sender.clear()
            if body.after:
                return False
        sender.last_request_ms, sender.sequence = now_ms, body.sequence
        others = sum(len(each.names()) for each in self._senders.values() if each is not sender)
        sender.apply(body, GROUPS_MAX - others)
        if self._own(sender.names()):
            for observer in self._observers:
                observer()
        return True

    def claim_classic(self) -> dict[str, SavedClassicGroup]:
        """Return the classic groups that this broker coordinates now, and forget their copies."""
        return self._claim(lambda sender: sender.classic)

    def claim_modern(self) -> dict[str, dict[str, SavedEntry]]:
        """Return the groups of KIP-848 that this broker coordinates now, and forget their copies."""
        return self._claim(lambda sender: sender.modern)

    def _claim(self, groups_of: Callable[[_Sender], dict[str, T]]) -> dict[str, T]:
        found: dict[str, T] = {}
        for sender in self._senders.values():
            groups = groups_of(sender)
            for name in self._own(groups):
                group = groups.pop(name)
                if self._is_fresh(sender, self._clock.monotonic_ms()):
                    found[name] = group
        return found

    def _own(self, names: Iterable[str]) -> list[str]:
        return [name for name in names if self._view.coordinator_of(name) == self._view.own_name]

    def _is_fresh(self, sender: _Sender, now_ms: MonotonicMs) -> bool:
        return now_ms - sender.last_request_ms <= FRESH_MS

    def _brokers_changed(self) -> None:
        """Forget copies of groups for which this broker is neither the coordinator nor the successor."""
        own = self._view.own_name
        for broker_name, sender in self._senders.items():
            for name in sender.names():
                coordinator = self._view.coordinator_of(name)
                is_next = coordinator == broker_name and self._view.successor_of(name) == own
                is_ours = coordinator == own and self._is_fresh(sender, self._clock.monotonic_ms())
                if coordinator is not None and not is_ours and not is_next:
                    sender.forget(name)


class GroupLoad:
    """The loading of groups at one broker that has begun to serve Kafka's clients."""

    def __init__(self, peers: PeerBrokers) -> None:
        self._peers = peers
        #: Brokers that may still have our groups; None until the cluster is known.
        self._awaited: dict[str, None] | None = None
        self._pending: set[str] = set()
        self._until_ms = MonotonicMs(0)
        self._due = peers.deadlines.new(self._ask, "load of groups")

    def begin(self) -> None:
        """Query the other brokers as soon as they are known."""
        self._peers.view.observe(self._brokers_changed)
        self._brokers_changed()

    @property
    def is_under_way(self) -> bool:
        """Return whether other brokers may have groups that this one coordinates."""
        return bool(self._awaited)

    def _brokers_changed(self) -> None:
        view, now_ms = self._peers.view, self._peers.now_ms()
        if self._awaited is not None:
            self._awaited = {name: None for name in self._awaited if name in view.others}
        elif view.is_known:
            self._awaited = dict.fromkeys(view.others)
            self._until_ms = now_ms + LOAD_MS_MAX
            self._due.at(now_ms if self._awaited else None)

    def _ask(self, now_ms: MonotonicMs) -> None:
        """Query the brokers that may have groups; after a while begin without the unresponsive ones."""
        if not self._awaited:
            return
        if now_ms >= self._until_ms:
            log.warning("groups of Kafka's clients may not be handed over", brokers=list(self._awaited))
            self._awaited = {}
            return
        call = peer_calls.ask_handover(PeerHandoverBody(broker_name=self._peers.view.own_name))
        for name in [each for each in self._awaited if each not in self._pending]:
            self._pending.add(name)
            self._peers.ask_broker(name, call, partial(self._answered, name))
        self._due.at(now_ms + AGAIN_MS)

    def _answered(self, name: str, outcome: bool | LibraError) -> None:
        self._pending.discard(name)
        # A broker of an older release does not answer; it hands over when it sees this one.
        if (outcome is True or isinstance(outcome, RequestCodeNotSupported)) and self._awaited is not None:
            self._awaited.pop(name, None)


class ProtocolGroups(Protocol):
    """Groups of one protocol at this broker."""

    def names(self) -> Iterable[str]:
        """Return the names of groups that have, or may have, something to replicate."""

    def copy(self, name: str) -> GroupCopy | None:
        """Return the replicated state of a group, or None if there is none."""


@dataclass(slots=True)
class _Change:
    """The part of a group that its successor does not have yet. entries: None for a removed member.

    is_whole: replaces all earlier state. is_handed_over: the successor already coordinates the group.
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
    """One broker. sequence: that of the last request; after: that of the last one accepted, or 0.

    is_silent: it has not answered for so long that members no longer wait for it.
    """

    sequence: int
    after: int = 0
    pending: dict[str, _Change] = field(default_factory=dict)
    sent: dict[str, _Change] | None = None
    is_silent: bool = False

    def find(self, name: str) -> _Change | None:
        """Return a group's last change not yet acknowledged."""
        return self.pending.get(name) or (self.sent or {}).get(name)

    def take(self) -> dict[str, _Change]:
        """Remove and return the changes for one request."""
        taken: dict[str, _Change] = {}
        cost_bytes = 0
        while self.pending and len(taken) < GROUPS_PER_REQUEST and cost_bytes < COST_BYTES_MAX:
            name = next(iter(self.pending))
            change = taken[name] = self.pending.pop(name)
            cost_bytes += change.cost_bytes
        return taken

    def release(self) -> list[Callable[[], None]]:
        """Remove and return all callbacks that wait for this broker."""
        found: list[Callable[[], None]] = []
        for change in (*(self.sent or {}).values(), *self.pending.values()):
            found += change.waiting
            change.waiting = []
        return found


class GroupSuccessors:
    """Replicates groups to their successors."""

    def __init__(self, broker_name: str, view: ClusterView, kernel: Kernel, ask: Ask) -> None:
        self._name = broker_name
        self._view = view
        self._clock = kernel.clock
        self._ask = ask
        self._sources: list[ProtocolGroups] = []
        self._successors: dict[str, _Successor] = {}
        #: The successor that has each group or is being sent it.
        self._of: dict[str, str] = {}
        self._due = kernel.deadlines.new(self._beat, "successors of groups")
        view.observe(self._brokers_changed)

    def add(self, source: ProtocolGroups) -> None:
        """Replicate the groups of this source."""
        self._sources.append(source)

    def changed(self, name: str, entries: Mapping[str, SavedEntry | None] | None = None) -> None:
        """Replicate a changed group. entries: the changed ones of a KIP-848 group; None: the whole group."""
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
        """Call once the successor has all changes of a group so far, or its copies are no longer valid."""
        successor = self._successors.get(self._of.get(name, ""))
        change = successor.find(name) if successor is not None else None
        if successor is None or change is None or successor.is_silent:
            then()
        else:
            change.waiting.append(then)

    def hand_over(self, name: str) -> bool:
        """Send a broker the groups it now coordinates, if any are pending; return whether it has them all."""
        to = self._successors.get(name)
        if to is None:
            return True
        changes = (*to.pending.values(), *(to.sent or {}).values())
        if to.pending:
            self._send(name)
        return not any(change.is_handed_over for change in changes)

    # Pending changes.

    def _copy(self, name: str) -> GroupCopy | None:
        found = (source.copy(name) for source in self._sources)
        copy = next((each for each in found if each is not None), None)
        return copy if copy is not None and copy.cost_bytes <= COST_BYTES_MAX else None

    def _pass_on(self, name: str, successor: str) -> None:
        """Send a whole group, or its removal."""
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
        """Send a successor its pending changes, unless a request is in flight.

        The first request, also after a failure, is empty, because the receiver may be away.
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
            self._send(name)  # Otherwise the next beat does.

    def _begin_again(self, name: str, to: _Successor, sent: Mapping[str, _Change]) -> None:
        """Queue all groups of a successor again."""
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
                del to.pending[each]  # Only reports a removal; the successor has nothing of the group.

    # Time, and other brokers.

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
                    del to.pending[each]  # The broker has begun without it.
            if name not in in_use and not to.pending and to.sent is None:
                del self._successors[name]
            self._send(name)
        if self._successors:
            self._due.at(now_ms + BEAT_MS)

    def _brokers_changed(self) -> None:
        """Move groups to new successors, and hand over those that another broker coordinates now."""
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
        """Stop replicating a group to a successor; return the callbacks that waited for it."""
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
