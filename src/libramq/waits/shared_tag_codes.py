"""Shared tag codes: each set of codes once in memory, however many pulls wait with it.

A thousand tags are 64 KB as a set; the members of a group, and its pulls, all wait with the same.
"""

from weakref import WeakValueDictionary


class SharedTagCodes:
    """The sets that are in use; one that nobody uses any more is forgotten."""

    def __init__(self) -> None:
        self._by_hash: WeakValueDictionary[int, frozenset[int]] = WeakValueDictionary()

    def __len__(self) -> int:
        return len(self._by_hash)

    def share(self, codes: frozenset[int]) -> frozenset[int]:
        """Return the set that is in use already and has the same codes; else this one, from now on."""
        found = self._by_hash.get(hash(codes))
        if found == codes:
            return found
        self._by_hash[hash(codes)] = codes
        return codes
