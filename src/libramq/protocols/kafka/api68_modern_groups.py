"""ConsumerGroupHeartbeat (68): requests of KIP-848's members: validation, the time of each answer, and the
interval to the next heartbeat; the decisions are in `groups.modern`.

heartbeat ─► ModernGroup ─► news for its member       answered
                         └─► none                       held until there is news, or for a while
"""

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Final

from libramq.clock import MonotonicMs
from libramq.groups.classic.values import Answer, Beat
from libramq.groups.modern.assignors import ASSIGNORS, AssignorWork
from libramq.groups.modern.group import ModernGroup
from libramq.groups.modern.member import ModernMember
from libramq.groups.modern.topic_pattern import InvalidPattern
from libramq.groups.modern.values import (
    JOINS,
    LEAVES,
    LEAVES_FOR_A_WHILE,
    Heartbeat,
    Partition,
    Partitions,
)
from libramq.groups.protocol_groups import Refusal
from libramq.kernel.connection import Connection, Principal, host_of
from libramq.kernel.effect import Thread
from libramq.kernel.parts import Kernel
from libramq.logs import get_logger
from libramq.message.names import has_controls
from libramq.protocols.kafka.answers import Slot, serves
from libramq.protocols.kafka.broker_groups import BrokerGroups
from libramq.protocols.kafka.group_records import ModernGroupRecords
from libramq.protocols.kafka.group_requests import (
    MEMBER_ID_BYTES,
    MODERN_HOLD_MS,
    NAME_CHARACTERS_MAX,
    GroupRequests,
    HeldHeartbeat,
    client_id_of,
)
from libramq.protocols.kafka.node import TopicIds, id_of
from libramq.protocols.kafka.rebalances import ModernRebalances
from libramq.protocols.kafka.refusals import GROUP_CODES
from libramq.protocols.kafka.topic_patterns import TOPICS_MAX, TooManyPatterns, TopicPatterns
from libramq.secret_bits import SecretBits
from libramq.wire.kafka.apis import groups as wire
from libramq.wire.kafka.error_code import ErrorCode

log = get_logger(__name__)

#: Ours: the heartbeat interval; group.consumer.heartbeat.interval.ms is 5 s.
HEARTBEAT_MS: Final = 1_500
#: Ours: the heartbeat interval of members that wait for others' partitions.
WAITING_HEARTBEAT_MS: Final = 200


