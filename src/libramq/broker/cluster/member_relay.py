"""The member relay: how brokers report their connected members to a group's coordinator, which sends the
merged list to all of them; how long changes are collected, and when a silent broker's members are dropped.

        edge          reports its connected members to a group's coordinator        PEER_MEMBERS
        coordinator   sends the list of all members to the group's edges             PEER_LIST

Every broker is both, for different groups. A group with members at one broker only has no list: its edge
knows them all. A coordinator sends nothing until every broker with the same view of the cluster has reported;
meanwhile edges use its last list, or its predecessor's.
"""

from collections.abc import Callable, Sequence
from typing import Final

from libramq.broker.groups.consumer_clients import ConsumerClients
from libramq.clock import Clock, MonotonicMs
from libramq.filter.subscription import BROADCASTING
from libramq.groups.cluster_view import ClusterView
from libramq.groups.roster import EdgeMember, MemberList, ServerAssignedMembers
from libramq.remoting.body.coordination import PeerListBody, PeerMembersBody

#: Ours: changes come in bursts; those of large groups are collected longer, as a list is always sent whole.
COLLECT_MS: Final = 5
MEMBERS_PER_MS: Final = 50
#: Ours: how long a coordinator waits for brokers that have not reported their members since the set of
#: brokers changed.
AGREE_MS_MAX: Final = 1_000
#: Ours: five beats; then a silent broker's clients are forgotten, as if it were gone.
EDGE_SILENCE_MS_MAX: Final = 5_000


def delay_ms(member_count: int) -> int:
    """Return how long changes of a group of that size are collected."""
    return COLLECT_MS + member_count // MEMBERS_PER_MS


