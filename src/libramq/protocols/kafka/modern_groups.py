"""Groups of KIP-848: ConsumerGroupHeartbeat, on the modern groups of this broker.

heartbeat ─► ModernGroup ─► news for its member?      answered
                         └─► none                       held until there is, or a while later

What members of classic groups have is theirs, too: a session ends soon after its connection, and nobody waits
for a heartbeat's interval to hear of a rebalance.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from typing import Any

from libramq.clock import MonotonicMs
from libramq.groups.classic.values import Beat as HeldOf
from libramq.groups.modern.assignors import AssignorWork
from libramq.groups.modern.group import ModernGroup
from libramq.groups.modern.member import ModernMember
from libramq.groups.modern.values import JOINS, Heartbeat, Partitions
from libramq.groups.protocol_groups import Refusal
from libramq.kernel.connection import Connection, Principal
from libramq.kernel.deadlines import Deadline
from libramq.kernel.effect import Thread
from libramq.kernel.engine import LATE_MS_MIN
from libramq.kernel.parts import Kernel
from libramq.logs import get_logger
from libramq.protocols.kafka.answers import Slot
from libramq.protocols.kafka.broker_groups import BrokerGroups
from libramq.protocols.kafka.groups import client_id_of, host_of
from libramq.protocols.kafka.heartbeat_refusals import HeartbeatRefusals
from libramq.protocols.kafka.held_beats import HeldBeat, HeldBeats
from libramq.protocols.kafka.modern_group_messages import (
    CODES,
    HELD_MS,
    Beats,
    reads_others,
    response,
)
from libramq.protocols.kafka.modern_group_records import ModernGroupRecords
from libramq.protocols.kafka.modern_rebalances import ModernRebalances
from libramq.protocols.kafka.presence import Presence, Who
from libramq.protocols.kafka.topic_patterns import TopicPatterns
from libramq.wire.kafka.apis.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from libramq.wire.kafka.apis.leave_group import (
    LeaveGroupRequest,
    LeaveGroupResponse,
    LeavingMember,
    LeftMember,
)
from libramq.wire.kafka.error_code import ErrorCode

log = get_logger(__name__)


class ModernGroupRequests:
    """Answers the requests of members."""

    def __init__(
        self,
        groups: BrokerGroups,
        rebalances: ModernRebalances,
        records: ModernGroupRecords,
        beats: Beats,
        kernel: Kernel,
        grace_ms: int,
    ) -> None:
        self._all = groups
        self.groups = groups.modern
        self._nodes = groups.nodes
        self._rebalances = rebalances
        self._records = records
        self._beats = beats
        self._clock = kernel.clock
        self._effects = kernel.effects
        self._deadlines = kernel.deadlines
        self._grace_ms = grace_ms
        self._due: dict[str, Deadline] = {}
        self.presence = Presence(kernel.purgatory, self._lost)
        self.held_beats = HeldBeats(self._deadlines, self._answer_held)
        #: The last heartbeat of each member: an older one brings it no news.
        self._last: dict[str, dict[str, HeldOf]] = {}
        #: The versions of groups whose held heartbeats were looked at.
        self._looked_at: dict[str, int] = {}
        self._patterns = TopicPatterns(kernel, groups.nodes, self._uses, self._fit)
        self._refusals = HeartbeatRefusals(groups, self._patterns)
        groups.nodes.observe(self.moved)
        records.observe(self.claim)
        self._restore()

    def apis(self) -> Mapping[type, Callable[[Any, Slot], None]]:
        """Return the requests that it serves."""
        return {ConsumerGroupHeartbeatRequest: self.beat}

    def beat(self, request: ConsumerGroupHeartbeatRequest, slot: Slot) -> None:
        """A member joins, is alive, has revoked, or leaves."""
        refused = self._refusals.refused(request, slot)
        if refused is not None:
            slot.answer(refused)
            return
        name = request.group_id
        is_join, has_topics = request.member_epoch == JOINS, reads_others(request)
        group = self.groups.get_or_create(name) if is_join else self.groups.get(name)
        if group is None or (has_topics and not self.groups.has_room):
            is_short = is_join or group is not None  # Where memory is short, clients try again.
            code = ErrorCode.COORDINATOR_NOT_AVAILABLE if is_short else ErrorCode.UNKNOWN_MEMBER_ID
            slot.answer(ConsumerGroupHeartbeatResponse(error_code=code))
            return
        self._records.begin(name, group)
        beat = self._beats.of(request, slot)
        now_ms = self._clock.monotonic_ms()
        if beat.epoch < JOINS:
            self._leave(name, group, beat, slot)
            return
        refusal = group.beat(beat, self._nodes.partitions, now_ms)
        held = HeldOf(beat.member_id, beat.instance_id, beat.epoch)
        if refusal is Refusal.NONE:
            self._records.silent.discard(name)
            self._note_last(name, group, held)
            pattern = group.members[beat.member_id].pattern
            if pattern:
                self._patterns.use(pattern, name, slot.principal, is_known=pattern in group.fitting)
            self.presence.heard(slot.connection, (name, beat.member_id))
            self._rebalances.look(name, group)
            self._rebalances.reads(name, beat.member_id)
            if beat.epoch == JOINS:
                self._all.keep(name, self._clock.wall_ms())
        self._finish(name)
        if refusal is not Refusal.NONE:
            slot.answer(ConsumerGroupHeartbeatResponse(error_code=CODES[refusal]))
        elif group.has_news(beat.member_id) or group.is_moving(beat.member_id):
            self._answer(name, group, beat.member_id, slot)
        else:
            self.held_beats.hold(slot, name, held, now_ms + HELD_MS)

    def _uses(self, name: str, pattern: str) -> bool:
        group = self.groups.get(name)
        return group is not None and group.uses(pattern)

    def _fit(self, name: str, pattern: str, topics: frozenset[str], principal: Principal) -> None:
        """Have a group's members read the topics that fit their pattern now, if the principal may."""
        group = self.groups.get(name)
        if group is not None and group.uses(pattern):
            allowed = frozenset(each for each in topics if self._all.may_read(name, each, principal))
            group.fit(pattern, allowed, self._nodes.partitions, self._clock.monotonic_ms())
            self._finish(name)

    def _leave(self, name: str, group: ModernGroup, beat: Heartbeat, slot: Slot) -> None:
        refusal = group.leave(beat, self._clock.monotonic_ms())
        if refusal is Refusal.NONE:
            self._forget(name, beat.member_id)
        self._finish(name)
        epoch = beat.epoch if refusal is Refusal.NONE else 0
        left = ConsumerGroupHeartbeatResponse(
            error_code=CODES[refusal], member_id=beat.member_id, member_epoch=epoch
        )
        self._send(name, slot, left, is_recorded=self._records.note(name, group))

    def remove(self, request: LeaveGroupRequest, slot: Slot, group: ModernGroup) -> None:
        """Remove members, named by their ids or instances, as tools do."""
        name = request.group_id
        left, before = [], list(group.members)
        for each in request.members or (LeavingMember(member_id=request.member_id),):
            refusal = group.remove(each.member_id, each.group_instance_id, self._clock.monotonic_ms())
            left.append(
                LeftMember(
                    member_id=each.member_id,
                    group_instance_id=each.group_instance_id,
                    error_code=CODES[refusal],
                )
            )
        self._forget_gone(name, group, before)
        self._finish(name)
        slot.answer(LeaveGroupResponse(members=tuple(left)))

    def offsets_refusal(self, name: str, member_id: str, epoch: int) -> ErrorCode | None:
        """Return why a member may not use the group's offsets, if so; None if there is no such group."""
        group = self.groups.get(name)
        code = CODES[group.may_use_offsets(member_id, epoch)] if group is not None else ErrorCode.NONE
        return None if code is ErrorCode.NONE else code

    def moved(self) -> None:
        """Drop the groups that another broker coordinates now: their members ask for it.

        Where there are other brokers, one of them had those of our records after us.
        """
        has_others = not self._nodes.is_alone
        for name in self.groups.names():
            group = self.groups.get(name)
            is_outdated = has_others and name in self._records.silent
            if group is None or not (is_outdated or self._nodes.is_elsewhere(name)):
                continue
            log.info("another broker coordinates a group of Kafka's clients now", group=name)
            for member_id in group.members:
                self.presence.left((name, member_id))
            group.dissolve()
            self._finish(name)
        self.claim()

    def claim(self) -> None:
        """Continue with groups that other brokers have coordinated, where their members are known."""
        for name, group in self._records.claimed(self._clock.monotonic_ms()):
            log.info("a group of Kafka's clients continues here", group=name, members=len(group.members))
            self._continue(name, group)

    # Connections.

    def client_arrived(self, slot: Slot, groups: Collection[str] | None = None) -> None:
        """Note a client's first request over a connection, or its question for coordinators of groups."""
        now_ms = self._clock.monotonic_ms()
        client = client_id_of(slot), host_of(slot.connection)
        for name, member_id in self.presence.returned(*client, groups, now_ms):
            group = self.groups.get(name)
            if group is not None:
                group.returned(member_id, now_ms)

    def _lost(self, connection: Connection, members: Collection[Who]) -> None:
        """Expect members back soon whose connection has ended: most such clients are dead."""
        if not self._grace_ms:
            return
        now_ms = self._clock.monotonic_ms()
        until_ms = now_ms + self._grace_ms
        for name, member_id in members:
            group = self.groups.get(name)
            if group is not None and group.lost(member_id, until_ms):
                client_id = group.members[member_id].client_id
                self.presence.wait_for((name, member_id), client_id, host_of(connection), now_ms, until_ms)
                self._finish(name)

    # What follows.

    def _finish(self, name: str) -> None:
        """Answer the members that have news, and set the time of a group's next step."""
        group = self.groups.get(name)
        if group is None:
            return
        self._records.note(name, group)
        self._rebalances.look(name, group)
        if self.groups.forget_unused(name):
            self._gone(name)
            return
        self.groups.charge(name)
        self._all.take(name)
        work = group.take_work()
        if work is not None:
            self._effects.run(Thread.ASSIGN, work.made, partial(self._assigned, name, group, work))
        if self._looked_at.get(name) != group.version:
            self._looked_at[name] = group.version
            self.held_beats.answer_group(name, lambda beat: group.has_news(beat.member_id))
        deadline = self._due.get(name)
        if deadline is None:
            deadline = self._due[name] = self._deadlines.new(partial(self._tick, name), "modern group")
        deadline.at(group.next_due_ms)

    def _assigned(
        self, name: str, group: ModernGroup, work: AssignorWork, made: dict[str, Partitions] | Exception
    ) -> None:
        """Take a large assignment from its thread; where it failed all keep what they had."""
        if isinstance(made, Exception):
            log.error("partitions could not be assigned", group=name, exc_info=made)
        target = work.before if isinstance(made, Exception) else made
        group.assigned(work, target, self._clock.monotonic_ms())
        if self.groups.get(name) is group:
            self._finish(name)

    def _gone(self, name: str) -> None:
        deadline = self._due.pop(name, None)
        if deadline is not None:
            deadline.cancel()
        self._all.release(name)
        self._records.silent.discard(name)
        self._looked_at.pop(name, None)
        self.held_beats.answer_group(name)
        self._last.pop(name, None)

    def _tick(self, name: str, now_ms: MonotonicMs) -> None:
        group = self.groups.get(name)
        if group is None:
            return
        due_ms = group.next_due_ms
        if due_ms is not None and now_ms - due_ms >= LATE_MS_MIN:
            # This process stood still, and heartbeats lie unread.
            group.extend(now_ms - due_ms, now_ms)
        before = list(group.members)
        group.tick(now_ms)
        self._forget_gone(name, group, before)
        self._finish(name)

    def _forget_gone(self, name: str, group: ModernGroup, before: Iterable[str]) -> None:
        for member_id in before:
            if member_id not in group.members:
                self._forget(name, member_id)

    def _forget(self, name: str, member_id: str) -> None:
        """Forget the connection and the last heartbeat of a member that is gone."""
        self.presence.left((name, member_id))
        self._last.get(name, {}).pop(member_id, None)

    def _note_last(self, name: str, group: ModernGroup, beat: HeldOf) -> None:
        last = self._last.setdefault(name, {})
        last[beat.member_id] = beat
        if len(last) > len(group.members):
            self._forget_gone(name, group, list(last))  # A static member is back under another id.

    def _answer_held(self, held: HeldBeat) -> None:
        name, member_id = held.group, held.beat.member_id
        group = self.groups.get(name)
        code = self._all.member_refusal(name, held.slot.principal)
        if code is None and (group is None or member_id not in group.members):
            code = ErrorCode.UNKNOWN_MEMBER_ID
        if code is not None or group is None:
            held.slot.answer(ConsumerGroupHeartbeatResponse(error_code=code or ErrorCode.NONE))
        elif self._last.get(name, {}).get(member_id) is not held.beat or not held.slot.connection.is_open:
            held.slot.answer(response(member_id, held.beat.generation))
        else:
            self._answer(name, group, member_id, held.slot)

    def _answer(self, name: str, group: ModernGroup, member_id: str, slot: Slot) -> None:
        answer = group.answer(member_id, self._clock.monotonic_ms())
        self._rebalances.reads(name, member_id)
        is_waiting = group.is_moving(member_id)
        found = response(answer.member_id, answer.epoch, answer.assigned, is_waiting=is_waiting)
        is_recorded = self._records.note(name, group)
        self._send(name, slot, found, group.members.get(member_id), is_recorded=is_recorded)
        self._finish(name)

    def _send(
        self,
        name: str,
        slot: Slot,
        found: ConsumerGroupHeartbeatResponse,
        member: ModernMember | None = None,
        *,
        is_recorded: bool,
    ) -> None:
        """Answer once what the answer says is as durable as the broker's flush promises.

        Otherwise clients try again; member: it is sent its assignment then.
        """

        def send(is_synced: bool) -> None:
            if is_recorded and is_synced:
                slot.answer(found)
                return
            if member is not None:
                member.sent = None  # It has heard of nothing.
            slot.answer(ConsumerGroupHeartbeatResponse(error_code=ErrorCode.COORDINATOR_NOT_AVAILABLE))

        self._records.when_recorded(name, slot.guarded(send))

    def _restore(self) -> None:
        """Continue with the groups that were recorded before a restart."""
        for name, group in self._records.restored(self._clock.monotonic_ms()):
            self._records.silent.add(name)
            self._continue(name, group)
        self.moved()

    def _continue(self, name: str, group: ModernGroup) -> None:
        self.groups.put(name, group)
        for pattern in {each.pattern for each in group.members.values() if each.pattern}:
            if self._refusals.of_pattern(pattern)[0] is None:
                self._patterns.use(pattern, name, None, is_known=pattern in group.fitting)
        self._rebalances.restored(name, group)
        self._finish(name)
