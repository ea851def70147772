"""The requests of Kafka's members, for both kinds of groups: limits on ids and names, members' connections,
held heartbeats, and the recording of groups.

    request ─► the group ─► its records ─► answers, to this request and to others that waited
                        └─► its next deadline

A session ends soon after its connection, unless the client returns over another one. The state machines are
`groups.classic` and `groups.modern`; their requests are in `api11_classic_groups` and `api68_modern_groups`.

A heartbeat is held until there is news, so that a member learns of a rebalance within a round trip, not at
its next heartbeat, 3 to 5 s later. Clients have one heartbeat in flight. Answers are sent in the order of
requests, so another request on the connection ends the wait, unless the client does not need the order: after
an automatic commit, its next heartbeat, and the news of a rebalance, would come up to 3 s later. Clients that
send nothing else meanwhile are answered at once, as are all clients whose behaviour is unknown
(`answers.PATIENT`).
"""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import ClassVar, Final, Generic, NamedTuple

from libramq.clock import MonotonicMs
from libramq.groups.classic.values import Answer, Beat
from libramq.groups.protocol_groups import Groups, Refusal
from libramq.kernel.connection import Connection, host_of
from libramq.kernel.deadlines import Deadline, Deadlines
from libramq.kernel.engine import LATE_MS_MIN
from libramq.kernel.parts import Kernel
from libramq.kernel.purgatory import Parked, Purgatory
from libramq.kernel.work import portions
from libramq.logs import get_logger
from libramq.message.names import has_controls
from libramq.protocols.kafka.answers import Slot
from libramq.protocols.kafka.broker_groups import BrokerGroups, G
from libramq.protocols.kafka.group_records import GroupRecords
from libramq.protocols.kafka.rebalances import Rebalances
from libramq.protocols.kafka.refusals import GROUP_CODES
from libramq.wire.kafka.apis import groups as wire
from libramq.wire.kafka.error_code import ErrorCode

log = get_logger(__name__)

#: Characters of an instance's id (JoinGroupRequest.MAX_GROUP_INSTANCE_ID_LENGTH) and, ours, of a client's.
#: Both are parts of members' ids, which are also sent to other members.
NAME_CHARACTERS_MAX: Final = 249
#: Random bytes in a member's id.
MEMBER_ID_BYTES: Final = 16
#: The first version of LeaveGroup that names several members.
_MEMBERS_FROM: Final = 3
#: Ours: how long a classic group's heartbeat is held; less than any client's default interval, 3 s, so that
#: no client is late for its next heartbeat.
CLASSIC_HOLD_MS_MAX: Final = 2_800
#: Ours: a heartbeat is held for at most this fraction of the session.
HOLDS_PER_SESSION: Final = 3
#: Ours: how long a modern group's heartbeat (KIP-848) is held. In librdkafka a heartbeat fails if it takes
#: longer than the interval, and a client with one in flight can neither leave nor change its topics.
MODERN_HOLD_MS: Final = 900
#: Ours: members on one connection. Clients have a connection for each group.
MEMBERS_PER_CONNECTION_MAX: Final = 100

#: A group, and the id of one of its members.
Who = tuple[str, str]
#: A client's name, host and user; the user keeps clients of different users apart.
Client = tuple[str, str, str]


@dataclass(eq=False, slots=True)
class _Connection(Parked):
    """A connection with members, parked so that its end is noticed."""

    members: dict[Who, None] = field(default_factory=dict)


