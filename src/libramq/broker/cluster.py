"""The cluster: this broker among the others, as coordinated groups need it.

    view        which brokers there are, where groups live, who has which queues     (cluster_watch)
    links       grants to their fences; who is connected here, who is in groups      (peer_link, member_relay)
    gathering   what fences know of a group that has come to live here

Requests go out as questions, which the shell makes; who asks us is served by `processor/peers.py`.
"""

from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from libramq.broker.assigner import Assigner
from libramq.broker.cluster_watch import ClusterWatch
from libramq.broker.consumer_clients import ConsumerClients
from libramq.broker.coordination import Coordination
from libramq.broker.gathering import Gathering, credible_epoch
from libramq.broker.member_relay import MemberRelay, delay_ms
from libramq.broker.peer_link import PeerLink
from libramq.clock import Clock, MonotonicMs
from libramq.codes import ResponseCode
from libramq.errors import ConnectFailed, LibraError, NoPermission, RequestCodeNotSupported, broker_error
from libramq.fencing import FenceGrant, FenceReport
from libramq.groups.asked_members import AskedMembers
from libramq.groups.cluster_view import ClusterView
from libramq.groups.coordinator.effect import Replaced, Settled, Started
from libramq.groups.edge_members import EdgeMember
from libramq.groups.given_tables import GivenUpdate
from libramq.logs import get_logger
from libramq.message.queue import MessageQueue
from libramq.remoting.body import coordination as bodies
from libramq.remoting.body.coordination import QueueGrant
from libramq.rpc import peer_calls
from libramq.rpc.call import Call
from libramq.rpc.question import Ask, Question

log = get_logger(__name__)

#: Ours: a broker of the cluster that takes longer to answer is taken for one that is not there.
ANSWER_MS_MAX: Final = 1_000


