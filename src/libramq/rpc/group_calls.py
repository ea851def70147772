"""Calls from members of coordinated groups to the coordinator and to the fences of their queues: each request
and the form of its answer.

Ours; the contract is in docs/design/coordinated-groups.md.
"""

from collections.abc import Sequence
from typing import NamedTuple

from libramq.codes import RequestCode
from libramq.fencing import OpenedQueue
from libramq.formats.document import decode_body, encode_body
from libramq.message.queue import MessageQueue
from libramq.remoting import headers as h
from libramq.remoting.body import coordination as bodies
from libramq.remoting.command import Command
from libramq.rpc.call import Call, group_call, nothing


class Joined(NamedTuple):
    """Our identity at the coordinator, and our assignment."""

    member: str
    assignment: bodies.GroupAssignment


def join_group(header: h.GroupJoinHeader, body: bodies.GroupJoinBody) -> Call[Joined]:
    """Join a group, or rejoin it; raises NotCoordinator."""
    return group_call(
        RequestCode.GROUP_JOIN,
        header,
        lambda reply: Joined(reply.ext["lbMember"], decode_body(reply.body, bodies.GroupAssignment)),
        body=encode_body(body),
    )


def poll_group(
    group: str, member: str, epoch: int, body: bodies.GroupPollBody, hold_ms: int
) -> Call[bodies.GroupAssignment]:
    """Send a heartbeat and get the assignment; held until it changes, for hold_ms or a third of the session.

    Raises UnknownMember, NotCoordinator.
    """
    return group_call(
        RequestCode.GROUP_POLL,
        h.GroupPollHeader(
            consumer_group=group,
            lb_member=member,
            lb_epoch=epoch,
            lb_takes_openings=True,
            lb_hold_ms=hold_ms,
        ),
        lambda reply: decode_body(reply.body, bodies.GroupAssignment),
        body=encode_body(body),
    )


def release_queues(
    group: str,
    member: str,
    queues: Sequence[bodies.QueueGrant],
    *,
    uncommitted: Sequence[bodies.QueueGrant] = (),
    leaving: bool = False,
    slow: bool = False,
) -> Call[None]:
    """Notify the coordinator of released queues. leaving: we are stopping, and will release more.

    slow: others should have our queues until further notice.
    uncommitted: released queues whose handled messages may be redelivered.
    """
    body = bodies.GroupReleaseBody(
        queues=list(queues), leaving=leaving, slow=slow, uncommitted=list(uncommitted)
    )
    return group_call(
        RequestCode.GROUP_RELEASE,
        h.GroupMemberHeader(consumer_group=group, lb_member=member),
        nothing,
        body=encode_body(body),
    )


def leave_group(group: str, member: str, reason: str, queues: Sequence[bodies.QueueGrant] = ()) -> Call[None]:
    """Leave the group; all queues are free at once. queues: those drained and committed."""
    return group_call(
        RequestCode.GROUP_LEAVE,
        h.GroupMemberHeader(consumer_group=group, lb_member=member),
        nothing,
        body=encode_body(bodies.GroupLeaveBody(reason=reason, queues=list(queues))),
    )


def remove_member(group: str, name: str, operator: str | None) -> Call[None]:
    """Remove a member for an operator: by a static member's name, or by client id.

    Raises UnknownMember, NotCoordinator; InvalidParameter if the members allocate for themselves.
    """
    header = h.GroupRemoveHeader(consumer_group=group, lb_name=name, lb_operator=operator)
    return group_call(RequestCode.GROUP_REMOVE, header, nothing)


def find_group(group: str) -> Call[str]:
    """Return the address of the group's coordinator; any broker answers."""
    return group_call(
        RequestCode.GROUP_FIND, h.GroupHeader(consumer_group=group), lambda reply: reply.ext["lbCoordinator"]
    )


def begin_topic(
    group: str, topic: str, *, begins: bool = False, timestamp_ms: int | None = None
) -> Call[int | None]:
    """Return from when a group reads a topic's queues without an offset; None if the topic is new to it.

    0: the time is unknown. begins: a new group begins at the ends of the queues, or at the messages of a
    time.
    """
    header = h.GroupBeginHeader(
        consumer_group=group, topic=topic, lb_begins=begins or None, timestamp=timestamp_ms
    )
    return group_call(
        RequestCode.GROUP_BEGIN,
        header,
        lambda reply: int(reply.ext["lbSince"]) if "lbSince" in reply.ext else None,
    )


def _opened(reply: Command) -> OpenedQueue:
    texts = [reply.ext.get(name) for name in ("offset", "lbFormerEpoch", "lbRecoveredEnd")]
    offset, former_epoch, recovered_end = (None if text is None else int(text) for text in texts)
    topic_start = int(reply.ext.get("lbTopicStart", 0))
    attempts = int(reply.ext.get("lbAttempts", 0))
    is_initial = reply.ext.get("lbInitial") == "true"
    return OpenedQueue(offset, former_epoch, recovered_end, topic_start, attempts, is_initial)


def open_queue(group: str, queue: MessageQueue, member: str, epoch: int) -> Call[OpenedQueue]:
    """Open a granted queue, which fences its previous reader.

    Raises NotYetGranted, Fenced.
    """
    header = h.OpenQueueHeader(
        consumer_group=group,
        topic=queue.topic,
        queue_id=queue.queue_id,
        lb_member=member,
        lb_queue_epoch=epoch,
    )
    return group_call(RequestCode.OPEN_QUEUE, header, _opened)