class Presence:
    """The connections of members. lost: called with the members of a connection that ended."""

    def __init__(self, purgatory: Purgatory, lost: Callable[[Connection, Collection[Who]], None]) -> None:
        self._purgatory = purgatory
        self._lost = lost
        self._connections: dict[Connection, _Connection] = {}
        self._of: dict[Who, _Connection] = {}
        #: Deadlines of awaited members, by client.
        self._awaited: dict[Client, dict[Who, MonotonicMs]] = {}
        #: The same deadlines in order: all members are awaited for the same time.
        self._ends: deque[tuple[MonotonicMs, Client, Who]] = deque()

    def __len__(self) -> int:
        return len(self._of)

    def seen(self, connection: Connection, who: Who) -> None:
        """Note that a member was active on a connection."""
        before = self._of.get(who)
        if before is not None:
            if before.connection is connection:
                return
            del before.members[who]
        now = self._connections.get(connection)
        if now is None:
            if not connection.is_open or not self._purgatory.has_room(connection):
                self._of.pop(who, None)
                return
            now = self._connections[connection] = _Connection(connection)
            self._purgatory.park(now, unlink=self._ended)
        now.members[who] = None
        self._of[who] = now
        if len(now.members) > MEMBERS_PER_CONNECTION_MAX:
            self.left(next(iter(now.members)))

    def left(self, who: Who) -> None:
        """Forget a member."""
        connection = self._of.pop(who, None)
        if connection is not None:
            del connection.members[who]

    def wait_for(self, who: Who, client: Client, now_ms: MonotonicMs, until_ms: MonotonicMs) -> None:
        """Await a member's client until a deadline; deadlines must not decrease from call to call."""
        self._give_up(now_ms)
        self._awaited.setdefault(client, {})[who] = until_ms
        self._ends.append((until_ms, client, who))

    def returned(self, client: Client, groups: Collection[str] | None, now_ms: MonotonicMs) -> list[Who]:
        """Stop awaiting the members that may belong to this client, and return them.

        groups: the groups for which the client may be back; None: any.
        """
        self._give_up(now_ms)
        awaited = self._awaited.get(client, {})
        wanted = set(groups) if groups is not None else None
        found = [who for who in awaited if wanted is None or who[0] in wanted]
        for who in found:
            self._no_more(client, who)
        return found

    def _give_up(self, now_ms: MonotonicMs) -> None:
        """Stop awaiting members whose deadline has passed."""
        while self._ends and self._ends[0][0] < now_ms:
            until_ms, client, who = self._ends.popleft()
            if self._awaited.get(client, {}).get(who) == until_ms:
                self._no_more(client, who)

    def _no_more(self, client: Client, who: Who) -> None:
        awaited = self._awaited[client]
        del awaited[who]
        if not awaited:
            del self._awaited[client]

    def _ended(self, ended: _Connection) -> None:
        del self._connections[ended.connection]
        members = list(ended.members)
        for who in members:
            del self._of[who]
        if members:
            self._lost(ended.connection, members)


class HeldHeartbeat(NamedTuple):
    """An unanswered heartbeat."""

    slot: Slot
    group: str
    beat: Beat
    deadline: Deadline


class HeldHeartbeats:
    """The held heartbeats, one per connection. answer: answers a heartbeat when its hold ends."""

    def __init__(self, deadlines: Deadlines, answer: Callable[[HeldHeartbeat], None]) -> None:
        self._deadlines = deadlines
        self._answer = answer
        self._held: dict[Connection, HeldHeartbeat] = {}
        self._of_group: dict[str, dict[Connection, None]] = {}

    def __len__(self) -> int:
        return len(self._held)

    def hold(self, slot: Slot, group: str, beat: Beat, until_ms: MonotonicMs) -> None:
        """Hold a heartbeat; answer the previous one of the connection."""
        connection = slot.connection
        self.answer(connection)
        slot.step_aside()
        deadline = self._deadlines.set(until_ms, lambda _: self.answer(connection))
        self._held[connection] = HeldHeartbeat(slot, group, beat, deadline)
        self._of_group.setdefault(group, {})[connection] = None

    def answer_before_others(self, connection: Connection) -> None:
        """Answer a connection's heartbeat if later answers would have to wait for it."""
        held = self._held.get(connection)
        if held is not None and not held.slot.is_apart:
            self.answer(connection)

    def answer(self, connection: Connection) -> None:
        """Answer a connection's heartbeat, if any."""
        held = self._held.pop(connection, None)
        if held is None:
            return
        held.deadline.cancel()
        connections = self._of_group[held.group]
        del connections[connection]
        if not connections:
            del self._of_group[held.group]
        self._answer(held)

    def answer_group(self, group: str, has_news: Callable[[Beat], bool] = lambda _: True) -> None:
        """Answer the heartbeats of a group's members that have news, by default of all."""
        for connection in list(self._of_group.get(group, ())):
            held = self._held.get(connection)
            if held is not None and has_news(held.beat):
                self.answer(connection)


