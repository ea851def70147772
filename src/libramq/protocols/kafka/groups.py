"""Groups: FindCoordinator, JoinGroup, SyncGroup, Heartbeat, LeaveGroup, on the classic groups of this broker.

request ─► ClassicGroup ─► answers, of this request and of others that waited
                      └─► its next time becomes a deadline
"""

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any, Final

from libramq.broker.groups.coordination import FROZEN_MS
from libramq.clock import MonotonicMs
from libramq.groups.classic.group import ClassicGroup
from libramq.groups.classic.state import Status
from libramq.groups.classic.values import Answer, Beat, JoinGroup, Leaving, Protocol, SyncAnswer, SyncGroup
from libramq.groups.protocol_groups import Refusal
from libramq.kernel.connection import Connection
from libramq.kernel.deadlines import Deadline
from libramq.kernel.engine import LATE_MS_MIN
from libramq.kernel.parts import Kernel
from libramq.kernel.work import portions
from libramq.logs import get_logger
from libramq.protocols.kafka.answers import Slot
from libramq.protocols.kafka.broker_groups import BrokerGroups
from libramq.protocols.kafka.classic_group_records import ClassicGroupRecords
from libramq.protocols.kafka.cooperation import members_that_wait
from libramq.protocols.kafka.group_answers import CODES, send
from libramq.protocols.kafka.held_beats import HOLD_MS_MAX, HOLDS_PER_SESSION, HeldBeat, HeldBeats
from libramq.protocols.kafka.presence import Presence, Who
from libramq.protocols.kafka.rebalances import Rebalances
from libramq.secret_bits import SecretBits
from libramq.wire.kafka.apis.heartbeat import HeartbeatRequest, HeartbeatResponse
from libramq.wire.kafka.apis.join_group import JoinGroupRequest, JoinGroupResponse
from libramq.wire.kafka.apis.leave_group import (
    LeaveGroupRequest,
    LeaveGroupResponse,
    LeavingMember,
    LeftMember,
)
from libramq.wire.kafka.apis.sync_group import SyncGroupRequest, SyncGroupResponse
from libramq.wire.kafka.error_code import ErrorCode

log = get_logger(__name__)

#: Characters of an instance's id (JoinGroupRequest.MAX_GROUP_INSTANCE_ID_LENGTH) and, ours, of a client's.
#: Both are parts of members' ids, which are in the answers to other members, too.
NAME_CHARACTERS_MAX: Final = 249
#: Ours: clients hear at their next heartbeat that they must join again, 3 s later with the defaults.
MEMBERS_RETURN_MS: Final = 10_000
#: Ours: how long what a broker reads after it stood still may have lain in its sockets.
THAW_MS: Final = 1_000
#: Bytes of a member's id that cannot be guessed.
_ID_BYTES: Final = 16
#: KIP-394 and KIP-814: from these versions of JoinGroup on, a client understands them.
_COMES_BACK_FROM: Final = 4
_SKIPS_FROM: Final = 9
#: The first version of LeaveGroup that names several members.
_MEMBERS_FROM: Final = 3


