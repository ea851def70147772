"""The requests of Kafka's members over both kinds of groups: bounds of ids and names, how long a lost
connection's members are expected back, when a group is recorded.

    request ─► the group ─► its records ─► answers, of this request and of others that waited
                        └─► its next time becomes a deadline

A session ends soon after its connection, and a held heartbeat is answered at once when there is news. The
machines are `groups.classic` and `groups.modern`; their requests are in `api11_classic_groups` and
`api68_modern_groups`.
"""

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Sequence
from functools import partial
from itertools import chain
from typing import ClassVar, Final, Generic

from libramq.clock import MonotonicMs
from libramq.groups.classic.values import Answer
from libramq.groups.protocol_groups import Groups, Refusal
from libramq.kernel.connection import Connection, host_of
from libramq.kernel.deadlines import Deadline
from libramq.kernel.engine import LATE_MS_MIN
from libramq.kernel.parts import Kernel
from libramq.kernel.work import portions
from libramq.logs import get_logger
from libramq.message.names import has_controls
from libramq.protocols.kafka.answers import Slot
from libramq.protocols.kafka.broker_groups import BrokerGroups, G
from libramq.protocols.kafka.group_records import GroupRecords
from libramq.protocols.kafka.held_heartbeats import HeldHeartbeat, HeldHeartbeats
from libramq.protocols.kafka.presence import Client, Presence, Who
from libramq.protocols.kafka.rebalances import Rebalances
from libramq.protocols.kafka.refusals import GROUP_CODES
from libramq.wire.kafka.apis import groups as wire
from libramq.wire.kafka.error_code import ErrorCode

log = get_logger(__name__)

#: Characters of an instance's id (JoinGroupRequest.MAX_GROUP_INSTANCE_ID_LENGTH) and, ours, of a client's.
#: Both are parts of members' ids, which are in the answers to other members, too.
NAME_CHARACTERS_MAX: Final = 249
#: Bytes of a member's id that cannot be guessed.
MEMBER_ID_BYTES: Final = 16
#: The first version of LeaveGroup that names several members.
_MEMBERS_FROM: Final = 3


