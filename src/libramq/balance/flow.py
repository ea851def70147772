"""The flow network: supplies reach demands along arcs with capacities and costs, as cheaply as possible.

        add     an arc from node to node
        send    from nodes with excess to those with a deficit (negative excess), until none can be reached
        flow    the resulting flow over an arc

The primal-dual method: shortest distances give potentials, as much as fits is sent along arcs of no reduced
cost (Dinic), and this repeats. Costs are small whole numbers, so there are few rounds. R. K. Ahuja, T. L.
Magnanti, J. B. Orlin: Network Flows (1993), chapters 7 and 9.
"""

from collections.abc import Sequence


class FlowNetwork:
    """Nodes are numbers from 0. Arc 2n goes forwards, arc 2n + 1 is its residual."""

    def __init__(self, node_count: int) -> None:
        self._arcs: list[list[int]] = [[] for _ in range(node_count)]
        self._to: list[int] = []
        self._left: list[int] = []
        self._cost: list[int] = []

    def add(self, start: int, end: int, capacity: int, cost: int = 0, *, flow: int = 0) -> int:
        """Add an arc and return it; cost ≥ 0. An initial flow is allowed only without cost."""
        arc = len(self._to)
        self._to += (end, start)
        self._left += (capacity - flow, flow)
        self._cost += (cost, -cost)
        self._arcs[start].append(arc)
        self._arcs[end].append(arc + 1)
        return arc

    def flow(self, arc: int) -> int:
        """Return the flow over the arc."""
        return self._left[arc + 1]

    def send(self, excess: list[int]) -> None:
        """Send excess to deficits. Amounts that stay positive in the list cannot reach any."""
        potential = [0] * len(self._arcs)
        while self._raise(potential, excess):
            while self._push(potential, excess):
                pass

    def reached(self, excess: Sequence[int]) -> set[int]:
        """Return the nodes that remaining excess can still reach: the source's side of the minimum cut."""
        nodes = [node for node, amount in enumerate(excess) if amount > 0]
        seen = set(nodes)
        for node in nodes:
            for arc in self._arcs[node]:
                end = self._to[arc]
                if self._left[arc] and end not in seen:
                    seen.add(end)
                    nodes.append(end)
        return seen

    def _raise(self, potential: list[int], excess: Sequence[int]) -> bool:
        """Raise potentials by distances from excess to the nearest deficit; return whether there is any."""
        to, left, cost, arcs = self._to, self._left, self._cost, self._arcs
        distance = [-1] * len(arcs)
        rings: list[list[int]] = [[node for node, amount in enumerate(excess) if amount > 0]]
        nearest = -1
        for far, ring in enumerate(rings):  # Both lists grow during the loop (Dial's buckets).
            for node in ring:
                if distance[node] >= 0:
                    continue
                distance[node] = far
                if excess[node] < 0:
                    nearest = far
                    break
                here = potential[node]
                for arc in arcs[node]:
                    end = to[arc]
                    if left[arc] and distance[end] < 0:
                        away = far + cost[arc] + here - potential[end]
                        while len(rings) <= away:
                            rings.append([])
                        rings[away].append(end)
            if nearest >= 0:
                break
        if nearest <= 0:
            return nearest == 0
        for node, away in enumerate(distance):
            potential[node] += min(away, nearest) if away >= 0 else nearest
        return True

    def _push(self, potential: Sequence[int], excess: list[int]) -> bool:
        """Send a blocking flow along shortest paths of no reduced cost; return whether anything was sent."""
        level = self._levels(potential, excess)
        if level is None:
            return False
        to, left, cost, arcs = self._to, self._left, self._cost, self._arcs
        next_arc = [0] * len(arcs)
        for source in [node for node, amount in enumerate(excess) if amount > 0]:
            node, path = source, list[int]()
            while excess[source] > 0:
                if excess[node] < 0:
                    amount = min(excess[source], -excess[node], *[left[arc] for arc in path])
                    for arc in path:
                        left[arc] -= amount
                        left[arc ^ 1] += amount
                    excess[source] -= amount
                    excess[node] += amount
                    node, path = source, []
                    continue
                arcs_here, at = arcs[node], next_arc[node]
                here, below = potential[node], level[node] + 1
                while at < len(arcs_here):
                    arc = arcs_here[at]
                    end = to[arc]
                    if left[arc] and level[end] == below and cost[arc] + here == potential[end]:
                        break
                    at += 1
                next_arc[node] = at
                if at < len(arcs_here):
                    path.append(arc)
                    node = end
                elif path:
                    node = to[path.pop() ^ 1]
                    next_arc[node] += 1
                else:
                    break
        return True

    def _levels(self, potential: Sequence[int], excess: Sequence[int]) -> list[int] | None:
        """Return each node's distance in arcs of no reduced cost, or None if no deficit is reached."""
        to, left, cost, arcs = self._to, self._left, self._cost, self._arcs
        level = [-1] * len(arcs)
        ring = [node for node, amount in enumerate(excess) if amount > 0]
        for node in ring:
            level[node] = 0
        below, found = 0, False
        while ring and not found:
            below += 1
            following: list[int] = []
            for node in ring:
                here = potential[node]
                for arc in arcs[node]:
                    end = to[arc]
                    if left[arc] and level[end] < 0 and cost[arc] + here == potential[end]:
                        level[end] = below
                        following.append(end)
                        found = found or excess[end] < 0
            ring = following
        return level if found else None