class GroupRequests:
    """Answers the requests of groups' members."""

    def __init__(
        self,
        groups: BrokerGroups,
        rebalances: Rebalances,
        records: ClassicGroupRecords,
        kernel: Kernel,
        secret_bits: SecretBits,
        grace_ms: int,
    ) -> None:
        self._all = groups
        self.groups = groups.classic
        self._nodes = groups.nodes
        self._rebalances = rebalances
        self._records = records
        self._clock = kernel.clock
        self._effects = kernel.effects
        self._deadlines = kernel.deadlines
        self._secret_bits = secret_bits
        self._grace_ms = grace_ms
        self._expects_until_ms = self._clock.monotonic_ms() + MEMBERS_RETURN_MS
        self._thawed_ms = MonotonicMs(-THAW_MS)
        self._due: dict[str, Deadline] = {}
        self.presence = Presence(kernel.purgatory, self._lost)
        self.held_beats = HeldBeats(self._deadlines, self._answer_beat)
        #: What members of a group were told last: the generation, and whether it ends.
        self._announced: dict[str, tuple[int, bool]] = {}
        groups.nodes.observe(self.moved)
        records.observe(self.claim)

    def apis(self) -> Mapping[type, Callable[[Any, Slot], None]]:
        """Return the requests that it serves."""
        return {
            JoinGroupRequest: self.join,
            SyncGroupRequest: self.sync,
            HeartbeatRequest: self.beat,
        }

    def join(self, request: JoinGroupRequest, slot: Slot) -> None:
        """A member joins: it is answered when the others have joined as well."""
        name = request.group_id
        refusal = self._all.member_refusal(name, slot.principal)
        if refusal is None and (
            self._all.has_foreign_members(name) or self._all.modern.get(name) is not None
        ):
            refusal = ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        if len(request.group_instance_id or "") > NAME_CHARACTERS_MAX:
            refusal = ErrorCode.INVALID_REQUEST
        if refusal is not None:
            slot.answer(JoinGroupResponse(error_code=refusal, member_id=request.member_id))
            return
        is_known = bool(request.member_id) and self.groups.get(name) is not None
        may_join = is_known or not request.member_id
        group = self.groups.get_or_create(name) if may_join else None
        if group is None:
            # Where memory is short, clients try again.
            code = ErrorCode.COORDINATOR_NOT_AVAILABLE if may_join else ErrorCode.UNKNOWN_MEMBER_ID
            slot.answer(JoinGroupResponse(error_code=code, member_id=request.member_id))
            return
        version = slot.version
        client_id = client_id_of(slot)
        join = JoinGroup(
            key=slot,
            member_id=request.member_id,
            instance_id=request.group_instance_id,
            fresh_id=f"{request.group_instance_id or client_id}-{self._secret_bits.token_hex(_ID_BYTES)}",
            client_id=client_id,
            session_ms=request.session_timeout_ms,
            rebalance_ms=request.rebalance_timeout_ms,
            protocol_type=request.protocol_type,
            protocols=[Protocol(each.name, each.metadata) for each in request.protocols],
            must_come_back=version >= _COMES_BACK_FROM,
            may_skip=version >= _SKIPS_FROM,
            client_host="/" + host_of(slot.connection),
        )
        answers = group.join(join, self._clock.monotonic_ms())
        self.groups.charge(name)
        member_id = request.member_id or join.fresh_id
        self._heard(slot, name, member_id)
        if group.members:
            self._all.keep(name, self._clock.wall_ms())
        self._finish(name, answers)
        self._rebalances.joined(name, member_id)

    def sync(self, request: SyncGroupRequest, slot: Slot) -> None:
        """A member wants its share: it is answered when the leader has handed in the assignment."""
        group = self.groups.get(request.group_id)
        refusal = self._all.member_refusal(request.group_id, slot.principal)
        if refusal is None and group is None:
            refusal = ErrorCode.UNKNOWN_MEMBER_ID
        if refusal is not None or group is None:
            slot.answer(SyncGroupResponse(error_code=refusal or ErrorCode.UNKNOWN_MEMBER_ID))
            return
        assignments = {each.member_id: each.assignment for each in request.assignments}
        waiting: Collection[str] = ()
        if group.is_assigned_by(request.member_id, request.generation_id):
            waiting = members_that_wait(
                group.members.values(), group.protocol_type, group.protocol_name, assignments
            )
        sync = SyncGroup(
            key=slot,
            member_id=request.member_id,
            instance_id=request.group_instance_id,
            generation=request.generation_id,
            protocol_type=request.protocol_type,
            protocol_name=request.protocol_name,
            assignments=assignments,
            waiting=waiting,
            # librdkafka hears of it by its held heartbeat, and waits a second after an error before it joins.
            may_wait=slot.is_ordered,
        )
        answers = group.sync(sync, self._clock.monotonic_ms())
        self.groups.charge(request.group_id)
        self._heard(slot, request.group_id, request.member_id)
        self._finish(request.group_id, answers)
        self._rebalances.synced(request.group_id)

    def beat(self, request: HeartbeatRequest, slot: Slot) -> None:
        """A member is alive; a patient one is answered when there is something to say, or a while later."""
        name = request.group_id
        code = self._all.member_refusal(name, slot.principal)
        if code is None:
            beat = Beat(request.member_id, request.group_instance_id, request.generation_id)
            group = self.groups.get(name)
            now_ms = self._clock.monotonic_ms()
            code = CODES[group.beat(beat, now_ms) if group is not None else Refusal.UNKNOWN_MEMBER]
            self._heard(slot, name, request.member_id)
            self._finish(name, ())
            if code is ErrorCode.NONE and group is not None and slot.is_patient:
                session_ms = group.members[beat.member_id].session_ms
                hold_ms = min(HOLD_MS_MAX, session_ms // HOLDS_PER_SESSION)
                self.held_beats.hold(slot, name, beat, now_ms + hold_ms)
                return
        slot.answer(HeartbeatResponse(error_code=code))

    def _answer_beat(self, held: HeldBeat) -> None:
        refusal = self._all.member_refusal(held.group, held.slot.principal)
        if refusal is not None:
            held.slot.answer(HeartbeatResponse(error_code=refusal))
            return
        group = self.groups.get(held.group)
        news = group.news(held.beat) if group is not None else Refusal.UNKNOWN_MEMBER
        held.slot.answer(HeartbeatResponse(error_code=CODES[news]))

    def leave(self, request: LeaveGroupRequest, slot: Slot) -> None:
        """Members leave."""
        is_of_one = slot.version < _MEMBERS_FROM
        members = (LeavingMember(member_id=request.member_id),) if is_of_one else request.members
        refusal = self._all.member_refusal(request.group_id, slot.principal)
        if refusal is not None:
            slot.answer(LeaveGroupResponse(error_code=refusal))
            return

        def answer(parts: Sequence[Sequence[LeftMember]]) -> None:
            left = tuple(chain.from_iterable(parts))
            code = left[0].error_code if is_of_one else ErrorCode.NONE
            slot.answer_with(lambda: LeaveGroupResponse(error_code=code, members=left), len(left))

        # A group may have a thousand members, and tools that remove all of them name them together.
        slot.each(list(portions(members)), partial(self._leave, request.group_id), answer)

    def _leave(self, name: str, members: Sequence[LeavingMember]) -> Sequence[LeftMember]:
        group = self.groups.get(name)
        refusals = [Refusal.UNKNOWN_MEMBER] * len(members)
        answers: list[Answer] = []
        if group is not None:
            leaving = [Leaving(each.member_id, each.group_instance_id) for each in members]
            refusals, answers = group.leave(leaving, self._clock.monotonic_ms())
        for each in members:
            self.presence.left((name, each.member_id))
        self.groups.charge(name)
        self._finish(name, answers)
        self._rebalances.left(name, {each.member_id or each.group_instance_id or "" for each in members})
        return [
            LeftMember(
                member_id=each.member_id, group_instance_id=each.group_instance_id, error_code=CODES[refused]
            )
            for each, refused in zip(members, refusals, strict=True)
        ]

    def commit_refusal(self, name: str, beat: Beat) -> ErrorCode | None:
        """Return why offsets may not be committed, if so."""
        group = self.groups.get(name) or ClassicGroup()
        code = CODES[group.may_commit(beat, self._clock.monotonic_ms())]
        self._finish(name, ())
        return None if code is ErrorCode.NONE else code

    @property
    def is_thawing(self) -> bool:
        """Return whether this process has just stood still, so that others may have coordinated meanwhile.

        What it reads now may have been sent before they took later commits. Some is read before timers fire.
        """
        now_ms, due_ms = self._clock.monotonic_ms(), self._deadlines.next_due_ms
        ran_ms = self._deadlines.ran_ms
        if due_ms is not None and now_ms - max(due_ms, ran_ms or due_ms) >= FROZEN_MS:
            self._thawed_ms = now_ms
        thawed_ms = max(self._thawed_ms, self._all.thawed_ms)
        return now_ms - thawed_ms < THAW_MS and not self._nodes.is_alone

    @property
    def expects_members(self) -> bool:
        """Return whether members may not have joined again since this broker coordinates their groups.

        What they did is done, so their commits count: a Java program that does not handle a refused one ends.
        """
        return self._clock.monotonic_ms() < self._expects_until_ms

    def moved(self) -> None:
        """Drop the groups that another broker coordinates now: their members ask for it and join there."""
        self._expects_until_ms = self._clock.monotonic_ms() + MEMBERS_RETURN_MS
        for name in self.groups.names():
            group = self.groups.get(name)
            if group is None or self._nodes.is_coordinator(name):
                continue
            log.info("another broker coordinates a group of Kafka's clients now", group=name)
            for key in group.dissolve():
                assert isinstance(key, Slot), "requests are named by their slots"
                # Its client reconnects, and asks for the coordinator.
                self._effects.close(key.connection, "another broker coordinates the group")
            for member_id in list(group.members):
                self.presence.left((name, member_id))
            group.members.clear()
            self.groups.charge(name)
            self.groups.forget(name)
            self._finish(name, ())
            self._rebalances.moved(name)
        self.claim()

    def claim(self) -> None:
        """Continue with groups that other brokers have coordinated, where their members are known."""
        for name, group in self._records.claimed(self._clock.monotonic_ms()):
            log.info("a group of Kafka's clients continues here", group=name, members=len(group.members))
            self.groups.put(name, group)
            self.groups.charge(name)
            self._rebalances.restored(name, group)
            self._finish(name, ())

    # Connections.

    def client_arrived(self, slot: Slot, groups: Collection[str] | None = None) -> None:
        """Note a client's first request over a connection, or its question for coordinators of groups.

        A member that lost its connection a moment ago, and whose client this may be, has a session again.
        """
        client_id, host = client_id_of(slot), host_of(slot.connection)
        now_ms = self._clock.monotonic_ms()
        for name, member_id in self.presence.returned(client_id, host, groups, now_ms):
            group = self.groups.get(name)
            if group is not None:
                group.returned(member_id, now_ms)
                self._rebalances.returned(name, group.members.get(member_id))
                self._finish(name, ())

    def _heard(self, slot: Slot, name: str, member_id: str) -> None:
        group = self.groups.get(name)
        if group is not None and member_id in group.members:
            self.presence.heard(slot.connection, (name, member_id))

    def _lost(self, connection: Connection, members: Collection[Who]) -> None:
        """Expect members back soon whose connection has ended: most such clients are dead."""
        if not self._grace_ms:
            return
        now_ms = self._clock.monotonic_ms()
        until_ms = now_ms + self._grace_ms
        for name, member_id in members:
            group = self.groups.get(name)
            if group is not None and group.lost(member_id, until_ms, partial(_came_over, connection)):
                member = group.members[member_id]
                self.presence.wait_for(
                    (name, member_id), member.client_id, host_of(connection), now_ms, until_ms
                )
                self._rebalances.lost(name, member)
                self._finish(name, ())

    # What follows.

    def _finish(self, name: str, answers: Iterable[Answer]) -> None:
        """Send answers, and set the time of a group's next step."""
        self._records.note(name)
        for answer in answers:
            self._send(name, answer)
        if self.groups.forget_unused(name):
            self._all.release(name)
            self._records.note(name)
            self._announced.pop(name, None)
            self.held_beats.answer_group(name)
            deadline = self._due.pop(name, None)
            if deadline is not None:
                deadline.cancel()
            return
        group = self.groups.get(name)
        assert group is not None, "it is not forgotten"
        self._all.take(name)
        now = (group.generation, group.status is Status.PREPARING_REBALANCE)
        if self._announced.get(name) != now:
            self._announced[name] = now
            self.held_beats.answer_group(name)
        deadline = self._due.get(name)
        if deadline is None:
            deadline = self._due[name] = self._deadlines.new(partial(self._tick, name), "classic group")
        deadline.at(group.next_due_ms)

    def _send(self, name: str, answer: Answer) -> None:
        """Send an answer; one with a share, once the group's next coordinator knows of it."""
        if isinstance(answer, SyncAnswer) and answer.refusal is Refusal.NONE:
            assert isinstance(answer.key, Slot), "requests are named by their slots"
            self._records.successors.when_held(name, answer.key.guarded(partial(send, answer)))
        else:
            send(answer)

    def _tick(self, name: str, now_ms: MonotonicMs) -> None:
        group = self.groups.get(name)
        if group is None:
            return
        due_ms = group.next_due_ms
        if due_ms is not None and now_ms - due_ms >= LATE_MS_MIN:
            # This process stood still, and heartbeats lie unread.
            group.extend(now_ms - due_ms, now_ms)
        answers = group.tick(now_ms)
        self.groups.charge(name)
        self._finish(name, answers)
        self._rebalances.look(name)


def client_id_of(slot: Slot) -> str:
    """Return the name of a client, as its members have it."""
    client_id = (slot.call.client_id if slot.call is not None else None) or "member"
    return client_id[:NAME_CHARACTERS_MAX]


def host_of(connection: Connection) -> str:
    return connection.address.rpartition(":")[0]


def _came_over(connection: Connection, key: Hashable) -> bool:
    """Return whether a parked request came over a connection."""
    return isinstance(key, Slot) and key.connection is connection