class GroupRequests(ABC, Generic[G]):
    """The requests of members of one protocol's groups. every: the groups of either; groups: of this one.

    grace_ms: how long members are awaited whose connection has ended; 0: for their sessions.
    """

    #: What its deadlines are called.
    KIND: ClassVar[str]

    def __init__(
        self,
        every: BrokerGroups,
        groups: Groups[G],
        records: GroupRecords[G],
        rebalances: Rebalances[G],
        kernel: Kernel,
        grace_ms: int,
    ) -> None:
        self._all = every
        self.groups: Groups[G] = groups
        self._nodes = every.nodes
        self._clock = kernel.clock
        self._effects = kernel.effects
        self._deadlines = kernel.deadlines
        self._grace_ms = grace_ms
        self._records: GroupRecords[G] = records
        self._rebalances: Rebalances[G] = rebalances
        self._due: dict[str, Deadline] = {}
        self.presence = Presence(kernel.purgatory, self._lost)
        self.held_heartbeats = HeldHeartbeats(kernel.deadlines, self._answer_held)
        every.nodes.observe(self.moved)
        records.observe(self.claim)

    # What each protocol does its own way.

    @abstractmethod
    def _leave(self, name: str, members: Sequence[wire.LeavingMember]) -> Sequence[Refusal]:
        """Have members leave, or remove them; return what becomes of each."""

    @abstractmethod
    def _answer_held(self, held: HeldHeartbeat) -> None:
        """Answer a heartbeat that is not held any more."""

    @abstractmethod
    def _is_elsewhere(self, name: str) -> bool:
        """Return whether another broker coordinates a group now."""

    @abstractmethod
    def _drop(self, name: str, group: G) -> None:
        """Drop a group that another broker coordinates now."""

    @abstractmethod
    def _expects(
        self, name: str, group: G, member_id: str, connection: Connection, until_ms: MonotonicMs
    ) -> bool:
        """Have a group expect a member, whose connection has ended, until then; return whether it does."""

    @abstractmethod
    def _pass(self, name: str, group: G, now_ms: MonotonicMs) -> None:
        """Do what is due in a group."""

    @abstractmethod
    def _notify(self, name: str, group: G) -> None:
        """Answer the held heartbeats of members that have news."""

    def _returned(self, name: str, group: G, member_id: str) -> None:
        """Note that a member's client is back."""

    def _send(self, name: str, answer: Answer) -> None:
        """Send an answer; only classic groups park requests."""

    # Leaving.

    def leave(self, request: wire.LeaveGroupRequest, slot: Slot) -> None:
        """Have members leave, or remove them; of many, some in each turn."""
        is_of_one = slot.version < _MEMBERS_FROM
        members = (wire.LeavingMember(member_id=request.member_id),) if is_of_one else request.members
        refusal = self._all.member_refusal(request.group_id, slot.principal)
        if refusal is not None:
            slot.answer(wire.LeaveGroupResponse(error_code=refusal))
            return

        def answer(parts: Sequence[Sequence[wire.LeftMember]]) -> None:
            left = tuple(chain.from_iterable(parts))
            code = left[0].error_code if is_of_one else ErrorCode.NONE
            slot.answer_with(lambda: wire.LeaveGroupResponse(error_code=code, members=left), len(left))

        # A group may have a thousand members, and tools that remove all of them name them together.
        slot.each(list(portions(members)), partial(self._left, request.group_id), answer)

    def _left(self, name: str, members: Sequence[wire.LeavingMember]) -> Sequence[wire.LeftMember]:
        return [
            wire.LeftMember(
                member_id=each.member_id,
                group_instance_id=each.group_instance_id,
                error_code=GROUP_CODES[refusal],
            )
            for each, refusal in zip(members, self._leave(name, members), strict=True)
        ]

    # Connections.

    def client_arrived(self, slot: Slot, groups: Collection[str] | None) -> None:
        """Note a client's first request over a connection, that it has signed in, or its question for
        coordinators of groups.

        A member that lost its connection a moment ago, and whose client this may be, has a session again.
        """
        client = _client(client_id_of(slot), slot.connection)
        now_ms = self._clock.monotonic_ms()
        for name, member_id in self.presence.returned(client, groups, now_ms):
            group = self.groups.get(name)
            if group is not None:
                group.returned(member_id, now_ms)
                self._returned(name, group, member_id)
                self._finish(name)

    def _lost(self, connection: Connection, members: Collection[Who]) -> None:
        """Expect members back soon whose connection has ended: most such clients are dead."""
        if not self._grace_ms:
            return
        now_ms = self._clock.monotonic_ms()
        until_ms = now_ms + self._grace_ms
        for name, member_id in members:
            group = self.groups.get(name)
            if group is not None and self._expects(name, group, member_id, connection, until_ms):
                client = _client(group.members[member_id].client_id, connection)
                self.presence.wait_for((name, member_id), client, now_ms, until_ms)
                self._finish(name)

    # Other coordinators.

    def moved(self) -> None:
        """Drop the groups that another broker coordinates now: their members ask for it and join there."""
        for name in self.groups.names():
            group = self.groups.get(name)
            if group is None or not self._is_elsewhere(name):
                continue
            log.info("another broker coordinates a group of Kafka's clients now", group=name)
            for member_id in group.members:
                self.presence.left((name, member_id))
            self._drop(name, group)
        self.claim()

    def claim(self) -> None:
        """Continue with groups that other brokers have coordinated, where their members are known."""
        for name, group in self._records.claimed(self._clock.monotonic_ms()):
            log.info("a group of Kafka's clients continues here", group=name, members=len(group.members))
            self._continue(name, group)

    def _continue(self, name: str, group: G) -> None:
        self.groups.put(name, group)
        self.groups.charge(name)
        self._rebalances.restored(name, group)
        self._finish(name)

    # What follows a change.

    def _finish(self, name: str, answers: Iterable[Answer] = ()) -> None:
        """Record a group, send answers, and set the time of its next step."""
        group = self.groups.get(name)
        if group is None:
            return
        self._records.note(name, group)
        for answer in answers:
            self._send(name, answer)
        if self.groups.forget_unused(name):
            self._gone(name)
            return
        self._all.take(name)
        self._notify(name, group)
        deadline = self._due.get(name)
        if deadline is None:
            deadline = self._due[name] = self._deadlines.new(partial(self._tick, name), self.KIND)
        deadline.at(group.next_due_ms)

    def _gone(self, name: str) -> None:
        """Forget what belongs to a group that is forgotten."""
        deadline = self._due.pop(name, None)
        if deadline is not None:
            deadline.cancel()
        self._all.release(name)
        self._records.gone(name)
        self.held_heartbeats.answer_group(name)

    def _tick(self, name: str, now_ms: MonotonicMs) -> None:
        group = self.groups.get(name)
        if group is None:
            return
        due_ms = group.next_due_ms
        if due_ms is not None and now_ms - due_ms >= LATE_MS_MIN:
            # This process stood still, and heartbeats lie unread.
            group.extend(now_ms - due_ms, now_ms)
        self._pass(name, group, now_ms)


def client_id_of(slot: Slot) -> str:
    """Return the name of a client, as its members have it."""
    client_id = (slot.call.client_id if slot.call is not None else None) or "member"
    client_id = client_id[:NAME_CHARACTERS_MAX]
    return client_id if not has_controls(client_id) else "member"


def _client(client_id: str, connection: Connection) -> Client:
    return client_id, host_of(connection), connection.principal.name
