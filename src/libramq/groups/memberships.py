"""The memberships of connections: the groups of each, so that its end costs only as much as it held."""

from collections.abc import Hashable
from itertools import islice
from typing import Generic, TypeVar

P = TypeVar("P", bound=Hashable)
K = TypeVar("K", bound=Hashable)


class Memberships(Generic[P, K]):
    """Memberships by connection. K: their key, such as the name of a group."""

    def __init__(self) -> None:
        self._of: dict[P, dict[K, None]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def of(self, peer: P, count_max: int | None = None) -> list[K]:
        """Return a connection's memberships, oldest first; at most `count_max` of them."""
        return list(islice(self._of.get(peer, ()), count_max))

    def count(self, peer: P) -> int:
        """Return the number of a connection's memberships."""
        return len(self._of.get(peer, ()))

    def has(self, peer: P, key: K) -> bool:
        """Return whether a connection has this membership."""
        return key in self._of.get(peer, ())

    def add(self, peer: P, key: K) -> None:
        """Add a membership, unless it exists."""
        of_peer = self._of.setdefault(peer, {})
        if key not in of_peer:
            of_peer[key] = None
            self._count += 1

    def remove(self, peer: P, key: K) -> None:
        """Remove a membership, if it exists."""
        of_peer = self._of.get(peer)
        if of_peer is None or key not in of_peer:
            return
        del of_peer[key]
        self._count -= 1
        if not of_peer:
            del self._of[peer]
