"""Presence: over which connection each Kafka member was last heard from, and which are still expected back
after that has ended.

heard ─► its connection ends ─► awaited for a moment ─► its client is back over another connection
                                                    └─► it is taken to be dead
"""

from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Final

from libramq.clock import MonotonicMs
from libramq.kernel.connection import Connection
from libramq.kernel.purgatory import Parked, Purgatory

#: Ours: members that one connection speaks for. Clients have one for each group.
MEMBERS_PER_CONNECTION_MAX: Final = 100

#: A group, and the id of one of its members.
Who = tuple[str, str]
#: A client's name, its host, and its user: nobody is taken for another user's client.
Client = tuple[str, str, str]


@dataclass(eq=False, slots=True)
class _Connection(Parked):
    """A connection of members; parked, so that its end is noticed."""

    members: dict[Who, None] = field(default_factory=dict)


class Presence:
    """The connections of members. lost: called with the members whose connection ended."""

    def __init__(self, purgatory: Purgatory, lost: Callable[[Connection, Collection[Who]], None]) -> None:
        self._purgatory = purgatory
        self._lost = lost
        self._connections: dict[Connection, _Connection] = {}
        self._of: dict[Who, _Connection] = {}
        #: Until when members are awaited, by their client.
        self._awaited: dict[Client, dict[Who, MonotonicMs]] = {}
        #: Each is awaited for the same time, so that the first is due first.
        self._ends: deque[tuple[MonotonicMs, Client, Who]] = deque()

    def __len__(self) -> int:
        return len(self._of)

    def seen(self, connection: Connection, who: Who) -> None:
        """Note a sign of life of a member over a connection."""
        before = self._of.get(who)
        if before is not None:
            if before.connection is connection:
                return
            del before.members[who]
        now = self._connections.get(connection)
        if now is None:
            if not connection.is_open or not self._purgatory.has_room(connection):
                self._of.pop(who, None)
                return
            now = self._connections[connection] = _Connection(connection)
            self._purgatory.park(now, unlink=self._ended)
        now.members[who] = None
        self._of[who] = now
        if len(now.members) > MEMBERS_PER_CONNECTION_MAX:
            self.left(next(iter(now.members)))

    def left(self, who: Who) -> None:
        """Forget a member."""
        connection = self._of.pop(who, None)
        if connection is not None:
            del connection.members[who]

    def wait_for(self, who: Who, client: Client, now_ms: MonotonicMs, until_ms: MonotonicMs) -> None:
        """Await a member's client until then; call in the order of the times."""
        self._give_up(now_ms)
        self._awaited.setdefault(client, {})[who] = until_ms
        self._ends.append((until_ms, client, who))

    def returned(self, client: Client, groups: Collection[str] | None, now_ms: MonotonicMs) -> list[Who]:
        """Return the members that are awaited, and whose client this may be; they are awaited no more.

        groups: those that it may be back for; None: any.
        """
        self._give_up(now_ms)
        awaited = self._awaited.get(client, {})
        wanted = set(groups) if groups is not None else None
        found = [who for who in awaited if wanted is None or who[0] in wanted]
        for who in found:
            self._no_more(client, who)
        return found

    def _give_up(self, now_ms: MonotonicMs) -> None:
        """Await nobody any more whose time is over."""
        while self._ends and self._ends[0][0] < now_ms:
            until_ms, client, who = self._ends.popleft()
            if self._awaited.get(client, {}).get(who) == until_ms:
                self._no_more(client, who)

    def _no_more(self, client: Client, who: Who) -> None:
        awaited = self._awaited[client]
        del awaited[who]
        if not awaited:
            del self._awaited[client]

    def _ended(self, ended: _Connection) -> None:
        del self._connections[ended.connection]
        members = list(ended.members)
        for who in members:
            del self._of[who]
        if members:
            self._lost(ended.connection, members)
