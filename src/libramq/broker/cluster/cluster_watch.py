"""The cluster watch: polls a name server for the cluster's brokers, and for the queues of topics.

One name server at a time, the next one when it does not answer. While none does, the view stays as it is.
"""

from collections.abc import Callable, Collection, Sequence
from typing import Final, Protocol

from libramq.clock import MonotonicMs
from libramq.errors import LibraError, TopicNotExist
from libramq.formats.route import TopicRouteData
from libramq.groups.cluster_view import BROKERS_TOPIC, ClusterView
from libramq.logs import get_logger
from libramq.rpc.name_server_calls import topic_route
from libramq.rpc.question import Ask, Question

log = get_logger(__name__)

#: Ours: how soon an added broker, or a topic that was changed elsewhere, is noticed.
LOOK_MS: Final = 1_000
#: Ours: the pace after a connection to a broker has ended: the name server notices that at the same moment,
#: and removes the broker; one that only restarts is back within these seconds.
LOOK_SOON_MS: Final = 50
SOON_MS: Final = 3_000
#: Ours: so that many topics cost a broker at most some ten milliseconds a second.
TOPICS_PER_LOOK_MAX: Final = 200
ANSWER_MS_MAX: Final = 1_000


class Watcher(Protocol):
    """The owner of a watch, which acts when the view has changed."""

    def watched_topics(self) -> Sequence[str]:
        """Return the topics whose queues are needed."""
        ...

    def linked(self) -> Collection[str]:
        """Return the brokers to which our connection stands."""
        ...

    def brokers_changed(self) -> None:
        """Handle a change of the cluster's brokers."""
        ...

    def topic_changed(self, topic: str) -> None:
        """Handle a change of a topic's queues."""
        ...


class ClusterWatch:
    """Keeps a view up to date."""

    def __init__(
        self,
        view: ClusterView,
        name_servers: Sequence[str],
        watcher: Watcher,
        *,
        ask: Ask,
        monotonic_ms: Callable[[], MonotonicMs],
    ) -> None:
        self._view = view
        self._name_servers = name_servers
        self._watcher = watcher
        self._ask = ask
        self._monotonic_ms = monotonic_ms
        self._position = 0
        #: Called when `next_due_ms` has changed.
        self.changed: Callable[[], None] = lambda: None
        now_ms = monotonic_ms()
        #: When `tick` is due next; None while an answer is awaited.
        self.next_due_ms: MonotonicMs | None = now_ms
        self._looked_at_ms = now_ms - LOOK_SOON_MS
        self._topics_due_ms = now_ms
        self._soon_until_ms = now_ms
        self._failures = 0
        self._requested_topics: set[str] = set()
        self._topics_seen = 0

    def tick(self, now_ms: MonotonicMs) -> None:
        """Perform everything that is due."""
        if self.next_due_ms is None or now_ms < self.next_due_ms:
            return
        if not self._name_servers:  # Their list has not been read yet.
            self.next_due_ms = now_ms + LOOK_MS
            return
        self.next_due_ms = None
        self._looked_at_ms = now_ms
        self._ask(
            Question(self._name_server, topic_route(BROKERS_TOPIC), self._brokers_answered, ANSWER_MS_MAX)
        )

    def look_soon(self) -> None:
        """Query the name servers soon: another broker has news."""
        if self.next_due_ms is not None:
            soon_ms = max(self._monotonic_ms(), self._looked_at_ms + LOOK_SOON_MS)
            self.next_due_ms = min(self.next_due_ms, soon_ms)
            self.changed()

    def look_often(self) -> None:
        """Query the name servers often for a while: they will notice the same event soon."""
        self._soon_until_ms = self._monotonic_ms() + SOON_MS
        self.look_soon()

    def look_at(self, topic: str) -> None:
        """Fetch a topic's route, unless that is under way."""
        if topic in self._requested_topics or not self._name_servers:
            return
        self._requested_topics.add(topic)

        def answered(outcome: TopicRouteData | LibraError) -> None:
            self._requested_topics.discard(topic)
            if _has_failed(outcome):
                return
            route = None if isinstance(outcome, LibraError) else outcome
            if self._view.topic_reported(topic, route):
                self._watcher.topic_changed(topic)

        self._ask(Question(self._name_server, topic_route(topic), answered, ANSWER_MS_MAX))

    @property
    def _name_server(self) -> str:
        return self._name_servers[self._position % len(self._name_servers)]

    def _brokers_answered(self, outcome: TopicRouteData | LibraError) -> None:
        self.changed()
        now_ms = self._monotonic_ms()
        if _has_failed(outcome):
            self._failures += 1
            if self._failures == 1:
                log.warning(
                    "name server not reachable; keeping the known brokers",
                    address=self._name_server, reason=str(outcome),
                )  # fmt: skip
            self._position += 1
            # The other topics follow at once, one after the other.
            is_last = self._failures % max(1, len(self._name_servers)) == 0
            self.next_due_ms = now_ms + (LOOK_MS if is_last else 0)
            return
        self._failures = 0
        self.next_due_ms = now_ms + (LOOK_SOON_MS if now_ms < self._soon_until_ms else LOOK_MS)
        route = None if isinstance(outcome, LibraError) else outcome
        is_changed = self._view.brokers_reported(route, linked=self._watcher.linked())
        if is_changed:
            self._watcher.brokers_changed()
        if is_changed or now_ms >= self._topics_due_ms:
            self._topics_due_ms = now_ms + LOOK_MS
            self._look_at_topics()

    def _look_at_topics(self) -> None:
        topics = self._watcher.watched_topics()
        self._view.forget_all_but(topics)
        if self._view.is_alone:  # Else each topic would cost a request a second, to learn that it is ours.
            return
        start = self._topics_seen % len(topics) if len(topics) > TOPICS_PER_LOOK_MAX else 0
        self._topics_seen = start + TOPICS_PER_LOOK_MAX
        for topic in [*topics[start:], *topics[:start]][:TOPICS_PER_LOOK_MAX]:
            self.look_at(topic)


def _has_failed(outcome: object) -> bool:
    """Return whether a question has no answer; that there is no such topic is one."""
    return isinstance(outcome, LibraError) and not isinstance(outcome, TopicNotExist)
