"""The survey: checks a cluster after every step for states that no event reports."""

from collections.abc import Iterable, Iterator

from libramq.fencing import MODE_CLIENT, MODE_EPOCHS
from libramq.testing.cluster import Cluster
from libramq.testing.scenarios.happening import Happening


class Survey:
    """Counts how often each state begins."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._last: set[tuple[Happening, str]] = set()
        self._coordinators: dict[str, set[str]] = {}
        self._modes: dict[str, str] = {}

    def step(self) -> None:
        """Check the cluster after a step."""
        groups = self._cluster.groups()
        now = {*self._states(groups), *self._routes()}
        for happening, about in sorted(now - self._last):
            self._cluster.world.history.happened(happening, about)
        self._last = now
        self._look_at_coordinators(groups)

    def _states(self, groups: Iterable[str]) -> Iterator[tuple[Happening, str]]:
        for group in groups:
            members = self._cluster.alive(group)
            if any(member.is_orderly for member in members):
                yield Happening.ORDERLY, group
            if len({member.topics for member in members}) > 1:
                yield Happening.UNEQUAL, group
            if any(member.is_broadcasting for member in members):
                yield Happening.BROADCASTING, group
                continue
            if len({member.plan.is_stock for member in members}) > 1:
                yield Happening.MIXED, group
            elif members:
                yield (Happening.STOCK if members[0].plan.is_stock else Happening.COORDINATED), group
            if members and all(member.plan.asks for member in members):
                yield Happening.ASKING, group

    def _routes(self) -> Iterator[tuple[Happening, str]]:
        running = [each for each in self._cluster.name_servers if each.process.is_alive]
        for topic in self._cluster.topics if len(running) > 1 else ():
            reported = [each.route(topic) for each in running]
            if any(one != reported[0] for one in reported):
                yield Happening.ROUTES_DIFFER, topic

    def _look_at_coordinators(self, groups: Iterable[str]) -> None:
        history = self._cluster.world.history
        for group in groups:
            coordinators = set()
            for name, node in self._cluster.brokers.items():
                view = node.broker.members.coordination.group(group) if node.broker is not None else None
                if view is None or not view.members:
                    continue
                coordinators.add(name)
                if (self._modes.get(group), view.mode) == (MODE_CLIENT, MODE_EPOCHS):
                    history.happened(Happening.MODE_BACK, group)
                self._modes[group] = view.mode
            before = self._coordinators.get(group)
            if before and coordinators - before:
                history.happened(Happening.TAKEN_OVER, group)
            if coordinators:
                self._coordinators[group] = coordinators
