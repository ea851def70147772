"""The cluster: how this broker reacts to changes of other brokers (arrival, departure, topics, members), how
often it polls name servers for them, what it sends periodically, and that topics' routes are fetched again
when a broker arrives.

        changes of brokers and topics          (ClusterWatch)  ─► coordination, assigner, links
        changes of groups' members             (member_relay)  ─► beats, lists, coordination, assigner
        requests of other brokers              (processor/peers)

The shell sends the requests. Those of coordination and the assigner to other brokers are in
`peer_brokers.py`.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

import msgspec

from libramq.broker.cluster.member_relay import delay_ms
from libramq.broker.cluster.peer_brokers import ANSWER_MS_MAX, PeerBrokers, PeerLink
from libramq.broker.groups.assigner import Assigner
from libramq.broker.groups.consumer_clients import ConsumerClients
from libramq.broker.groups.coordination import Coordination
from libramq.clock import MonotonicMs
from libramq.codes import ResponseCode
from libramq.errors import LibraError, TopicNotExist, broker_error
from libramq.formats.route import TopicRouteData
from libramq.groups.cluster_view import BROKERS_TOPIC, ClusterView
from libramq.groups.coordinator import event as ev
from libramq.groups.rebalance_event import Reason
from libramq.groups.roster import EdgeMember
from libramq.kernel.parts import Phase
from libramq.logs import get_logger
from libramq.remoting.body import coordination as bodies
from libramq.rpc import peer_calls
from libramq.rpc.name_server_calls import topic_route
from libramq.rpc.question import Ask, Question

log = get_logger(__name__)

#: Ours: the interval of polling for new brokers and for topics changed elsewhere.
LOOK_MS: Final = 1_000
#: Ours: the polling interval after a connection to a broker has ended: the name server notices that at the
#: same moment and removes the broker.
LOOK_SOON_MS: Final = 50
#: Ours: how long that faster polling lasts; a broker that only restarts is back by then.
SOON_MS: Final = 3_000
#: Ours: limits the cost of many topics to some ten milliseconds a second.
TOPICS_PER_LOOK_MAX: Final = 200


class Cluster:
    """Handles changes caused by other brokers. topics: returns the topics whose remote queues matter."""

    def __init__(
        self,
        *,
        name_servers: Sequence[str],
        peers: PeerBrokers,
        coordination: Coordination,
        consumers: ConsumerClients,
        assigner: Assigner,
        topics: Callable[[], Sequence[str]],
    ) -> None:
        self._name = peers.view.own_name
        self._coordination = coordination
        self._consumers = consumers
        self._assigner = assigner
        self._now_ms = peers.now_ms
        self.watched_topics = topics
        self._was_known = False
        self.peers, self.view, self.relay = peers, peers.view, peers.relay
        self._watch = ClusterWatch(self.view, name_servers, self, ask=peers.ask, monotonic_ms=self._now_ms)
        self._deadline = peers.deadlines.new(self._tick, "Cluster")
        self._soon = partial(peers.soon, Phase.TIMERS, self._set_deadline)
        self._watch.changed = self.relay.changed = peers.changed = self._soon
        self._soon()
        consumers.observe_members(self._members_changed)

    # Events.

    def _members_changed(self, group: str) -> None:
        """Handle a change of our connected clients."""
        coordinator = self.view.coordinator_of(group)
        if self.view.is_alone or coordinator is None:  # Alone, coordination was notified directly.
            return
        if coordinator == self._name:
            self.relay.own_changed(group, now_ms=self._now_ms())
            return
        link = self.peers.links[coordinator]
        link.changed[group] = None
        if link.is_linked:
            known = self._consumers.group(group)
            link.beat_by(self._now_ms() + delay_ms(len(known.members) if known is not None else 0))
            self._soon()

    def lost(self, address: str) -> None:
        """Handle the end of our connection to an address."""
        for link in self.peers.links.values():
            if link.address == address:
                link.failed("the connection has ended", now_ms=self._now_ms())
                self._soon()
                self._watch.look_often()

    # Requests of other brokers.

    def require_peer(self, address: str, broker_name: str | None = None) -> None:
        """Raise NoPermission unless a request comes from a known broker's host: that of `broker_name`, if
        given. The endpoint omits the name, to check before it decodes a large body.

        A host proves little, because every program there is trusted. A signature proves more; the endpoint
        requires one if the cluster has credentials.
        """
        host = address.rpartition(":")[0]
        if self.view.is_at(broker_name, host) if broker_name is not None else self.view.has_host(host):
            return
        self._watch.look_soon()  # The sender may have been added just now.
        raise broker_error(
            ResponseCode.NO_PERMISSION,
            f"{broker_name or 'the sender'} at {host} is not a known broker of this cluster",
        )

    def receive_members(self, body: bodies.PeerMembersBody) -> bool:
        """Take another broker's report of its members; return whether it has reported all its groups."""
        if body.masters != self.view.names:
            self._watch.look_soon()
        now_ms = self._now_ms()
        self._assigner.receive_tables(body.assignments)
        has_reported_all = self.relay.took(body, now_ms=now_ms)
        self._assigner.tick(now_ms)
        return has_reported_all

    def receive_group(self, broker_name: str, group: str, members: Sequence[EdgeMember]) -> None:
        """Take another broker's report of one group's members."""
        self.relay.receive_group(broker_name, group, members, now_ms=self._now_ms())

    def receive_removal(self, body: bodies.PeerRemovedBody) -> None:
        """Handle another broker's deletion of a topic or group; ask name servers for the current state."""
        if body.topic and body.group:
            reset = ev.QueuesRemoved(body.topic, body.broker_name, Reason.OPERATOR)
            self._coordination.happened(reset, body.group)
        elif body.topic:
            self._coordination.queues_removed(body.topic, body.broker_name)
            if self.view.topic_removed(body.topic, body.broker_name):
                self.topic_changed(body.topic)
            if body.topic in self.watched_topics():
                self._watch.look_at(body.topic)
        elif body.group:
            self._coordination.happened(ev.FencesInDoubt(), body.group)

    # Time.

    def _tick(self, now_ms: MonotonicMs) -> None:
        """Perform everything that is due at a monotonic time."""
        self._soon()
        for topic in self.peers.take_unknown_topics():
            self._watch.look_at(topic)
        self._watch.tick(now_ms)
        for link in self.peers.links.values():
            if not link.is_asking and now_ms >= link.due_ms:
                self._beat(link)
        self.relay.forget_silent(now_ms)
        self._publish(self.relay.take_due(now_ms))
        self._assigner.tick(now_ms)
        self.peers.tick(now_ms)

    def _publish(self, groups: Sequence[str]) -> None:
        """Send changes of groups coordinated here to all brokers concerned."""
        for group in groups:
            self._coordination.stock_members(group, self.relay.stock(group))
            for edge, body in self.relay.publish_list(group):
                self.peers.send_member_list(edge, body)
            self._assigner.changed(group)

    def stalled(self, stall_ms: int, now_ms: MonotonicMs) -> None:
        """Extend deadlines after a stall of this process, as brokers' messages are still unread."""
        self.relay.stalled(stall_ms, now_ms)
        self.peers.stalled(stall_ms)

    def _set_deadline(self) -> None:
        """Set the deadline to the next call of `_tick`."""
        next_ms: MonotonicMs | None = None
        for due_ms in (self._watch.next_due_ms, self.peers.next_due_ms, self.relay.next_due_ms):
            if due_ms is not None and (next_ms is None or due_ms < next_ms):
                next_ms = due_ms
        for link in self.peers.links.values():
            if not link.is_asking and (next_ms is None or link.due_ms < next_ms):
                next_ms = link.due_ms
        self._deadline.at(next_ms if next_ms is not None else self._now_ms() + ANSWER_MS_MAX)

    def _beat(self, link: PeerLink) -> None:
        body = self.relay.body(link.name, link.begin())
        if body.complete:
            body = msgspec.structs.replace(body, assignments=self._assigner.tables_for(link.name))

        def answered(outcome: bool | LibraError) -> None:
            self._soon()
            now_ms = self._now_ms()
            link.is_asking = False
            if isinstance(outcome, LibraError):
                link.failed(outcome, now_ms=now_ms)
                return
            link.answered(knows_all=outcome, now_ms=now_ms)
            if link.full_state_due:
                self._send_full_state(link)

        self.peers.ask_broker(link.name, peer_calls.report_members(body), answered)

    def _send_full_state(self, link: PeerLink) -> None:
        """Send a broker the full state of the groups coordinated here."""
        link.full_state_due = False
        for effect in self._coordination.coordinator.grants_for(link.name):
            group = self._coordination.group(effect.grant.group)
            assert group is not None, f"{effect.grant.group} is granted and unknown"
            self.peers.catch_up(link.name, group, effect.grant, self._coordination.refused)
        for body in self.relay.lists_for(link.name):
            self.peers.send_member_list(link.name, body)
        for update in self._assigner.full_state():
            self.peers.send_assignments_to(link.name, update)

    # Changes noticed by the watch.

    def linked(self) -> list[str]:
        """Return the brokers to which we are connected."""
        return [link.name for link in self.peers.links.values() if link.is_linked]

    def brokers_changed(self) -> None:
        """Handle a change of the cluster's brokers."""
        now_ms = self._now_ms()
        is_first = not self._was_known
        self._was_known = True
        others = self.view.others
        log.info("brokers of the cluster", brokers=self.view.names, without_master=sorted(self.view.absent))
        has_new = self.peers.link(others, now_ms)
        self.view.forget_gone()
        self._coordination.coordinator.masters_absent(self.view.absent)
        for topic in self._coordination.coordinator.topics():
            self._coordination.topic_changed(topic)
        # Another broker may have coordinated our groups meanwhile, so our state of them may be outdated.
        self._coordination.relocate(keeps_own=not (is_first and others), has_new=has_new)
        self.relay.brokers_changed(now_ms=now_ms)
        self._assigner.brokers_changed()
        self.view.announce()

    def topic_changed(self, topic: str) -> None:
        """Handle a change of a topic's queues at other brokers."""
        self._coordination.topic_changed(topic)
        self._assigner.topic_changed(topic)


