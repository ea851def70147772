"""The peer brokers: grants, reports and queries that coordinators send to other brokers; when they are
resent, also to a broker that was away; and how long a new coordinator waits for all fences (GATHER_MS_MAX).

        view      the brokers, and the groups' coordinators
        links     requests due to each broker
        relay     the members of groups, over all brokers
        requests  grants to fences, reports of fences, owners of queues

Answers go to the callers' callbacks. `Cluster` handles changes caused by other brokers.
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from libramq.broker.cluster.member_relay import MemberRelay
from libramq.broker.groups.assigner import QueueQuestion, Queues
from libramq.broker.groups.consumer_clients import ConsumerClients
from libramq.broker.groups.coordination import Gathered, Refused
from libramq.clock import MonotonicMs
from libramq.errors import ConnectFailed, LibraError, NoPermission, RequestCodeNotSupported
from libramq.fencing import EPOCHS_AHEAD_MAX, MODE_EPOCHS, FenceGrant, FenceReport
from libramq.groups.assignment_tables import AssignmentUpdate
from libramq.groups.cluster_view import ClusterView
from libramq.groups.coordinator.coordinated_group import GroupView
from libramq.groups.coordinator.effect import Replaced, Settled, Started
from libramq.groups.rebalance_event import Reason
from libramq.groups.roster import ServerAssignedMembers
from libramq.kernel.parts import Kernel
from libramq.logs import get_logger
from libramq.message.queue import MessageQueue
from libramq.remoting.body import coordination as bodies
from libramq.remoting.body.consumers import QueryAssignmentReply
from libramq.remoting.body.coordination import QueueGrant
from libramq.rpc import peer_calls
from libramq.rpc.call import Call
from libramq.rpc.question import Ask, Question

log = get_logger(__name__)

#: Ours: the interval of member reports.
BEAT_MS: Final = 1_000
#: Ours: the retry interval for an unreachable broker, which may only have restarted.
RETRY_MS: Final = 200
#: Ours: a stopped broker is removed by the name servers, and so ceases to be a peer, in fewer attempts.
FAILURES_UNTIL_WARNING: Final = 10
#: Ours: a broker that takes longer to answer counts as absent.
ANSWER_MS_MAX: Final = 1_000
#: Ours: the latest client replacements, over all groups, kept for brokers that were unreachable.
REPLACED_MAX: Final = 4_096
#: The design's limit of a take-over: brokers that have not answered by then are ignored. Such a broker's
#: fence refuses grants that contradict its state, and then we query it again.
GATHER_MS_MAX: Final = 1_000
#: Ours: the retry delay for a broker that did not know us; its name server will have told it by then.
AGAIN_MS: Final = 20


@dataclass(slots=True)
class PeerLink:
    """The link to one other broker: what is due to be sent to it.

        full_report_due       as an edge: the members of all its groups; else of those in `changed`
        full_state_due        as a coordinator: all grants and lists; else each is sent when it is made

    Members are reported in beats, one at a time: at once after a change, otherwise once a second, which also
    shows that we are alive and keeps the connection open. After a failed request or a lost connection the
    broker is sent everything again. is_linked: our last request was answered. due_ms: of the next beat.
    """

    name: str
    address: str
    due_ms: MonotonicMs
    is_linked: bool = False
    is_asking: bool = False
    full_report_due: bool = True
    full_state_due: bool = True
    changed: dict[str, None] = field(default_factory=dict)
    failures: int = 0

    def beat_by(self, due_ms: MonotonicMs) -> None:
        """Move the next beat forward to this time."""
        self.due_ms = min(self.due_ms, due_ms)

    def begin(self) -> list[str] | None:
        """Begin a beat: return the groups to report, or None for all."""
        changed = None if self.full_report_due else list(self.changed)
        self.changed.clear()
        self.full_report_due, self.is_asking = False, True
        return changed

    def answered(self, *, knows_all: bool, now_ms: MonotonicMs) -> None:
        """Handle the answer to a beat. knows_all: the broker has received all our groups."""
        if not self.is_linked:
            log.info("broker linked", broker=self.name, address=self.address)
        self.is_linked, self.is_asking, self.failures = True, False, 0
        self.full_report_due = self.full_report_due or not knows_all
        self.due_ms = now_ms if self.full_report_due or self.changed else now_ms + BEAT_MS

    def failed(self, reason: object, *, now_ms: MonotonicMs) -> None:
        """Handle a failed request, or the end of the connection."""
        self.failures += 1
        if self.failures == FAILURES_UNTIL_WARNING:
            log.warning("broker not reachable", broker=self.name, address=self.address, reason=str(reason))
        self.is_linked = False
        self.full_report_due = self.full_state_due = True
        self.due_ms = now_ms + RETRY_MS


class Gathering:
    """The query of all fences for a group with a new coordinator.

    own: our own fence's report. gathered: called once with all reports.
    """

    def __init__(
        self,
        group: str,
        own: FenceReport,
        broker_names: Iterable[str],
        *,
        now_ms: MonotonicMs,
        gathered: Gathered,
    ) -> None:
        self.group = group
        self.gathered = gathered
        self.answers = [own]
        self.until_ms = now_ms + GATHER_MS_MAX
        self._waiting = dict.fromkeys(broker_names)
        self._again_ms: dict[str, MonotonicMs] = {}
        self._epoch_max = own.highest_epoch + EPOCHS_AHEAD_MAX

    @property
    def due_ms(self) -> MonotonicMs:
        """Return when the next query is due or the wait ends."""
        return min([self.until_ms, *self._again_ms.values()])

    def not_let_in(self, broker_name: str, now_ms: MonotonicMs) -> None:
        """Note that a broker has not discovered us yet; it will be queried again."""
        self._again_ms[broker_name] = now_ms + AGAIN_MS

    def take_due(self, now_ms: MonotonicMs) -> list[str]:
        """Return the brokers to query again."""
        due = [name for name, again_ms in self._again_ms.items() if again_ms <= now_ms]
        for name in due:
            del self._again_ms[name]
        return due

    def answered(self, broker_name: str, answer: FenceReport | None) -> None:
        """Take a broker's report, or None if it could not answer."""
        self._waiting.pop(broker_name, None)
        if answer is None:
            log.warning("a fence is ignored", group=self.group, broker=broker_name)
        elif (epoch := answer.highest_epoch) > self._epoch_max:
            log.warning(
                "a fence reports an implausible epoch and is ignored",
                group=self.group, broker=broker_name, epoch=epoch, highest=self._epoch_max,
            )  # fmt: skip
        else:
            self.answers.append(answer)

    def is_over(self, now_ms: MonotonicMs) -> bool:
        """Return whether every answer has arrived or timed out."""
        if now_ms < self.until_ms:
            return not self._waiting
        for name in self._waiting:
            log.warning("a fence is ignored", group=self.group, broker=name)
        return True


