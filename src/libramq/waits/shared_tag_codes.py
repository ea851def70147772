"""Shared tag codes: each set of codes is in memory once, however many pulls use it.

A thousand tags are 64 KB as a set; the members of a group, and their pulls, all use the same one.
"""

from weakref import WeakValueDictionary


class SharedTagCodes:
    """The sets in use; unused ones are dropped."""

    def __init__(self) -> None:
        self._by_hash: WeakValueDictionary[int, frozenset[int]] = WeakValueDictionary()

    def __len__(self) -> int:
        return len(self._by_hash)

    def share(self, codes: frozenset[int]) -> frozenset[int]:
        """Return the equal set that is in use already; else this one, from now on."""
        found = self._by_hash.get(hash(codes))
        if found == codes:
            return found
        self._by_hash[hash(codes)] = codes
        return codes
