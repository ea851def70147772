"""The members of groups as their edges know them: who is connected to which broker.

Kept by the coordinator of the groups. Stock clients send heartbeats only to brokers that hold their topics,
so that one broker may not know them all.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from libramq.clock import MonotonicMs
from libramq.groups.asked_members import AskedMembers


@dataclass(frozen=True, slots=True, kw_only=True)
class EdgeMember:
    """A client that is connected to an edge. stock: it does without a coordinator.

    topics: of a stock client, sorted. allocates: it has looked at the list of members there, to allocate for
    itself.
    """

    client_id: str
    stock: bool = True
    topics: Sequence[str] = ()
    allocates: bool = False


@dataclass(slots=True)
class Edge:
    """One broker. masters: the brokers it knows, as it said last. is_whole: it has told of all its groups."""

    heard_at_ms: MonotonicMs
    masters: list[str] = field(default_factory=list)
    is_whole: bool = False
    groups: dict[str, Sequence[EdgeMember]] = field(default_factory=dict)


class EdgeMembers:
    """The edges, and who is connected to them. What changes returns the groups that it changed."""

    def __init__(self) -> None:
        self._edges: dict[str, Edge] = {}
        self._asked: dict[str, AskedMembers] = {}
        self._version = 0

    def heard(self, edge: str, masters: list[str], *, now_ms: MonotonicMs) -> bool:
        """An edge spoke; whether it has told of all its groups before."""
        known = self._edges.setdefault(edge, Edge(now_ms))
        known.heard_at_ms, known.masters = now_ms, masters
        return known.is_whole

    def told(self, edge: str, groups: Mapping[str, Sequence[EdgeMember]], *, complete: bool) -> list[str]:
        """These are an edge's members of these groups; complete: of all groups that are told of here."""
        known = self._edges[edge]
        told = dict(groups)
        if complete:
            known.is_whole = True
            told = dict.fromkeys(known.groups, ()) | told
        changed = [group for group, members in told.items() if known.groups.get(group, ()) != members]
        for group in changed:
            self._asked.pop(group, None)
            if told[group]:
                known.groups[group] = told[group]
            else:
                known.groups.pop(group, None)
        return changed

    def forget(self, edge: str) -> list[str]:
        """An edge is gone."""
        known = self._edges.pop(edge, None)
        changed = list(known.groups) if known is not None else []
        for group in changed:
            self._asked.pop(group, None)
        return changed

    def names(self) -> list[str]:
        """All edges that have spoken."""
        return list(self._edges)

    def groups(self) -> list[str]:
        """All groups that have members, as they were told."""
        return list(dict.fromkeys(group for edge in self._edges.values() for group in edge.groups))

    def stood_still(self, stood_ms: int, now_ms: MonotonicMs) -> None:
        """Nobody listened to the edges for so long, until now."""
        for edge in self._edges.values():
            edge.heard_at_ms = min(now_ms, edge.heard_at_ms + stood_ms)

    def silent(self, *, since_ms: MonotonicMs) -> list[str]:
        """The edges that have not spoken since then."""
        return [name for name, edge in self._edges.items() if edge.heard_at_ms < since_ms]

    def agrees(self, edge: str, masters: list[str]) -> bool:
        """Whether an edge has told of all its groups that live here, if these are all brokers."""
        known = self._edges.get(edge)
        return known is not None and known.is_whole and known.masters == masters

    def edges(self, group: str) -> list[str]:
        """The edges where a group has members, sorted."""
        return sorted(name for name, edge in self._edges.items() if group in edge.groups)

    def client_ids(self, group: str) -> list[str]:
        """All members of a group, each once, sorted."""
        return sorted({member.client_id for member in self._members(group)})

    def stock(self, group: str) -> list[str]:
        """Those of them that allocate for themselves."""
        return sorted({member.client_id for member in self._members(group) if member.stock})

    def asked(self, group: str) -> AskedMembers | None:
        """The members of a group as who assigns their queues needs them; None: there are none."""
        known = self._asked.get(group)
        members = self._members(group) if known is None else ()
        if members:
            self._version += 1
            known = self._asked[group] = AskedMembers.of(
                ("edges", self._version),
                ((member.client_id, member.topics) for member in members),
                # Ours do beside stock ones, also if they have not looked since their broker came.
                allocates=any(member.allocates or not member.stock for member in members),
            )
        return known

    def _members(self, group: str) -> list[EdgeMember]:
        return [member for edge in self._edges.values() for member in edge.groups.get(group, ())]
