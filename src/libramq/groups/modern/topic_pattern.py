"""The topic pattern: whether a topic's name fits a regular expression, in one step a character; which
patterns are too large.

    pattern ─► tree ─► nodes of an automaton that may be in several at once ─► states, a table each ─► fits

All states are found beforehand, so that no pattern makes a name expensive; one that has too many is refused.

Upstream: RE2/J, with which the coordinator resolves SubscribedTopicRegex (KIP-848); it matches whole names.
"""

from collections.abc import Iterable
from typing import Final, NamedTuple

from libramq.groups.modern import pattern_syntax as syntax

#: Ours: the nodes of an automaton; a repetition has its part's as many times as it names.
NODES_MAX: Final = 2_000
#: Ours: the states of an automaton, so that a byte names one.
STATES_MAX: Final = 255
#: Ours: the nodes that are looked at to find the states, in about 20 ms.
WORK_MAX: Final = 100_000
#: The characters of ASCII.
_CHARACTERS: Final = 128
#: The state that no name leaves.
_DEAD: Final = 0


class _Node(NamedTuple):
    """A node. mask: the characters that lead to `then`; edge: where it leads there without one.

    forks: where it leads without a character, anywhere.
    """

    mask: int = 0
    then: int = -1
    edge: syntax.Edge | None = None
    forks: tuple[int, ...] = ()


class TopicPattern:
    """A pattern; raises InvalidPattern."""

    def __init__(self, pattern: str) -> None:
        self.pattern = pattern
        self._tables, self._fits = _Automaton(syntax.parse(pattern)).states()

    def fits(self, name: str) -> bool:
        """Return whether a topic's name, in ASCII, fits as a whole."""
        state, tables = 1, self._tables
        for each in name.encode():
            state = tables[state][each]
        return self._fits[state]

    def among(self, names: Iterable[str]) -> list[str]:
        """Return the names that fit."""
        return [name for name in names if name.isascii() and self.fits(name)]


class _Automaton:
    """The nodes of a pattern. Each part is built from its end, and returns the node at which it begins."""

    def __init__(self, tree: syntax.Tree) -> None:
        self._nodes: list[_Node] = [_Node()]  # The end of every name that fits.
        self._work = self._parts = 0
        self._first = self._build(tree, 0)

    def _build(self, tree: syntax.Tree, then: int) -> int:
        self._parts += 1
        if self._parts > NODES_MAX:
            raise syntax.InvalidPattern("the pattern is too large: it repeats too much")
        match tree:
            case syntax.Characters(mask):
                return self._add(_Node(mask=mask, then=then))
            case syntax.Edge():
                return self._add(_Node(edge=tree, then=then))
            case syntax.Concatenation(parts):
                for part in reversed(parts):
                    then = self._build(part, then)
                return then
            case syntax.Alternatives(parts):
                return self._add(_Node(forks=tuple(self._build(part, then) for part in parts)))
            case syntax.Repeated(part, least, most):
                if most is None:
                    then = self._loop(part, then)
                else:
                    end = then
                    for _ in range(most - least):
                        then = self._add(_Node(forks=(self._build(part, then), end)))
                for _ in range(least):
                    then = self._build(part, then)
                return then

    def _loop(self, part: syntax.Tree, then: int) -> int:
        """Build a part that comes any number of times."""
        loop = self._add(_Node())
        self._nodes[loop] = _Node(forks=(self._build(part, loop), then))
        return loop

    def _add(self, node: _Node) -> int:
        self._nodes.append(node)
        return len(self._nodes) - 1

    def states(self) -> tuple[list[bytes], list[bool]]:
        """Return where each character leads from each state, and in which states a name fits."""
        groups = self._character_groups()
        known: dict[frozenset[int], int] = {frozenset(): _DEAD}
        first = self._reached([self._first], is_start=True)
        # The first state is one of its own: only there a name begins.
        sets, tables = [frozenset[int](), first], [bytes(_CHARACTERS)]
        fits = [False, self._is_end(first, is_start=True)]
        at = 1
        while at < len(sets):
            table = bytearray(_CHARACTERS)
            for mask, characters in groups:
                nodes = [self._nodes[each].then for each in sets[at] if self._nodes[each].mask & mask]
                reached = self._reached(nodes, is_start=False)
                if reached not in known:
                    if len(sets) > STATES_MAX:
                        raise syntax.InvalidPattern("the pattern is too complex")
                    known[reached] = len(sets)
                    sets.append(reached)
                    fits.append(self._is_end(reached, is_start=False))
                for character in characters:
                    table[character] = known[reached]
            tables.append(bytes(table))
            at += 1
        return tables, fits

    def _character_groups(self) -> list[tuple[int, list[int]]]:
        """Return the characters that lead to the same nodes, and the bit of one of each group."""
        masks = sorted({node.mask for node in self._nodes if node.mask})
        groups: dict[tuple[bool, ...], list[int]] = {}
        for character in range(_CHARACTERS):
            groups.setdefault(tuple(bool(mask >> character & 1) for mask in masks), []).append(character)
        return [(1 << characters[0], characters) for characters in groups.values()]

    def _reached(self, nodes: Iterable[int], *, is_start: bool, is_end: bool = False) -> frozenset[int]:
        """Return the nodes that are reached without a character."""
        found: set[int] = set()
        left = list(nodes)
        while left:
            at = left.pop()
            if at in found:
                continue
            found.add(at)
            self._work += 1
            node = self._nodes[at]
            left += node.forks
            if node.edge is not None and (is_end if node.edge.is_end else is_start):
                left.append(node.then)
        if self._work > WORK_MAX:
            raise syntax.InvalidPattern("the pattern is too complex")
        return frozenset(found)

    def _is_end(self, nodes: Iterable[int], *, is_start: bool) -> bool:
        """Return whether a name may end here."""
        return 0 in self._reached(nodes, is_start=is_start, is_end=True)
