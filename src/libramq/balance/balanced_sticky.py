"""Balanced and sticky, the default strategy: loads as even as subscriptions allow, over all topics at once,
then the fewest moves; weights by capacity and lag.

        levels      how much each part of the members carries at best (counts by subscription)
        keeping     how many of its queues each member keeps          (counts by member)
        dealing     which queues those are, and who gets the others

With equal subscriptions, loads differ by at most one. With different ones, the loads, sorted from the largest
down, are the least possible. If they already are, nothing moves. With capacities, a member carries its part
of its level's load, rounded down or up. Retry topics carry no load: their queues stay as long as their member
does.
"""

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from heapq import heapify, heappop, heappush, heapreplace
from itertools import chain
from operator import itemgetter
from typing import Final, NamedTuple

from libramq.balance.flow import FlowNetwork
from libramq.balance.group import Assignment, Group, counts, holdings
from libramq.balance.strategy import GroupStrategy
from libramq.message.queue import MessageQueue

#: Ours: smaller lags come and go, and are no reason to move a queue.
LAG_UNIT_MIN: Final = 1_000


def weights(queues: Sequence[MessageQueue], lag: Mapping[MessageQueue, int]) -> dict[MessageQueue, int]:
    """Return the weight of each queue.

        weight of a queue = 1 + its lag / the group's mean lag, rounded down
        load of a member  = the weights of its queues / its capacity

    Without lag, all queues weigh 1. The optimum cannot be computed fast. `even_by_lag` starts from current
    owners, assigns heavy queues first, and moves a queue only if its giver and its taker become more even.
    """
    waiting = {queue: max(0, lag.get(queue, 0)) for queue in queues}
    unit = max(LAG_UNIT_MIN, sum(waiting.values()) // max(1, len(waiting)))
    return {queue: 1 + count // unit for queue, count in waiting.items()}


def even_by_lag(
    group: Group,
    topics: Iterable[str],
    held: Sequence[Sequence[MessageQueue]],
    capacities: Sequence[int],
    weight: Mapping[MessageQueue, int],
) -> list[list[MessageQueue]]:
    """Return all members' queues of these topics, in the members' order."""
    scales = _Scales(group, capacities)
    taken: set[MessageQueue] = set()
    for member, queues in enumerate(held):
        for queue in queues:
            scales.put(member, queue, weight[queue])
        taken.update(queues)
    free = [queue for topic in topics for queue in group.queues[topic] if queue not in taken]
    for queue in sorted(free, key=lambda queue: -weight[queue]):
        if (lightest := scales.lightest(queue.topic)) is not None:
            scales.put(lightest, queue, weight[queue])
    scales.even_out(weight)
    return scales.shares


class _Scales:
    """Each member's load, and the lightest subscriber of each topic."""

    def __init__(self, group: Group, capacities: Sequence[int]) -> None:
        self._capacities = capacities
        self.shares: list[list[MessageQueue]] = [[] for _ in group.members]
        self._loads = [0] * len(group.members)
        sets: dict[frozenset[str], int] = {}
        self._set_of = [sets.setdefault(member.topics, len(sets)) for member in group.members]
        self._sets_of_topic = {
            topic: tuple(number for topics, number in sets.items() if topic in topics)
            for topic in group.queues
        }
        # Outdated entries are dropped when they reach the top.
        self._heaps: list[list[tuple[float, int]]] = [[] for _ in sets]
        for member, number in enumerate(self._set_of):
            self._heaps[number].append((0.0, member))
        for heap in self._heaps:
            heapify(heap)

    def put(self, member: int, queue: MessageQueue, weight: int) -> None:
        self.shares[member].append(queue)
        self._weigh(member, weight)

    def lightest(self, topic: str) -> int | None:
        """Return the subscriber with the least load, the first of several."""
        tops = [self._top(number) for number in self._sets_of_topic[topic]]
        return min(tops)[1] if tops else None

    def even_out(self, weight: Mapping[MessageQueue, int]) -> None:
        """Let members, the heaviest first, give away queues as long as that evens loads."""
        moved = True
        while moved:
            moved = False
            for giver in sorted(range(len(self._loads)), key=lambda each: (-self._relative(each), each)):
                moved |= self._give_away(giver, weight)

    def _give_away(self, giver: int, weight: Mapping[MessageQueue, int]) -> bool:
        """Give away the best queue, repeatedly; return whether any was."""
        by_takers: dict[tuple[int, ...], list[tuple[int, MessageQueue]]] = {}
        for queue in self.shares[giver]:
            by_takers.setdefault(self._sets_of_topic[queue.topic], []).append((weight[queue], queue))
        for queues in by_takers.values():
            queues.sort()
        handed_over: set[MessageQueue] = set()
        while (best := self._best_move(giver, by_takers)) is not None:
            taker, queues, place = best
            each, queue = queues.pop(place)
            handed_over.add(queue)
            self._weigh(giver, -each)
            self.put(taker, queue, each)
        self.shares[giver] = [queue for queue in self.shares[giver] if queue not in handed_over]
        return bool(handed_over)

    def _best_move(
        self, giver: int, by_takers: Mapping[tuple[int, ...], list[tuple[int, MessageQueue]]]
    ) -> tuple[int, list[tuple[int, MessageQueue]], int] | None:
        """Return the best move's taker, queues and place: a weight near half of the difference is best."""
        lowest, best = self._relative(giver), None
        for sets, queues in by_takers.items():
            taker = min(self._top(number) for number in sets)[1]
            room = self._loads[giver] * self._capacities[taker] - self._loads[taker] * self._capacities[giver]
            ideal = room // (self._capacities[giver] + self._capacities[taker])
            above = bisect_right(queues, ideal, key=itemgetter(0))
            for place in (above - 1, above):
                if taker != giver and 0 <= place < len(queues):
                    each = queues[place][0]
                    after = max(self._relative(giver, -each), self._relative(taker, each))
                    if after < lowest:
                        lowest, best = after, (taker, queues, place)
        return best

    def _relative(self, member: int, change: int = 0) -> float:
        return (self._loads[member] + change) / self._capacities[member]

    def _weigh(self, member: int, weight: int) -> None:
        self._loads[member] += weight
        heappush(self._heaps[self._set_of[member]], (self._relative(member), member))

    def _top(self, number: int) -> tuple[float, int]:
        heap = self._heaps[number]
        while heap[0][0] != self._relative(heap[0][1]):
            heappop(heap)
        return heap[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """Load and capacity of a part of the group, with its sources (of load) and sinks.

    Its members carry load / capacity each, times their own capacity, rounded down or up.

        topic A   8 queues ──► 2 members of {A}       level of 8 / 2: four each
                           ╲
        topic B   9 queues ──► 1 member of {A, B}     level of 9 / 1: nine, so nothing of A

    A level is a part of the group whose topics go to its own members only: every other subscriber of them
    already carries more. The resulting loads, largest first, are the least possible. S. Fujishige:
    Lexicographically optimal base of a polymatroid (1980); for whole numbers A. Frank, K. Murota: Decreasing
    minimization on M-convex sets (2022).
    """

    load: int
    capacity: int
    sources: tuple[int, ...]
    sinks: tuple[int, ...]


def levels(loads: Sequence[int], capacities: Sequence[int], sinks_of: Sequence[Sequence[int]]) -> list[Level]:
    """Divide sources (loads) and sinks (capacities) into levels; each source may flow to certain sinks.

    Flows are scaled, loads by the part's capacity and capacities by its load, so that all numbers are whole.
    If something exceeds the average then, it becomes a part of its own.
    """
    found: list[Level] = []
    first_sink, nodes = len(loads), len(loads) + len(capacities)
    parts = [(tuple(range(len(loads))), tuple(range(len(capacities))))]
    while parts:
        sources, sinks = parts.pop()
        load = sum(loads[source] for source in sources)
        capacity = sum(capacities[sink] for sink in sinks)
        above: set[int] = set()
        if len(sinks) > 1:
            network, excess = FlowNetwork(nodes), [0] * nodes
            for sink in sinks:
                excess[first_sink + sink] = -capacities[sink] * load
            allowed = set(sinks)
            for source in sources:
                excess[source] = loads[source] * capacity
                for sink in sinks_of[source]:
                    if sink in allowed:
                        network.add(source, first_sink + sink, load * capacity)
            network.send(excess)
            above = network.reached(excess)
        if above:
            parts += (
                (
                    tuple(source for source in sources if (source in above) is side),
                    tuple(sink for sink in sinks if (first_sink + sink in above) is side),
                )
                for side in (False, True)
            )
        elif sinks:
            found.append(Level(load=load, capacity=capacity, sources=sources, sinks=sinks))
    return found


class Taker(NamedTuple):
    """A member in counts: its set, its queues of each kind, and its least and highest load.

            kind      queues that the same members may have: equal, except for their holders
        set       members that may have the same kinds

    Only counts are decided here. The total number kept is the maximum.
    """

    set: int
    held: Mapping[int, int]
    least: int
    most: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Keeping:
    """Counts of queues: kept by each member, by kind; taken by each; assigned, by kind and set of members."""

    kept: Sequence[Mapping[int, int]]
    taken: Sequence[int]
    assigned: Mapping[tuple[int, int], int]


def keep_most(
    free: Mapping[int, int], sets_of: Mapping[int, Sequence[int]], takers: Sequence[Taker]
) -> Keeping:
    """Decide for a part of the group whose bounds can be met.

    free: unowned queues by kind. sets_of: which sets may have a kind.
    most is least or one more; how many members may reach it follows from the number of queues.
    """
    if len(free) == 1 and len({taker.set for taker in takers}) == 1:
        return _keep_most_alike(free, takers)
    return _keep_most_by_flow(free, sets_of, takers)


def _keep_most_alike(free: Mapping[int, int], takers: Sequence[Taker]) -> Keeping:
    """Decide for one kind and one set: members above their least may keep one more while places remain."""
    ((kind, free_count),) = free.items()
    held = [taker.held.get(kind, 0) for taker in takers]
    goals = [taker.least for taker in takers]
    places = free_count + sum(held) - sum(goals)
    uneven = [place for place, taker in enumerate(takers) if taker.most > taker.least]
    wanting = [place for place in uneven if held[place] > goals[place]]
    others = [place for place in uneven if held[place] <= goals[place]]
    for place in [*wanting, *others][:places]:
        goals[place] += 1
    kept = [min(have, goal) for have, goal in zip(held, goals, strict=True)]
    taken = [goal - keep for goal, keep in zip(goals, kept, strict=True)]
    return Keeping(
        kept=[{kind: keep} for keep in kept], taken=taken, assigned={(kind, takers[0].set): sum(taken)}
    )


def _keep_most_by_flow(
    free: Mapping[int, int], sets_of: Mapping[int, Sequence[int]], takers: Sequence[Taker]
) -> Keeping:
    """Compute a flow of queues from where there are too many to where there are too few.

        kind ──► set ──► member ──► room for one more than the least
          ▲                │
          └── costs 1 ─────┘

    A free queue begins at its kind. A member with too many returns one to its kind: a move, which
    costs 1.
    """
    kinds = {kind: node for node, kind in enumerate(free)}
    sets = {each: len(kinds) + n for n, each in enumerate(sorted({taker.set for taker in takers}))}
    first_taker = len(kinds) + len(sets)
    room = first_taker + len(takers)
    network = FlowNetwork(room + 1)
    excess = [0] * (room + 1)
    endless = sum(free.values()) + sum(sum(taker.held.values()) for taker in takers)
    for kind, node in kinds.items():
        excess[node] = free[kind]
    assigned = {
        (kind, each): network.add(node, sets[each], endless)
        for kind, node in kinds.items()
        for each in sets_of[kind]
        if each in sets
    }
    taken: list[int] = []
    returned: list[dict[int, int]] = []
    excess[room] = sum(taker.least for taker in takers) - endless
    for node, taker in enumerate(takers, first_taker):
        taken.append(network.add(sets[taker.set], node, endless))
        returned.append(
            {kind: network.add(node, kinds[kind], count, 1) for kind, count in taker.held.items()}
        )
        surplus = sum(taker.held.values()) - taker.least
        if taker.most > taker.least:
            above = 1 if surplus > 0 else 0
            network.add(node, room, 1, flow=above)
            surplus -= above
            excess[room] += above
        excess[node] = surplus
    network.send(excess)
    assert not any(excess), "the levels guarantee that the bounds can be met"
    return Keeping(
        kept=[
            {kind: count - network.flow(arcs[kind]) for kind, count in taker.held.items()}
            for taker, arcs in zip(takers, returned, strict=True)
        ],
        taken=[network.flow(arc) for arc in taken],
        assigned={each: network.flow(arc) for each, arc in assigned.items()},
    )


Share = list[MessageQueue]


def balanced_sticky(group: Group, *, by_capacity: bool = False, by_lag: bool = False) -> Assignment:
    """Assign the queues of all topics.

    by_capacity: in proportion to the members' capacities. by_lag: lagging queues weigh more (see `weights`).
    """
    capacities = [member.capacity if by_capacity else 1 for member in group.members]
    light = {topic: queues for topic, queues in group.queues.items() if not counts(topic)}
    held, staying = _parted(holdings(group), set(chain.from_iterable(light.values())))
    topics = [topic for topic in group.queues if topic not in light]
    weight = weights([q for topic in topics for q in group.queues[topic]], group.lag) if by_lag else {}
    if any(each > 1 for each in weight.values()):
        shares = even_by_lag(group, topics, held, capacities, weight)
    else:
        shares = most_even(group, topics, held, capacities)
    for share, queues in zip(shares, stay(group, light, staying), strict=True):
        share += queues
    return {member.client_id: share for member, share in zip(group.members, shares, strict=True)}


def balanced_sticky_of(*, by_capacity: bool = False, by_lag: bool = False) -> GroupStrategy:
    """Return the strategy, with or without weights."""
    return GroupStrategy(partial(balanced_sticky, by_capacity=by_capacity, by_lag=by_lag))


def most_even(
    group: Group, topics: Iterable[str], held: Sequence[Sequence[MessageQueue]], capacities: Sequence[int]
) -> list[Share]:
    """Return all members' queues of these topics, in the members' order. held: those each may keep."""
    if len(set(capacities)) == 1:
        capacities = [1] * len(group.members)
    queues = {topic: group.queues[topic] for topic in topics if group.queues[topic]}
    set_of_member, sets_of_topic = _sets(group, queues)
    kinds: dict[tuple[int, ...], int] = {}
    kind_of_topic = {
        topic: kinds.setdefault(sets, len(kinds)) for topic, sets in sets_of_topic.items() if sets
    }
    sizes = [0] * len(kinds)
    for topic, kind in kind_of_topic.items():
        sizes[kind] += len(queues[topic])
    set_capacities = [0] * (max(set_of_member, default=-1) + 1)
    for each, capacity in zip(set_of_member, capacities, strict=True):
        set_capacities[each] += capacity

    table = _Table(group, queues, kind_of_topic, held)
    parts = _alike(levels(sizes, set_capacities, list(kinds)), whole=set(capacities) <= {1})
    level_of_set = {
        each: (part, level) for part, some in enumerate(parts) for level in some for each in level.sinks
    }
    part_of_kind = {kind: part for part, some in enumerate(parts) for level in some for kind in level.sources}
    members_of_part: list[list[int]] = [[] for _ in parts]
    for place, each in enumerate(set_of_member):
        members_of_part[level_of_set[each][0]].append(place)
    for part, members in enumerate(members_of_part):
        table.free_others(members, {kind for kind, other in part_of_kind.items() if other != part})
    for part, members in enumerate(members_of_part):
        takers = [
            _taker(each, capacities[place], level_of_set[each][1], table.held[place])
            for place, each in ((place, set_of_member[place]) for place in members)
        ]
        sets_of = {kind: sets for sets, kind in kinds.items() if part_of_kind[kind] == part}
        free = {kind: len(table.free[kind]) for kind in sets_of}
        table.deal(members, takers, keep_most(free, sets_of, takers))
    return table.shares


def stay(
    group: Group, queues: Mapping[str, Sequence[MessageQueue]], held: Sequence[Sequence[MessageQueue]]
) -> list[Share]:
    """Return all members' queues without load: they stay, and free ones go to the members with the fewest."""
    shares = [list(owned) for owned in held]
    taken = set(chain.from_iterable(held))
    for topic, queues_of_topic in queues.items():
        takers = [(len(shares[place]), place) for place, m in enumerate(group.members) if topic in m.topics]
        heapify(takers)
        for queue in queues_of_topic:
            if queue not in taken and takers:
                count, place = takers[0]
                shares[place].append(queue)
                heapreplace(takers, (count + 1, place))
    return shares


class _Table:
    """The table at which queues are dealt: each member's queues and the free ones, by kind."""

    def __init__(
        self,
        group: Group,
        queues: Mapping[str, Sequence[MessageQueue]],
        kind_of_topic: Mapping[str, int],
        held: Sequence[Sequence[MessageQueue]],
    ) -> None:
        self.shares: list[Share] = [[] for _ in group.members]
        self.free: list[Share] = [[] for _ in set(kind_of_topic.values())]
        self.held: list[dict[int, Sequence[MessageQueue]]]
        if len(self.free) == 1:  # The usual case; takes half the time.
            self.held = [{0: owned} for owned in held]
        else:
            self.held = [_by_kind(owned, kind_of_topic) for owned in held]
        taken = set(chain.from_iterable(held))
        for topic, kind in kind_of_topic.items():
            self.free[kind] += [queue for queue in queues[topic] if queue not in taken]

    def free_others(self, members: Iterable[int], kinds: set[int]) -> None:
        """Free the queues that members need not keep: those of kinds in a level with less load."""
        for place in members:
            for kind in self.held[place].keys() & kinds:
                self.free[kind] += self.held[place].pop(kind)

    def deal(self, members: Sequence[int], takers: Sequence[Taker], keeping: Keeping) -> None:
        """Leave members the queues they keep, and deal the rest in rounds, which separates neighbours."""
        for place, kept in zip(members, keeping.kept, strict=True):
            share = self.shares[place]
            for kind, queues in self.held[place].items():
                count = kept[kind]
                share += queues[:count]
                self.free[kind] += queues[count:]
        stacks: dict[int, Share] = {}
        for (kind, each), count in keeping.assigned.items():
            stacks.setdefault(each, []).extend(self.free[kind][:count])
            del self.free[kind][:count]
        hands: dict[int, list[tuple[int, int]]] = {}
        for place, taker, count in zip(members, takers, keeping.taken, strict=True):
            if count:
                hands.setdefault(taker.set, []).append((place, count))
        for each, wanting in hands.items():
            cards = iter(stacks[each])
            while wanting:
                for (place, _), queue in zip(wanting, cards, strict=False):
                    self.shares[place].append(queue)
                wanting = [(place, count - 1) for place, count in wanting if count > 1]


def _parted(
    held: Sequence[Sequence[MessageQueue]], light: set[MessageQueue]
) -> tuple[list[Sequence[MessageQueue]], list[Sequence[MessageQueue]]]:
    """Split each member's queues into those with and without load."""
    load: list[Sequence[MessageQueue]] = []
    rest: list[Sequence[MessageQueue]] = []
    for owned in held:
        plain = light.isdisjoint(owned)
        load.append(owned if plain else [queue for queue in owned if queue not in light])
        rest.append(() if plain else [queue for queue in owned if queue in light])
    return load, rest


def _by_kind(
    owned: Iterable[MessageQueue], kind_of_topic: Mapping[str, int]
) -> dict[int, Sequence[MessageQueue]]:
    by_kind: dict[int, Share] = {}
    for queue in owned:
        by_kind.setdefault(kind_of_topic[queue[0]], []).append(queue)
    return {**by_kind}


def _sets(
    group: Group, queues: Mapping[str, Sequence[MessageQueue]]
) -> tuple[list[int], dict[str, tuple[int, ...]]]:
    """Group members with the same topics into sets; return each member's set, and each topic's sets."""
    known: dict[frozenset[str], int] = {}
    numbers: dict[frozenset[str], int] = {}
    set_of_member: list[int] = []
    for member in group.members:
        number = numbers.get(member.topics)
        if number is None:
            number = numbers[member.topics] = known.setdefault(member.topics.intersection(queues), len(known))
        set_of_member.append(number)
    sets_of_topic = {
        topic: tuple(number for topics, number in known.items() if topic in topics) for topic in queues
    }
    return set_of_member, sets_of_topic


def _alike(parts: Iterable[Level], *, whole: bool) -> list[list[Level]]:
    """Group levels with equal loads after rounding, if all capacities are one: queues may cross these."""
    if not whole:
        return [[level] for level in parts]
    together: dict[tuple[int, int], list[Level]] = {}
    for level in parts:
        low = level.load // level.capacity
        high = -(-level.load // level.capacity)
        together.setdefault((low, high), []).append(level)
    return list(together.values())


def _taker(each: int, capacity: int, level: Level, held: Mapping[int, Sequence[MessageQueue]]) -> Taker:
    load = level.load * capacity
    return Taker(
        set=each,
        held={kind: len(queues) for kind, queues in held.items()},
        least=load // level.capacity,
        most=-(-load // level.capacity),
    )