class GroupRequests(ABC, Generic[G]):
    """The requests of members of one protocol's groups.

    every: the groups of both protocols; groups: those of this one. grace_ms: how long members are awaited
    after their connection has ended; 0: until their session expires.
    """

    #: The name of its deadlines.
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
        every.nodes.view.observe(self.moved)
        records.observe(self.claim)

    # Implemented by each protocol.

    @abstractmethod
    def _leave(self, name: str, members: Sequence[wire.LeavingMember]) -> Sequence[Refusal]:
        """Let members leave, or remove them; return the refusal of each."""

    @abstractmethod
    def _answer_held(self, held: HeldHeartbeat) -> None:
        """Answer a heartbeat whose hold has ended."""

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
        """Make a group await a member whose connection has ended until a deadline; return whether it does."""

    @abstractmethod
    def _pass(self, name: str, group: G, now_ms: MonotonicMs) -> None:
        """Process a group's due deadlines."""

    @abstractmethod
    def _notify(self, name: str, group: G) -> None:
        """Answer the held heartbeats of members that have news."""

    def _returned(self, name: str, group: G, member_id: str) -> None:
        """Note that a member's client is back."""

    def _send(self, name: str, answer: Answer) -> None:
        """Send an answer; only classic groups park requests."""

    # Leaving.

    def leave(self, request: wire.LeaveGroupRequest, slot: Slot) -> None:
        """Let members leave, or remove them; many of them in several turns."""
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

        # A group may have a thousand members, and tools may remove all of them in one request.
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
        """Note a client's first request on a connection, its sign-in, or its request for the coordinators of
        groups.

        If a member that has just lost its connection may belong to this client, its session continues.
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
        """Shorten the wait for members whose connection has ended: most such clients are dead."""
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
        """Drop the groups that another broker coordinates now: their members look it up and join there."""
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
        """Continue groups that other brokers have coordinated, if their members are known."""
        for name, group in self._records.claimed(self._clock.monotonic_ms()):
            log.info("a group of Kafka's clients continues here", group=name, members=len(group.members))
            self._continue(name, group)

    def _continue(self, name: str, group: G) -> None:
        self.groups.put(name, group)
        self.groups.charge(name)
        self._rebalances.restored(name, group)
        self._finish(name)

    # After each change.

    def _finish(self, name: str, answers: Iterable[Answer] = ()) -> None:
        """Record a group, send answers, and set its next deadline."""
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
        """Clean up after a forgotten group."""
        deadline = self._due.pop(name, None)
        if deadline is not None:
            deadline.cancel()
        self._all.table.release(name)
        self._records.gone(name)
        self.held_heartbeats.answer_group(name)

    def _tick(self, name: str, now_ms: MonotonicMs) -> None:
        group = self.groups.get(name)
        if group is None:
            return
        due_ms = group.next_due_ms
        if due_ms is not None and now_ms - due_ms >= LATE_MS_MIN:
            # This process was stalled, and heartbeats lie unread.
            group.extend(now_ms - due_ms, now_ms)
        self._pass(name, group, now_ms)


def client_id_of(slot: Slot) -> str:
    """Return the client name that is part of its members' ids."""
    client_id = (slot.call.client_id if slot.call is not None else None) or "member"
    client_id = client_id[:NAME_CHARACTERS_MAX]
    return client_id if not has_controls(client_id) else "member"


def _client(client_id: str, connection: Connection) -> Client:
    return client_id, host_of(connection), connection.principal.name
