"""Calls between brokers of a cluster (PEER_...), and from a slave to its master: each request and the form of
its answer.

Those for groups are ours; the contract is in docs/design/coordinated-groups.md. A slave gets tables
undecoded, for a thread to decode. Upstream: BrokerOuterAPI.java, SlaveSynchronize.java.
"""

from collections.abc import Callable
from hashlib import sha256
from typing import Any, Final, TypeVar

from msgspec import json

from libramq.codes import RequestCode as R
from libramq.formats.document import decode_body, encode_body
from libramq.groups.assignment_tables import AssignmentUpdate
from libramq.remoting.body import coordination as bodies
from libramq.remoting.body import kafka_cluster
from libramq.remoting.body.administration import HAStatus
from libramq.remoting.body.consumers import QueryAssignmentReply
from libramq.remoting.command import Command
from libramq.remoting.headers import ViewMessageHeader
from libramq.rpc.call import Call, group_call, header_call, nothing

B = TypeVar("B")
T = TypeVar("T")


def _sending(
    code: R, _: type[B], parse: Callable[[Command], T], encode: Callable[[Any], bytes] = encode_body
) -> Callable[[B], Call[T]]:
    """Return a function that builds a call with a body of this type."""
    return lambda body: group_call(code, None, parse, body=encode(body))


def _document(kind: type[T]) -> Callable[[Command], T]:
    return lambda reply: decode_body(reply.body, kind)


def _is_set(field: str) -> Callable[[Command], bool]:
    return lambda reply: reply.ext.get(field) == "1"


def grant_queues(body: bodies.PeerGrantBody) -> Call[int]:
    """Send a fence the owners of its queues; return the highest epoch it saw: a higher one means refusal."""
    return group_call(
        R.PEER_GRANT, None, lambda reply: int(reply.ext.get("lbEpoch", body.epoch)), body=encode_body(body)
    )


#: Report our members to a coordinator; returns whether it has received all our groups.
report_members: Final = _sending(R.PEER_MEMBERS, bodies.PeerMembersBody, _is_set("lbKnown"))
#: Send an edge the list of a group's members.
send_member_list: Final = _sending(R.PEER_LIST, bodies.PeerListBody, nothing)
#: Query a fence about a group, which voids unused grants.
gather_group: Final = _sending(R.PEER_GATHER, bodies.PeerGatherBody, _document(bodies.PeerGathered))
#: Query a group's coordinator for a member's queues.
assign_queues: Final = _sending(R.PEER_ASSIGN, bodies.PeerAssignBody, _document(QueryAssignmentReply))
#: Send a broker the assignments of members, and which of them should query again.
send_assignments: Final = _sending(R.PEER_ASSIGNMENTS, AssignmentUpdate, nothing)
#: Report the deletion of a topic or group to a broker.
report_removal: Final = _sending(R.PEER_REMOVED, bodies.PeerRemovedBody, nothing)
#: Report the start of a group's rebalance to a broker.
report_rebalance_start: Final = _sending(R.PEER_STARTED, bodies.PeerStartedBody, nothing)
#: Report the progress of a group's rebalance to a broker.
report_rebalance: Final = _sending(R.PEER_REBALANCE, bodies.PeerRebalanceBody, nothing)
#: Query a broker for its data that Kafka's clients need: address, topics and numberings.
ask_node: Final = _sending(R.PEER_NODE, kafka_cluster.PeerNodeBody, _document(kafka_cluster.PeerNode))
#: Have a broker create, extend or delete a topic.
change_topic: Final = _sending(R.PEER_TOPIC, kafka_cluster.PeerTopicBody, nothing)
#: Replicate groups to their next coordinator; returns whether it has all earlier changes. The body is
#: standard JSON with bytes in base64.
pass_on_groups: Final = _sending(
    R.PEER_GROUPS, kafka_cluster.PeerGroupsBody, _is_set("lbKnown"), encode=json.encode
)
#: Request the groups that the sender now coordinates; returns whether the broker has handed over all.
ask_handover: Final = _sending(R.PEER_HANDOVER, kafka_cluster.PeerHandoverBody, _is_set("lbHandedOver"))
#: Commit, read and delete a group's offsets at a queue's broker.
exchange_offsets: Final = _sending(
    R.PEER_OFFSETS, kafka_cluster.PeerOffsetsBody, _document(kafka_cluster.PeerOffsets)
)


def _body(reply: Command) -> bytes:
    return reply.body


def record_at(physical_offset: int, ours: bytes) -> Call[bytes]:
    """Return the record at an offset of the commit log; SYSTEM_ERROR if there is none.

    ours: our record there. If the master has the same, it answers even if no queue refers to it any more.
    """
    header = ViewMessageHeader(offset=physical_offset, lb_sha256=sha256(ours).hexdigest())
    return header_call(R.VIEW_MESSAGE_BY_ID, header, _body)


#: All topics: a TopicConfigSerializeWrapper.
ALL_TOPICS: Final = header_call(R.GET_ALL_TOPIC_CONFIG, None, _body)
#: All groups: a SubscriptionGroupWrapper.
ALL_GROUPS: Final = header_call(R.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, None, _body)
#: The committed offsets: the content of consumerOffset.json.
ALL_CONSUMER_OFFSETS: Final = header_call(R.GET_ALL_CONSUMER_OFFSET, None, _body)
#: The delivered offset of each delay level: the content of delayOffset.json.
ALL_DELAY_OFFSETS: Final = header_call(R.GET_ALL_DELAY_OFFSET, None, _body)
#: The content of messageRequestMode.json.
ALL_REQUEST_MODES: Final = header_call(R.GET_ALL_MESSAGE_REQUEST_MODE, None, _body)
#: The content of users.json, with passwords and policies.
ALL_USERS: Final = header_call(R.SLAVE_USERS, None, _body)
#: The progress of the master's timers: the first 56 bytes of its timercheck.
TIMER_CHECKPOINT: Final = header_call(R.GET_TIMER_CHECK_POINT, None, _body)
#: The numbers of timer messages waiting at the master: the content of timermetrics.
TIMER_METRICS: Final = header_call(R.GET_TIMER_METRICS, None, _body)
#: The end of the master's log.
LOG_END: Final = header_call(
    R.GET_BROKER_HA_STATUS, None, lambda reply: decode_body(reply.body, HAStatus).master_commit_log_max_offset
)
