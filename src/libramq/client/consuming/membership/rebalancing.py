"""The rebalancing of a member that allocates for itself: when it fetches the group's members, and which
queues it then takes.

A round begins at the start, when a broker reports that members changed, when routes (queues, brokers) change,
when a broker answers again, every 20 s, and 1 s after an incomplete round. A broadcasting consumer reads
every queue and fetches no members.
Upstream: RebalanceService.java, impl/consumer/RebalanceImpl.java (doRebalance, rebalanceByTopic,
updateProcessQueueTableInRebalance).
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial

from libramq.balance import TopicRule
from libramq.client.consuming.ownership import event as ev
from libramq.client.consuming.ownership.ownership import REBALANCE_SOON_MS, Ownership
from libramq.clock import MonotonicMs
from libramq.errors import LibraError
from libramq.logs import get_logger
from libramq.message.queue import MessageQueue
from libramq.rpc.broker_calls import consumer_list

log = get_logger(__name__)


def allocate(
    strategy: TopicRule, client_id: str, queues: Iterable[MessageQueue], client_ids: Iterable[str]
) -> tuple[MessageQueue, ...]:
    """Return our queues of a topic. All members sort alike, so they agree on the allocation.

    Queues of other topics in a strategy's result (CONFIG returns its whole list for every topic) are ignored.
    """
    readable = dict.fromkeys(sorted(queues))
    share = strategy(client_id, list(readable), sorted(client_ids))
    return tuple(queue for queue in dict.fromkeys(share) if queue in readable)


class Rebalancing:
    """Runs one round at a time; changes during a round begin the next."""

    def __init__(self, topics: Collection[str], own: Ownership, *, allocates: Callable[[], bool]) -> None:
        """Set up. allocates: returns whether we allocate for ourselves; else a coordinator does."""
        self._settings = own.settings
        self.topics = topics
        self._routes = own.routes
        self._known_brokers = own.known_brokers
        self._own = own
        self._table = own.table
        self._allocates = allocates
        self._assigned: tuple[MessageQueue, ...] = ()
        self._lists_awaited: set[str] = set()
        self._again = False

    def begin(self, now_ms: MonotonicMs) -> None:
        """Begin a round, unless a coordinator allocates or the consumer stops: fetch the group's members."""
        if not self._may_go_on():
            return
        if self._settings.assigns:
            self._take_assigned(now_ms)
        elif self._settings.broadcasting:
            self._take_all(now_ms)
        elif self._lists_awaited:
            self._again = True
        else:
            self._fetch_lists(now_ms)

    def _fetch_lists(self, now_ms: MonotonicMs) -> None:
        self._again = False
        self._own.is_balanced = True
        by_address: dict[str, list[str]] = {}
        for topic in self.topics:
            addresses = self._routes.readers_of_topic(topic)
            if addresses:
                chosen = next((each for each in addresses if each in self._known_brokers.alive), addresses[0])
                by_address.setdefault(chosen, []).append(topic)
        self._lists_awaited = set(by_address)
        if not by_address:
            self._own.repeat_round(now_ms)
        call = consumer_list(self._settings.group)
        for address, topics in by_address.items():
            self._own.kernel.ask(address, call, partial(self.list_fetched, address, topics))

    def _may_go_on(self) -> bool:
        """Return whether to allocate; else drop the current round: a later one would wait for its lists."""
        if self._allocates() and not self._own.closing:
            return True
        self._lists_awaited.clear()
        self._again = False
        return False

    def list_fetched(
        self, address: str, topics: Sequence[str], outcome: Sequence[str] | LibraError, now_ms: MonotonicMs
    ) -> None:
        """Handle the group's member list; end the round with the last list, and schedule the next."""
        if not self._may_go_on():
            return
        self._lists_awaited.discard(address)
        if isinstance(outcome, LibraError) or not outcome:
            self._own.is_balanced = False
        else:
            if self._settings.client_id not in outcome:  # The broker has forgotten us: others get our queues.
                self._own.is_balanced = False
                self._known_brokers.send_heartbeats([address])
            for topic in topics:
                self._allocate(topic, outcome, now_ms)
        if self._lists_awaited:
            return
        self._schedule(now_ms)
        if self._again:
            self.begin(now_ms)

    def _take_all(self, now_ms: MonotonicMs) -> None:
        self._own.is_balanced = True
        for topic in self.topics:
            self._apply(topic, self._routes.subscribe_queues(topic), now_ms, takeover_delay_ms=0)
        self._schedule(now_ms)

    def assign(self, queues: Iterable[MessageQueue], now_ms: MonotonicMs) -> None:
        """Take the queues that the program chose, and release the others."""
        self._assigned = tuple(dict.fromkeys(queues))
        self._take_assigned(now_ms)

    def _take_assigned(self, now_ms: MonotonicMs) -> None:
        self._own.is_balanced = True
        owned = {each.queue for each in self._table.each() if each.is_ours}
        # The routes of the others are looked up; then this is called again.
        reachable = [each for each in self._assigned if self._routes.master(each.broker_name) is not None]
        unassigned = ev.Unassigned(self._settings.drain_ms)
        self._own.handle_each(unassigned, now_ms, sorted(owned.difference(self._assigned)))
        for queue in reachable:
            if queue not in owned:
                self._own.take(queue, now_ms, delay_ms=0)
        self._schedule(now_ms)

    def _allocate(self, topic: str, client_ids: Sequence[str], now_ms: MonotonicMs) -> None:
        try:
            allocated = allocate(
                self._settings.strategy,
                self._settings.client_id,
                self._routes.subscribe_queues(topic),
                client_ids,
            )
        except Exception:  # A user's strategy may raise anything.
            log.exception("the strategy failed", topic=topic, members=len(client_ids))
            self._own.is_balanced = False
            return
        # If we are alone, no other member has anything left to commit.
        delay_ms = self._settings.takeover_delay_ms if len(client_ids) > 1 else 0
        self._apply(topic, allocated, now_ms, takeover_delay_ms=delay_ms)

    def _apply(
        self, topic: str, allocated: Sequence[MessageQueue], now_ms: MonotonicMs, *, takeover_delay_ms: int
    ) -> None:
        idle = [queue for queue in self._table.idle(now_ms) if queue.topic == topic]
        owned = set(self._table.of_topic(topic)).difference(idle)
        taken = [queue for queue in allocated if queue not in owned]
        released = sorted(owned.difference(allocated))
        self._own.handle_each(ev.Unassigned(self._settings.drain_ms), now_ms, (*released, *idle))
        for queue in taken:
            self._own.take(queue, now_ms, delay_ms=takeover_delay_ms)
        if taken or released:
            log.info("rebalanced", topic=topic, taken=len(taken), released=len(released))
            self._known_brokers.changed(now_ms)

    def _schedule(self, now_ms: MonotonicMs) -> None:
        delay_ms = self._settings.rebalance_ms if self._own.is_balanced else REBALANCE_SOON_MS
        self._own.round_due.at(now_ms + delay_ms)