class ClusterWatch:
    """Keeps a view up to date: polls a name server for the cluster's brokers and the queues of topics.

    Uses one name server at a time, and the next one if that fails. While none answers, the view is unchanged.
    """

    def __init__(
        self,
        view: ClusterView,
        name_servers: Sequence[str],
        cluster: Cluster,
        *,
        ask: Ask,
        monotonic_ms: Callable[[], MonotonicMs],
    ) -> None:
        self._view = view
        self._name_servers = name_servers
        self._cluster = cluster
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
        if not self._name_servers:  # The list has not been fetched yet.
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
        """Poll the name servers faster for a while: they will notice the same event soon."""
        self._soon_until_ms = self._monotonic_ms() + SOON_MS
        self.look_soon()

    def look_at(self, topic: str) -> None:
        """Fetch a topic's route, unless a request is pending."""
        if topic in self._requested_topics or not self._name_servers:
            return
        self._requested_topics.add(topic)

        def answered(outcome: TopicRouteData | LibraError) -> None:
            self._requested_topics.discard(topic)
            if _has_failed(outcome):
                return
            route = None if isinstance(outcome, LibraError) else outcome
            if self._view.topic_reported(topic, route):
                self._cluster.topic_changed(topic)

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
            # Try the remaining name servers at once.
            is_last = self._failures % max(1, len(self._name_servers)) == 0
            self.next_due_ms = now_ms + (LOOK_MS if is_last else 0)
            return
        self._failures = 0
        self.next_due_ms = now_ms + (LOOK_SOON_MS if now_ms < self._soon_until_ms else LOOK_MS)
        route = None if isinstance(outcome, LibraError) else outcome
        is_changed = self._view.brokers_reported(route, linked=self._cluster.linked())
        if is_changed:
            self._cluster.brokers_changed()
        if is_changed or now_ms >= self._topics_due_ms:
            self._topics_due_ms = now_ms + LOOK_MS
            self._look_at_topics()

    def _look_at_topics(self) -> None:
        topics = self._cluster.watched_topics()
        self._view.forget_all_but(topics)
        if self._view.is_alone:  # Saves a request per topic and second, which would only find our own queues.
            return
        start = self._topics_seen % len(topics) if len(topics) > TOPICS_PER_LOOK_MAX else 0
        self._topics_seen = start + TOPICS_PER_LOOK_MAX
        for topic in [*topics[start:], *topics[:start]][:TOPICS_PER_LOOK_MAX]:
            self.look_at(topic)


def _has_failed(outcome: object) -> bool:
    """Return whether a request failed; TopicNotExist is an answer."""
    return isinstance(outcome, LibraError) and not isinstance(outcome, TopicNotExist)
