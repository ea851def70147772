"""A coordinator with its surroundings in one thread: honest members, fences that accept grants, and a clock.

Members behave like LibraMQ's: they poll, take assigned queues, release revoked ones (at once, or when the
test says so), and poll again. Only member ids are random, from a seed.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from random import Random

from libramq.codes import ResponseCode
from libramq.fencing import MODE_EPOCHS, Attempts, FenceReport
from libramq.groups.coordinator import event as ev
from libramq.groups.coordinator.coordinator import Coordinator
from libramq.groups.coordinator.effect import (
    Answer,
    Assign,
    Effect,
    Gather,
    Grant,
    ModeChanged,
    Settled,
    Started,
)
from libramq.groups.coordinator.queue_handover import Assignment
from libramq.groups.coordinator.request import Join, Leave, Poll, Release, Remove
from libramq.groups.coordinator.state import GroupState
from libramq.message.queue import MessageQueue
from libramq.testing.world import SeededSecretBits

GROUP = "G"
SESSION_MS = 10_000


def queues_of(topic: str, count: int, broker: str = "b") -> list[MessageQueue]:
    return [MessageQueue(topic, broker, n) for n in range(count)]


@dataclass
class Consumer:
    """One honest member. drains: it releases revoked queues at once. is_leaving: it is stopping slowly.

    is_slow: one of its handlers takes too long. waits: its joins are answered with its assignment. is_alone:
    no other client is connected to its broker.
    """

    client_id: str
    peer: str
    topics: tuple[str, ...] = ("T",)
    instance: str | None = None
    session_ms: int = SESSION_MS
    revoke_timeout_ms: int | None = None
    strategy: str = "balanced_sticky"
    capacity: int = 1
    drains: bool = True
    is_silent: bool = False
    is_leaving: bool = False
    is_slow: bool = False
    waits: bool = False
    is_alone: bool = False
    member: str | None = None
    epoch: int = -1
    mode: str = MODE_EPOCHS
    held: dict[MessageQueue, int] = field(default_factory=dict)
    revoked: dict[MessageQueue, int] = field(default_factory=dict)
    polls: set[str] = field(default_factory=set)
    refused: ResponseCode | None = None


class Surroundings:
    """The coordinator, its members, and its effects so far."""

    def __init__(self, queues: list[MessageQueue] | None = None, *, brokers: tuple[str, ...] = ()) -> None:
        self.states: dict[str, GroupState] = {}
        self.topics: dict[str, list[MessageQueue]] = {}
        for queue in queues if queues is not None else queues_of("T", 8):
            self.topics.setdefault(queue.topic, []).append(queue)
        self.now_ms = 1_000_000
        self.consumers: dict[str, Consumer] = {}
        self.effects: list[Effect] = []
        self.records = 0
        self.is_disk_full = False
        self.must_gather = False
        self.fences: dict[str, FenceReport] = {}
        #: The thread's work and its completion time; the duration of such work.
        self.works: list[tuple[int, Assign]] = []
        self.work_ms = 0
        self.tickets = 0
        self.asked_at: dict[str, int] = {}
        self.slowest_ms = 0
        self.secret_bits = SeededSecretBits(Random(1))
        self.coordinator = self.begin()

    def begin(self) -> Coordinator[str, str]:
        coordinator: Coordinator[str, str] = Coordinator(
            secret_bits=self.secret_bits,
            record=self.record,
            queues=self.topics.get,
            must_gather=lambda _: self.must_gather,
        )
        coordinator.restore(self.states, now_ms=self.now_ms)
        return coordinator

    def restart(self) -> None:
        """Replace the broker's process by a new one, which closes all connections."""
        self.coordinator = self.begin()
        self.asked_at.clear()
        for consumer in self.consumers.values():
            consumer.polls.clear()
            consumer.peer += "'"
        for topic in self.coordinator.topics():
            self.do(self.coordinator.queues_changed(topic, self.topics.get(topic, ()), now_ms=self.now_ms))

    def record(self, group: str, state: GroupState | None) -> None:
        if self.is_disk_full:
            raise OSError("no space left on device")
        self.records += 1
        if state is None:
            self.states.pop(group, None)
        else:
            self.states[group] = state

    # Members' actions.

    def add(self, client_id: str, **fields) -> Consumer:
        """Start a consumer, and let it join."""
        consumer = Consumer(client_id, peer=f"peer of {client_id}", **fields)
        self.consumers[client_id] = consumer
        self.join(consumer)
        return consumer

    def join(self, consumer: Consumer, *, claims: bool = False, if_free: bool = False) -> None:
        join = Join(
            group=GROUP,
            client_id=consumer.client_id,
            session_ms=consumer.session_ms,
            revoke_timeout_ms=consumer.revoke_timeout_ms,
            instance=consumer.instance,
            member=consumer.member,
            if_free=if_free,
            waits=consumer.waits,
            subscriptions=dict.fromkeys(consumer.topics, "*"),
            strategy=consumer.strategy,
            capacity=consumer.capacity,
            held=dict(consumer.held) if claims else {},
        )
        if not claims:
            consumer.held.clear()
        ticket = self.ticket(consumer)
        effects = self.coordinator.ask(
            ticket, consumer.peer, join, is_alone=consumer.is_alone, now_ms=self.now_ms
        )
        self.do(effects)

    def poll(self, consumer: Consumer) -> None:
        poll = Poll(
            group=GROUP,
            member=consumer.member or "",
            epoch=consumer.epoch,
            held=dict(consumer.held),
            is_leaving=consumer.is_leaving,
            is_slow=consumer.is_slow,
        )
        ticket = self.ticket(consumer)
        consumer.polls.add(ticket)
        self.asked_at[ticket] = self.now_ms
        self.do(self.coordinator.ask(ticket, consumer.peer, poll, now_ms=self.now_ms))

    def release(self, consumer: Consumer, attempts: Mapping[MessageQueue, Attempts] | None = None) -> None:
        """Release all revoked queues."""
        release = Release(
            group=GROUP,
            member=consumer.member or "",
            queues=dict(consumer.revoked),
            is_slow=consumer.is_slow,
            attempts=attempts or {},
        )
        for queue in consumer.revoked:
            consumer.held.pop(queue, None)
        consumer.revoked.clear()
        ticket = self.ticket(consumer)
        self.do(self.coordinator.ask(ticket, consumer.peer, release, now_ms=self.now_ms))

    def depart(self, consumer: Consumer, *drained: MessageQueue) -> None:
        """Let a consumer stop: these queues are already drained, the others when the test says so."""
        consumer.is_leaving, consumer.drains = True, False
        self.give_up(consumer, *drained)

    def give_up(self, consumer: Consumer, *queues: MessageQueue) -> None:
        """Release some queues, whether they are revoked or not."""
        given_up = {queue: consumer.held.pop(queue) for queue in queues}
        release = Release(
            group=GROUP,
            member=consumer.member or "",
            queues=given_up,
            is_leaving=consumer.is_leaving,
            is_slow=consumer.is_slow,
        )
        ticket = self.ticket(consumer)
        self.do(self.coordinator.ask(ticket, consumer.peer, release, now_ms=self.now_ms))

    def leave(self, consumer: Consumer, reason: str = "member_left") -> None:
        leave = Leave(group=GROUP, member=consumer.member or "", reason=reason)
        self.consumers.pop(consumer.client_id, None)
        self.do(self.coordinator.ask(self.ticket(consumer), consumer.peer, leave, now_ms=self.now_ms))

    def remove(self, name: str, operator: str | None = "olga") -> ResponseCode | None:
        """Remove a member as an operator; return the answer's code, or None if it comes later."""
        self.tickets += 1
        remove = Remove(group=GROUP, name=name, operator=operator, host="10.0.0.9")
        effects = self.coordinator.ask(f"/{self.tickets}", "olga", remove, now_ms=self.now_ms)
        self.do(effects)
        answers = [e.code for e in effects if isinstance(e, Answer) and e.ticket == f"/{self.tickets}"]
        assert len(answers) <= 1
        return answers[0] if answers else None

    def kill(self, consumer: Consumer) -> None:
        """Kill a consumer's process and with it its connection."""
        self.consumers.pop(consumer.client_id)
        self.do(self.coordinator.closed(consumer.peer, now_ms=self.now_ms))

    def tell(self, topic: str, queues: list[MessageQueue]) -> None:
        self.topics[topic] = queues
        self.do(self.coordinator.queues_changed(topic, queues, now_ms=self.now_ms))

    def happen(self, event: ev.Event) -> None:
        self.do(self.coordinator.happened(event, GROUP, now_ms=self.now_ms))

    def stock(self, *client_ids: str) -> None:
        self.do(self.coordinator.stock_members(GROUP, client_ids, now_ms=self.now_ms))

    # The passing of time.

    def run(self, ms: int) -> None:
        """Let time pass while all members act as soon as something is due."""
        end_ms = self.now_ms + ms
        self.work()
        while (due_ms := self.next_due_ms) is not None and due_ms <= end_ms:
            self.now_ms = max(self.now_ms, due_ms)
            self.make()
            self.do(self.coordinator.tick(self.now_ms))
            self.work()
        self.now_ms = end_ms

    @property
    def next_due_ms(self) -> int | None:
        times = [self.coordinator.next_due_ms, *(made_ms for made_ms, _ in self.works[:1])]
        return min((each for each in times if each is not None), default=None)

    def work(self) -> None:
        """Let every consumer without a waiting poll release its drained queues and poll."""
        for _ in range(50):
            idle = [each for each in self.consumers.values() if not each.polls and not each.is_silent]
            if not idle:
                return
            for consumer in idle:
                if consumer.member is None:
                    continue
                if consumer.revoked and consumer.drains:
                    self.release(consumer)
                if not consumer.polls:
                    self.poll(consumer)
            if all(each.member is None for each in idle):
                return
        raise AssertionError("polls are answered endlessly")

    def do(self, effects: list[Effect]) -> None:
        for effect in effects:
            self.effects.append(effect)
            match effect:
                case Answer():
                    self.answered(effect)
                case Assign():
                    self.works.append((self.now_ms + self.work_ms, effect))
                case Gather():
                    if self.fences:
                        answers = list(self.fences.values())
                        self.happen(ev.FencesReported(answers))
                case Grant(_, grant):
                    state = self.states.get(grant.group)
                    assert state is not None, "granted before it was recorded"
                    assert grant.epoch <= state.epoch

    def make(self) -> None:
        """Take the thread's finished work."""
        while self.works and self.works[0][0] <= self.now_ms:
            _, assign = self.works.pop(0)
            made = assign.work.made()
            event = ev.Assigned(assign.work, made)
            self.do(self.coordinator.happened(event, assign.group, now_ms=self.now_ms))

    def answered(self, answer: Answer) -> None:
        client_id = answer.ticket.rpartition("/")[0]
        if answer.ticket in self.asked_at:
            self.slowest_ms = max(self.slowest_ms, self.now_ms - self.asked_at.pop(answer.ticket))
        consumer = self.consumers.get(client_id)
        if consumer is None:
            return
        consumer.polls.discard(answer.ticket)
        if answer.code != ResponseCode.SUCCESS:
            consumer.refused = answer.code
            if answer.code == ResponseCode.SYSTEM_BUSY:
                return
            consumer.member = None
            consumer.held.clear()
            return
        consumer.member = answer.member or consumer.member
        if answer.assignment is not None:
            self.assigned(consumer, answer.assignment)

    def assigned(self, consumer: Consumer, assignment: Assignment) -> None:
        consumer.epoch, consumer.mode = assignment.epoch, assignment.mode
        if assignment.mode != MODE_EPOCHS:
            consumer.revoked.clear()
            return
        revoked = dict(assignment.revoke)
        consumer.held = dict(assignment.queues) | {
            queue: epoch for queue, epoch in consumer.held.items() if queue in revoked
        }
        consumer.revoked = {queue: epoch for queue, epoch in revoked.items() if queue in consumer.held}

    def ticket(self, consumer: Consumer) -> str:
        self.tickets += 1
        return f"{consumer.client_id}/{self.tickets}"

    # Observations.

    @property
    def view(self):
        view = self.coordinator.group(GROUP)
        assert view is not None
        return view

    def owners(self) -> dict[int, str]:
        """Return client ids by queue id, for groups with one topic at one broker."""
        names = {member.member: member.client_id for member in self.view.members}
        return {queue.queue_id: names[held.member] for queue, held in sorted(self.view.owners.items())}

    def loads(self) -> dict[str, int]:
        return {member.client_id: len(member.owned) for member in self.view.members}

    def take(self, kind: type) -> list:
        """Remove and return the effects of this kind."""
        taken = [effect for effect in self.effects if isinstance(effect, kind)]
        self.effects = [effect for effect in self.effects if not isinstance(effect, kind)]
        return taken


__all__ = [
    "GROUP", "SESSION_MS", "Answer", "Consumer", "Gather", "Grant", "ModeChanged", "Settled", "Started",
    "Surroundings", "queues_of",
]  # fmt: skip
