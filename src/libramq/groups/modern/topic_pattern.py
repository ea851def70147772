r"""The topic pattern: whether a topic's name fits a regular expression (RE2's), in one step a character;
which patterns are understood, and which are too large.

    pattern ─► tree ─► nodes of an automaton that may be in several at once ─► states, a table each ─► fits

    x . \. \d \w \s \x2d \Q..\E [a-z] [^a] [[:alpha:]]   a character
    xy x|y (x) (?:x) (?P<name>x)                         sequences, alternatives, groups
    x* x+ x? x{2} x{2,} x{2,5}                           repetitions; lazy ones mean the same for whole names
    ^ $ \A \z                                            the beginning and the end
    (?i) (?s)                                            at the beginning of the pattern only

All states are found beforehand, so that no pattern makes a name expensive; one that has too many is refused.
Sets of characters are bit masks: names of topics are ASCII. Not supported: \b \B \C \p, other flags.

Upstream: RE2/J, with which the coordinator resolves SubscribedTopicRegex (KIP-848); it matches whole names.
https://github.com/google/re2/wiki/Syntax.
"""

import string
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from libramq.errors import LibraError

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
#: Ours: the characters of a pattern.
LENGTH_MAX: Final = 1_000
#: RE2's: the largest count of a repetition.
COUNT_MAX: Final = 1_000
#: Ours: groups within groups.
DEPTH_MAX: Final = 50

_ALL: Final = (1 << 128) - 1


def _mask(characters: str) -> int:
    return sum(1 << ord(each) for each in set(characters))


_SETS: Final = {
    "d": _mask(string.digits),
    "w": _mask(string.ascii_letters + string.digits + "_"),
    "s": _mask("\t\n\f\r "),
}
_POSIX: Final = {
    "alnum": _mask(string.ascii_letters + string.digits),
    "alpha": _mask(string.ascii_letters),
    "ascii": _ALL,
    "blank": _mask("\t "),
    "cntrl": (1 << 32) - 1 | 1 << 127,
    "digit": _SETS["d"],
    "graph": _mask(string.ascii_letters + string.digits + string.punctuation),
    "lower": _mask(string.ascii_lowercase),
    "print": _mask(string.ascii_letters + string.digits + string.punctuation + " "),
    "punct": _mask(string.punctuation),
    "space": _mask("\t\n\v\f\r "),
    "upper": _mask(string.ascii_uppercase),
    "word": _SETS["w"],
    "xdigit": _mask(string.hexdigits),
}
_CONTROL: Final = {"a": "\a", "f": "\f", "t": "\t", "n": "\n", "r": "\r", "v": "\v"}


class InvalidPattern(LibraError):
    """A pattern is malformed, or has what is not supported."""


class Characters(NamedTuple):
    """One of these characters."""

    mask: int


class Concatenation(NamedTuple):
    """One part after the other."""

    parts: Sequence["Tree"]


class Alternatives(NamedTuple):
    """One of these parts."""

    parts: Sequence["Tree"]


class Repeated(NamedTuple):
    """A part, again and again; most: None: any number."""

    part: "Tree"
    least: int
    most: int | None


class Edge(NamedTuple):
    """The beginning or the end of a name."""

    is_end: bool


Tree = Characters | Concatenation | Alternatives | Repeated | Edge


def parse(pattern: str) -> Tree:
    """Return the tree of a pattern; raises InvalidPattern."""
    if len(pattern) > LENGTH_MAX:
        raise InvalidPattern(f"a pattern has at most {LENGTH_MAX} characters")
    parser = _Parser(pattern)
    parser.flags()
    tree = parser.alternatives(0)
    if parser.at < len(pattern):
        raise InvalidPattern(f"unexpected ) at {parser.at}")
    return tree


