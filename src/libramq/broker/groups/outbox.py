"""The outbox: notices that wait to be sent, each once for a connection and group.

Connections take turns, so one that is a member of a thousand groups does not keep others waiting. A change is
a name in its connection's table and no object of its own: twenty clients with a thousand groups each have
20,000, and the garbage collector stopped the loop to look at them.
"""

from collections import OrderedDict, deque
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Final

from libramq.groups.notice import AreYouThere, GroupChanged, Notice
from libramq.kernel.connection import Connection

#: Ours: changes sent to one connection before the next one's turn, each in 5 µs.
CHANGES_PER_TURN: Final = 32


class Outbox:
    """The waiting notices of all connections."""

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
            return [self._probes.popleft() for _ in range(min(len(self._probes), CHANGES_PER_TURN))]
        peer, groups = self._changed.popitem(last=False)
        taken = list(islice(groups, CHANGES_PER_TURN))
        for group_name in taken:
            del groups[group_name]
        if groups:
            self._changed[peer] = groups  # The last in turn now.
        return [GroupChanged(peer, group_name) for group_name in taken]
