"""Calls between brokers of a cluster: fences, edges and coordinators of coordinated groups.

Ours; the contract is in docs/design/coordinated-groups.md.
"""

from libramq.codes import RequestCode
from libramq.formats.document import decode_body, encode_body
from libramq.remoting.body import coordination as bodies
from libramq.remoting.body.assignment import QueryAssignmentReply
from libramq.rpc.call import Call, group_call, nothing


def grant_queues(body: bodies.PeerGrantBody) -> Call[int]:
    """Tell a fence whose its queues are. Answers the highest epoch it saw; above ours, it took nothing."""
    return group_call(
        RequestCode.PEER_GRANT,
        None,
        lambda reply: int(reply.ext.get("lbEpoch", body.epoch)),
        body=encode_body(body),
    )


def report_members(body: bodies.PeerMembersBody) -> Call[bool]:
    """Tell a coordinator who is connected here. Answers whether it has heard of all our groups."""
    return group_call(
        RequestCode.PEER_MEMBERS, None, lambda reply: reply.ext.get("lbKnown") == "1", body=encode_body(body)
    )


def send_member_list(body: bodies.PeerListBody) -> Call[None]:
    """Tell an edge who is in a group."""
    return group_call(RequestCode.PEER_LIST, None, nothing, body=encode_body(body))


def gather_group(group: str) -> Call[bodies.PeerGathered]:
    """Ask a fence what it knows of a group; grants that nobody has used are void from then on."""
    return group_call(
        RequestCode.PEER_GATHER,
        None,
        lambda reply: decode_body(reply.body, bodies.PeerGathered),
        body=encode_body(bodies.PeerGatherBody(group=group)),
    )


def assign_queues(body: bodies.PeerAssignBody) -> Call[QueryAssignmentReply]:
    """Ask the broker where a group lives for a member's queues."""
    return group_call(
        RequestCode.PEER_ASSIGN,
        None,
        lambda reply: decode_body(reply.body, QueryAssignmentReply),
        body=encode_body(body),
    )


def send_assignments(body: bodies.PeerAssignmentsBody) -> Call[None]:
    """Tell a broker what members that ask for their queues were given, and who is to ask again."""
    return group_call(RequestCode.PEER_GIVEN, None, nothing, body=encode_body(body))


def report_removal(body: bodies.PeerRemovedBody) -> Call[None]:
    """Tell a broker that a topic or a group was deleted here."""
    return group_call(RequestCode.PEER_REMOVED, None, nothing, body=encode_body(body))


def report_rebalance_start(body: bodies.PeerStartedBody) -> Call[None]:
    """Tell a broker that a rebalance of a group has begun."""
    return group_call(RequestCode.PEER_STARTED, None, nothing, body=encode_body(body))


def report_rebalance(body: bodies.PeerRebalanceBody) -> Call[None]:
    """Tell a broker how a rebalance of a group goes on."""
    return group_call(RequestCode.PEER_REBALANCE, None, nothing, body=encode_body(body))