class _Parser:
    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.ignores_case = False

    def flags(self) -> None:
        """Read the flags at the beginning."""
        for each in ("(?i)", "(?s)", "(?is)", "(?si)"):
            if self._take(each):
                self.ignores_case = "i" in each
                return

    def alternatives(self, depth: int) -> Tree:
        if depth > DEPTH_MAX:
            raise InvalidPattern(f"groups are nested more than {DEPTH_MAX} deep")
        parts = [self._sequence(depth)]
        while self._take("|"):
            parts.append(self._sequence(depth))
        return parts[0] if len(parts) == 1 else Alternatives(parts)

    def _sequence(self, depth: int) -> Tree:
        parts: list[Tree] = []
        while self.at < len(self.text) and self.text[self.at] not in "|)":
            if self._take("\\Q"):
                end = self.text.find("\\E", self.at)
                quoted = self.text[self.at : end if end >= 0 else None]
                self.at = end + 2 if end >= 0 else len(self.text)
                parts += [self._literal(each) for each in quoted]
                if not quoted:
                    continue
            else:
                parts.append(self._atom(depth))
            repeated = self._repetition(parts[-1])
            if repeated is not None:
                parts[-1] = repeated
        return parts[0] if len(parts) == 1 else Concatenation(parts)

    def _atom(self, depth: int) -> Tree:
        start = self.at
        character = self._next()
        if character == "(":
            return self._group(depth, start)
        if character == "[":
            return Characters(self._with_case(self._class(start)))
        if character in "^$":
            return Edge(character == "$")
        if character == ".":
            return Characters(_ALL)
        if character in "*+?":
            raise InvalidPattern(f"nothing to repeat at {start}")
        if character != "\\":
            return self._literal(character)
        if self._take("A") or self._take("z"):
            return Edge(self.text[self.at - 1] == "z")
        return Characters(self._with_case(self._escaped(start)))

    def _group(self, depth: int, start: int) -> Tree:
        if self._take("?"):
            if self._take("P<") or self._take("<"):
                name, found, _ = self.text[self.at :].partition(">")
                if not found or not name.isidentifier():
                    raise InvalidPattern(f"a group without a name at {start}")
                self.at += len(name) + 1
            elif not self._take(":"):
                raise InvalidPattern(f"the group at {start} is of a kind that is not supported")
        tree = self.alternatives(depth + 1)
        if not self._take(")"):
            raise InvalidPattern(f"the group at {start} does not end")
        return tree

    def _repetition(self, part: Tree) -> Tree | None:
        start = self.at
        bounds = self._bounds()
        if bounds is None:
            return None
        self._take("?")
        if self.text[self.at : self.at + 1] in ("*", "+", "?") or self._bounds() is not None:
            raise InvalidPattern(f"a repetition of a repetition at {start}")
        return Repeated(part, *bounds)

    def _bounds(self) -> tuple[int, int | None] | None:
        if self._take("*"):
            return 0, None
        if self._take("+"):
            return 1, None
        if self._take("?"):
            return 0, 1
        if self.text[self.at : self.at + 1] != "{":
            return None
        inner, found, _ = self.text[self.at + 1 :].partition("}")
        low, comma, high = inner.partition(",")
        if not found or not _is_number(low) or not (high == "" or _is_number(high)):
            return None  # A literal brace.
        self.at += len(inner) + 2
        least = int(low)
        most = least if not comma else int(high) if high else None
        if max(least, most or 0) > COUNT_MAX or (most is not None and most < least):
            raise InvalidPattern(f"{{{inner}}} is no repetition")
        return least, most

    # Characters.

    def _class(self, start: int) -> int:
        """Read what follows a bracket."""
        is_negated = self._take("^")
        mask, is_first = 0, True
        while is_first or not self._take("]"):
            is_first = False
            if self._take("[:"):
                name, found, _ = self.text[self.at :].partition(":]")
                members = _POSIX.get(name.removeprefix("^"))
                if not found or members is None:
                    raise InvalidPattern(f"there is no class [:{name[:20]}:]")
                self.at += len(name) + 2
                mask |= _ALL & ~members if name.startswith("^") else members
                continue
            low = self._class_member(start)
            is_range = self.text[self.at : self.at + 1] == "-" and self.text[self.at + 1 : self.at + 2] != "]"
            if is_range:
                self.at += 1
                high = self._class_member(start)
                if low.bit_count() != 1 or high.bit_count() != 1 or high < low:
                    raise InvalidPattern(f"an invalid range in the class at {start}")
                mask |= (high << 1) - low
            else:
                mask |= low
        return _ALL & ~mask if is_negated else mask

    def _class_member(self, start: int) -> int:
        if self.at >= len(self.text):
            raise InvalidPattern(f"the class at {start} does not end")
        character = self._next()
        return self._escaped(self.at - 1) if character == "\\" else _bit(character)

    def _escaped(self, start: int) -> int:
        """Read what follows a backslash."""
        if self.at >= len(self.text):
            raise InvalidPattern("a pattern does not end with a backslash")
        character = self._next()
        if character.lower() in _SETS:
            mask = _SETS[character.lower()]
            return mask if character.islower() else _ALL & ~mask
        if character == "x":
            return self._hexadecimal(start)
        if character in _CONTROL:
            return _bit(_CONTROL[character])
        if character.isalnum():
            raise InvalidPattern(f"\\{character} at {start} is not supported")
        return _bit(character)

    def _hexadecimal(self, start: int) -> int:
        if self._take("{"):
            digits, found, _ = self.text[self.at :].partition("}")
            self.at += len(digits) + 1
        else:
            digits, found = self.text[self.at : self.at + 2], "2"
            self.at += 2
        if not found or not 1 <= len(digits) <= 6 or not set(digits) <= set(string.hexdigits):
            raise InvalidPattern(f"an invalid \\x at {start}")
        code = int(digits, 16)
        return 1 << code if code < 128 else 0

    def _literal(self, character: str) -> Tree:
        return Characters(self._with_case(_bit(character)))

    def _with_case(self, mask: int) -> int:
        if not self.ignores_case:
            return mask
        upper, lower = mask & _POSIX["upper"], mask & _POSIX["lower"]
        return mask | upper << 32 | lower >> 32

    def _next(self) -> str:
        self.at += 1
        return self.text[self.at - 1]

    def _take(self, text: str) -> bool:
        is_there = self.text.startswith(text, self.at)
        self.at += len(text) if is_there else 0
        return is_there


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= len(str(COUNT_MAX))