class Cluster:
    """The other brokers; a `group_peers.GroupPeers`, and an `assigner.Peers`.

    topics: those whose queues at other brokers matter. ask: makes a question.
    """

    def __init__(
        self,
        *,
        broker_name: str,
        address: str,
        name_servers: Sequence[str],
        coordination: Coordination,
        consumers: ConsumerClients,
        assigner: Assigner,
        topics: Callable[[], Sequence[str]],
        clock: Clock,
        ask: Ask,
    ) -> None:
        self._name = broker_name
        self._coordination = coordination
        self._consumers = consumers
        self._assigner = assigner
        self._clock = clock
        self._ask = ask
        self._watched = topics
        self._links: dict[str, PeerLink] = {}
        self._gatherings: dict[str, Gathering] = {}
        self._was_known = False
        self.view = ClusterView(broker_name, address)
        self._watch = ClusterWatch(
            self.view,
            name_servers,
            topics=topics,
            linked=lambda: [link.name for link in self._links.values() if link.is_linked],
            brokers_changed=self._brokers_changed,
            topic_changed=self._topic_changed,
            ask=ask,
            monotonic_ms=clock.monotonic_ms,
        )
        self._relay = MemberRelay(
            self.view,
            broker_name,
            consumers=consumers,
            coordination=coordination,
            clock=clock,
            tell=lambda edge, body: self._say(edge, peer_calls.tell_list(body), lambda _: None),
            changed=assigner.changed,
        )

    # What coordination asks of its peers.

    def coordinator_of(self, group: str) -> str | None:
        """The address of the broker where a group lives; None while nobody knows."""
        home = self.view.home_of(group)
        return self.view.address_of(home) if home is not None else None

    def queues(self, topic: str) -> Sequence[MessageQueue] | None:
        """The queues of a topic at other brokers; None: not known yet, `topic_changed` will say."""
        queues = self.view.queues(topic)
        if queues is None and self.view.is_known:
            self._watch.look_at(topic)
        return queues

    def grant(self, broker_name: str, grant: FenceGrant) -> None:
        """Tell another broker's fence whose its queues are."""

        def answered(epoch: int) -> None:
            if epoch > grant.epoch:
                self._coordination.refused(grant, credible_epoch(broker_name, epoch, grant))

        self._say(broker_name, peer_calls.grant_queues(bodies.PeerGrantBody.of(grant)), answered)

    def change_mode(self, grant: FenceGrant) -> None:
        """Tell all other fences that a group shares its queues in another way."""
        for name in self._links:
            self.grant(name, grant)

    def gather(self, group: str, own: FenceReport) -> None:
        """Ask all other fences what they know."""
        now_ms = self._now_ms()
        gathering = self._gatherings[group] = Gathering(group, own, self._links, now_ms=now_ms)
        for link in self._links.values():
            self._ask_fence(gathering, link)
        self._conclude(gathering)

    def _ask_fence(self, gathering: Gathering, link: PeerLink) -> None:
        def answered(outcome: bodies.PeerGathered | LibraError) -> None:
            if isinstance(outcome, NoPermission):
                gathering.not_let_in(link.name, self._now_ms())
                return
            gathering.answered(link.name, None if isinstance(outcome, LibraError) else outcome.value())
            self._conclude(gathering)

        self._ask(Question(link.address, peer_calls.gather_group(gathering.group), answered, ANSWER_MS_MAX))

    def started(self, started: Started, who: str | None) -> None:
        """Tell all others that a rebalance of a group has begun."""
        body = bodies.PeerStartedBody(
            group=started.group,
            epoch=started.epoch,
            reason=started.reason,
            who=who,
            members=list(started.members),
        )
        for name in self._links:
            self._say(name, peer_calls.tell_started(body), lambda _: None)

    def settled(self, effect: Settled) -> None:
        """Tell all others that every queue of a group is granted to the member it is meant for."""
        uncommitted = [QueueGrant.of(queue, effect.epoch) for queue in effect.uncommitted]
        self._tell_rebalance(
            bodies.PeerRebalanceBody(
                group=effect.group, members=list(effect.loads), uncommitted=uncommitted, is_complete=True
            )
        )

    def replaced(self, effect: Replaced) -> None:
        """Tell all others that a client has taken another's place in a group."""
        replaced = {effect.former: effect.client_id}
        self._tell_rebalance(bodies.PeerRebalanceBody(group=effect.group, replaced=replaced))

    def _tell_rebalance(self, body: bodies.PeerRebalanceBody) -> None:
        for name in self._links:
            self._say(name, peer_calls.tell_rebalance(body), lambda _: None)

    def removed(self, *, topic: str = "", group: str = "") -> None:
        """Tell all others that a topic or a group was deleted here; both: the group's offsets were set."""
        body = bodies.PeerRemovedBody(broker_name=self._name, topic=topic, group=group)
        for name in self._links:
            self._say(name, peer_calls.tell_removed(body), lambda _: None)

    def stock_changed(self, group: str, client_ids: Sequence[str]) -> None:
        """Other clients here allocate for themselves; `members_changed` tells other brokers."""
        if self.view.is_alone:
            self._coordination.stock_members(group, client_ids)

    # What the assigner asks of its peers.

    @property
    def is_alone(self) -> bool:
        """Whether there is no other broker."""
        return self.view.is_alone

    def home_of(self, group: str) -> str | None:
        """The broker where a group lives; None while nobody knows."""
        return self.view.home_of(group)

    def asked_members(self, group: str) -> AskedMembers | None:
        """Who is in a group that lives here, as all brokers have told."""
        return self._relay.asked_members(group)

    def has_heard_all(self) -> bool:
        """Whether all brokers have told who is connected to them and what they remember, or will not."""
        return self._relay.has_heard_all(self._now_ms())

    def assign(
        self, home: str, body: bodies.PeerAssignBody, answered: Callable[[bytes | LibraError], None]
    ) -> None:
        """Have the broker decide where a group lives."""
        link = self._links[home]
        if not link.is_linked:
            answered(ConnectFailed(f"there is no connection to {home} at {link.address}"))
            return
        if body.group in link.changed or link.owes_members:
            members = [bodies.PeerMember.of(member) for member in self._relay.members(body.group)]
            body = msgspec.structs.replace(body, members=members)
        self._ask(Question(link.address, peer_calls.assign_queues(body), answered, ANSWER_MS_MAX))

    def tell_given(self, update: GivenUpdate) -> None:
        """Tell all others what members were given."""
        body = bodies.PeerGivenBody.of(update)
        for name in self._links:
            self._say(name, peer_calls.tell_given(body), lambda _: None)

    # What happens.

    def members_changed(self, group: str) -> None:
        """Other clients than before are connected to us."""
        home = self.view.home_of(group)
        if self.view.is_alone or home is None:
            return
        if home == self._name:
            self._relay.own_changed(group, now_ms=self._now_ms())
            return
        link = self._links[home]
        link.changed[group] = None
        if link.is_linked:
            known = self._consumers.group(group)
            link.beat_by(self._now_ms() + delay_ms(len(known.members) if known is not None else 0))

    def lost(self, address: str) -> None:
        """Our connection to an address has ended."""
        for link in self._links.values():
            if link.address == address:
                link.failed("the connection has ended", now_ms=self._now_ms())
                self._watch.look_often()

    # What other brokers ask.

    def require_peer(self, address: str, broker_name: str | None = None) -> None:
        """Raises NoPermission for requests that do not come from a broker's host: from that one's, if named.

        A host proves little: every program there is believed. What proves more is a signature, which
        `processor/peers.py` asks for where the cluster has credentials.
        """
        host = address.rpartition(":")[0]
        if self.view.is_at(broker_name, host) if broker_name is not None else self.view.has_host(host):
            return
        self._watch.look_soon()  # It may have come just now.
        raise broker_error(
            ResponseCode.NO_PERMISSION,
            f"{broker_name or 'who asks'} at {host} is no broker of this cluster, as far as is known here",
        )

    def took_members(self, body: bodies.PeerMembersBody) -> bool:
        """Another broker tells who is connected to it; whether it has told of all its groups."""
        if body.masters != self.view.names:
            self._watch.look_soon()
        now_ms = self._now_ms()
        self._assigner.took_tables(given.value() for given in body.given)
        has_told = self._relay.took(body, now_ms=now_ms)
        self._assigner.tick(now_ms)
        return has_told

    def took_group(self, broker_name: str, group: str, members: Sequence[EdgeMember]) -> None:
        """Another broker tells who of a group is connected to it."""
        self._relay.took_group(broker_name, group, members, now_ms=self._now_ms())

    def took_list(self, body: bodies.PeerListBody) -> None:
        """A coordinator tells who is in a group."""
        self._relay.listed(body)

    def took_removal(self, body: bodies.PeerRemovedBody) -> None:
        """Another broker has deleted a topic or a group; name servers are asked what there is now."""
        if body.topic and body.group:
            self._coordination.queues_reset(body.group, body.topic, body.broker_name)
        elif body.topic:
            self._coordination.queues_removed(body.topic, body.broker_name)
            if self.view.topic_removed(body.topic, body.broker_name):
                self._topic_changed(body.topic)
            if body.topic in self._watched():
                self._watch.look_at(body.topic)
        elif body.group:
            self._coordination.fence_removed(body.group)

    # Time.

    def tick(self, now_ms: MonotonicMs) -> None:
        """Time has passed (monotonic)."""
        self._watch.tick(now_ms)
        for link in self._links.values():
            if not link.is_asking and now_ms >= link.due_ms:
                self._beat(link)
        self._relay.forget_silent(now_ms)
        self._relay.tick(now_ms)
        self._assigner.tick(now_ms)
        for gathering in list(self._gatherings.values()):
            for name in gathering.take_due(now_ms):
                if name in self._links:
                    self._ask_fence(gathering, self._links[name])
            self._conclude(gathering)

    def stood_still(self, stood_ms: int, now_ms: MonotonicMs) -> None:
        """This process did nothing for so long: what brokers sent meanwhile has not been read yet."""
        self._relay.stood_still(stood_ms, now_ms)
        for gathering in self._gatherings.values():
            gathering.until_ms = gathering.until_ms + stood_ms

    @property
    def next_due_ms(self) -> MonotonicMs:
        """When `tick` has something to do next."""
        due = [link.due_ms for link in self._links.values() if not link.is_asking]
        due += [gathering.due_ms for gathering in self._gatherings.values()]
        parts = (self._watch, self._relay, self._assigner)
        due += [part.next_due_ms for part in parts if part.next_due_ms is not None]
        return min(due, default=self._now_ms() + ANSWER_MS_MAX)

    def _beat(self, link: PeerLink) -> None:
        body = self._relay.body(link.name, link.begin())
        if body.complete:
            tables = [bodies.PeerGivenBody.of(table) for table in self._assigner.tables_for(link.name)]
            body = msgspec.structs.replace(body, given=tables)

        def answered(outcome: bool | LibraError) -> None:
            now_ms = self._now_ms()
            link.is_asking = False
            if isinstance(outcome, LibraError):
                link.failed(outcome, now_ms=now_ms)
                return
            link.answered(knows_all=outcome, now_ms=now_ms)
            if link.owes_word:
                self._say_all(link)

        self._ask(Question(link.address, peer_calls.tell_members(body), answered, ANSWER_MS_MAX))

    def _say_all(self, link: PeerLink) -> None:
        """All that a broker is to know of groups that live here."""
        link.owes_word = False
        for grant in self._coordination.grants_for(link.name):
            self.grant(link.name, grant)
        for body in self._relay.lists_for(link.name):
            self._say(link.name, peer_calls.tell_list(body), lambda _: None)
        for update in self._assigner.word():
            given = bodies.PeerGivenBody.of(update)
            self._say(link.name, peer_calls.tell_given(given), lambda _: None)

    def _say(self, broker_name: str, call: Call[int] | Call[None], then: Callable[[int], None]) -> None:
        """Say something to a broker, unless it is owed everything anyhow."""
        link = self._links.get(broker_name)
        if link is None or link.owes_word:
            return

        def answered(outcome: int | LibraError) -> None:
            if isinstance(outcome, RequestCodeNotSupported):
                return  # An older release, in a cluster that is being upgraded: it is there all the same.
            if isinstance(outcome, LibraError):
                link.failed(outcome, now_ms=self._now_ms())
            else:
                then(outcome)

        self._ask(Question(link.address, call, answered, ANSWER_MS_MAX))

    def _brokers_changed(self) -> None:
        now_ms = self._now_ms()
        is_first = not self._was_known
        self._was_known = True
        others = self.view.others
        log.info("brokers of the cluster", brokers=self.view.names)
        self._links = {name: link for name, link in self._links.items() if others.get(name) == link.address}
        has_new = not self._links.keys() >= others.keys()
        for name, address in others.items():
            link = self._links.setdefault(name, PeerLink(name, address, now_ms))
            link.owes_members = True
            link.beat_by(now_ms)
        self.view.forget_gone()
        for topic in self._coordination.topics():
            self._coordination.topic_changed(topic)
        # What we remember of groups from before may be old where others may have had them meanwhile.
        self._coordination.relocate(keeps_own=not (is_first and others), has_new=has_new)
        self._relay.brokers_changed(now_ms=now_ms)
        self._assigner.brokers_changed()

    def _topic_changed(self, topic: str) -> None:
        self._coordination.topic_changed(topic)
        self._assigner.topic_changed(topic)

    def _conclude(self, gathering: Gathering) -> None:
        """Go on when all fences have answered, and we know of all who allocate for themselves."""
        now_ms = self._now_ms()
        if self._gatherings.get(gathering.group) is not gathering or not gathering.is_over(now_ms):
            return
        if now_ms < gathering.until_ms and not self._relay.is_agreed(now_ms):
            return
        del self._gatherings[gathering.group]
        self._relay.publish_stock(gathering.group)
        self._coordination.gathered(gathering.group, gathering.answers)

    def _now_ms(self) -> MonotonicMs:
        return self._clock.monotonic_ms()
