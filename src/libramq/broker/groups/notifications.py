"""The notifications: members are notified of a change of their group until they have fetched the list.

Those to notify now are in the outbox, which is sent as long work.
Upstream sends one, and a lost one costs 20 s (DefaultConsumerIdsChangeListener.java).
"""

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice

from libramq.clock import Clock, MonotonicMs
from libramq.groups.consumer_group import ConsumerGroup
from libramq.groups.pending_notifications import (
    REPEAT_MS,
    AreYouThere,
    GroupChanged,
    Notice,
    PendingNotifications,
)
from libramq.kernel.connection import Connection
from libramq.kernel.work import PORTION


class Notifications:
    """The pending notifications of all groups with members here.

    unfinished: groups with members that may have to be notified again. are_repeated: `repeat` is under way.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._pending: dict[str, PendingNotifications[Connection]] = {}
        #: Called when somebody is to be notified, now or later.
        self.wake: Callable[[], None] = lambda: None
        self.unfinished: set[str] = set()
        self.outbox = Outbox()
        self.are_repeated = False

    def changed(self, group: ConsumerGroup[Connection], *, wait_ms: int = 0) -> None:
        """Notify members of a group's change now; the others are due within wait_ms.

        wait_ms: notified any sooner, they would be refused the locks of the one that is gone, and Java's
        client retries a second later. Longer waits than that bring nothing.
        """
        wait_ms = wait_ms if wait_ms <= REPEAT_MS else 0
        pending = self._pending.setdefault(group.name, PendingNotifications())
        peers = pending.changed(group.members, now_ms=self._clock.monotonic_ms(), wait_ms=wait_ms)
        self.unfinished.add(group.name)
        self.outbox.change(group.name, peers)
        self.wake()

    def again(self, group: ConsumerGroup[Connection], clients: Mapping[str, int]) -> None:
        """Notify clients again, each after its delay in milliseconds."""
        pending = self._pending.get(group.name)
        if not clients or pending is None:
            return
        for peer, member in group.members.items():
            wait_ms = clients.get(member.client_id)
            if wait_ms is not None:
                pending.again(peer, now_ms=self._clock.monotonic_ms(), wait_ms=wait_ms)
                self.unfinished.add(group.name)
                self.wake()

    def looked(self, group: ConsumerGroup[Connection], peer: Connection, *, concerns_others: bool) -> None:
        """Note that a member has fetched the list; concerns_others: its way of doing so is news to them."""
        pending = self._pending.get(group.name)
        if pending is None:
            return
        now_ms = self._clock.monotonic_ms()
        if concerns_others:
            pending.changed(group.members, now_ms=now_ms, wait_ms=1)
            self.unfinished.add(group.name)
            self.wake()
        pending.fetched(peer, now_ms=now_ms)

    def looked_at_ms(self, group_name: str) -> MonotonicMs | None:
        """Return when the last member fetched the latest change (monotonic); None while one has not."""
        pending = self._pending.get(group_name)
        return pending.looked_at_ms if pending is not None else None

    def repeat(self, allocates: Callable[[str], bool]) -> Iterator[None]:
        """Notify again those that are due; yields where others may be served.

        allocates: whether a group's members look at all.
        """
        self.are_repeated = True
        try:
            for name in sorted(self.unfinished):
                pending = self._pending.get(name)
                if name not in self.unfinished or pending is None:
                    continue
                if not allocates(name):
                    self.unfinished.discard(name)
                    continue
                self.outbox.change(name, pending.due(now_ms=self._clock.monotonic_ms()))
                if pending.is_current:
                    self.unfinished.discard(name)
                self.wake()
                yield
        finally:
            self.are_repeated = False
            self.wake()

    def forget(self, group_name: str) -> None:
        """Remove a group without members here."""
        self._pending.pop(group_name, None)
        self.unfinished.discard(group_name)


class Outbox:
    """The notices that wait to be sent, each once for a connection and group.

    Connections take turns, so one that is a member of a thousand groups does not keep others waiting. A
    change is a name in its connection's table and no object of its own: twenty clients with a thousand groups
    each have 20,000, and the garbage collector stopped the loop to look at them.
    """

    def __init__(self) -> None:
        self._probes: deque[AreYouThere[Connection]] = deque()
        #: Ordered, because the first of a dict from whose front many were removed is found slowly.
        self._changed: OrderedDict[Connection, dict[str, None]] = OrderedDict()

    def __bool__(self) -> bool:
        return bool(self._probes or self._changed)

    def probe(self, probes: Iterable[AreYouThere[Connection]]) -> None:
        """Add probes, which are sent before all changes."""
        self._probes.extend(probes)

    def change(self, group_name: str, peers: Iterable[Connection]) -> None:
        """Add a change of a group for some of its members."""
        for peer in peers:
            self._changed.setdefault(peer, {})[group_name] = None

    def take(self) -> Sequence[Notice[Connection]]:
        """Take out the next notices: probes, or changes for the connection whose turn it is."""
        if self._probes:
            return [self._probes.popleft() for _ in range(min(len(self._probes), PORTION))]
        peer, groups = self._changed.popitem(last=False)
        taken = list(islice(groups, PORTION))
        for group_name in taken:
            del groups[group_name]
        if groups:
            self._changed[peer] = groups  # The last in turn now.
        return [GroupChanged(peer, group_name) for group_name in taken]
