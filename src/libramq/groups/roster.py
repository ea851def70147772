"""The roster: the members of groups by the broker (edge) each is connected to, and the member lists that
coordinators publish.

        edges        the members connected to each broker, including this one, as that broker reports them
        list         the members of a group across all edges, as its coordinator sends them to its edges
        published    the lists that this broker has sent as a coordinator, and the edges that have them

Stock clients send heartbeats only to brokers that hold their topics, so no broker knows them all. A group
with members at only one edge needs no list, because that edge knows them. While a coordinator is unreachable,
its last list stays valid.
"""

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Self

from libramq.clock import MonotonicMs
from libramq.formats.document import Document


class EdgeMember(Document, frozen=True, kw_only=True):
    """A client connected to an edge. stock: it uses no coordinator.

    topics: a stock client's, sorted. allocates: it has fetched the member list there, to allocate for itself.
    """

    client_id: str
    stock: bool = True
    topics: tuple[str, ...] = ()
    allocates: bool = False


class ServerAssignedMembers(NamedTuple):
    """The members of a group whose queues a broker assigns.

    version: changes with every change of members or subscriptions. topics: each member's, by client id.
    allocates: whether a member allocates for itself.
    """

    version: Hashable
    topics: Mapping[str, frozenset[str]]
    allocates: bool

    @classmethod
    def of(cls, version: Hashable, members: Iterable[tuple[str, Iterable[str]]], *, allocates: bool) -> Self:
        """Build the value from client ids with their topics; a repeated id gets all its topics."""
        topics: dict[str, frozenset[str]] = {}
        for client_id, wanted in members:
            topics[client_id] = topics.get(client_id, frozenset()).union(wanted)
        return cls(version, topics, allocates)


class MemberList(NamedTuple):
    """A coordinator's list of one group. Without client ids: all members are here, and no list is needed.

    version: grows with each list of one coordinator.
    """

    broker_name: str
    version: int
    client_ids: Sequence[str]


@dataclass(frozen=True, slots=True)
class Publication:
    """A list to be sent to edges. Without client ids: the list is withdrawn."""

    group: str
    client_ids: Sequence[str]
    edges: Sequence[str]


@dataclass(slots=True)
class _Edge:
    """One broker. masters: the brokers it last knew. is_whole: it has reported all its groups."""

    seen_at_ms: MonotonicMs
    masters: Sequence[str] = ()
    is_whole: bool = False
    groups: dict[str, tuple[EdgeMember, ...]] = field(default_factory=dict)


