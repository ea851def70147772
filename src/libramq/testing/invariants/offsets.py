"""Invariants of offsets: the last acknowledged offset is kept, none is beyond the durable end, and no file
marks messages as done before they are durable.
"""

from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from libramq.broker.broker import Broker
from libramq.clock import MonotonicMs
from libramq.formats import fastjson
from libramq.message import names
from libramq.message import properties as p
from libramq.message.message import MessageExt
from libramq.message.queue import MessageQueue
from libramq.offsets.consumer_offset import SEPARATOR
from libramq.testing.history import Commit
from libramq.testing.invariants.invariant import Invariant, messages_at, messages_in

if TYPE_CHECKING:
    from libramq.testing.cluster import Cluster


class _Register:
    """The commits of one group in one queue that the broker may still hold.

    A broker's offset behaves like a register that members write and read: a read that begins after a commit
    was acknowledged returns that commit or a concurrent or later one. Unanswered commits may take effect at
    any time, except those with a lower epoch than an acknowledged one.
    """

    def __init__(self) -> None:
        self.commits: list[Commit] = []
        self.offsets: set[int] = set()
        #: Requests sent before this may have seen commits that are dropped here.
        self.forgotten_ms = MonotonicMs(-1)
        #: After a power cut: any offset ever committed may reappear.
        self.is_lossy = False

    def current(self, requested_ms: MonotonicMs) -> tuple[list[Commit], bool]:
        """Return the commits that a read begun at this time may return, and whether it must return one."""
        answered = [
            c
            for c in self.commits
            if c.answered_ms is not None and c.answered_ms < requested_ms and not c.may_be_lost
        ]
        newest_ms = max((commit.requested_ms for commit in answered), default=None)
        if newest_ms is None:
            return self.commits, False
        epoch = max(commit.claim.epoch if commit.claim is not None else 0 for commit in answered)
        return [
            commit
            for commit in self.commits
            if (commit.answered_ms is None or commit.answered_ms >= newest_ms)
            and (commit.claim is None or commit.claim.epoch >= epoch)
        ], True

    def forget_old(self, now_ms: MonotonicMs) -> None:
        """Drop commits that later reads cannot return."""
        self.commits, self.forgotten_ms = self.current(now_ms)[0], now_ms


class CommitIsKept(Invariant):
    """Check that queries return the last acknowledged offset, even after a crash."""

    name = "an acknowledged commit is not forgotten, and no offset is zero by accident"

    def __init__(self, cluster: "Cluster") -> None:
        super().__init__(cluster)
        self._registers: dict[tuple[str, MessageQueue], _Register] = defaultdict(_Register)

    def commit_requested(self, group: str, queue: MessageQueue, commit: Commit) -> None:
        register = self._registers[group, queue]
        if len(register.commits) > 16:
            register.forget_old(self.cluster.now_ms)
        register.commits.append(commit)
        register.offsets.add(commit.offset)

    def offset_read(
        self, group: str, queue: MessageQueue, offset: int | None, requested_ms: MonotonicMs
    ) -> None:
        self._judge(group, queue, offset, requested_ms, "a member gets")

    def broker_died(self, name: str, durable_to: int | None) -> None:
        if durable_to is not None:
            for (_, queue), register in self._registers.items():
                if queue.broker_name == name:
                    register.is_lossy = True
                    for commit in register.commits:
                        commit.may_be_lost = True

    def broker_recovered(self, name: str, broker: Broker) -> None:
        for (group, queue), register in self._registers.items():
            if queue.broker_name == name:
                offset = broker.offsets.query(group, queue.topic, queue.queue_id)
                self._judge(group, queue, offset, self.cluster.now_ms, "after recovery it is")
                if register.is_lossy:  # From now on it is checked again.
                    register.is_lossy = False
                    baseline = Commit(offset or 0, self.cluster.now_ms)
                    baseline.answered_ms = self.cluster.now_ms if offset is not None else None
                    register.commits = [c for c in register.commits if c.answered_ms is None] + [baseline]
                    register.forgotten_ms = self.cluster.now_ms

    def _judge(
        self, group: str, queue: MessageQueue, offset: int | None, requested_ms: MonotonicMs, how: str
    ) -> None:
        if self.cluster.was_deleted(queue):
            return  # Late commits to a deleted topic of that name may take effect.
        register = self._registers[group, queue]
        commits, must_see = register.current(requested_ms)
        if register.is_lossy:
            commits, must_see = [], False
            if offset in register.offsets:
                return
        if requested_ms < register.forgotten_ms and offset in register.offsets:
            return  # A frozen member gets the response much later.
        if (not offset and not must_see) or any(commit.offset == offset for commit in commits):
            return
        allowed = sorted({commit.offset for commit in commits} or register.offsets)
        if offset is not None and self._was_clamped(queue, offset, max(allowed, default=0)):
            return
        self.broken(f"{group} committed {allowed} in {queue}; {how} {offset}")

    def _was_clamped(self, queue: MessageQueue, offset: int, committed_max: int) -> bool:
        """Return whether the queue lost its end, so that offsets beyond the new end were lowered."""
        return (
            not self.cluster.is_sync and queue.broker_name in self.cluster.cuts_ms and offset < committed_max
        )


