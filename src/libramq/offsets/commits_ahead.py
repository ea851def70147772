"""Commits ahead: offsets beyond the ends of queues, which Kafka's clients may commit; applies each when its
queue reaches it, and limits their number.

    "topic@group@queue id" → offset, end     kafkaCommitsAhead.json

Meanwhile the table of committed offsets has the queue's end, and Kafka clients are sent the offset ahead.
When the queue reaches it, it becomes the group's committed offset. Any other commit of the group ends it.

A broker that does not know this file may have used the table in between. So a commit ahead counts only if the
group's offset is not beyond the end at which it was committed. Changes are passed to `record`; this module
writes nothing.
"""

from collections.abc import Callable, Mapping
from typing import Final

import msgspec

SEPARATOR: Final = "@"
#: The key of commits ahead in the table of committed offsets that slaves copy; Apache's slaves ignore it.
COMMITS_AHEAD: Final = "libraCommitsAhead"
#: Ours: commits ahead of all groups and queues, some 20 MB.
COMMITS_AHEAD_MAX: Final = 100_000
#: Ours: groups with commits ahead in one queue; one message may end all of them, each in 10 µs.
COMMITS_AHEAD_OF_QUEUE_MAX: Final = 500


class CommitAhead(msgspec.Struct, frozen=True):
    """A group's offset in a queue, and the queue's end when it was committed."""

    offset: int
    end: int


#: Changes of entries, by name; None: the commit has ended.
Changes = Mapping[str, CommitAhead | None]


class CommitsAheadFile(msgspec.Struct, frozen=True):
    """The content of kafkaCommitsAhead.json."""

    commits: dict[str, CommitAhead] = {}


class CommitsAhead:
    """The commits ahead of all groups. record: called with changes, for one write."""

    def __init__(self, *, record: Callable[[Changes], None] = lambda _: None) -> None:
        self._record = record
        #: By topic and queue id, so that an arriving message finds its queue's commits; then by group.
        #: Callers only read it.
        self.by_queue: dict[tuple[str, int], dict[str, CommitAhead]] = {}
        #: The queues with commits by group, and by topic.
        self._of_group: dict[str, dict[tuple[str, int], None]] = {}
        self._of_topic: dict[str, dict[tuple[str, int], None]] = {}
        self._count = 0
        #: By queue: a lower bound of the offsets.
        self._nearest: dict[tuple[str, int], int] = {}
        #: Ended entries, recorded once the commits that ended them are.
        self._ended: dict[str, None] = {}

    def get(self, group: str, topic: str, queue_id: int) -> int | None:
        """Return the offset that a group has committed beyond a queue's end, if any."""
        commit = self.by_queue.get((topic, queue_id), {}).get(group)
        return None if commit is None else commit.offset

    def has_room(self, group: str, topic: str, queue_id: int) -> bool:
        """Return whether a group's commit may be kept: it replaces one, or there is room for another."""
        commits = self.by_queue.get((topic, queue_id), {})
        has_room = self._count < COMMITS_AHEAD_MAX and len(commits) < COMMITS_AHEAD_OF_QUEUE_MAX
        return has_room or group in commits

    def put(self, group: str, topic: str, queue_id: int, commit: CommitAhead) -> None:
        """Keep a commit; exceptions of `record` propagate."""
        self._put({_name(group, topic, queue_id): commit})

    def reached(self, topic: str, queue_id: int, end: int) -> list[tuple[str, int]]:
        """Return the groups whose commits a queue has reached, and their offsets."""
        if self._nearest.get((topic, queue_id), end + 1) > end:  # Called for each message.
            return []
        offsets = {group: each.offset for group, each in self.by_queue[topic, queue_id].items()}
        self._nearest[topic, queue_id] = min(
            (each for each in offsets.values() if each > end), default=end + 1
        )
        return [(group, offset) for group, offset in offsets.items() if offset <= end]

    def drop(self, group: str, topic: str, queue_id: int) -> None:
        """End a group's commit; it is recorded by `write`."""
        if group in self.by_queue.get((topic, queue_id), {}):
            self._end(_name(group, topic, queue_id))

    def drop_group(self, group: str) -> None:
        """End the commits of a group."""
        for topic, queue_id in list(self._of_group.get(group, ())):
            self.drop(group, topic, queue_id)

    def drop_topic(self, topic: str) -> None:
        """End the commits in a topic."""
        for queue in list(self._of_topic.get(topic, ())):
            for group in list(self.by_queue[queue]):
                self.drop(group, *queue)

    def drop_outdated(self, query: Callable[[str, str, int], int | None]) -> None:
        """End commits whose group has progressed without this file. query: looks up committed offsets."""
        for (topic, queue_id), commits in list(self.by_queue.items()):
            for group, commit in list(commits.items()):
                committed = query(group, topic, queue_id)
                if committed is None or committed > commit.end:
                    self.drop(group, topic, queue_id)

    def copy(self, file: CommitsAheadFile) -> None:
        """Adopt the commits of a slave's master; exceptions of `record` propagate."""
        own = self.file().commits
        for name in own.keys() - file.commits.keys():
            self._end(name)
        changed = {name: commit for name, commit in file.commits.items() if own.get(name) != commit}
        if changed:
            self._put(changed)

    def write(self) -> None:
        """Record ended commits; exceptions of `record` propagate."""
        if self._ended:
            self._record(self._ended)
            self._ended.clear()

    def apply(self, name: str, commit: CommitAhead | None) -> None:
        """Apply an entry of the file or a change in its journal."""
        topic, _, rest = name.partition(SEPARATOR)
        group, _, number = rest.partition(SEPARATOR)
        if not number.isdecimal():
            return  # The file was edited.
        queue = (topic, int(number))
        commits = self.by_queue.setdefault(queue, {})
        self._count -= group in commits
        commits.pop(group, None)
        if commit is not None:
            commits[group] = commit
            self._count += 1
            self._nearest[queue] = min(self._nearest.get(queue, commit.offset), commit.offset)
            self._of_group.setdefault(group, {})[queue] = None
            self._of_topic.setdefault(topic, {})[queue] = None
            return
        _forget(self._of_group, group, queue)
        if not commits:
            del self.by_queue[queue]
            self._nearest.pop(queue, None)
            _forget(self._of_topic, topic, queue)

    def file(self) -> CommitsAheadFile:
        """Return the content of the file."""
        return CommitsAheadFile(
            commits={
                _name(group, topic, queue_id): commit
                for (topic, queue_id), commits in self.by_queue.items()
                for group, commit in commits.items()
            }
        )

    def _put(self, commits: Mapping[str, CommitAhead]) -> None:
        self._record(commits)
        for name, commit in commits.items():
            self._ended.pop(name, None)
            self.apply(name, commit)

    def _end(self, name: str) -> None:
        self.apply(name, None)
        self._ended[name] = None


def _forget(index: dict[str, dict[tuple[str, int], None]], name: str, queue: tuple[str, int]) -> None:
    queues = index.get(name, {})
    queues.pop(queue, None)
    if not queues:
        index.pop(name, None)


def _name(group: str, topic: str, queue_id: int) -> str:
    return SEPARATOR.join((topic, group, str(queue_id)))
