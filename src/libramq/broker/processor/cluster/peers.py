"""PEER_GRANT, PEER_MEMBERS, PEER_NODE, PEER_GROUPS and similar requests: who counts as another broker, and
what each such request does here.

Ours; the contracts are in docs/design/coordinated-groups.md and docs/design/kafka-cluster.md.
"""

from typing import Any, Final

from libramq.broker.cluster.cluster import Cluster
from libramq.broker.cluster.kafka.group_copies import GroupCopies, GroupSuccessors
from libramq.broker.cluster.kafka.nodes import Nodes, is_visible
from libramq.broker.cluster.kafka.offsets import exchange_of
from libramq.broker.cluster.kafka.topics import ClusterTopics
from libramq.broker.groups.assigner import Assigner, QueueQuestion
from libramq.broker.groups.consumer_clients import ConsumerClients
from libramq.broker.groups.coordination import Coordination
from libramq.broker.groups.group_offsets import GroupOffsets
from libramq.broker.processor.groups.query_assignment import reply_with
from libramq.catalog.topic_attributes import changed_attributes
from libramq.codes import RequestCode, ResponseCode
from libramq.errors import broker_error
from libramq.formats.document import encode_body
from libramq.groups.assignment_tables import AssignmentUpdate
from libramq.groups.rebalance_event import Reason
from libramq.logs import get_logger
from libramq.message.names import is_valid_group
from libramq.remoting.body import coordination as bodies
from libramq.remoting.body import kafka_cluster
from libramq.rpc.outcome import SUCCESS, Outcome, Reply
from libramq.rpc.request import Request, serves

log = get_logger(__name__)

#: Ours: versions begin at 0 or at a broker's wall clock, in milliseconds, and grow by one. This is 34 years,
#: more than any clock error. A much higher version would leave no room above it.
VERSIONS_AHEAD_MAX: Final = 1 << 40


class PeerRequests:
    """The processor of requests from other brokers; it refuses all other senders."""

    def __init__(
        self,
        *,
        cluster: Cluster,
        coordination: Coordination,
        consumers: ConsumerClients,
        assigner: Assigner,
    ) -> None:
        self._cluster = cluster
        self._assigner = assigner
        self._coordination = coordination
        self._consumers = consumers

    @serves(RequestCode.PEER_GRANT)
    def grant(self, request: Request) -> Outcome:
        """Apply a coordinator's grants of our queues; reply with the highest epoch our fence has seen."""
        body: bodies.PeerGrantBody = request.body
        return Reply(ext={"lbEpoch": str(self._coordination.granted(body.value()))})

    @serves(RequestCode.PEER_STARTED)
    def started(self, request: Request) -> Outcome:
        """Note a coordinator's report that a rebalance has begun: we record the moves of our queues."""
        body: bodies.PeerStartedBody = request.body
        if body.is_repeated and self._coordination.known_of(body.group).epoch >= body.epoch:
            return SUCCESS
        reason, members = Reason(body.reason), body.members
        self._consumers.rebalances.started_elsewhere(
            body.group, reason, body.who, members, epoch=body.epoch, now=request.now
        )
        return SUCCESS

    @serves(RequestCode.PEER_REBALANCE)
    def rebalance(self, request: Request) -> Outcome:
        """Note a coordinator's report on the progress of a rebalance."""
        body: bodies.PeerRebalanceBody = request.body
        observed = self._consumers.rebalances.observed(body.group)
        for former, client_id in body.replaced.items():
            name = body.instances.get(client_id, client_id)
            self._consumers.rebalances.replaced(body.group, former, client_id, name)
        if observed is not None and body.is_complete:
            observed.completed(body.members, uncommitted=[grant.queue for grant in body.uncommitted])
        return SUCCESS

    @serves(RequestCode.PEER_REMOVED)
    def removed(self, request: Request) -> Outcome:
        """Handle another broker's deletion of a topic or a group."""
        body: bodies.PeerRemovedBody = _of_peer(self._cluster, request)
        self._cluster.receive_removal(body)
        return SUCCESS

    @serves(RequestCode.PEER_GATHER)
    def gather(self, request: Request) -> Outcome:
        """Return our fence's state of a group to its new coordinator."""
        body: bodies.PeerGatherBody = request.body
        return Reply(body=encode_body(bodies.PeerGathered.of(self._coordination.known_of(body.group))))

    @serves(RequestCode.PEER_MEMBERS)
    def members(self, request: Request) -> Outcome:
        """Take an edge's report of its members; reply whether we have received all its groups."""
        body: bodies.PeerMembersBody = _of_peer(self._cluster, request)
        for table in body.assignments:
            _check_version(table, request)
        return Reply(ext={"lbKnown": "1" if self._cluster.receive_members(body) else "0"})

    @serves(RequestCode.PEER_ASSIGN)
    def assign(self, request: Request) -> Outcome:
        """Decide the queues of a member that queried an edge, if its group is coordinated here."""
        body: bodies.PeerAssignBody = _of_peer(self._cluster, request)
        if body.members is not None:
            self._cluster.receive_group(body.broker_name, body.group, body.members)
        question = QueueQuestion(body.group, body.client_id, body.topic, body.strategy_name)
        return reply_with(self._assigner.decide(question))

    @serves(RequestCode.PEER_ASSIGNMENTS)
    def receive_assignments(self, request: Request) -> Outcome:
        """Receive the assignments of members that query for their queues, from their coordinator."""
        update: AssignmentUpdate = _of_peer(self._cluster, request)
        _check_version(update, request)
        self._assigner.assignments_updated(update)
        self._consumers.repeat_notifications()
        return SUCCESS

    @serves(RequestCode.PEER_LIST)
    def list(self, request: Request) -> Outcome:
        """Take a coordinator's list of a group's members; if it differs, our own members are notified."""
        body: bodies.PeerListBody = _of_peer(self._cluster, request)
        _check_version(body, request)
        self._cluster.relay.listed(body)
        return SUCCESS


