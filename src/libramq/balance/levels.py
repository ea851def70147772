"""The levels: how much load the members of each subscription carry when loads are as even as possible.

    topic A   8 queues ──► 2 members of {A}       level of 8 / 2: four each
                       ╲
    topic B   9 queues ──► 1 member of {A, B}     level of 9 / 1: nine, so nothing of A

A level is a part of the group whose topics go to its own members only: every other subscriber of them already
carries more. The resulting loads, largest first, are the least possible. S. Fujishige:
Lexicographically optimal base of a polymatroid (1980); for whole numbers A. Frank, K. Murota: Decreasing
minimization on M-convex sets (2022).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from libramq.balance.flow import FlowNetwork


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """Load and capacity of a part of the group, with its sources (of load) and sinks.

    Its members carry load / capacity each, times their own capacity, rounded down or up.
    """

    load: int
    capacity: int
    sources: tuple[int, ...]
    sinks: tuple[int, ...]


def levels(loads: Sequence[int], capacities: Sequence[int], sinks_of: Sequence[Sequence[int]]) -> list[Level]:
    """Divide sources (loads) and sinks (capacities) into levels; a source may flow to some sinks."""
    return list(_part(loads, capacities, sinks_of, tuple(range(len(loads))), tuple(range(len(capacities)))))


def _part(
    loads: Sequence[int],
    capacities: Sequence[int],
    sinks_of: Sequence[Sequence[int]],
    sources: tuple[int, ...],
    sinks: tuple[int, ...],
) -> Iterator[Level]:
    if not sinks:
        return
    load = sum(loads[source] for source in sources)
    capacity = sum(capacities[sink] for sink in sinks)
    crowded = _crowded(loads, capacities, sinks_of, sources, sinks) if len(sinks) > 1 else set()
    if not crowded:
        yield Level(load=load, capacity=capacity, sources=sources, sinks=sinks)
        return
    for side in (True, False):
        yield from _part(
            loads,
            capacities,
            sinks_of,
            tuple(source for source in sources if (source in crowded) is side),
            tuple(sink for sink in sinks if (len(loads) + sink in crowded) is side),
        )


def _crowded(
    loads: Sequence[int],
    capacities: Sequence[int],
    sinks_of: Sequence[Sequence[int]],
    sources: tuple[int, ...],
    sinks: tuple[int, ...],
) -> set[int]:
    """Return the sources and sinks (numbered after all sources) above the average; empty if all are even.

    Loads times the whole capacity flow to capacities times the whole load, so all numbers stay whole.
    """
    load = sum(loads[source] for source in sources)
    capacity = sum(capacities[sink] for sink in sinks)
    first_sink = len(loads)
    network = FlowNetwork(first_sink + len(capacities))
    excess = [0] * (first_sink + len(capacities))
    for sink in sinks:
        excess[first_sink + sink] = -capacities[sink] * load
    allowed = set(sinks)
    for source in sources:
        excess[source] = loads[source] * capacity
        for sink in sinks_of[source]:
            if sink in allowed:
                network.add(source, first_sink + sink, load * capacity)
    network.send(excess)
    return network.reached(excess)
