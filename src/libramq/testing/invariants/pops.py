"""Invariants of popped messages, which their own master or another one redelivers."""

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from libramq.clock import MonotonicMs
from libramq.message import names
from libramq.message.queue import MessageQueue
from libramq.testing.happening import Happening
from libramq.testing.history import StoredMessage
from libramq.testing.invariants.invariant import Invariant, dead_letters, messages_at
from libramq.testing.invariants.slaves import LAST_MOMENT_MS, OfPairs

if TYPE_CHECKING:
    from libramq.testing.cluster import Cluster


class PoppedAtLeastOnce(Invariant):
    """Check that a popping group eventually acknowledges every message, or has it as a dead letter.

    Under ASYNC_FLUSH a power cut may lose a message at its master and its redelivery at any broker. So
    messages sent before one are not checked.
    """

    name = "every popped message is eventually acknowledged"
    within_ms = 60_000  # A master waits 30 s for its slaves; several attempts may follow.

    def __init__(self, cluster: "Cluster") -> None:
        super().__init__(cluster)
        #: Message ids by topic.
        self._awaited: dict[str, set[str]] = defaultdict(set)
        #: Message ids by group and topic.
        self._done: dict[tuple[str, str], set[str]] = defaultdict(set)

    def stored(self, message: StoredMessage) -> None:
        queue, _, _, message_id, requested_ms = message
        is_lost = self.cluster.cuts_ms and not self.cluster.is_sync
        if self.cluster.popping() and not is_lost and not self.cluster.was_deleted(queue, requested_ms):
            self._awaited[queue.topic].add(message_id)

    def broker_died(self, name: str, durable_to: int | None) -> None:
        if durable_to is not None and not self.cluster.is_sync:
            self._awaited.clear()

    def topic_deleted(self, name: str, topic: str) -> None:
        self._awaited.pop(topic, None)

    def acknowledged(self, group: str, topic: str, message_id: str, by: str | None = None) -> None:
        if message_id not in self._done[group, topic]:
            self._done[group, topic].add(message_id)
            self.progressed_ms = self.cluster.now_ms

    def unmet(self) -> Iterator[str]:
        for group, topics in self.cluster.popping().items():
            for topic in topics:
                missing = self._awaited[topic] - self._done[group, topic]
                dead = {message_id for _, message_id in dead_letters(self.cluster, group)} if missing else ()
                for message_id in sorted(missing.difference(dead)):
                    yield f"{message_id} of {topic} was never acknowledged by {group}"


class DeadLettersWereSeen(Invariant):
    """Check that no message becomes a dead letter before a handler of its group got it.

    Checked only while nothing fails except slaves, members and one broker once: a pop whose response is lost
    counts as an attempt.
    """

    name = "no message becomes a dead letter before a handler saw it"

    def __init__(self, cluster: "Cluster") -> None:
        super().__init__(cluster)
        self._seen: dict[str, set[tuple[str, str]]] = defaultdict(set)
        self._is_judged = True
        self._ends = 0

    def disturbed(self, what: str) -> None:
        self._ends += what.partition(" ")[0] in self.cluster.brokers
        self._is_judged &= what.startswith(("broker", "slave", "popping", "member"))

    def popped(self, group: str, topic: str, broker: str, message_id: str, arrived_ms: MonotonicMs) -> None:
        self._seen[group].add((broker, message_id))

    def finish(self) -> None:
        if not self._is_judged or self._ends > 1:
            return
        for group in self.cluster.popping():
            for broker, message_id in sorted(dead_letters(self.cluster, group) - self._seen[group]):
                self.broken(f"{message_id} is a dead letter of {group} at {broker}")


@dataclass(slots=True)
class _Replay:
    """A reset, and the messages that its group must read again: all stored before the request."""

    requested_ms: MonotonicMs
    group: str
    topic: str
    broker: str
    missing: dict[MessageQueue, set[str]]
    is_due: bool = False

    @property
    def unread(self) -> set[str]:
        return {message_id for ids in self.missing.values() for message_id in ids} if self.is_due else set()


