"""The outbox: notices that wait to be sent, each once for a connection and group.

Connections take turns, so one that is a member of a thousand groups does not keep others waiting. A change is
a name in its connection's table and no object of its own: twenty clients with a thousand groups each have
20,000, and the garbage collector stopped the loop to look at them.
"""

from collections import deque
from collections.abc import Iterable
from itertools import islice
from typing import Final

from libramq.groups.notice import AreYouThere, GroupChanged, Notice
from libramq.kernel.connection import Connection

#: Ours: changes sent to one connection before the next one's turn.
CHANGES_PER_TURN: Final = 32


class Outbox:
    """The waiting notices of all connections."""

    def __init__(self) -> None:
        self._probes: deque[AreYouThere[Connection]] = deque()
        self._changed: dict[Connection, dict[str, None]] = {}

    def __bool__(self) -> bool:
        return bool(self._probes or self._changed)

    def probe(self, probes: Iterable[AreYouThere[Connection]]) -> None:
        """Add probes, which are sent before all changes."""
        self._probes.extend(probes)

    def change(self, group_name: str, peers: Iterable[Connection]) -> None:
        """Add a change of a group for some of its members."""
        for peer in peers:
            self._changed.setdefault(peer, {})[group_name] = None

    def take(self, count: int) -> list[Notice[Connection]]:
        """Take out some notices, at most so many."""
        taken: list[Notice[Connection]] = []
        while self._probes and len(taken) < count:
            taken.append(self._probes.popleft())
        while self._changed and len(taken) < count:
            peer = next(iter(self._changed))
            groups = self._changed.pop(peer)
            for group_name in list(islice(groups, min(CHANGES_PER_TURN, count - len(taken)))):
                del groups[group_name]
                taken.append(GroupChanged(peer, group_name))
            if groups:
                self._changed[peer] = groups  # The last in turn now.
        return taken