class Roster:
    """Members by group and source. Methods that change an edge return the groups affected."""

    def __init__(self) -> None:
        self._edges: dict[str, _Edge] = {}
        self._lists: dict[str, MemberList] = {}
        self._published: dict[str, tuple[Sequence[str], frozenset[str]]] = {}
        self._listed_elsewhere: dict[str, set[str]] = {}
        self._server_assigned: dict[str, ServerAssignedMembers] = {}
        self._version = 0

    # Reports of edges.

    def edge_reported(self, edge: str, masters: Sequence[str], *, now_ms: MonotonicMs) -> bool:
        """Note a report of an edge; return whether it had already reported all its groups."""
        known = self._edges.setdefault(edge, _Edge(now_ms))
        known.seen_at_ms, known.masters = now_ms, masters
        return known.is_whole

    def report(self, edge: str, groups: Mapping[str, Sequence[EdgeMember]], *, complete: bool) -> list[str]:
        """Take an edge's members of these groups; complete: it has no other groups coordinated here."""
        known = self._edges[edge]
        reported = {group: tuple(members) for group, members in groups.items()}
        if complete:
            known.is_whole = True
            reported = dict.fromkeys(known.groups, ()) | reported
        # An empty group also counts as changed if it was unknown.
        changed = [group for group, members in reported.items() if known.groups.get(group) != members]
        for group in changed:
            self._server_assigned.pop(group, None)
            if reported[group]:
                known.groups[group] = reported[group]
            else:
                known.groups.pop(group, None)
        return changed

    def forget_edge(self, edge: str) -> list[str]:
        """Remove an edge that has left."""
        known = self._edges.pop(edge, None)
        changed = list(known.groups) if known is not None else []
        for group in changed:
            self._server_assigned.pop(group, None)
        return changed

    def edges(self) -> list[str]:
        """Return all edges that have reported."""
        return list(self._edges)

    def groups(self) -> list[str]:
        """Return all groups that have members at an edge."""
        return list(dict.fromkeys(group for edge in self._edges.values() for group in edge.groups))

    def stalled(self, stall_ms: int, now_ms: MonotonicMs) -> None:
        """Extend the edges' deadlines by the time in which this process was stalled."""
        for edge in self._edges.values():
            edge.seen_at_ms = min(now_ms, edge.seen_at_ms + stall_ms)

    def silent_edges(self, *, since_ms: MonotonicMs) -> list[str]:
        """Return the edges that have been silent since `since_ms`."""
        return [name for name, edge in self._edges.items() if edge.seen_at_ms < since_ms]

    def agrees(self, edge: str, masters: Sequence[str]) -> bool:
        """Return whether an edge knows exactly these brokers, and has reported all its groups."""
        known = self._edges.get(edge)
        return known is not None and known.is_whole and list(known.masters) == list(masters)

    # Members of a group, across all edges.

    def client_ids(self, group: str) -> list[str]:
        """Return all members of a group, sorted, without duplicates."""
        return sorted({member.client_id for member in self._members(group)})

    def stock(self, group: str) -> list[str]:
        """Return the members that allocate for themselves."""
        return sorted({member.client_id for member in self._members(group) if member.stock})

    def server_assigned(self, group: str) -> ServerAssignedMembers | None:
        """Return the members of a group in the form the assigner needs; None if there are none."""
        known = self._server_assigned.get(group)
        members = self._members(group) if known is None else ()
        if members:
            self._version += 1
            known = self._server_assigned[group] = ServerAssignedMembers.of(
                ("edges", self._version),
                ((member.client_id, member.topics) for member in members),
                # LibraMQ's clients do so beside stock ones, even before they fetch from a new broker.
                allocates=any(member.allocates or not member.stock for member in members),
            )
        return known

    def _members(self, group: str) -> list[EdgeMember]:
        return [member for edge in self._edges.values() for member in edge.groups.get(group, ())]

    # Lists that this broker publishes, as the coordinator of groups.

    def listed_elsewhere(self, edge: str, group: str) -> None:
        """Note that an edge has another coordinator's list."""
        self._listed_elsewhere.setdefault(group, set()).add(edge)

    def publish(self, group: str) -> Publication | None:
        """Return the group's list if any edge needs it.

        A group with members at several edges has its list at each of these edges. An edge with an obsolete
        list, from this or another coordinator, is sent the new one or its withdrawal.
        """
        edges = frozenset(name for name, edge in self._edges.items() if group in edge.groups)
        wanted = (self.client_ids(group), edges) if len(edges) > 1 else None
        known = self._published.get(group)
        elsewhere = self._listed_elsewhere.pop(group, set())
        if wanted == known and not elsewhere:
            return None
        if wanted is not None:
            self._published[group] = wanted
        else:
            self._published.pop(group, None)
        informed = known[1] if known is not None else frozenset()
        client_ids, edges = wanted if wanted is not None else ([], frozenset())
        to = sorted(informed | elsewhere | edges)
        return Publication(group, client_ids, to) if to else None

    def published_to(self, edge: str) -> list[tuple[str, Sequence[str]]]:
        """Return the groups whose lists an edge has, with the lists."""
        return [(group, ids) for group, (ids, edges) in self._published.items() if edge in edges]

    def forget_published(self, lives_here: Callable[[str], bool]) -> None:
        """Drop the lists of groups that are now coordinated elsewhere."""
        self._published = {group: known for group, known in self._published.items() if lives_here(group)}
        self._listed_elsewhere = {
            group: edges for group, edges in self._listed_elsewhere.items() if lives_here(group)
        }

    # Lists that this broker has received, as an edge.

    def listed(self, group: str) -> Sequence[str] | None:
        """Return the client ids in a group's list; None if all members are here."""
        known = self._lists.get(group)
        return known.client_ids if known is not None else None

    def listed_by_others(self, broker_name: str) -> list[str]:
        """Return the groups whose list comes from another coordinator."""
        return [group for group, known in self._lists.items() if known.broker_name != broker_name]

    def take_list(self, group: str, members: MemberList) -> bool:
        """Take a coordinator's list of a group; return whether it is new."""
        known = self._lists.get(group)
        if (
            known is not None
            and known.broker_name == members.broker_name
            and members.version <= known.version
        ):
            return False
        if members.client_ids:
            self._lists[group] = members
        else:
            self._lists.pop(group, None)
        return True

    def forget_list(self, group: str) -> None:
        """Drop the list of a group without members here."""
        self._lists.pop(group, None)
