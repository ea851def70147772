"""GROUP_JOIN, _POLL, _RELEASE, _LEAVE, _REMOVE, _FIND, _BEGIN and OPEN_QUEUE: members' requests to their
coordinator and to the brokers of their queues; which granted queues are opened with the coordinator's answer;
where a group that is new to a topic begins.

The coordinator answers in its own time: members' requests, except _FIND, are held until it does.

    answer ─► newly granted local queues are opened ─► reply, once the openings are durable

So a member whose coordinator also stores its queues can pull after one answer. It opens all other queues
itself (OPEN_QUEUE), as a member of 0.1.0 opens all of its queues.

When a group begins with a topic, its offsets there (the queues' ends, or by a time) are committed before the
answer, so that no message sent after a member has started is missed. Ours; the contract is in
docs/design/coordinated-groups.md.
"""

from collections.abc import Callable, Collection, Container
from functools import partial
from typing import Any, Final

from libramq.broker.files.files import BrokerFiles
from libramq.broker.files.tables import Tables
from libramq.broker.groups.consumer_clients import ConsumerClients
from libramq.broker.groups.coordination import Coordination, MemberWaiter
from libramq.broker.groups.offset_commits import Committing
from libramq.broker.groups.opening import Openings, QueueOpening, QueueToOpen
from libramq.codes import RequestCode
from libramq.fencing import Claim, OpenedQueue
from libramq.formats.document import encode_body
from libramq.groups.coordinator import request as rq
from libramq.groups.coordinator.coordinator import Coordinator
from libramq.groups.coordinator.effect import Answer
from libramq.kernel.connection import Connection, host_of
from libramq.kernel.work import Work
from libramq.message.queue import MessageQueue
from libramq.remoting import headers as h
from libramq.remoting.body import coordination as bodies
from libramq.rpc.outcome import HOLD, Outcome, Reply
from libramq.rpc.request import Request, serves
from libramq.rpc.responder import RequestWaiter

#: Ours, measured: the memory of a queue listed in a request, with its name and epoch.
LISTED_QUEUE_BYTES: Final = 512


class AssignmentWaiter(RequestWaiter):
    """A waiter for an assignment, whose new queues are opened with the answer.

    member: None while joining; the answer names it. listed: the queues that the member already has. Opening
    them with the answer would fence pulls and commits that are on their way under the last claim.
    """

    __slots__ = ("_coordinator", "_group", "_listed", "_member", "_opening")

    def __init__(
        self,
        request: Request,
        answer: Callable[[Request, Outcome], None],
        member: str | None,
        listed: Container[MessageQueue],
        opening: QueueOpening,
        coordinator: Coordinator[Any, Any],
    ) -> None:
        super().__init__(request, answer, _reply)
        self._group, self._member, self._listed = request.header.consumer_group, member, listed
        self._opening = opening
        self._coordinator = coordinator

    def answer(self, result: Answer[Any]) -> None:
        """Open the queues that are new to the member, and reply."""
        group, member = self._group, result.member or self._member
        queues = result.assignment.queues if result.assignment is not None else {}
        claims = {
            queue: Claim(member, epoch)
            for queue, epoch in queues.items()
            if member is not None and queue not in self._listed
        }
        # For the records, because the member may not have sent this broker a heartbeat yet.
        client_id = self._coordinator.client_of(group, member) if claims and member is not None else None
        openings = self._opening.open_granted(group, claims, self.connection, client_id=client_id)
        if openings:
            self._coordinator.opened(group, {queue: claims[queue] for queue in openings})
        self._opening.when_durable(openings, partial(self._send, result))

    def _send(self, result: Answer[Any], openings: Openings) -> None:
        self._answer(self._request, _reply(result, openings))


