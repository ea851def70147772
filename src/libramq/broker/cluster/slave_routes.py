"""The routes at a slave: all queues of a topic, which an acting slave assigns to members that pop.

A master knows the other brokers (`peer_brokers.py`); a slave asks its name server, whose routes name it in
its master's place. While an answer is awaited nobody is assigned anything; members ask again within a second.

Upstream: TopicRouteInfoManager.getTopicSubscribeInfo.
"""

from collections.abc import Callable
from functools import partial
from typing import Final

from libramq.clock import Clock, MonotonicMs
from libramq.errors import LibraError
from libramq.formats.route import TopicRouteData
from libramq.formats.tables import PERM_READ
from libramq.message.queue import MessageQueue
from libramq.rpc.name_server_calls import topic_route
from libramq.rpc.question import Ask, Question

#: Ours: for how long an answer counts; members ask every 20 s.
KNOWN_MS: Final = 10_000
#: Ours: topics whose routes are kept.
ROUTES_MAX: Final = 10_000
ANSWER_MS_MAX: Final = 3_000


class SlaveRoutes:
    """Asks for routes when they are wanted. name_server: where."""

    def __init__(self, clock: Clock, ask: Ask, name_server: Callable[[], str]) -> None:
        self._clock = clock
        self._ask = ask
        self._name_server = name_server
        self._known: dict[str, tuple[MonotonicMs, list[MessageQueue]]] = {}
        self._asked: set[str] = set()

    def queues(self, topic: str) -> list[MessageQueue] | None:
        """Return all queues of a topic that may be read, sorted; None while they are unknown."""
        since_ms, queues = self._known.get(topic, (None, []))
        if since_ms is not None and self._clock.monotonic_ms() - since_ms < KNOWN_MS:
            return queues
        if topic not in self._asked and len(self._asked) < ROUTES_MAX:
            self._asked.add(topic)
            answered = partial(self._answered, topic)
            self._ask(Question(self._name_server(), topic_route(topic), answered, ANSWER_MS_MAX))
        return queues or None

    def _answered(self, topic: str, route: TopicRouteData | LibraError) -> None:
        self._asked.discard(topic)
        if isinstance(route, LibraError):
            return
        if len(self._known) >= ROUTES_MAX:
            self._known.clear()
        queues = [
            MessageQueue(topic, each.broker_name, queue_id)
            for each in route.queue_datas
            if each.perm & PERM_READ
            for queue_id in range(each.read_queue_nums)
        ]
        self._known[topic] = self._clock.monotonic_ms(), sorted(queues)