class CommitWithinDurable(Invariant):
    """Check that no group's offset is beyond the durable end, where it would skip the next messages."""

    name = "committed offsets lie within the durable messages"

    def step(self) -> None:
        for name, node in self.cluster.brokers.items():
            if node.broker is not None:
                self.broker_recovered(name, node.broker)

    def broker_recovered(self, name: str, broker: Broker) -> None:
        for key, offsets in broker.ledger.offsets.tables()["offsetTable"].items():
            topic, _, group = key.partition(SEPARATOR)
            for queue_id, offset in offsets.items():
                end = broker.store.max_offset(topic, queue_id)
                if offset > end:
                    self.broken(
                        f"{group} committed {offset} in {topic}@{name}/{queue_id}, which ends at {end}"
                    )


_Queue = tuple[str, int]
#: A message and its attempt: each retry is delivered separately.
_Copy = tuple[str, int]


class DoneWhenDurable(Invariant):
    """Check that a progress file never reaches the platter before the messages it marks as done.

    Reads the platter after every step: a power cut at that moment would leave just that and the flushed log.
    A delay level's offset covers the copies it delivered, a committed offset the messages before it.
    """

    name = "no progress file is durable before the messages it covers"

    def __init__(self, cluster: "Cluster") -> None:
        super().__init__(cluster)
        self._judged: dict[Path, bytes] = {}
        self._delivered: dict[str, dict[int, int]] = defaultdict(dict)
        self._copies: dict[str, _Copies] = {}

    def step(self) -> None:
        for name, node in self.cluster.brokers.items():
            if node.broker is not None:
                with node.disk.observed():
                    self._judge(name, node.broker)

    def broker_died(self, name: str, durable_to: int | None) -> None:
        self._copies.pop(name, None)
        if durable_to is not None:  # Offsets may refer to other messages from now on.
            self._delivered.pop(name, None)
            self._judged.clear()

    def broker_recovered(self, name: str, broker: Broker) -> None:
        self._judge(name, broker)

    def _judge(self, name: str, broker: Broker) -> None:
        if broker.store.visible_offset < broker.store.flushed_offset:
            return  # While a SYNC_MASTER waits for its slave, not all durable messages are readable.
        directory = Path(broker.config.store_path) / "config"
        committed = self._table(name, directory / "consumerOffset.json")
        for key, offsets in committed.items():
            topic, _, group = key.partition(SEPARATOR)
            for queue_id, offset in offsets.items():
                # POP retries are deleted with their topic.
                popped = topic.removeprefix(f"{names.RETRY_PREFIX}{group}_")
                if any(
                    self.cluster.was_deleted(MessageQueue(each, name, queue_id)) for each in (topic, popped)
                ):
                    continue  # The file may refer to a deleted topic of that name.
                end = broker.store.durable_max_offset(topic, queue_id)
                if offset > end:
                    self.broken(
                        f"consumerOffset.json of {name} says {offset} for {group} in {topic}/{queue_id}, of"
                        f" which {end} messages are durable"
                    )
        for level, offset in self._table(name, directory / "delayOffset.json").items():
            self._judge_level(name, broker, level, offset)

    def _judge_level(self, name: str, broker: Broker, level: int, offset: int) -> None:
        delivered = self._delivered[name]
        copies = self._copies.setdefault(name, _Copies())
        since = delivered.get(level, 0)
        for message in messages_in(broker, names.SCHEDULE_TOPIC, level - 1, since, offset):
            queue = (message.properties[p.REAL_TOPIC], int(message.properties[p.REAL_QUEUE_ID]))
            if _copy(message) not in copies.durable_in(broker, queue) and not self._is_elsewhere(message):
                self.broken(
                    f"delayOffset.json of {name} says {offset} for level {level}; the copy of message"
                    f" {message.queue_offset} in {queue[0]}/{queue[1]} is not durable"
                )
        delivered[level] = max(offset, since)

    def _is_elsewhere(self, message: MessageExt) -> bool:
        """Return whether an acting slave may have sent its master's message to another master."""
        if not self.cluster.has_acting_slaves:
            return False
        topic = message.properties[p.REAL_TOPIC]
        for name, node in self.cluster.brokers.items():
            if node.broker is None or self.cluster.was_deleted(MessageQueue(topic, name, 0)):
                return True
        if any(_copy(message) == _copy(each) for _, each in messages_at(self.cluster, topic)):
            return True
        return bool(self.cluster.cuts_ms) and not self.cluster.is_sync

    def _table(self, name: str, path: Path) -> Mapping[Any, Any]:
        """Return the offsets in a file on the platter, unless that version has been checked."""
        data = self.cluster.brokers[name].disk.on_platter(path)
        if not data or self._judged.get(path) == data:
            return {}
        self._judged[path] = data
        table: Mapping[Any, Any] = fastjson.loads(data.decode())["offsetTable"]
        return table


class _Copies:
    """The durable messages of the queues checked so far; reads each message once."""

    def __init__(self) -> None:
        self._found: dict[_Queue, set[_Copy]] = defaultdict(set)
        self._read_to: dict[_Queue, int] = {}

    def durable_in(self, broker: Broker, queue: _Queue) -> set[_Copy]:
        end = broker.store.durable_max_offset(*queue)
        self._found[queue].update(map(_copy, messages_in(broker, *queue, self._read_to.get(queue, 0), end)))
        self._read_to[queue] = end
        return self._found[queue]


def _copy(message: MessageExt) -> _Copy:
    return message.message_id, message.reconsume_times