class GroupRequests:
    """The processor of members' requests to their coordinator and to the brokers of their queues.

    answer: sends a reply when it is ready. opening: opens queues, for members that accept openings with the
    answer that grants them.
    """

    def __init__(
        self,
        coordination: Coordination,
        opening: QueueOpening,
        tables: Tables,
        *,
        answer: Callable[[Request, Outcome], None],
    ) -> None:
        self._answer = answer
        self._coordination = coordination
        self._opening = opening
        self._topics, self._groups = tables.topics, tables.groups

    @serves(RequestCode.GROUP_JOIN)
    def join(self, request: Request) -> Outcome:
        """Admit a client, after creating the group and its retry topic if necessary."""
        header: h.GroupJoinHeader = request.header
        body: bodies.GroupJoinBody = request.body
        self._coordination.require_here(header.consumer_group)
        self._groups.require_not_taken(header.consumer_group)
        group = self._groups.require(header.consumer_group, request.wall_ms)
        self._topics.for_retries(group, request.wall_ms)
        join = rq.Join(
            group=header.consumer_group,
            client_id=header.client_id,
            session_ms=header.lb_session_ms,
            subscriptions=body.subscriptions,
            member=header.lb_member,
            instance=header.lb_instance,
            revoke_timeout_ms=header.lb_revoke_timeout_ms,
            if_free=bool(header.lb_if_free),
            waits=bool(header.lb_takes_openings),
            strategy=body.strategy,
            capacity=body.capacity,
            orderly=body.orderly,
            held=bodies.epochs_of(body.held),
        )
        waiter = self._waiter(request, header, None, join.held)
        self._coordination.ask(waiter, join, cost_bytes=_cost_bytes(request, body.held))
        return HOLD

    @serves(RequestCode.GROUP_POLL)
    def poll(self, request: Request) -> Outcome:
        """Hold a member's poll until its assignment changes."""
        header: h.GroupPollHeader = request.header
        body: bodies.GroupPollBody = request.body
        poll = rq.Poll(
            group=header.consumer_group,
            member=header.lb_member,
            epoch=header.lb_epoch,
            held=bodies.epochs_of(body.held),
            duplicates=body.duplicates,
            is_leaving=body.leaving,
            is_slow=body.slow,
            hold_ms=header.lb_hold_ms,
        )
        waiter = self._waiter(request, header, poll.member, poll.held)
        self._coordination.ask(waiter, poll, cost_bytes=_cost_bytes(request, body.held))
        return HOLD

    @serves(RequestCode.GROUP_RELEASE)
    def release(self, request: Request) -> Outcome:
        """Free the queues that a member has released."""
        header: h.GroupMemberHeader = request.header
        body: bodies.GroupReleaseBody = request.body
        release = rq.Release(
            group=header.consumer_group,
            member=header.lb_member,
            queues=bodies.epochs_of(body.queues),
            is_leaving=body.leaving,
            is_slow=body.slow,
            committed=_committed(body),
            attempts=bodies.attempts_of(body.queues),
        )
        waiter = RequestWaiter(request, self._answer, _reply)
        self._coordination.ask(waiter, release, cost_bytes=_cost_bytes(request, body.queues))
        return HOLD

    @serves(RequestCode.GROUP_LEAVE)
    def leave(self, request: Request) -> Outcome:
        """Remove a member that leaves."""
        header: h.GroupMemberHeader = request.header
        body: bodies.GroupLeaveBody = request.body
        leave = rq.Leave(
            group=header.consumer_group,
            member=header.lb_member,
            reason=body.reason,
            committed=bodies.epochs_of(body.queues),
            attempts=bodies.attempts_of(body.queues),
        )
        waiter = RequestWaiter(request, self._answer, _reply)
        self._coordination.ask(waiter, leave, cost_bytes=_cost_bytes(request, body.queues))
        return HOLD

    @serves(RequestCode.GROUP_REMOVE)
    def remove(self, request: Request) -> Outcome:
        """Remove a member for an operator; the address of the request is recorded."""
        header: h.GroupRemoveHeader = request.header
        host = host_of(request.peer)
        remove = rq.Remove(
            group=header.consumer_group, name=header.lb_name, operator=header.lb_operator, host=host
        )
        self._coordination.ask(RequestWaiter(request, self._answer, _reply), remove)
        return HOLD

    @serves(RequestCode.GROUP_FIND)
    def find(self, request: Request) -> Outcome:
        """Return the address of the group's coordinator; any broker answers."""
        header: h.GroupHeader = request.header
        return Reply(ext={"lbCoordinator": self._coordination.address_of(header.consumer_group)})

    @serves(RequestCode.OPEN_QUEUE)
    def open(self, request: Request) -> Outcome:
        """Open a queue; the reply has the starting offset, if any, and the member's former epoch."""
        header: h.OpenQueueHeader = request.header
        claim = Claim(header.lb_member, header.lb_queue_epoch)
        queue = QueueToOpen(header.consumer_group, header.topic, header.queue_id, claim)
        self._opening.open(queue, RequestWaiter(request, self._answer, _reply_opened))
        return HOLD

    def _waiter(
        self,
        request: Request,
        header: h.GroupJoinHeader | h.GroupPollHeader,
        member: str | None,
        listed: rq.Held,
    ) -> MemberWaiter:
        """Return the waiter for an assignment; listed: the queues that the member already has."""
        if not header.lb_takes_openings:
            return RequestWaiter(request, self._answer, _reply)
        coordinator = self._coordination.coordinator
        return AssignmentWaiter(request, self._answer, member, listed, self._opening, coordinator)