class ModernGroups(GroupRequests[ModernGroup]):
    """Answers the requests of modern groups' members. secret_bits: for the ids of members without one."""

    KIND = "modern group"
    _rebalances: ModernRebalances
    _records: ModernGroupRecords

    def __init__(
        self,
        groups: BrokerGroups,
        rebalances: ModernRebalances,
        records: ModernGroupRecords,
        ids: TopicIds,
        secret_bits: SecretBits,
        kernel: Kernel,
        grace_ms: int,
    ) -> None:
        super().__init__(groups, groups.modern, records, rebalances, kernel, grace_ms)
        self._ids = ids
        self._secret_bits = secret_bits
        #: The last heartbeat of each member; older ones are answered without news.
        self._last: dict[str, dict[str, Beat]] = {}
        #: The version of each group at which its held heartbeats were last checked.
        self._looked_at: dict[str, int] = {}
        self._patterns = TopicPatterns(kernel, groups.nodes, self._uses, self._fit)
        for name, group in self._records.restored(self._clock.monotonic_ms()):  # After a restart.
            self._records.silent.add(name)
            self._continue(name, group)
        self.moved()

    @serves(wire.ConsumerGroupHeartbeatRequest)
    def beat(self, request: wire.ConsumerGroupHeartbeatRequest, slot: Slot) -> None:
        """Handle a heartbeat: a member joins, is alive, has revoked partitions, or leaves."""
        code, remark = self._refusal(request, slot)
        if code is not None:
            slot.answer(wire.ConsumerGroupHeartbeatResponse(error_code=code, error_message=remark))
            return
        name = request.group_id
        is_join, has_topics = request.member_epoch == JOINS, _names_topics(request)
        group = self.groups.get_or_create(name) if is_join else self.groups.get(name)
        if group is None or (has_topics and not self.groups.has_room_in(name)):
            is_short = is_join or group is not None  # If memory is short, clients retry.
            code = ErrorCode.COORDINATOR_NOT_AVAILABLE if is_short else ErrorCode.UNKNOWN_MEMBER_ID
            slot.answer(wire.ConsumerGroupHeartbeatResponse(error_code=code))
            return
        self._records.begin(name, group)
        beat = self._heartbeat(request, slot)
        now_ms = self._clock.monotonic_ms()
        if beat.epoch < JOINS:
            self._member_leaves(name, group, beat, slot)
            return
        refusal = group.beat(beat, self._nodes.partitions, now_ms)
        held = Beat(beat.member_id, beat.instance_id, beat.epoch)
        if refusal is Refusal.NONE:
            self._records.silent.discard(name)
            last = self._last.setdefault(name, {})
            last[beat.member_id] = held
            if len(last) > len(group.members):
                self._forget_gone(name, group, list(last))  # A static member is back with a new id.
            pattern = group.members[beat.member_id].pattern
            # An earlier release may have accepted a pattern that is refused now; its topics stay.
            if pattern and self._pattern_refusal(pattern, name)[0] is None:
                self._patterns.use(pattern, name, slot.principal, is_known=pattern in group.fitting)
            self.presence.seen(slot.connection, (name, beat.member_id))
            self._rebalances.look(name, group)
            self._rebalances.reads(name, beat.member_id)
            if beat.epoch == JOINS:
                self._all.keep(name, self._clock.wall_ms())
        self._finish(name)
        if refusal is not Refusal.NONE:
            slot.answer(wire.ConsumerGroupHeartbeatResponse(error_code=GROUP_CODES[refusal]))
        elif group.has_news(beat.member_id) or group.is_moving(beat.member_id):
            self._answer(name, group, beat.member_id, slot)
        else:
            self.held_heartbeats.hold(slot, name, held, now_ms + MODERN_HOLD_MS)

    def _heartbeat(self, request: wire.ConsumerGroupHeartbeatRequest, slot: Slot) -> Heartbeat:
        """Convert a request for the group; a member without an id gets one."""
        owned = _owned(request.topic_partitions, self._ids)
        topics = request.subscribed_topic_names
        has_all = request.rebalance_timeout_ms >= 0 and _names_topics(request)
        return Heartbeat(
            member_id=request.member_id or self._secret_bits.token_hex(MEMBER_ID_BYTES),
            epoch=request.member_epoch,
            instance_id=request.instance_id,
            rack_id=request.rack_id,
            client_id=client_id_of(slot),
            client_host="/" + host_of(slot.connection),
            rebalance_ms=request.rebalance_timeout_ms if request.rebalance_timeout_ms >= 0 else None,
            topics=None if topics is None else frozenset(topics),
            pattern=request.subscribed_topic_regex,
            assignor=request.server_assignor,
            owned=owned,
            is_full=request.member_epoch == JOINS or (has_all and owned is not None),
        )

    def _refusal(
        self, request: wire.ConsumerGroupHeartbeatRequest, slot: Slot
    ) -> tuple[ErrorCode | None, str | None]:
        """Return the error and remark if a heartbeat is refused independently of its group's state."""
        name = request.group_id
        code = self._all.member_refusal(name, slot.principal)
        if code is not None:
            return code, None
        if self._all.has_foreign_members(name):
            remark: str | None = f"the group {name} has members of RocketMQ's protocol"
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL, remark
        if self._all.classic.get(name) is not None:
            return ErrorCode.GROUP_ID_NOT_FOUND, f"the group {name} has members of the classic protocol"
        remark = _what_is_invalid(request, slot.version)
        if remark is not None:
            return ErrorCode.INVALID_REQUEST, remark
        if request.server_assignor not in (None, *ASSIGNORS):
            remark = f"only the assignors {', '.join(ASSIGNORS)} are supported"
            return ErrorCode.UNSUPPORTED_ASSIGNOR, remark
        topics = request.subscribed_topic_names or ()
        if not all(self._all.may_read(name, topic, slot.principal) for topic in topics):
            return ErrorCode.TOPIC_AUTHORIZATION_FAILED, None
        pattern = request.subscribed_topic_regex
        return self._pattern_refusal(pattern, name) if pattern else (None, None)

    def _pattern_refusal(self, pattern: str, name: str) -> tuple[ErrorCode | None, str | None]:
        """Return the error and remark if a group cannot use a pattern."""
        try:
            self._patterns.require(pattern, name)
        except TooManyPatterns:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE, None  # Clients retry.
        except InvalidPattern as invalid:
            return ErrorCode.INVALID_REGULAR_EXPRESSION, f"{invalid} (patterns use RE2's syntax)"
        return None, None

    def _uses(self, name: str, pattern: str) -> bool:
        group = self.groups.get(name)
        return group is not None and group.uses(pattern)

    def _fit(self, name: str, pattern: str, topics: frozenset[str], principal: Principal) -> None:
        """Subscribe a group's members to topics that match their pattern, if the principal may read them."""
        group = self.groups.get(name)
        if group is not None and group.uses(pattern):
            allowed = frozenset(each for each in topics if self._all.may_read(name, each, principal))
            group.fit(pattern, allowed, self._nodes.partitions, self._clock.monotonic_ms())
            self._finish(name)

    def _member_leaves(self, name: str, group: ModernGroup, beat: Heartbeat, slot: Slot) -> None:
        refusal = group.leave(beat, self._clock.monotonic_ms())
        if refusal is Refusal.NONE:
            self._forget(name, beat.member_id)
        self._finish(name)
        epoch = beat.epoch if refusal is Refusal.NONE else 0
        left = wire.ConsumerGroupHeartbeatResponse(
            error_code=GROUP_CODES[refusal], member_id=beat.member_id, member_epoch=epoch
        )
        self._send_recorded(name, slot, left, is_recorded=self._records.note(name, group))

    def _leave(self, name: str, members: Sequence[wire.LeavingMember]) -> Sequence[Refusal]:
        """Remove members by their ids or instances, as tools do."""
        group = self.groups.get(name)
        if group is None:
            return [Refusal.UNKNOWN_MEMBER] * len(members)
        before, now_ms = list(group.members), self._clock.monotonic_ms()
        refusals = [group.remove(each.member_id, each.group_instance_id, now_ms) for each in members]
        self._forget_gone(name, group, before)
        self._finish(name)
        return refusals

    def offsets_refusal(self, name: str, member_id: str, epoch: int) -> ErrorCode | None:
        """Return the error if a member may not use the group's offsets; None if there is no such group."""
        group = self.groups.get(name)
        code = GROUP_CODES[group.may_use_offsets(member_id, epoch)] if group is not None else ErrorCode.NONE
        return None if code is ErrorCode.NONE else code

    # Connections, and other coordinators.

    def _is_elsewhere(self, name: str) -> bool:
        # If there are other brokers, one of them took over the groups in our records.
        is_outdated = not self._nodes.view.is_alone and name in self._records.silent
        return is_outdated or self._nodes.is_elsewhere(name)

    def _drop(self, name: str, group: ModernGroup) -> None:
        group.dissolve()
        self._finish(name)

    def _continue(self, name: str, group: ModernGroup) -> None:
        self.groups.put(name, group)
        for pattern in {each.pattern for each in group.members.values() if each.pattern}:
            if self._pattern_refusal(pattern, name)[0] is None:
                self._patterns.use(pattern, name, None, is_known=pattern in group.fitting)
        super()._continue(name, group)

    def _expects(
        self, name: str, group: ModernGroup, member_id: str, connection: Connection, until_ms: MonotonicMs
    ) -> bool:
        return group.lost(member_id, until_ms)

    # After each change.

    def _finish(self, name: str, answers: Iterable[Answer] = ()) -> None:
        group = self.groups.get(name)
        if group is not None:
            self._rebalances.look(name, group)
        super()._finish(name, answers)

    def _gone(self, name: str) -> None:
        super()._gone(name)
        self._looked_at.pop(name, None)
        self._last.pop(name, None)

    def _notify(self, name: str, group: ModernGroup) -> None:
        self.groups.charge(name)
        work = group.take_work()
        if work is not None:
            self._effects.run(Thread.ASSIGN, work.made, partial(self._assigned, name, group, work))
        if self._looked_at.get(name) != group.version:
            self._looked_at[name] = group.version
            self.held_heartbeats.answer_group(name, lambda beat: group.has_news(beat.member_id))

    def _assigned(
        self, name: str, group: ModernGroup, work: AssignorWork, made: dict[str, Partitions] | Exception
    ) -> None:
        """Take a large assignment from its thread; if that failed, all members keep their partitions."""
        if isinstance(made, Exception):
            log.error("partitions could not be assigned", group=name, exc_info=made)
        target = work.before if isinstance(made, Exception) else made
        group.assigned(work, target, self._clock.monotonic_ms())
        if self.groups.get(name) is group:
            self._finish(name)

    def _pass(self, name: str, group: ModernGroup, now_ms: MonotonicMs) -> None:
        before = list(group.members)
        group.tick(now_ms)
        self._forget_gone(name, group, before)
        self._finish(name)

    def _forget_gone(self, name: str, group: ModernGroup, before: Iterable[str]) -> None:
        for member_id in before:
            if member_id not in group.members:
                self._forget(name, member_id)

    def _forget(self, name: str, member_id: str) -> None:
        """Forget a departed member's connection and last heartbeat."""
        self.presence.left((name, member_id))
        self._last.get(name, {}).pop(member_id, None)

    def _answer_held(self, held: HeldHeartbeat) -> None:
        name, member_id = held.group, held.beat.member_id
        group = self.groups.get(name)
        code = self._all.member_refusal(name, held.slot.principal)
        if code is None and (group is None or member_id not in group.members):
            code = ErrorCode.UNKNOWN_MEMBER_ID
        if code is not None or group is None:
            held.slot.answer(wire.ConsumerGroupHeartbeatResponse(error_code=code or ErrorCode.NONE))
        elif self._last.get(name, {}).get(member_id) is not held.beat or not held.slot.connection.is_open:
            held.slot.answer(_response(member_id, held.beat.generation))
        else:
            self._answer(name, group, member_id, held.slot)

    def _answer(self, name: str, group: ModernGroup, member_id: str, slot: Slot) -> None:
        answer = group.answer(member_id, self._clock.monotonic_ms())
        self._rebalances.reads(name, member_id)
        is_waiting = group.is_moving(member_id)
        found = _response(answer.member_id, answer.epoch, answer.assigned, is_waiting=is_waiting)
        is_recorded = self._records.note(name, group)
        self._send_recorded(name, slot, found, group.members.get(member_id), is_recorded=is_recorded)
        self._finish(name)

    def _send_recorded(
        self,
        name: str,
        slot: Slot,
        found: wire.ConsumerGroupHeartbeatResponse,
        member: ModernMember | None = None,
        *,
        is_recorded: bool,
    ) -> None:
        """Answer once the recorded state is as durable as the broker's flush setting promises.

        On failure the client retries; member: gets its assignment then.
        """

        def send(is_synced: bool) -> None:
            if is_recorded and is_synced:
                slot.answer(found)
                return
            if member is not None:
                member.sent = None  # The member has received nothing.
            slot.answer(wire.ConsumerGroupHeartbeatResponse(error_code=ErrorCode.COORDINATOR_NOT_AVAILABLE))

        self._records.when_recorded(name, slot.guarded(send))