class MemberRelay:
    """The member reports that this broker sends as an edge and receives as a coordinator."""

    def __init__(
        self,
        view: ClusterView,
        broker_name: str,
        *,
        consumers: ConsumerClients,
        clock: Clock,
    ) -> None:
        self._view = view
        self._own = broker_name
        self._consumers = consumers
        self._clock = clock
        self._roster = consumers.roster
        self._roster.edge_reported(broker_name, view.names, now_ms=clock.monotonic_ms())
        # Groups whose members here have changed since they were reported to the roster.
        self._unreported: set[str] = set()
        self._changed: dict[str, None] = {}
        #: When `take_due` will have work; None: never, in the present state.
        self.next_due_ms: MonotonicMs | None = None
        #: Called when `next_due_ms` has changed.
        self.changed: Callable[[], None] = lambda: None
        self._agree_by_ms = MonotonicMs(0)
        self._version = 0
        consumers.observe_members(self._members_changed)

    # Edge.

    def members(self, group_name: str) -> list[EdgeMember]:
        """Return a group's members connected here; empty for a broadcasting group."""
        group = self._consumers.group(group_name)
        if group is None or group.message_model == BROADCASTING:
            return []
        stock, allocating = set(group.stock_client_ids), group.allocating_client_ids
        topics = group.server_assigned_members().topics
        return [
            EdgeMember(
                client_id=each,
                stock=each in stock,
                topics=tuple(sorted(topics[each])) if each in stock else (),
                allocates=each in allocating,
            )
            for each in group.client_ids
        ]

    def body(self, coordinator: str, changed: Sequence[str] | None) -> PeerMembersBody:
        """Return the report for a coordinator: of the changed groups; None: of all that it coordinates."""
        names = [group.name for group in self._consumers.groups()] if changed is None else changed
        reported = {
            name: self.members(name) for name in names if self._view.coordinator_of(name) == coordinator
        }
        return PeerMembersBody(
            broker_name=self._own,
            masters=self._view.names,
            groups=reported,
            complete=changed is None,
            listed=[name for name in self._roster.listed_by_others(coordinator) if name in reported]
            if changed is None
            else [],
        )

    def listed(self, body: PeerListBody) -> None:
        """Take a coordinator's list of a group's members; notify our own members if it has changed."""
        self._consumers.receive_list(body.group, MemberList(body.broker_name, body.version, body.client_ids))

    # Coordinator.

    def brokers_changed(self, *, now_ms: MonotonicMs) -> None:
        """Handle a change of the cluster's brokers, which moves groups to other coordinators."""
        self._agree_by_ms = now_ms + AGREE_MS_MAX
        for edge in self._roster.edges():
            if edge not in self._view.names:
                self._forget(edge)
        self._roster.forget_published(self._lives_here)
        self._unreported.clear()
        self.took(self.body(self._own, None), now_ms=now_ms)
        self._publish_by(self._roster.groups(), now_ms)

    def own_changed(self, group: str, *, now_ms: MonotonicMs) -> None:
        """Handle a change of our own clients in a group coordinated here."""
        self._unreported.discard(group)
        self.took(self.body(self._own, [group]), now_ms=now_ms)

    def took(self, body: PeerMembersBody, *, now_ms: MonotonicMs) -> bool:
        """Take a PEER_MEMBERS report; return whether the edge has reported all its groups."""
        is_whole = self._roster.edge_reported(body.broker_name, body.masters, now_ms=now_ms)
        changed = self._roster.report(body.broker_name, body.groups, complete=body.complete)
        for group in body.listed:
            self._roster.listed_elsewhere(body.broker_name, group)
            changed.append(group)
        size = max((len(body.groups.get(group, ())) for group in changed), default=0)
        self._publish_by(changed, now_ms + delay_ms(size))
        return is_whole or body.complete

    def receive_group(
        self, edge: str, group: str, members: Sequence[EdgeMember], *, now_ms: MonotonicMs
    ) -> None:
        """Take an edge's report of one group, ahead of its beat; ignored if the edge is unknown."""
        if edge in self._roster.edges():
            changed = self._roster.report(edge, {group: members}, complete=False)
            self._publish_by(changed, now_ms + delay_ms(len(members)))

    def lists_for(self, edge: str) -> list[PeerListBody]:
        """Return all lists due to an edge on a new link."""
        return [self._body(group, client_ids) for group, client_ids in self._roster.published_to(edge)]

    def is_agreed(self, now_ms: MonotonicMs) -> bool:
        """Return whether every current broker has reported its members or has been given up on."""
        return now_ms >= self._agree_by_ms or self._have_all_reported()

    def has_all_reports(self, now_ms: MonotonicMs) -> bool:
        """Return the same, after the longest wait: brokers silent until then count as having no members."""
        return now_ms >= self._agree_by_ms - AGREE_MS_MAX + EDGE_SILENCE_MS_MAX or self._have_all_reported()

    def _have_all_reported(self) -> bool:
        names = self._view.names
        return all(self._roster.agrees(name, names) for name in names)

    def server_assigned_members(self, group: str) -> ServerAssignedMembers | None:
        """Return the members of a group in the form that the assigner needs."""
        self._report_own(group)
        return self._roster.server_assigned(group)

    def stock(self, group: str) -> list[str]:
        """Return a group's members that allocate for themselves, for its coordinator."""
        self._report_own(group)
        return self._roster.stock(group)

    def _members_changed(self, group: str) -> None:
        """Note a change of our own clients; it is reported on demand, as a group may be large."""
        self._unreported.add(group)
        if self._consumers.group(group) is None:
            self._report_own(group)

    def _report_own(self, group: str) -> None:
        if group in self._unreported:
            self._unreported.discard(group)
            self._roster.report(self._own, {group: self.members(group)}, complete=False)

    # Time.

    def take_due(self, now_ms: MonotonicMs) -> list[str]:
        """Return the groups coordinated here whose lists are due."""
        if self.next_due_ms is None or now_ms < self.next_due_ms:
            return []
        if not self.is_agreed(now_ms):
            self.next_due_ms = min(now_ms + COLLECT_MS, self._agree_by_ms)
            return []
        changed, self._changed, self.next_due_ms = list(self._changed), {}, None
        return list(filter(self._lives_here, changed))

    def stalled(self, stall_ms: int, now_ms: MonotonicMs) -> None:
        """Extend the edges' deadlines after a stall of this process."""
        self._roster.stalled(stall_ms, now_ms)
        self._agree_by_ms = self._agree_by_ms + stall_ms

    def forget_silent(self, now_ms: MonotonicMs) -> None:
        """Drop the members of brokers that have fallen silent."""
        for edge in self._roster.silent_edges(since_ms=now_ms - EDGE_SILENCE_MS_MAX):
            if edge != self._own:
                self._forget(edge)

    def _forget(self, edge: str) -> None:
        self._publish_by(self._roster.forget_edge(edge), self._clock.monotonic_ms())

    def _publish_by(self, groups: Sequence[str], due_ms: MonotonicMs) -> None:
        if groups:
            self._changed.update(dict.fromkeys(groups))
            self.next_due_ms = due_ms if self.next_due_ms is None else min(self.next_due_ms, due_ms)
            self.changed()

    def publish_list(self, group: str) -> list[tuple[str, PeerListBody]]:
        """Return the edges and the list to send each; our own members are notified at once."""
        publication = self._roster.publish(group)
        if publication is None:
            return []
        self._version = max(self._version + 1, int(self._clock.wall_ms()))
        body = self._body(group, publication.client_ids)
        if self._own in publication.edges:
            self.listed(body)
        return [(edge, body) for edge in publication.edges if edge != self._own]

    def _body(self, group: str, client_ids: Sequence[str]) -> PeerListBody:
        # Versions keep growing across restarts of this process.
        return PeerListBody(
            broker_name=self._own, group=group, version=self._version, client_ids=list(client_ids)
        )

    def _lives_here(self, group: str) -> bool:
        return self._view.coordinator_of(group) == self._own
