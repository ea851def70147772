"""JoinGroup (11), Heartbeat (12), SyncGroup (14): requests of classic groups' members, held and answered; the
decisions are in `groups.classic`.

Cooperative rebalances (KIP-429) have two rounds:

    round 1   A gives up half of its partitions   B gets nothing yet
    round 2   A has joined again                  B gets them

A joins again as soon as it has its share. B would only learn of that from its next heartbeat, 3 s later with
the defaults, because clients restart the interval when they join; until then the partitions are not read. So
the answer to B's sync waits for round 2 and tells B to join again. Members using librdkafka do not need this:
their heartbeats are always held.
"""

from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import Final

from libramq.clock import MonotonicMs
from libramq.groups.classic.group import ClassicGroup
from libramq.groups.classic.state import ClassicMember, Status
from libramq.groups.classic.values import (
    Answer,
    Beat,
    JoinAnswer,
    JoinGroup,
    Leaving,
    Protocol,
    SyncAnswer,
    SyncGroup,
)
from libramq.groups.protocol_groups import Refusal
from libramq.kernel.connection import Connection, host_of
from libramq.kernel.parts import Kernel
from libramq.message.names import has_controls
from libramq.protocols.kafka.answers import Slot, serves
from libramq.protocols.kafka.broker_groups import BrokerGroups
from libramq.protocols.kafka.group_records import ClassicGroupRecords
from libramq.protocols.kafka.group_requests import (
    CLASSIC_HOLD_MS_MAX,
    HOLDS_PER_SESSION,
    MEMBER_ID_BYTES,
    NAME_CHARACTERS_MAX,
    GroupRequests,
    HeldHeartbeat,
    client_id_of,
)
from libramq.protocols.kafka.rebalances import ClassicRebalances
from libramq.protocols.kafka.refusals import GROUP_CODES
from libramq.secret_bits import SecretBits
from libramq.wire.kafka.apis import groups as wire
from libramq.wire.kafka.error_code import ErrorCode
from libramq.wire.kafka.subscription import CONSUMER, assigned_partitions, owned_partitions

#: Ours: how long members may take to join again at a new coordinator; with the defaults, their next heartbeat
#: is at most 3 s away.
MEMBERS_RETURN_MS: Final = 10_000
#: Ours: a member's metadata; Kafka's brokers store that of a whole group in a message of 1 MiB.
MEMBER_BYTES_MAX: Final = 1024 * 1024
#: Ours: answers up to this size are encoded at once. A leader gets the metadata of all members.
AT_ONCE_BYTES_MAX: Final = 256 * 1024
#: KIP-394: the first version of JoinGroup whose clients come back with the member id they are given.
_COMES_BACK_FROM: Final = 4
#: KIP-814: the first version of JoinGroup with skipped assignments.
_SKIPS_FROM: Final = 9
#: The first version of JoinGroup whose protocol name may be null.
_NULL_PROTOCOL_FROM: Final = 7


