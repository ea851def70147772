"""The members of a group whose queues a broker is to assign: who is there, and what each wants."""

from collections.abc import Hashable, Iterable, Mapping
from typing import NamedTuple, Self


class AskedMembers(NamedTuple):
    """version: another one whenever members or what they subscribe to changed. topics: of each member, by
    client ids. allocates: one of them allocates for itself.
    """

    version: Hashable
    topics: Mapping[str, frozenset[str]]
    allocates: bool

    @classmethod
    def of(cls, version: Hashable, members: Iterable[tuple[str, Iterable[str]]], *, allocates: bool) -> Self:
        """Of client ids with their topics; one that is there more than once wants all of its topics."""
        topics: dict[str, frozenset[str]] = {}
        for client_id, wanted in members:
            topics[client_id] = topics.get(client_id, frozenset()).union(wanted)
        return cls(version, topics, allocates)