def _bit(character: str) -> int:
    """Return the mask of a character; that of one outside ASCII is empty: no topic's name has it."""
    return 1 << ord(character) if ord(character) < 128 else 0


class _Node(NamedTuple):
    """A node. mask: the characters that lead to `then`; edge: where it leads there without one.

    forks: where it leads without a character, anywhere.
    """

    mask: int = 0
    then: int = -1
    edge: Edge | None = None
    forks: tuple[int, ...] = ()


class TopicPattern:
    """A pattern; raises InvalidPattern."""

    def __init__(self, pattern: str) -> None:
        self.pattern = pattern
        self._tables, self._fits = _Automaton(parse(pattern)).states()

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

    def __init__(self, tree: Tree) -> None:
        self._nodes: list[_Node] = [_Node()]  # The end of every name that fits.
        self._work = self._parts = 0
        self._first = self._build(tree, 0)

    def _build(self, tree: Tree, then: int) -> int:
        self._parts += 1
        if self._parts > NODES_MAX:
            raise InvalidPattern("the pattern is too large: it repeats too much")
        match tree:
            case Characters(mask):
                return self._add(_Node(mask=mask, then=then))
            case Edge():
                return self._add(_Node(edge=tree, then=then))
            case Concatenation(parts):
                for part in reversed(parts):
                    then = self._build(part, then)
                return then
            case Alternatives(parts):
                return self._add(_Node(forks=tuple(self._build(part, then) for part in parts)))
            case Repeated(part, least, most):
                if most is None:
                    then = self._loop(part, then)
                else:
                    end = then
                    for _ in range(most - least):
                        then = self._add(_Node(forks=(self._build(part, then), end)))
                for _ in range(least):
                    then = self._build(part, then)
                return then

    def _loop(self, part: Tree, then: int) -> int:
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
                        raise InvalidPattern("the pattern is too complex")
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
            raise InvalidPattern("the pattern is too complex")
        return frozenset(found)

    def _is_end(self, nodes: Iterable[int], *, is_start: bool) -> bool:
        """Return whether a name may end here."""
        return 0 in self._reached(nodes, is_start=is_start, is_end=True)