class ClassicGroups(GroupRequests[ClassicGroup]):
    """Answers the requests of classic groups' members."""

    KIND = "classic group"
    _rebalances: ClassicRebalances

    def __init__(
        self,
        groups: BrokerGroups,
        rebalances: ClassicRebalances,
        records: ClassicGroupRecords,
        kernel: Kernel,
        secret_bits: SecretBits,
        grace_ms: int,
    ) -> None:
        super().__init__(groups, groups.classic, records, rebalances, kernel, grace_ms)
        self._secret_bits = secret_bits
        self._expects_until_ms = self._clock.monotonic_ms() + MEMBERS_RETURN_MS
        #: The state of each group that held heartbeats last reported: generation, and whether that is ending.
        self._announced: dict[str, tuple[int, bool]] = {}

    @serves(wire.JoinGroupRequest)
    def join(self, request: wire.JoinGroupRequest, slot: Slot) -> None:
        """Handle a join, which is answered when the other members have joined as well."""
        name = request.group_id
        refusal = self._all.member_refusal(name, slot.principal)
        if refusal is None and (
            self._all.has_foreign_members(name) or self._all.modern.get(name) is not None
        ):
            refusal = ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        instance = request.group_instance_id or ""
        size = sum(len(each.name) + len(each.metadata) for each in request.protocols)
        if len(instance) > NAME_CHARACTERS_MAX or has_controls(instance) or size > MEMBER_BYTES_MAX:
            refusal = ErrorCode.INVALID_REQUEST
        if refusal is not None:
            slot.answer(wire.JoinGroupResponse(error_code=refusal, member_id=request.member_id))
            return
        is_known = bool(request.member_id) and self.groups.get(name) is not None
        may_join = is_known or not request.member_id
        group = self.groups.get_or_create(name) if may_join else None
        if group is None:
            # If memory is short, clients retry.
            code = ErrorCode.COORDINATOR_NOT_AVAILABLE if may_join else ErrorCode.UNKNOWN_MEMBER_ID
            slot.answer(wire.JoinGroupResponse(error_code=code, member_id=request.member_id))
            return
        version = slot.version
        client_id, secret = client_id_of(slot), self._secret_bits.token_hex(MEMBER_ID_BYTES)
        join = JoinGroup(
            key=slot,
            member_id=request.member_id,
            instance_id=request.group_instance_id,
            fresh_id=f"{request.group_instance_id or client_id}-{secret}",
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
        self._note_presence(slot, name, member_id)
        if group.members:
            self._all.keep(name, self._clock.wall_ms())
        self._finish(name, answers)
        self._rebalances.joined(name, member_id)

    @serves(wire.SyncGroupRequest)
    def sync(self, request: wire.SyncGroupRequest, slot: Slot) -> None:
        """Handle a sync, which is answered when the leader has sent the assignment."""
        group = self.groups.get(request.group_id)
        refusal = self._all.member_refusal(request.group_id, slot.principal)
        if refusal is None and group is None:
            refusal = ErrorCode.UNKNOWN_MEMBER_ID
        if refusal is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            refusal = ErrorCode.REBALANCE_IN_PROGRESS  # As in Kafka: the member joins again.
        if refusal is not None or group is None:
            slot.answer(wire.SyncGroupResponse(error_code=refusal or ErrorCode.UNKNOWN_MEMBER_ID))
            return
        assignments = {each.member_id: each.assignment for each in request.assignments}
        waiting: Collection[str] = ()
        if group.is_assigned_by(request.member_id, request.generation_id):
            waiting = _members_that_wait(
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
            # librdkafka is told by its held heartbeat; after an error it would wait a second before joining.
            may_wait=slot.is_ordered,
        )
        answers = group.sync(sync, self._clock.monotonic_ms())
        self.groups.charge(request.group_id)
        self._note_presence(slot, request.group_id, request.member_id)
        self._finish(request.group_id, answers)
        self._rebalances.look(request.group_id)

    @serves(wire.HeartbeatRequest)
    def beat(self, request: wire.HeartbeatRequest, slot: Slot) -> None:
        """Handle a heartbeat; a patient client's is held until there is news, or for a while."""
        name = request.group_id
        code = self._all.member_refusal(name, slot.principal)
        if code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            code = ErrorCode.NONE  # As in Kafka: clients do not expect that error.
        elif code is None:
            beat = Beat(request.member_id, request.group_instance_id, request.generation_id)
            group = self.groups.get(name)
            now_ms = self._clock.monotonic_ms()
            code = GROUP_CODES[group.beat(beat, now_ms) if group is not None else Refusal.UNKNOWN_MEMBER]
            self._note_presence(slot, name, request.member_id)
            self._finish(name)
            if code is ErrorCode.NONE and group is not None and slot.is_patient:
                session_ms = group.members[beat.member_id].session_ms
                hold_ms = min(CLASSIC_HOLD_MS_MAX, session_ms // HOLDS_PER_SESSION)
                self.held_heartbeats.hold(slot, name, beat, now_ms + hold_ms)
                return
        slot.answer(wire.HeartbeatResponse(error_code=code))

    def _answer_held(self, held: HeldHeartbeat) -> None:
        refusal = self._all.member_refusal(held.group, held.slot.principal)
        if refusal is not None:
            held.slot.answer(wire.HeartbeatResponse(error_code=refusal))
            return
        group = self.groups.get(held.group)
        news = group.news(held.beat) if group is not None else Refusal.UNKNOWN_MEMBER
        held.slot.answer(wire.HeartbeatResponse(error_code=GROUP_CODES[news]))

    def _leave(self, name: str, members: Sequence[wire.LeavingMember]) -> Sequence[Refusal]:
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
        gone = {each.member_id or each.group_instance_id or "" for each in members}
        self._rebalances.look(name, left=gone)
        return refusals

    def commit_refusal(self, name: str, beat: Beat) -> ErrorCode | None:
        """Return the error if offsets may not be committed."""
        group = self.groups.get(name) or ClassicGroup()
        code = GROUP_CODES[group.may_commit(beat, self._clock.monotonic_ms())]
        self._finish(name)
        return None if code is ErrorCode.NONE else code

    @property
    def expects_members(self) -> bool:
        """Return whether members may still have to join again after this broker became their coordinator.

        Their work is done, so their commits are accepted: a refused commit ends a Java program that does not
        handle it.
        """
        return self._clock.monotonic_ms() < self._expects_until_ms

    # Connections, and other coordinators.

    def moved(self) -> None:
        """Drop the groups that another broker coordinates now: their members look it up and join there."""
        self._expects_until_ms = self._clock.monotonic_ms() + MEMBERS_RETURN_MS
        super().moved()

    def _is_elsewhere(self, name: str) -> bool:
        return not self._nodes.is_coordinator(name)

    def _drop(self, name: str, group: ClassicGroup) -> None:
        for key in group.dissolve():
            assert isinstance(key, Slot), "requests are named by their slots"
            # The client reconnects and looks up the coordinator.
            self._effects.close(key.connection, "another broker coordinates the group")
        group.members.clear()
        self.groups.forget(name)
        self._gone(name)
        self._rebalances.moved(name)

    def _returned(self, name: str, group: ClassicGroup, member_id: str) -> None:
        self._rebalances.returned(name, group.members.get(member_id))

    def _note_presence(self, slot: Slot, name: str, member_id: str) -> None:
        group = self.groups.get(name)
        if group is not None and member_id in group.members:
            self.presence.seen(slot.connection, (name, member_id))

    def _expects(
        self, name: str, group: ClassicGroup, member_id: str, connection: Connection, until_ms: MonotonicMs
    ) -> bool:
        is_expected = group.lost(
            member_id, until_ms, lambda key: isinstance(key, Slot) and key.connection is connection
        )
        if is_expected:
            self._rebalances.lost(name, group.members[member_id])
        return is_expected

    # After each change.

    def _gone(self, name: str) -> None:
        super()._gone(name)
        self._announced.pop(name, None)

    def _notify(self, name: str, group: ClassicGroup) -> None:
        now = (group.generation, group.status is Status.PREPARING_REBALANCE)
        if self._announced.get(name) != now:
            self._announced[name] = now
            self.held_heartbeats.answer_group(name)

    def _send(self, name: str, answer: Answer) -> None:
        """Send an answer; one with an assignment only once the group's next coordinator has a copy."""
        if isinstance(answer, SyncAnswer) and answer.refusal is Refusal.NONE:
            assert isinstance(answer.key, Slot), "requests are named by their slots"
            self._records.successors.when_held(name, answer.key.guarded(partial(_send, answer)))
        else:
            _send(answer)

    def _pass(self, name: str, group: ClassicGroup, now_ms: MonotonicMs) -> None:
        answers = group.tick(now_ms)
        self.groups.charge(name)
        self._finish(name, answers)
        self._rebalances.look(name)


def _send(answer: Answer) -> None:
    """Send an answer; a failure does not affect other members' answers."""
    slot = answer.key
    assert isinstance(slot, Slot), "requests are named by their slots"
    try:
        size = sum(len(each.metadata) for each in answer.members) if isinstance(answer, JoinAnswer) else 0
        slot.answer_with(partial(_response, answer, slot.version), is_large=size > AT_ONCE_BYTES_MAX)
    except Exception as error:
        slot.fail(error)


def _response(answer: Answer, version: int) -> wire.JoinGroupResponse | wire.SyncGroupResponse:
    code = GROUP_CODES[answer.refusal]
    if not isinstance(answer, JoinAnswer):
        return wire.SyncGroupResponse(
            error_code=code,
            protocol_type=answer.protocol_type,
            protocol_name=answer.protocol_name,
            assignment=answer.assignment,
        )
    return wire.JoinGroupResponse(
        error_code=code,
        generation_id=answer.generation,
        protocol_type=answer.protocol_type,
        protocol_name=(answer.protocol_name or "") if version < _NULL_PROTOCOL_FROM else answer.protocol_name,
        leader=answer.leader,
        skip_assignment=answer.skip_assignment,
        member_id=answer.member_id,
        members=tuple(
            wire.JoinGroupMember(
                member_id=each.member_id, group_instance_id=each.instance_id, metadata=each.metadata
            )
            for each in answer.members
        ),
    )


def _members_that_wait(
    members: Collection[ClassicMember],
    protocol_type: str | None,
    protocol_name: str | None,
    assignments: Mapping[str, bytes],
) -> frozenset[str]:
    """Return the members that get nothing new while others give up partitions; empty if none do.

    Eager members own nothing when they join, so they give nothing up.
    """
    if protocol_type != CONSUMER:
        return frozenset()
    owned = {each.member_id: set(owned_partitions(each.metadata(protocol_name))) for each in members}
    if not any(owned.values()):
        return frozenset()
    assigned = {member_id: set(assigned_partitions(assignments.get(member_id, b""))) for member_id in owned}
    if all(kept <= assigned[member_id] for member_id, kept in owned.items()):
        return frozenset()
    return frozenset(member_id for member_id, kept in owned.items() if kept == assigned[member_id])
