"""Balanced and sticky: loads as even as subscriptions allow, over all topics at once, and then with the
fewest moves.

        levels      which members carry how much at best          (counts by subscription)
        keeping     how many of its queues each member keeps      (counts by member)
        dealing     which queues those are, and who gets the others

Equal subscriptions: loads differ by at most one. Different ones: the loads in order, largest first, are the
least possible. If they are so already, nothing moves. With capacities a member carries its part of its
level's load, rounded down or up. Retry topics carry no load: their queues stay as long as their member does.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from heapq import heapify, heapreplace
from itertools import chain

from libramq.balance.by_lag import even_by_lag, weights
from libramq.balance.group import Assignment, Group, counts
from libramq.balance.keeping import Keeping, Taker, keep_most
from libramq.balance.levels import Level, levels
from libramq.balance.ownership import holdings
from libramq.balance.strategy import GroupStrategy
from libramq.message.queue import MessageQueue

Share = list[MessageQueue]


def balanced_sticky(group: Group, *, by_capacity: bool = False, by_lag: bool = False) -> Assignment:
    """Assign the queues of all topics.

    by_capacity: in proportion to the members' capacities. by_lag: lagging queues weigh more (by_lag.py).
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
    """Return all members' queues of these topics, in the members' order; held: those each may keep."""
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
    """Return all members' queues without load: they stay, and free ones go to members with the fewest."""
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
    """The table at which queues are dealt: by kind, what each member holds, and the free queues."""

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
        if len(self.free) == 1:  # The usual case, in half the time.
            self.held = [{0: owned} for owned in held]
        else:
            self.held = [_by_kind(owned, kind_of_topic) for owned in held]
        taken = set(chain.from_iterable(held))
        for topic, kind in kind_of_topic.items():
            self.free[kind] += [queue for queue in queues[topic] if queue not in taken]

    def free_others(self, members: Iterable[int], kinds: set[int]) -> None:
        """Free the queues that members need not keep: kinds of a level with less load."""
        for place in members:
            for kind in self.held[place].keys() & kinds:
                self.free[kind] += self.held[place].pop(kind)

    def deal(self, members: Sequence[int], takers: Sequence[Taker], keeping: Keeping) -> None:
        """Leave members what they keep, and deal out the rest in rounds, so that neighbours are separated."""
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
    """Split each member's queues into those with load and those without."""
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
    """Group members with the same topics into sets: each member's set, and each topic's sets."""
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
    """Group levels whose loads are equal after rounding, if all capacities are one: queues may cross them."""
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