def _names_topics(request: wire.ConsumerGroupHeartbeatRequest) -> bool:
    """Return whether a heartbeat contains a subscription."""
    return request.subscribed_topic_names is not None or request.subscribed_topic_regex is not None


def _owned(named: Iterable[wire.TopicPartitions] | None, ids: TopicIds) -> Partitions | None:
    if named is None:
        return None
    topics = [(ids.name_of(each.topic_id), each.partitions) for each in named]
    return frozenset(
        Partition(topic, index) for topic, indexes in topics if topic is not None for index in indexes
    )


def _what_is_invalid(request: wire.ConsumerGroupHeartbeatRequest, version: int) -> str | None:
    """Return the reason if a request is invalid.

    Upstream: GroupCoordinatorService.throwIfConsumerGroupHeartbeatRequestIsInvalid.
    """
    epoch = request.member_epoch
    ids = (request.instance_id, request.member_id, request.rack_id)
    if any(len(each or "") > NAME_CHARACTERS_MAX for each in ids):
        return f"ids of members and racks have at most {NAME_CHARACTERS_MAX} characters"
    if any(has_controls(each or "") for each in ids):
        return "ids of members and racks must not contain control characters"
    topics = request.subscribed_topic_names or ()
    if len(topics) > TOPICS_MAX or any(len(each) > NAME_CHARACTERS_MAX for each in topics):
        return f"a member subscribes to {TOPICS_MAX} topics of {NAME_CHARACTERS_MAX} characters at most"
    if request.instance_id == "" or request.rack_id == "":
        return "instance and rack ids must not be empty"
    if not request.member_id and (epoch != JOINS or version > 0):
        return "a member needs an id"
    if epoch == JOINS:
        if request.rebalance_timeout_ms < 0:
            return "a join needs a rebalance timeout"
        if request.topic_partitions:
            return "a member must join without partitions"
        return None if _names_topics(request) else "a join needs topics"
    if epoch == LEAVES_FOR_A_WHILE and request.instance_id is None:
        return "only a static member may leave for a while"
    return f"there is no member epoch {epoch}" if epoch < min(LEAVES, LEAVES_FOR_A_WHILE) else None


def _response(
    member_id: str, epoch: int, assigned: Partitions | None = None, *, is_waiting: bool = False
) -> wire.ConsumerGroupHeartbeatResponse:
    """Return the answer to a heartbeat. assigned: None if the member knows its assignment."""
    assignment = None
    if assigned is not None:
        topics: dict[str, list[int]] = {}
        for each in sorted(assigned):
            topics.setdefault(each.topic, []).append(each.number)
        assignment = wire.Assignment(
            topic_partitions=tuple(
                wire.TopicPartitions(topic_id=id_of(topic), partitions=tuple(indexes))
                for topic, indexes in topics.items()
            )
        )
    return wire.ConsumerGroupHeartbeatResponse(
        member_id=member_id,
        member_epoch=epoch,
        heartbeat_interval_ms=WAITING_HEARTBEAT_MS if is_waiting else HEARTBEAT_MS,
        assignment=assignment,
    )