class PeerBrokers:
    """The other brokers: `coordination.GroupPeers` and `assigner.AssignerPeers`. ask: sends a question."""

    def __init__(
        self,
        *,
        view: ClusterView,
        consumers: ConsumerClients,
        kernel: Kernel,
        ask: Ask,
    ) -> None:
        self._name = view.own_name
        self.now_ms, self.deadlines, self.soon = kernel.clock.monotonic_ms, kernel.deadlines, kernel.soon
        self.ask = ask
        self._gatherings: dict[str, Gathering] = {}
        self._unknown_topics: dict[str, None] = {}
        self._replaced: deque[Replaced] = deque(maxlen=REPLACED_MAX)
        self.links: dict[str, PeerLink] = {}
        self.view = view
        #: Called when `next_due_ms` has changed.
        self.changed: Callable[[], None] = lambda: None
        self.relay = MemberRelay(view, view.own_name, consumers=consumers, clock=kernel.clock)

    def ask_broker(self, name: str, call: Call[Any], answered: Callable[[Any], None]) -> None:
        """Ask another broker; `answered` gets its answer, or LibraError, also if it has left the cluster."""
        link = self.links.get(name)
        if link is None:
            answered(ConnectFailed(f"broker {name} is away; try again once it is back"))
        else:
            self.ask(Question(link.address, call, answered, ANSWER_MS_MAX))

    # Requests of coordination.

    def queues(self, topic: str) -> Sequence[MessageQueue] | None:
        """Return the queues of a topic at other brokers; None if unknown: `topic_changed` will follow."""
        queues = self.view.queues(topic)
        if queues is None and self.view.is_known:
            self._unknown_topics[topic] = None
            self.changed()
        return queues

    def grant(self, broker_name: str, grant: FenceGrant, refused: Refused) -> None:
        """Send another broker's fence the owners of its queues."""

        def answered(epoch: int) -> None:
            if epoch > grant.epoch:
                refused(grant, credible_epoch(broker_name, epoch, grant))

        self._send(broker_name, peer_calls.grant_queues(bodies.PeerGrantBody.of(grant)), answered)

    def change_mode(self, grant: FenceGrant, refused: Refused) -> None:
        """Send all other fences a group's new mode."""
        for name in self.links:
            self.grant(name, grant, refused)

    def gather(self, group: str, own: FenceReport, gathered: Gathered) -> None:
        """Query all other fences."""
        now_ms = self.now_ms()
        gathering = self._gatherings[group] = Gathering(
            group, own, self.links, now_ms=now_ms, gathered=gathered
        )
        for link in self.links.values():
            self._ask_fence(gathering, link)
        self._conclude(gathering)

    def _ask_fence(self, gathering: Gathering, link: PeerLink) -> None:
        def answered(outcome: bodies.PeerGathered | LibraError) -> None:
            if isinstance(outcome, NoPermission):
                gathering.not_let_in(link.name, self.now_ms())
                self.changed()
                return
            gathering.answered(link.name, None if isinstance(outcome, LibraError) else outcome.value())
            self._conclude(gathering)

        call = peer_calls.gather_group(bodies.PeerGatherBody(group=gathering.group))
        self.ask_broker(link.name, call, answered)

    def started(self, started: Started, who: str | None) -> None:
        """Report the start of a group's rebalance to all others."""
        self._send_to_all(partial(_start_report, started, who))

    def settled(self, effect: Settled) -> None:
        """Report to all others that every queue of a group is granted to its target."""
        self._send_to_all(partial(_end_report, effect))

    def catch_up(self, broker_name: str, group: GroupView, grant: FenceGrant, refused: Refused) -> None:
        """Send a broker that was unreachable a group's state: its last rebalance, and the grants.

        Replacements of static members come first, because their queues have not moved. Which queues were
        handed over without a commit is no longer known, so all count as uncommitted.
        """
        members = [member.client_id for member in group.members]
        started = bodies.PeerStartedBody(
            group=group.name,
            epoch=grant.epoch,
            reason=Reason.BROKER_CHANGED,
            who=group.name,
            members=members,
            is_repeated=True,
        )
        replaced = [each for each in self._replaced if each.group == group.name]
        if replaced:
            body = _body_of(group.name, replaced)
            self._send(broker_name, peer_calls.report_rebalance(body), lambda _: None)
        if group.mode == MODE_EPOCHS and members:
            self._send(broker_name, peer_calls.report_rebalance_start(started), lambda _: None)
        self.grant(broker_name, grant, refused)
        if group.mode == MODE_EPOCHS and members and group.is_settled:
            own = [queue for queue in group.owners if queue.broker_name == broker_name]
            uncommitted = [QueueGrant.of(queue, grant.epoch) for queue in own]
            settled = bodies.PeerRebalanceBody(
                group=group.name, members=members, uncommitted=uncommitted, is_complete=True
            )
            self._send(broker_name, peer_calls.report_rebalance(settled), lambda _: None)

    def replaced(self, effect: Replaced) -> None:
        """Report to all others that a client has taken another's place in a group."""
        self._replaced.append(effect)
        body = _body_of(effect.group, [effect])
        self._send_to_all(partial(peer_calls.report_rebalance, body))

    def removed(self, *, topic: str = "", group: str = "") -> None:
        """Report a deletion of a topic or group to all others; with both, the group's offsets were set."""
        body = bodies.PeerRemovedBody(broker_name=self._name, topic=topic, group=group)
        self._send_to_all(partial(peer_calls.report_removal, body))

    # Requests of the assigner.

    def server_assigned_members(self, group: str) -> ServerAssignedMembers | None:
        """Return the members of a group coordinated here, as reported by all brokers."""
        return self.relay.server_assigned_members(group)

    def has_all_reports(self) -> bool:
        """Return whether every broker has reported its members and assignments, or has been given up on."""
        return self.relay.has_all_reports(self.now_ms())

    def assign(
        self, coordinator: str, question: QueueQuestion, answered: Callable[[Queues | LibraError], None]
    ) -> None:
        """Relay the query to the group's coordinator."""
        link = self.links[coordinator]
        if not link.is_linked:
            answered(
                ConnectFailed(f"there is no connection to {coordinator} at {link.address} yet; try again")
            )
            return
        members = None
        if question.group in link.changed or link.full_report_due:
            members = self.relay.members(question.group)
        body = bodies.PeerAssignBody(
            broker_name=self._name,
            group=question.group,
            client_id=question.client_id,
            topic=question.topic,
            strategy_name=question.strategy,
            members=members,
        )

        def replied(outcome: QueryAssignmentReply | LibraError) -> None:
            answered(outcome if isinstance(outcome, LibraError) else outcome.value())

        self.ask_broker(coordinator, peer_calls.assign_queues(body), replied)

    def send_assignments(self, update: AssignmentUpdate) -> None:
        """Send all others the members' assignments."""
        self._send_to_all(lambda: peer_calls.send_assignments(update))

    def send_assignments_to(self, broker_name: str, update: AssignmentUpdate) -> None:
        """Send another broker the members' assignments."""
        self._send(broker_name, peer_calls.send_assignments(update), lambda _: None)

    def send_member_list(self, edge: str, shared: bodies.PeerListBody) -> None:
        """Send another broker the list of a group's members."""
        self._send(edge, peer_calls.send_member_list(shared), lambda _: None)

    def _send_to_all(self, call: Callable[[], Call[None]]) -> None:
        """Send all others the request that `call` returns; it is built once, and only if there are others."""
        if self.links:
            made = call()
            for name in self.links:
                self._send(name, made, lambda _: None)

    def _send(self, broker_name: str, call: Call[int] | Call[None], then: Callable[[int], None]) -> None:
        """Send a request to a broker, unless its full state is due anyway."""
        link = self.links.get(broker_name)
        if link is None or link.full_state_due:
            return

        def answered(outcome: int | LibraError) -> None:
            if isinstance(outcome, RequestCodeNotSupported):
                return  # An older release in a cluster being upgraded; the broker is alive.
            if isinstance(outcome, LibraError):
                link.failed(outcome, now_ms=self.now_ms())
                self.changed()
            else:
                then(outcome)

        self.ask_broker(broker_name, call, answered)

    def link(self, others: Mapping[str, str], now_ms: MonotonicMs) -> bool:
        """Link to exactly these brokers, by address; return whether one of them is new."""
        self.links = {name: link for name, link in self.links.items() if others.get(name) == link.address}
        has_new = not self.links.keys() >= others.keys()
        for name, address in others.items():
            link = self.links.setdefault(name, PeerLink(name, address, now_ms))
            link.full_report_due = True
            link.beat_by(now_ms)
        self.changed()
        return has_new

    # Time.

    def take_unknown_topics(self) -> list[str]:
        """Return the topics whose queues were requested but are unknown."""
        topics = list(self._unknown_topics)
        self._unknown_topics.clear()
        return topics

    def tick(self, now_ms: MonotonicMs) -> None:
        """Perform what is due: query fences again, and conclude complete queries."""
        for gathering in list(self._gatherings.values()):
            for name in gathering.take_due(now_ms):
                if name in self.links:
                    self._ask_fence(gathering, self.links[name])
            self._conclude(gathering)

    def stalled(self, stall_ms: int) -> None:
        """Extend deadlines after a stall of this process."""
        for gathering in self._gatherings.values():
            gathering.until_ms = gathering.until_ms + stall_ms

    @property
    def next_due_ms(self) -> MonotonicMs | None:
        """Return when the next action is due."""
        if self._unknown_topics:
            return self.now_ms()
        if not self._gatherings:
            return None
        return min(gathering.due_ms for gathering in self._gatherings.values())

    def _conclude(self, gathering: Gathering) -> None:
        """Continue once all fences have answered and all members that allocate for themselves are known."""
        self.changed()
        now_ms = self.now_ms()
        if self._gatherings.get(gathering.group) is not gathering or not gathering.is_over(now_ms):
            return
        if now_ms < gathering.until_ms and not self.relay.is_agreed(now_ms):
            return
        del self._gatherings[gathering.group]
        gathering.gathered(gathering.group, gathering.answers, self.relay.stock(gathering.group))


