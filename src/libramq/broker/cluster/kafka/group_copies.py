"""Group copies: the groups of Kafka's clients that this broker coordinates next, as their coordinators sent
them, how long such a copy is believed, and how long members are refused after a start until all have come.

    PEER_GROUPS ─► copies, by the coordinator that sent them ─► this broker becomes the coordinator ─► claimed

A copy is believed only while its coordinator is heard, and as long as this broker is next. A coordinator that
is cut off gives out nothing for as long (`group_successors`); then what we have may be old.

    the cluster is known ─► PEER_HANDOVER to each other broker, until it has none left ─► over
                                                 it has some ─► PEER_GROUPS ─► copies

While this broker was away, another one has coordinated its groups. A member of one that is not here yet would
have to join anew, and the group that is on its way would be dropped. So the requests of members are answered
by COORDINATOR_LOAD_IN_PROGRESS, as by Kafka's coordinator while it reads its log.
"""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Final, NamedTuple, TypeVar

from libramq.broker.cluster.peer_brokers import PeerBrokers
from libramq.clock import Clock, MonotonicMs
from libramq.errors import LibraError, RequestCodeNotSupported
from libramq.groups.classic.saved_state import SavedClassicGroup
from libramq.groups.cluster_view import ClusterView
from libramq.groups.modern.saved_state import SEPARATOR, SavedEntry
from libramq.groups.protocol_groups import GROUPS_MAX
from libramq.logs import get_logger
from libramq.remoting.body.kafka_cluster import PeerGroupsBody, PeerHandoverBody
from libramq.rpc import peer_calls

T = TypeVar("T")

#: Ours: how long a coordinator is believed after it was heard last, four times its interval. It waits longer.
FRESH_MS: Final = 2_000
log = get_logger(__name__)

#: Ours: how soon a broker is asked again: less than clients pause (retry.backoff.ms).
AGAIN_MS: Final = 50
#: Ours: how long brokers are awaited that do not answer: as long as they try to hand over
#: (`group_successors.WAIT_MS`).
LOAD_MS_MAX: Final = FRESH_MS + 500


class GroupCopy(NamedTuple):
    """A group: a classic one, or one of KIP-848 as in config/kafkaGroups.json, by key. cost_bytes: about."""

    classic: SavedClassicGroup | None = None
    modern: Mapping[str, SavedEntry] = {}
    cost_bytes: int = 0


class _Sender:
    """A coordinator. sequence: of its last request."""

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
        """Take what has changed. room: how many groups are kept; each is kept as a whole or not at all."""
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
    """The copies of this broker."""

    def __init__(self, view: ClusterView, clock: Clock) -> None:
        self._view = view
        self._clock = clock
        self._senders: dict[str, _Sender] = {}
        self._observers: list[Callable[[], None]] = []
        view.observe(self._brokers_changed)

    def observe(self, observer: Callable[[], None]) -> None:
        """Have a function called when copies came of groups that this broker coordinates already."""
        self._observers.append(observer)

    def take(self, body: PeerGroupsBody) -> bool:
        """Take what has changed in a coordinator's groups; return False if all of them are wanted again."""
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
        """Forget copies of groups of which this broker is neither the coordinator now nor the next one."""
        own = self._view.own_name
        for broker_name, sender in self._senders.items():
            for name in sender.names():
                coordinator = self._view.coordinator_of(name)
                is_next = coordinator == broker_name and self._view.successor_of(name) == own
                is_ours = coordinator == own and self._is_fresh(sender, self._clock.monotonic_ms())
                if coordinator is not None and not is_ours and not is_next:
                    sender.forget(name)


class GroupLoad:
    """The load of one broker, which serves Kafka's clients once it has begun."""

    def __init__(self, peers: PeerBrokers) -> None:
        self._peers = peers
        #: The brokers that may have groups of ours; None: the cluster is not known yet.
        self._awaited: dict[str, None] | None = None
        self._asked: set[str] = set()
        self._until_ms = MonotonicMs(0)
        self._due = peers.deadlines.new(self._ask, "load of groups")

    def begin(self) -> None:
        """Ask the other brokers, as soon as they are known."""
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
        """Ask those that may have groups; after a while this broker begins without these."""
        if not self._awaited:
            return
        if now_ms >= self._until_ms:
            log.warning("groups of Kafka's clients may not be handed over", brokers=list(self._awaited))
            self._awaited = {}
            return
        call = peer_calls.ask_handover(PeerHandoverBody(broker_name=self._peers.view.own_name))
        for name in [each for each in self._awaited if each not in self._asked]:
            self._asked.add(name)
            self._peers.ask_broker(name, call, partial(self._answered, name))
        self._due.at(now_ms + AGAIN_MS)

    def _answered(self, name: str, outcome: bool | LibraError) -> None:
        self._asked.discard(name)
        # A broker of an older release hands over when it sees this one, and does not answer.
        if (outcome is True or isinstance(outcome, RequestCodeNotSupported)) and self._awaited is not None:
            self._awaited.pop(name, None)
