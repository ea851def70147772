"""The shared lists: who is in a group, over all brokers, as its coordinator told this one.

Only groups with members at several brokers have one. While a coordinator is out of reach its last word
stands.
"""

from collections.abc import Sequence
from typing import NamedTuple


class SharedList(NamedTuple):
    """One group's list, by a coordinator. No client ids: the group is here alone, and known without it.

    version: of the lists of one coordinator the higher one is newer.
    """

    broker_name: str
    version: int
    client_ids: Sequence[str]


class SharedLists:
    """Lists by group."""

    def __init__(self) -> None:
        self._lists: dict[str, SharedList] = {}

    def __contains__(self, group: str) -> bool:
        return group in self._lists

    def get(self, group: str) -> Sequence[str] | None:
        """The client ids of a group; None: its members are all here."""
        known = self._lists.get(group)
        return known.client_ids if known is not None else None

    def told_by_others(self, broker_name: str) -> list[str]:
        """The groups whose list is not by that coordinator."""
        return [group for group, known in self._lists.items() if known.broker_name != broker_name]

    def take(self, group: str, shared: SharedList) -> bool:
        """Take a coordinator's list of a group; return whether it is news."""
        known = self._lists.get(group)
        if known is not None and known.broker_name == shared.broker_name and shared.version <= known.version:
            return False
        if shared.client_ids:
            self._lists[group] = shared
        else:
            self._lists.pop(group, None)
        return True

    def forget(self, group: str) -> None:
        """The group has no members here any more."""
        self._lists.pop(group, None)
