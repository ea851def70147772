"""The published lists: what a coordinator has told which edges of who is in its groups.

members at two edges or more     each of them is told the list whenever it changes
at one edge, or none             nothing; who was told a list before is told that it is over
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Published:
    """A list that was told, and to whom."""

    client_ids: Sequence[str]
    edges: frozenset[str]


@dataclass(frozen=True, slots=True)
class Publication:
    """A list that is to be told, and to whom."""

    group: str
    client_ids: Sequence[str]
    edges: Sequence[str]


class PublishedLists:
    """Lists by group."""

    def __init__(self) -> None:
        self._lists: dict[str, Published] = {}
        self._listed: dict[str, set[str]] = {}

    def listed_elsewhere(self, edge: str, group: str) -> None:
        """An edge has a list by another coordinator."""
        self._listed.setdefault(group, set()).add(edge)

    def publish(self, group: str, edges: Sequence[str], client_ids: Sequence[str]) -> Publication | None:
        """The group has these members, at these edges; what to tell of it, if that is news to anybody."""
        known = self._lists.get(group)
        listed = self._listed.pop(group, set())
        told = known.edges if known is not None else frozenset()
        wanted = Published(client_ids, frozenset(edges)) if len(edges) > 1 else None
        if wanted == known and not listed:
            return None
        if wanted is not None:
            self._lists[group] = wanted
        else:
            self._lists.pop(group, None)
        whom = sorted(told | listed | (wanted.edges if wanted is not None else frozenset()))
        return Publication(group, client_ids if wanted is not None else (), whom) if whom else None

    def told(self, edge: str) -> list[tuple[str, Sequence[str]]]:
        """All that an edge was told: groups and their lists."""
        return [(group, known.client_ids) for group, known in self._lists.items() if edge in known.edges]

    def forget_groups(self, lives_here: Callable[[str], bool]) -> None:
        """Other groups live elsewhere."""
        self._lists = {group: known for group, known in self._lists.items() if lives_here(group)}
        self._listed = {group: edges for group, edges in self._listed.items() if lives_here(group)}
