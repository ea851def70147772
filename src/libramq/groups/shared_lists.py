"""The shared lists: who is in a group, over all brokers, as its coordinator told this one.

Only groups with members at several brokers have one. While a coordinator is out of reach its last word
stands.
"""

from collections.abc import Sequence
from typing import NamedTuple

from libramq.remoting.body.coordination import PeerListBody


class SharedList(NamedTuple):
    """One group's list. broker_name: of the coordinator that told it."""

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

    def take(self, body: PeerListBody) -> bool:
        """A coordinator's word; whether it is news."""
        known = self._lists.get(body.group)
        if known is not None and known.broker_name == body.broker_name and body.version <= known.version:
            return False
        if body.client_ids:
            self._lists[body.group] = SharedList(body.broker_name, body.version, body.client_ids)
        else:
            self._lists.pop(body.group, None)
        return True

    def forget(self, group: str) -> None:
        """The group has no members here any more."""
        self._lists.pop(group, None)
