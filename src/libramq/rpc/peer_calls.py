"""Calls between brokers of a cluster (PEER_...), and of a slave to its master: the form of each request and
answer.

Those of groups are ours; the contract is in docs/design/coordinated-groups.md. A slave gets tables undecoded,
for a thread to decode. Upstream: BrokerOuterAPI.java, SlaveSynchronize.java.
"""

from hashlib import sha256

from msgspec import json

from libramq.codes import RequestCode
from libramq.formats.document import decode_body, encode_body
from libramq.remoting.body import coordination as bodies
from libramq.remoting.body import kafka_cluster
from libramq.remoting.body.administration import HAStatus
from libramq.remoting.body.consumers import QueryAssignmentReply
from libramq.remoting.command import Command
from libramq.remoting.headers import ViewMessageHeader
from libramq.rpc.call import Call, group_call, header_call, nothing


def grant_queues(body: bodies.PeerGrantBody) -> Call[int]:
    """Send a fence the owners of its queues; return the highest epoch it saw: if above ours, it refused."""
    return group_call(
        RequestCode.PEER_GRANT,
        None,
        lambda reply: int(reply.ext.get("lbEpoch", body.epoch)),
        body=encode_body(body),
    )


def report_members(body: bodies.PeerMembersBody) -> Call[bool]:
    """Report our members to a coordinator; return whether it has received all our groups."""
    return group_call(
        RequestCode.PEER_MEMBERS, None, lambda reply: reply.ext.get("lbKnown") == "1", body=encode_body(body)
    )


def send_member_list(body: bodies.PeerListBody) -> Call[None]:
    """Send an edge the list of a group's members."""
    return group_call(RequestCode.PEER_LIST, None, nothing, body=encode_body(body))


def gather_group(group: str) -> Call[bodies.PeerGathered]:
    """Query a fence about a group; unused grants are void from then on."""
    return group_call(
        RequestCode.PEER_GATHER,
        None,
        lambda reply: decode_body(reply.body, bodies.PeerGathered),
        body=encode_body(bodies.PeerGatherBody(group=group)),
    )


def assign_queues(body: bodies.PeerAssignBody) -> Call[QueryAssignmentReply]:
    """Query a group's coordinator for a member's queues."""
    return group_call(
        RequestCode.PEER_ASSIGN,
        None,
        lambda reply: decode_body(reply.body, QueryAssignmentReply),
        body=encode_body(body),
    )


def send_assignments(body: bodies.PeerAssignmentsBody) -> Call[None]:
    """Send a broker the assignments of members, and which of them should query again."""
    return group_call(RequestCode.PEER_ASSIGNMENTS, None, nothing, body=encode_body(body))


def report_removal(body: bodies.PeerRemovedBody) -> Call[None]:
    """Report the deletion of a topic or group to a broker."""
    return group_call(RequestCode.PEER_REMOVED, None, nothing, body=encode_body(body))


def report_rebalance_start(body: bodies.PeerStartedBody) -> Call[None]:
    """Report the start of a group's rebalance to a broker."""
    return group_call(RequestCode.PEER_STARTED, None, nothing, body=encode_body(body))


def report_rebalance(body: bodies.PeerRebalanceBody) -> Call[None]:
    """Report the progress of a group's rebalance to a broker."""
    return group_call(RequestCode.PEER_REBALANCE, None, nothing, body=encode_body(body))


def ask_node(body: kafka_cluster.PeerNodeBody) -> Call[kafka_cluster.PeerNode]:
    """Query a broker for what Kafka's clients need to know of it."""
    return group_call(
        RequestCode.PEER_NODE,
        None,
        lambda reply: decode_body(reply.body, kafka_cluster.PeerNode),
        body=encode_body(body),
    )


def change_topic(body: kafka_cluster.PeerTopicBody) -> Call[None]:
    """Have a broker create, extend or delete a topic."""
    return group_call(RequestCode.PEER_TOPIC, None, nothing, body=encode_body(body))


def pass_on_groups(body: kafka_cluster.PeerGroupsBody) -> Call[bool]:
    """Pass groups on to their next coordinator; return whether it has all that came before.

    The body is standard JSON, in which bytes are base64.
    """
    return group_call(
        RequestCode.PEER_GROUPS, None, lambda reply: reply.ext.get("lbKnown") == "1", body=json.encode(body)
    )


def ask_handover(body: kafka_cluster.PeerHandoverBody) -> Call[bool]:
    """Ask a broker for the groups that the sender coordinates now; return whether it has none left."""
    return group_call(
        RequestCode.PEER_HANDOVER,
        None,
        lambda reply: reply.ext.get("lbHandedOver") == "1",
        body=encode_body(body),
    )


def exchange_offsets(body: kafka_cluster.PeerOffsetsBody) -> Call[kafka_cluster.PeerOffsets]:
    """Commit, read and delete a group's offsets at a queue's broker."""
    return group_call(
        RequestCode.PEER_OFFSETS,
        None,
        lambda reply: decode_body(reply.body, kafka_cluster.PeerOffsets),
        body=encode_body(body),
    )


def record_at(physical_offset: int, ours: bytes) -> Call[bytes]:
    """Return the record at an offset of the commit log; SYSTEM_ERROR if there is none.

    ours: what we have there. If the master has the same, it answers also if no queue refers to it any more.
    """
    header = ViewMessageHeader(offset=physical_offset, lb_sha256=sha256(ours).hexdigest())
    return header_call(RequestCode.VIEW_MESSAGE_BY_ID, header, _body)


def all_topics() -> Call[bytes]:
    """Return the topics, a TopicConfigSerializeWrapper."""
    return header_call(RequestCode.GET_ALL_TOPIC_CONFIG, None, _body)


def all_groups() -> Call[bytes]:
    """Return the groups, a SubscriptionGroupWrapper."""
    return header_call(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, None, _body)


def all_consumer_offsets() -> Call[bytes]:
    """Return the committed offsets, the content of consumerOffset.json."""
    return header_call(RequestCode.GET_ALL_CONSUMER_OFFSET, None, _body)


def all_delay_offsets() -> Call[bytes]:
    """Return the delivered offset of each delay level, the content of delayOffset.json."""
    return header_call(RequestCode.GET_ALL_DELAY_OFFSET, None, _body)


def all_request_modes() -> Call[bytes]:
    """Return by which mode groups read, the content of messageRequestMode.json."""
    return header_call(RequestCode.GET_ALL_MESSAGE_REQUEST_MODE, None, _body)


def all_users() -> Call[bytes]:
    """Return the users with their passwords and policies, the content of users.json."""
    return header_call(RequestCode.SLAVE_USERS, None, _body)


def timer_checkpoint() -> Call[bytes]:
    """Return how far the master's timers have come, the first 56 bytes of its timercheck."""
    return header_call(RequestCode.GET_TIMER_CHECK_POINT, None, _body)


def timer_metrics() -> Call[bytes]:
    """Return how many timer messages wait at the master, the content of timermetrics."""
    return header_call(RequestCode.GET_TIMER_METRICS, None, _body)


def log_end() -> Call[int]:
    """Return where the master's log ends."""
    return header_call(RequestCode.GET_BROKER_HA_STATUS, None, _log_end)


def _log_end(reply: Command) -> int:
    return decode_body(reply.body, HAStatus).master_commit_log_max_offset


def _body(reply: Command) -> bytes:
    return reply.body