def _start_report(started: Started, who: str | None) -> Call[None]:
    body = bodies.PeerStartedBody(
        group=started.group,
        epoch=started.epoch,
        reason=started.reason,
        who=who,
        members=list(started.members),
    )
    return peer_calls.report_rebalance_start(body)


def _end_report(settled: Settled) -> Call[None]:
    uncommitted = [QueueGrant.of(queue, settled.epoch) for queue in settled.uncommitted]
    body = bodies.PeerRebalanceBody(
        group=settled.group, members=list(settled.members), uncommitted=uncommitted, is_complete=True
    )
    return peer_calls.report_rebalance(body)


def credible_epoch(broker_name: str, epoch: int, grant: FenceGrant) -> int:
    """Return the epoch named by a fence that refused a grant, or a step towards it if it is implausible.

    Steps eventually reach a mistaken fence, but a lying one can never drive us to the last epoch.
    """
    if epoch <= grant.epoch + EPOCHS_AHEAD_MAX:
        return epoch
    log.warning(
        "a fence reports an implausible epoch",
        group=grant.group, broker=broker_name, epoch=epoch, ours=grant.epoch,
    )  # fmt: skip
    return grant.epoch + EPOCHS_AHEAD_MAX // 2


def _body_of(group: str, replaced: Iterable[Replaced]) -> bodies.PeerRebalanceBody:
    """Return the report of clients that have replaced others."""
    return bodies.PeerRebalanceBody(
        group=group,
        replaced={each.former: each.client_id for each in replaced},
        instances={each.client_id: each.instance for each in replaced},
    )
