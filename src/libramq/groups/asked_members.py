"""The members of a group whose queues a broker is to assign: who is there, and what each wants."""

from collections.abc import Hashable, Mapping
from typing import NamedTuple


class AskedMembers(NamedTuple):
    """version: another one whenever members or what they subscribe to changed. topics: of each member, by
    client ids. allocates: one of them allocates for itself.
    """

    version: Hashable
    topics: Mapping[str, frozenset[str]]
    allocates: bool