class ResetsReplay(Invariant):
    """Check that a popping group reads everything again after a reset to the beginning.

    Covers only the queues that the broker reports as reset. A topic may temporarily have fewer queues, and
    the offsets of the missing ones stay unchanged, as in Apache's broker.
    """

    name = "after a reset a popping group reads every message again"
    within_ms = 60_000

    def __init__(self, cluster: "Cluster") -> None:
        super().__init__(cluster)
        self._stored: dict[MessageQueue, set[str]] = defaultdict(set)
        self._replays: list[_Replay] = []

    def stored(self, message: StoredMessage) -> None:
        queue, _, _, message_id, requested_ms = message
        # A power cut may have come before the producer got its response.
        is_gone = self.cluster.may_have_lost(queue.broker_name, requested_ms)
        if self.cluster.popping() and not is_gone and not self.cluster.was_deleted(queue, requested_ms):
            self._stored[queue].add(message_id)

    def pops_set_back(
        self, group: str, topic: str, broker: str, queues: Collection[MessageQueue] | None
    ) -> None:
        if queues is None:
            stored = {
                queue: {*ids}
                for queue, ids in self._stored.items()
                if (queue.broker_name, queue.topic) == (broker, topic)
            }
            self._replays.append(_Replay(self.cluster.now_ms, group, topic, broker, stored))
            return
        for replay in self._replays:
            if (replay.group, replay.topic, replay.broker) == (group, topic, broker) and not replay.is_due:
                replay.missing = {queue: ids for queue, ids in replay.missing.items() if queue in queues}
                replay.is_due = True

    def popped(self, group: str, topic: str, broker: str, message_id: str, arrived_ms: MonotonicMs) -> None:
        for replay in self._replays:
            if replay.group == group and arrived_ms >= replay.requested_ms:
                for ids in replay.missing.values():
                    if message_id in ids:
                        ids.discard(message_id)
                        self.progressed_ms = self.cluster.now_ms

    def broker_died(self, name: str, durable_to: int | None) -> None:
        if durable_to is not None and not self.cluster.is_sync:
            self._forget(lambda broker, _: broker == name)

    def topic_deleted(self, name: str, topic: str) -> None:
        self._forget(lambda *which: which == (name, topic))

    def _forget(self, is_gone: Callable[[str, str], bool]) -> None:
        for queue in [each for each in self._stored if is_gone(each.broker_name, each.topic)]:
            del self._stored[queue]
        self._replays = [each for each in self._replays if not is_gone(each.broker, each.topic)]

    def unmet(self) -> Iterator[str]:
        for replay in self._replays:
            unread = replay.unread
            if unread:
                what = f"{len(unread)} messages of {replay.topic}@{replay.broker}"
                yield f"{replay.group} was reset and did not read {what}: {min(unread)}"


@dataclass(slots=True)
class _Done:
    """An acknowledgement that a process accepted. log_ends: by broker, at the first step after it."""

    by: str
    at_ms: MonotonicMs
    log_ends: dict[str, int] = field(default_factory=dict)