def _reply(answer: Answer[Any], openings: Openings | None = None) -> Reply:
    ext = {"lbMember": answer.member} if answer.member is not None else None
    assignment = answer.assignment
    if assignment is None:
        return Reply(answer.code, answer.remark, ext)
    grant = bodies.QueueGrant.of
    body = bodies.GroupAssignment(
        epoch=assignment.epoch,
        mode=assignment.mode,
        queues=[grant(queue, epoch) for queue, epoch in assignment.queues.items()],
        revoke=[grant(queue, epoch) for queue, epoch in assignment.revoke.items()],
        opened=[bodies.QueueOpened.of(queue, opened) for queue, opened in (openings or {}).items()],
        warning=assignment.warning,
        knows_slow=True,
    )
    return Reply(answer.code, answer.remark, ext, encode_body(body))


def _cost_bytes(request: Request, listed: Collection[bodies.QueueGrant]) -> int:
    """Return the memory of a waiting request: its texts and queues, but not its frame."""
    return len(request.command.body) + LISTED_QUEUE_BYTES * len(listed)


def _committed(body: bodies.GroupReleaseBody) -> frozenset[MessageQueue]:
    """Return the queues whose handled messages are all committed; none if the member does not know."""
    if body.uncommitted is None:
        return frozenset()
    return frozenset(bodies.epochs_of(body.queues).keys() - bodies.epochs_of(body.uncommitted).keys())


def _reply_opened(opened: OpenedQueue) -> Reply:
    offset = {} if opened.offset is None else {"offset": str(opened.offset)}
    end = {} if opened.recovered_end is None else {"lbRecoveredEnd": str(opened.recovered_end)}
    start = {"lbTopicStart": str(opened.topic_start)} if opened.topic_start else {}
    attempts = {"lbAttempts": str(opened.attempts)} if opened.attempts else {}
    initial = {"lbInitial": "true"} if opened.is_initial else {}
    return Reply(ext=offset | end | start | attempts | initial | {"lbFormerEpoch": str(opened.former_epoch)})


#: Ours: in queues of brokers that are away when a group begins, it starts this much earlier: clocks differ.
LEEWAY_MS: Final = 60_000


class GroupBegin:
    """The processor of beginnings."""

    def __init__(
        self,
        files: BrokerFiles,
        committing: Committing,
        consumers: ConsumerClients,
    ) -> None:
        self._store, tables = files.store, files.tables
        self._topics, self._groups, self._fences = tables.topics, tables.groups, tables.fences
        self._beginnings = files.beginnings
        self._offsets = committing.offsets
        self._write = committing.write
        self._requirements = tables.requirements
        self._consumers = consumers
        #: Groups and topics whose offsets are being committed.
        self._under_way: set[tuple[str, str]] = set()

    @serves(RequestCode.GROUP_BEGIN)
    def handle(self, request: Request) -> Work[Outcome]:
        """Return from when a group reads queues without an offset; none if it is new to the topic."""
        header: h.GroupBeginHeader = request.header
        group, topic = header.consumer_group, header.topic
        self._topics.require(topic)
        while (group, topic) in self._under_way:
            yield None
        since_ms: int | None = self._since_ms(request.peer, group, topic)
        if since_ms is None and header.lb_begins:
            self._groups.require_not_taken(group)
            self._requirements.consuming_group(group, request.wall_ms)
            began_ms = int(request.wall_ms) - LEEWAY_MS
            since_ms = max(1, began_ms if header.timestamp is None else header.timestamp)
            self._beginnings.note(group, topic, since_ms)  # First, because the commits may fail halfway.
            self._under_way.add((group, topic))
            try:
                yield from self._begin(header)
            finally:
                self._under_way.discard((group, topic))
        return Reply(ext={} if since_ms is None else {"lbSince": str(since_ms)})

    def _since_ms(self, peer: Connection, group: str, topic: str) -> int | None:
        """Return that time; 0: unknown; None: the group is new, and has no other members."""
        since_ms = self._beginnings.since_ms(group, topic)
        if since_ms is not None:
            return since_ms
        is_open = any(queue.topic == topic for queue in self._fences.openings(group))
        return 0 if is_open or self._has_others(peer, group, topic) else None

    def _has_others(self, peer: Connection, group: str, topic: str) -> bool:
        members = self._consumers.group(group)
        return members is not None and any(
            topic in member.subscriptions for member in members.members.values() if member.peer is not peer
        )

    def _begin(self, header: h.GroupBeginHeader) -> Work[None]:
        group, topic = header.consumer_group, header.topic
        for queue in self._topics.queues(topic):
            if header.timestamp is None:
                offset = self._store.max_offset(topic, queue.queue_id)
            else:
                search = partial(
                    self._store.offset_by_timestamp, topic, queue.queue_id, max(0, header.timestamp)
                )
                offset = yield from self._store.reading(search)
            if self._offsets.query(group, topic, queue.queue_id) is None:
                self._offsets.commit(group, topic, queue.queue_id, offset)
            yield None
        self._write()
