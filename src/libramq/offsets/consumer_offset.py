"""The consumer offset: each group's committed offset in each queue, and the pending resets that override
commits.

    "topic@group" → {queue id: offset}

A committed offset is that of the next message to read. It is never negative, and never beyond the durable end
of its queue, which the caller passes: a broker that lost its newest messages must not skip later ones. A
pending reset overrides commits until a consumer reads from it. Offsets that Kafka's clients commit beyond the
end are kept beside the table (`ahead`).

Changes are returned as records for the journal; this module writes nothing.

Upstream: broker/offset/ConsumerOffsetManager.java.
"""

from collections.abc import Callable, Mapping, Set
from sys import intern
from typing import Final

from libramq.offsets.commits_ahead import CommitsAhead
from libramq.offsets.journal import OffsetRecord, RecordKind

SEPARATOR = "@"
#: Ours: this many queues of groups are remembered; the one that was first pulled is forgotten first.
PULL_OFFSETS_MAX: Final = 100_000


class ConsumerOffset:
    """The table of committed offsets."""

    def __init__(self, ahead: CommitsAhead | None = None) -> None:
        self.ahead = CommitsAhead() if ahead is None else ahead
        self._offsets: dict[str, dict[int, int]] = {}
        self._resets: dict[str, dict[int, int]] = {}
        #: The keys of each group by topic, and of each topic by group.
        self._of_group: dict[str, dict[str, str]] = {}
        self._of_topic: dict[str, dict[str, str]] = {}
        #: Keys whose offsets are not shared with a returned table; others are copied on write.
        self._own: set[str] = set()

    def commit(
        self, group: str, topic: str, queue_id: int, offset: int, durable_end: int
    ) -> OffsetRecord | None:
        """Set a group's offset in a queue; return None if nothing changes or a reset is pending."""
        key = topic + SEPARATOR + group
        resets = self._resets.get(key)
        if resets is not None and queue_id in resets:
            return None
        if self.ahead.by_queue:
            self.ahead.drop(group, topic, queue_id)
        offset = max(0, min(offset, durable_end))
        offsets = self._offsets.get(key)
        if offsets is None or key not in self._own:
            offsets = self._writable(key)
        if offsets.get(queue_id) == offset:
            return None
        offsets[queue_id] = offset
        return OffsetRecord(RecordKind.COMMIT, key, queue_id, offset)

    def query(self, group: str, topic: str, queue_id: int) -> int | None:
        """Return the offset to read next, or None if the group has committed none."""
        key = topic + SEPARATOR + group
        resets = self._resets.get(key)
        if resets is not None and queue_id in resets:
            return resets[queue_id]
        offsets = self._offsets.get(key)
        return offsets.get(queue_id) if offsets is not None else None

    def reset(self, group: str, topic: str, queue_id: int, offset: int, durable_end: int) -> OffsetRecord:
        """Set an offset, overriding commits until a consumer reads from it."""
        key = topic + SEPARATOR + group
        offset = max(0, min(offset, durable_end))
        self.ahead.drop(group, topic, queue_id)
        self._resets.setdefault(key, {})[queue_id] = offset
        self._writable(key)[queue_id] = offset
        return OffsetRecord(RecordKind.RESET, key, queue_id, offset)

    def reached(self, topic: str, queue_id: int, durable_end: int) -> list[OffsetRecord]:
        """Apply commits ahead that a queue has reached."""
        found = self.ahead.reached(topic, queue_id, durable_end)
        changes = [self.commit(group, topic, queue_id, offset, durable_end) for group, offset in found]
        return [change for change in changes if change is not None]

    def pending_reset(self, group: str, topic: str, queue_id: int) -> int | None:
        """Return the offset set by an operator from which no consumer has read yet."""
        if not self._resets:  # Called by every pull.
            return None
        return self._resets.get(topic + SEPARATOR + group, {}).get(queue_id)

    def take_reset(self, group: str, topic: str, queue_id: int) -> tuple[int, OffsetRecord] | None:
        """Return and end the pending reset, because a consumer now reads from it."""
        if not self._resets:  # Called by every pop.
            return None
        key = topic + SEPARATOR + group
        resets = self._resets.get(key)
        if resets is None or queue_id not in resets:
            return None
        offset = resets.pop(queue_id)
        if not resets:
            del self._resets[key]
        return offset, OffsetRecord(RecordKind.RESET_TAKEN, key, queue_id, offset)

    def offsets(self, group: str, topic: str) -> dict[int, int]:
        """Return a group's committed offsets in a topic, by queue id."""
        return dict(self._offsets.get(topic + SEPARATOR + group, ()))

    def has_any(self, group: str, topic: str) -> bool:
        """Return whether a group has committed anything in a topic."""
        return topic in self._of_group.get(group, ())

    def groups(self) -> Set[str]:
        """Return the groups with committed offsets."""
        return set(self._of_group)

    def topics_of_group(self, group: str) -> Set[str]:
        """Return the topics in which a group has committed offsets."""
        return set(self._of_group.get(group, ()))

    def groups_of_topic(self, topic: str) -> Set[str]:
        """Return the groups with committed offsets in a topic."""
        return set(self._of_topic.get(topic, ()))

    def remove_group(self, group: str) -> list[OffsetRecord]:
        """Remove a group."""
        self.ahead.drop_group(group)
        return self._remove([*self._of_group.get(group, {}).values()])

    def remove_queues(self, group: str, topic: str, queue_ids: Set[int]) -> list[OffsetRecord]:
        """Remove a group's offsets in some queues of a topic."""
        key = topic + SEPARATOR + group
        for queue_id in queue_ids:
            self.ahead.drop(group, topic, queue_id)
        offsets, resets = dict(self._offsets.get(key, {})), dict(self._resets.get(key, {}))
        if not offsets.keys() & queue_ids:
            return []
        changes = self._remove([key])
        for queue_id, offset in offsets.items():
            if queue_id not in queue_ids:
                kind = RecordKind.RESET if queue_id in resets else RecordKind.COMMIT
                changes.append(OffsetRecord(kind, key, queue_id, offset))
                self.apply(changes[-1])
        return changes

    def remove_topic(self, topic: str) -> list[OffsetRecord]:
        """Remove a topic's offsets."""
        self.ahead.drop_topic(topic)
        return self._remove([*self._of_topic.get(topic, {}).values()])

    def copy(
        self,
        key: str,
        offsets: Mapping[int, int],
        resets: Mapping[int, int],
        durable_end: Callable[[str, int], int],
    ) -> list[OffsetRecord]:
        """Replace a key's offsets and pending resets by those of another table."""
        topic = _parts(key)[0]
        pending = {each: min(offset, durable_end(topic, each)) for each, offset in resets.items()}
        wanted = {each: min(offset, durable_end(topic, each)) for each, offset in offsets.items()} | pending
        had, had_pending = self._offsets.get(key, {}), self._resets.get(key, {})
        changes = []
        if had.keys() - wanted.keys() or had_pending.keys() - pending.keys():
            changes.append(OffsetRecord(RecordKind.REMOVE, key))
            had = had_pending = {}
        for queue_id, offset in wanted.items():
            if queue_id in pending:
                if had_pending.get(queue_id) != offset:
                    changes.append(OffsetRecord(RecordKind.RESET, key, queue_id, offset))
            elif had.get(queue_id) != offset:
                changes.append(OffsetRecord(RecordKind.COMMIT, key, queue_id, offset))
        for change in changes:
            self.apply(change)
        return changes

    def remove_others(self, keys: Set[str]) -> list[OffsetRecord]:
        """Remove all keys but these."""
        return self._remove([key for key in [*self._offsets, *self._resets] if key not in keys])

    def clamp(self, durable_end: Callable[[str, int], int | None]) -> list[OffsetRecord]:
        """Limit every offset to its queue's end, after the store was opened; None: the end is unknown."""
        changes = []
        for key, offsets in self._offsets.items():
            topic = _parts(key)[0]
            for queue_id, offset in offsets.items():
                end = durable_end(topic, queue_id)
                if end is not None and offset > end:
                    self._writable(key)[queue_id] = end
                    changes.append(OffsetRecord(RecordKind.COMMIT, key, queue_id, end))
        for key, resets in self._resets.items():
            for queue_id, offset in resets.items():
                end = durable_end(_parts(key)[0], queue_id)
                if end is not None and offset > end:
                    resets[queue_id] = end
                    changes.append(OffsetRecord(RecordKind.RESET, key, queue_id, end))
        return changes

    def apply(self, record: OffsetRecord) -> None:
        """Apply a change from a journal."""
        match record.kind:
            case RecordKind.COMMIT:
                self._writable(record.key)[record.queue_id] = record.offset
            case RecordKind.RESET:
                self._writable(record.key)[record.queue_id] = record.offset
                self._resets.setdefault(record.key, {})[record.queue_id] = record.offset
            case RecordKind.RESET_TAKEN:
                resets = self._resets.get(record.key, {})
                resets.pop(record.queue_id, None)
                if not resets:
                    self._resets.pop(record.key, None)
            case RecordKind.REMOVE:
                self._remove([record.key])

    def tables(self) -> dict[str, dict[str, dict[int, int]]]:
        """Return the tables under their names in consumerOffset.json; they do not change afterwards.

        Copying the offsets of 400,000 keys took 0.3 s, so keys are copied only when they change later.
        """
        self._own = set()
        return {
            "offsetTable": dict(self._offsets),
            "resetOffsetTable": {key: dict(offsets) for key, offsets in self._resets.items()},
        }

    def load(self, offsets: Mapping[str, Mapping[int, int]], resets: Mapping[str, Mapping[int, int]]) -> None:
        """Load tables from a file; a pending reset counts as the group's commit."""
        self._offsets = {key: dict(queues) for key, queues in offsets.items()}
        self._resets = {key: dict(queues) for key, queues in resets.items() if queues}
        self._own = set(self._offsets)
        self._of_group, self._of_topic = {}, {}
        for key in self._offsets:
            self._index(key)
        for key, queues in self._resets.items():
            self._writable(key).update(queues)

    def _writable(self, key: str) -> dict[int, int]:
        """Return the mutable offsets of a key."""
        offsets = self._offsets.get(key)
        if offsets is None:
            self._index(key)
        if offsets is None or key not in self._own:
            offsets = self._offsets[key] = dict(offsets or ())
            self._own.add(key)
        return offsets

    def _index(self, key: str) -> None:
        topic, group = map(intern, _parts(key))  # One string for all keys.
        self._of_group.setdefault(group, {})[topic] = key
        self._of_topic.setdefault(topic, {})[group] = key

    def _remove(self, keys: list[str]) -> list[OffsetRecord]:
        for key in keys:
            self._resets.pop(key, None)
            if self._offsets.pop(key, None) is not None:
                topic, group = _parts(key)
                _drop(self._of_group, group, topic)
                _drop(self._of_topic, topic, group)
        return [OffsetRecord(RecordKind.REMOVE, key) for key in keys]