def _of_peer(cluster: Cluster, request: Request) -> Any:
    """Return a request's body; raises NoPermission unless the sender is the broker named in it."""
    cluster.require_peer(request.peer.address, request.body.broker_name)
    return request.body


def _check_version(body: bodies.PeerListBody | AssignmentUpdate, request: Request) -> None:
    """Raise BrokerError for a version so implausibly high that no newer one could follow."""
    if body.version <= int(request.wall_ms) + VERSIONS_AHEAD_MAX:
        return
    log.warning(
        "implausible version in a membership update",
        group=body.group,
        broker=body.broker_name,
        version=body.version,
    )
    raise broker_error(
        ResponseCode.INVALID_PARAMETER,
        f"version {body.version} of group {body.group} is implausible: versions start at wall-clock times, "
        f"and it is {request.wall_ms} here; set the clocks of the brokers",
    )


class PeerNodeRequests:
    """The processor of requests between brokers that serve Kafka's clients (docs/design/kafka-cluster.md)."""

    def __init__(
        self,
        cluster: Cluster,
        nodes: Nodes,
        offsets: GroupOffsets,
        topics: ClusterTopics,
        copies: GroupCopies,
        successors: GroupSuccessors,
    ) -> None:
        self._cluster = cluster
        self._copies = copies
        self._successors = successors
        self._nodes = nodes
        self._offsets = offsets
        self._topics = topics

    @serves(RequestCode.PEER_NODE)
    def node(self, request: Request) -> Outcome:
        """Return this broker as seen by Kafka's clients."""
        body: kafka_cluster.PeerNodeBody = _of_peer(self._cluster, request)
        return Reply(body=encode_body(self._nodes.answer(body.version)))

    @serves(RequestCode.PEER_TOPIC)
    def topic(self, request: Request) -> Outcome:
        """Create, extend or delete a topic for a client of another broker."""
        body: kafka_cluster.PeerTopicBody = _of_peer(self._cluster, request)
        if not is_visible(body.topic):
            raise broker_error(
                ResponseCode.INVALID_PARAMETER, f"topic {body.topic} is not for Kafka's clients"
            )
        changes = {f"+{name}": value for name, value in body.attributes.items()}
        attributes = changed_attributes(None, changes)
        self._topics.apply(body.topic, body.queues, body.numbering, attributes)
        return SUCCESS

    @serves(RequestCode.PEER_OFFSETS)
    def offsets(self, request: Request) -> Outcome:
        """Commit, return and delete offsets of a group that another broker coordinates."""
        body: kafka_cluster.PeerOffsetsBody = _of_peer(self._cluster, request)
        if not is_valid_group(body.group):
            raise broker_error(ResponseCode.INVALID_PARAMETER, f"{body.group!r} is not the name of a group")
        exchanged = self._offsets.take(exchange_of(body), request.peer)
        codes = list(exchanged.codes.values())
        return Reply(
            body=encode_body(
                kafka_cluster.PeerOffsets(codes=codes, offsets=kafka_cluster.offsets_of(exchanged.offsets))
            )
        )

    @serves(RequestCode.PEER_GROUPS)
    def groups(self, request: Request) -> Outcome:
        """Keep copies of groups that this broker coordinates next."""
        body: kafka_cluster.PeerGroupsBody = _of_peer(self._cluster, request)
        return Reply(ext={"lbKnown": "1" if self._copies.take(body) else "0"})

    @serves(RequestCode.PEER_HANDOVER)
    def handover(self, request: Request) -> Outcome:
        """Send another broker the groups that it coordinates now, and answer whether it has them all.

        Until our link to it is up, we may still receive groups of its former process.
        """
        body: kafka_cluster.PeerHandoverBody = _of_peer(self._cluster, request)
        has_all = self._successors.hand_over(body.broker_name) and self._nodes.is_linked(body.broker_name)
        return Reply(ext={"lbHandedOver": "1" if has_all else "0"})
