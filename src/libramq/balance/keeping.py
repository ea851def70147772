"""The keeping: how many of its queues each member keeps when loads are brought within bounds.

        kind      queues that the same members may have: equal, except for their holders
    set       members that may have the same kinds

Only counts are decided here. The total number kept is the maximum.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from libramq.balance.flow import FlowNetwork


class Taker(NamedTuple):
    """A member in counts: its set, its queues of each kind, and its least and highest load."""

    set: int
    held: Mapping[int, int]
    least: int
    most: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Keeping:
    """The result: queues that each member keeps of each kind, those it takes, and those assigned to a set."""

    kept: Sequence[Mapping[int, int]]
    taken: Sequence[int]
    assigned: Mapping[tuple[int, int], int]


def keep_most(
    free: Mapping[int, int], sets_of: Mapping[int, Sequence[int]], takers: Sequence[Taker]
) -> Keeping:
    """Decide for a part of the group whose bounds can be met.

    free: queues of each kind that nobody holds. sets_of: which sets may have a kind.
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

    A free queue begins at its kind. A member with too many gives one back to its kind, which is a move and
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