class PullOffsets:
    """The pull offsets: up to which offset this process has delivered each queue's messages to a group.

    Upstream: ConsumerOffsetManager.java, pullOffsetTable, which is not stored in a file either.
    """

    def __init__(self) -> None:
        self._offsets: dict[tuple[str, str, int], int] = {}

    def set(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Note the end of a pull's reply to a group; called for every pull."""
        self._offsets[group, topic, queue_id] = offset
        if len(self._offsets) > PULL_OFFSETS_MAX:
            del self._offsets[next(iter(self._offsets))]

    def get(self, group: str, topic: str, queue_id: int) -> int | None:
        """Return the end of a queue's messages that this process delivered to a group; None if unknown."""
        return self._offsets.get((group, topic, queue_id))

    def remove_group(self, group: str) -> None:
        """Remove a deleted group."""
        self._offsets = {key: offset for key, offset in self._offsets.items() if key[0] != group}

    def remove_topic(self, topic: str) -> None:
        """Remove a deleted topic; a new topic of the same name starts from scratch."""
        self._offsets = {key: offset for key, offset in self._offsets.items() if key[1] != topic}


def _drop(index: dict[str, dict[str, str]], name: str, other: str) -> None:
    keys = index[name]
    del keys[other]
    if not keys:
        del index[name]


def _parts(key: str) -> tuple[str, str]:
    topic, _, group = key.partition(SEPARATOR)
    return topic, group
