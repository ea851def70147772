"""Group copies: the groups of Kafka's clients that this broker coordinates next, as their coordinators sent
them, and for how long such a copy is believed.

    PEER_GROUPS ─► copies, by the coordinator that sent them ─► this broker becomes the coordinator ─► claimed

A copy is believed only while its coordinator is heard, and as long as this broker is next. A coordinator that
is cut off gives out nothing for as long (`group_successors`); then what we have may be old.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple, TypeVar

from libramq.clock import Clock, MonotonicMs
from libramq.groups.classic.saved_state import SavedClassicGroup
from libramq.groups.cluster_view import ClusterView
from libramq.groups.modern.saved_state import SEPARATOR, SavedEntry
from libramq.groups.protocol_groups import GROUPS_MAX
from libramq.remoting.body.kafka_cluster import PeerGroupsBody

T = TypeVar("T")

#: Ours: how long a coordinator is believed after it was heard last, four times its interval. It waits longer.
FRESH_MS: Final = 2_000


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