class AcknowledgedStaysDone(OfPairs):
    """Check that no broker hands out a popped message again after accepting its acknowledgement in time.

    In orderly groups, the messages after a redelivered one also come again. A slave decides by its own wall
    clock when a message becomes visible again, so messages that it passed on before their acknowledgement
    reached it may come again.
    """

    name = "an acknowledged popped message is not popped again"

    def __init__(self, cluster: "Cluster") -> None:
        super().__init__(cluster)
        self._done: dict[tuple[str, str], _Done] = {}
        self._fresh: list[_Done] = []
        self._again: list[tuple[str, str, _Done, int]] = []
        #: The end of each broker's log at the last step in which it ran.
        self._log_ends: dict[str, int] = {}

    def acknowledged(self, group: str, topic: str, message_id: str, by: str | None = None) -> None:
        if by is not None and self.cluster.has_acting_slaves:
            done = _Done(by, self.cluster.now_ms)
            self._done[group, message_id] = done
            self._fresh.append(done)

    def step(self) -> None:
        super().step()
        if self._ends:
            self._log_ends = {**self._log_ends, **self._ends[-1][1]}
            for done in self._fresh:
                done.log_ends = self._log_ends
            self._fresh.clear()

    def popped(self, group: str, topic: str, broker: str, message_id: str, arrived_ms: MonotonicMs) -> None:
        done = self._done.get((group, message_id))
        if done is not None:
            self._again.append((group, message_id, done, self.cluster.now_ms - done.at_ms))

    def disturbed(self, what: str) -> None:
        super().disturbed(what)
        self._forget_last()

    def slave_ended(self, name: str, durable_to: int | None) -> None:
        super().slave_ended(name, durable_to)
        self._forget_last()

    def _forget_last(self) -> None:
        """Forget acknowledgements that other processes may not have copied."""
        known_ms = self.cluster.now_ms - LAST_MOMENT_MS
        self._done = {key: done for key, done in self._done.items() if done.at_ms <= known_ms}

    def pops_set_back(
        self, group: str, topic: str, broker: str, queues: Collection[MessageQueue] | None
    ) -> None:
        self._is_judged = False

    def finish(self) -> None:
        for popper in self.cluster.poppers if self._is_judged else ():
            placed = list(messages_at(self.cluster, popper.topic))
            sent = Counter(message.message_id for _, message in placed)
            homes = {message.message_id: broker for broker, message in placed}
            copies = list(messages_at(self.cluster, names.pop_retry_topic(popper.topic, popper.group)))
            excused = {
                message.message_id
                for broker, message in placed
                if self.is_last_moment(broker, message.physical_offset)
            } | {
                message.message_id
                for broker, message in copies
                if self.may_repeat(broker, message.physical_offset)
            }
            passed_on: dict[str, list[tuple[str, int]]] = defaultdict(list)
            for broker, message in copies:
                if homes.get(message.message_id, broker) != broker:
                    passed_on[message.message_id].append((broker, message.physical_offset))
            for group, message_id, done, ago_ms in self._again:
                is_judged = group == popper.group and sent[message_id] == 1 and message_id not in excused
                if is_judged and not self._was_too_late(done, passed_on[message_id]):
                    what = f"{done.by} accepted its acknowledgement {ago_ms} ms before"
                    self.broken(f"{group} pops {message_id} again; {what}")

    def _was_too_late(self, done: _Done, passed_on: list[tuple[str, int]]) -> bool:
        """Return whether a slave had already passed the message on to a broker that cannot know of this."""
        masters = {slave.name: slave.master.name for slave in self.cluster.every_slave}
        of_broker = masters.get(done.by, done.by)
        return any(
            broker != of_broker and place < done.log_ends.get(broker, 0) for broker, place in passed_on
        )


class AttemptsComeOnce(OfPairs):
    """Check that each attempt of a popped message comes once per send, from its own master or another one.

    An acting slave repeats its own send to another master if it gets no response, and whatever its master did
    just before being killed. Then there are two copies, each with later attempts.
    """

    name = "each attempt of a popped message comes once"

    def finish(self) -> None:
        for popper in self.cluster.poppers:
            topic = popper.topic
            sent = Counter(message.message_id for _, message in messages_at(self.cluster, topic))
            homes = {message.message_id: broker for broker, message in messages_at(self.cluster, topic)}
            attempts: Counter[tuple[str, int]] = Counter()
            excused: dict[str, int] = {}  # By message id: the first attempt that may come twice.
            for broker, message in messages_at(self.cluster, names.pop_retry_topic(topic, popper.group)):
                attempt = message.message_id, message.reconsume_times
                attempts[attempt] += 1
                if self.may_repeat(broker, message.physical_offset):
                    first = excused.get(message.message_id, message.reconsume_times)
                    excused[message.message_id] = min(first, message.reconsume_times)
                if homes.get(message.message_id, broker) != broker:
                    self.cluster.world.history.happened(Happening.REVIVED_ELSEWHERE, message.message_id)
            for attempt, count in attempts.items():
                message_id, times = attempt
                is_excused = message_id in excused and times >= excused[message_id]
                if self._is_judged and count > sent[message_id] + is_excused:
                    what = f"attempt {times} of {message_id} of {topic} came {count} times"
                    self.broken(f"{what}; it was sent {sent[message_id]} times")
