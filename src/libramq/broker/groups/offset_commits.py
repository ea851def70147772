"""Offset commits: which are accepted, by group, queue and the member's right under its epoch; where a group
continues; operators' resets and what ends them; offsets beyond a queue's end; and the write to the journal.

    commit … commit ─► write ─► acknowledged        all commits of one read, by one write
"""

import errno
from collections.abc import Callable, Iterable, Mapping, Set
from functools import partial
from typing import Final

from libramq.broker.files.beginnings import Beginnings
from libramq.broker.files.slave_commits import CommitsAtSlave
from libramq.catalog.journal_sync import JournalSync
from libramq.catalog.requirements import Requirements
from libramq.codes import ResponseCode
from libramq.errors import Journalling, broker_error
from libramq.kernel.connection import Connection
from libramq.kernel.parts import Kernel, Phase
from libramq.logs import get_logger
from libramq.message.names import RETRY_PREFIX, TIMER_TOPIC, is_light
from libramq.message.queue import MessageQueue
from libramq.offsets.commits_ahead import CommitAhead, CommitsAheadFile
from libramq.offsets.consumer_offset import PullOffsets
from libramq.offsets.fence import Fences
from libramq.offsets.journal import OffsetRecord
from libramq.offsets.ledger import OffsetLedger
from libramq.store.message_store import MessageStore

log = get_logger(__name__)

#: Ours: changes that wait for a disk that refuses writes; beyond this, only the last of each queue is kept.
UNWRITTEN_MAX: Final = 10_000
#: Ours: delay before offsets refused by the disk are written again.
RETRY_MS: Final = 100
#: Ours: queues and groups whose last commit beyond the end is remembered, so that it is logged once.
CUT_MAX: Final = 1_000


class OffsetCommits:
    """The committed offsets, as request processors use them."""

    def __init__(
        self,
        ledger: OffsetLedger,
        store: MessageStore,
        journals: JournalSync,
        at_slave: CommitsAtSlave,
        beginnings: Beginnings,
        kernel: Kernel,
    ) -> None:
        self._ledger = ledger
        #: Returns a group's next offset in a topic and queue id; None if none is committed.
        self.query = ledger.offsets.query
        #: Returns the offset set by an operator that no consumer has read from yet, or None.
        self.pending_reset = ledger.offsets.pending_reset
        self.offsets = ledger.offsets.offsets
        self.groups = ledger.offsets.groups
        #: Returns the topics in which a group has committed.
        self.topics_of_group = ledger.offsets.topics_of_group
        self.groups_of_topic = ledger.offsets.groups_of_topic
        self._store = store
        self._journals = journals
        self.pull_offsets = PullOffsets()
        self._observers: list[Callable[[str], None]] = []
        #: Called with each group, topic and queue of a returned offset, and the offset before.
        self.on_return: Callable[[tuple[str, str, int], int | None], None] = lambda *_: None
        #: Called with each group, topic and queue whose offset is about to be reset.
        self.on_reset: Callable[[tuple[str, str, int]], None] = lambda _: None
        #: By group, topic and queue of a pending reset: the reader that was last answered with its offset.
        self._reset_readers: dict[tuple[str, str, int], int] = {}
        self._unwritten: list[OffsetRecord] = []
        self._soon = partial(kernel.soon, Phase.JOURNAL, self._write_or_keep)
        self._clock = kernel.clock
        self._retry = kernel.deadlines.new(lambda _: self._write_or_keep(), "committed offsets")
        self._is_refused = self._must_sync = False
        #: The last commits beyond the ends of queues that were logged.
        self._cut: dict[tuple[str, str, int], int] = {}
        self.at_slave = at_slave
        self._beginnings = beginnings

    def commit(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Set a group's offset in a queue; at most the queue's end, because messages may have been lost."""
        end = self._store.max_offset(topic, queue_id)
        if not end and is_light(topic) and not self._store.has_queue(topic, queue_id):
            return  # Messages create light topics; commits must not fill the table with others.
        if offset > end:
            self._note_cut(group, topic, queue_id, offset, end)
        change = self._ledger.offsets.commit(group, topic, queue_id, offset, end)
        if change is not None:
            if not self._unwritten:
                self._soon()
            self._unwritten.append(change)
            if self._store.config.is_copy:
                self.at_slave.note(change.key, queue_id, change.offset)

    def commit_as_sent(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Set a group's offset as Kafka does: a negative one removes it, and one beyond the end is kept.

        It replaces an operator's pending reset. Raises BrokerError if too many offsets are beyond the ends of
        their queues, or the disk refuses this one.
        """
        if offset < 0:
            self.remove_queues(group, topic, {queue_id})
            return
        end, ahead = self._store.max_offset(topic, queue_id), self._ledger.offsets.ahead
        is_ahead = offset > end
        if is_ahead and not ahead.has_room(group, topic, queue_id):
            raise broker_error(ResponseCode.SYSTEM_BUSY, "too many offsets lie beyond the ends of queues")
        self.take_reset(group, topic, queue_id)
        self.commit(group, topic, queue_id, min(offset, end))
        if is_ahead:
            with Journalling("offset"):
                ahead.put(group, topic, queue_id, CommitAhead(offset, end))

    def committed(self, group: str, topic: str, queue_id: int) -> int | None:
        """Return a group's committed offset as it was sent; None if it has committed nothing."""
        ahead = self._ledger.offsets.ahead.get(group, topic, queue_id)
        return self.query(group, topic, queue_id) if ahead is None else ahead

    def arrived(self, topic: str, queue_id: int, end: int) -> None:
        """Apply commits that a queue's end has reached by now; slaves leave that to their master."""
        if self._ledger.offsets.ahead.by_queue and not self._store.config.is_copy:
            self._add(self._ledger.offsets.reached(topic, queue_id, end))

    def copy_ahead(self, file: CommitsAheadFile) -> None:
        """Replace a slave's commits beyond the ends of queues by its master's."""
        self._ledger.offsets.ahead.copy(file)

    def commit_forwards(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Set a group's offset to one returned by an acting slave, unless the group is further here."""
        before = self.query(group, topic, queue_id)
        if before is not None and before >= offset:
            return
        self.commit(group, topic, queue_id, offset)
        self.on_return((group, topic, queue_id), before)

    def first_to_read(self, group: str, topic: str, queue_id: int, *, may_be_zero: bool = True) -> int | None:
        """Return where a group continues; None if it has committed nothing and may choose.

        may_be_zero: return 0 for a queue whose first message is still in memory, so that a new group misses
        nothing of a new topic.
        """
        offset = self.query(group, topic, queue_id)
        if offset is None and may_be_zero and self._store.is_young(topic, queue_id):
            return 0
        return offset

    def note_pull(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Note from where a member pulls a queue in which its group has committed nothing; a slave does not.

        Light topics are left out, as there may be too many. An offset beyond the end, or before the first
        message, counts as that bound.
        """
        if not self._store.config.is_copy and not is_light(topic):
            offset = max(offset, self._store.min_offset(topic, queue_id))
            offset = min(offset, self._store.max_offset(topic, queue_id))
            self._beginnings.note_pull(group, topic, queue_id, offset)

    def read_from(self, group: str, topic: str, queue_id: int) -> int | None:
        """Return where a group continues: its committed offset, or where it began; None: unknown.

        A group that is new to a retry topic reads all of it.
        """
        committed = self.query(group, topic, queue_id)
        if committed is not None:
            return committed
        pulled = self._beginnings.pulled_from(group, topic, queue_id)
        if pulled is None:
            return 0 if topic.startswith(RETRY_PREFIX) else None
        return min(pulled, self._store.max_offset(topic, queue_id))

    def topics_read(self, group: str) -> Set[str]:
        """Return the topics that a group has read, even without a commit."""
        return self.topics_of_group(group) | self._beginnings.topics_of_group(group)

    def sent_before(self, group: str, queue: MessageQueue) -> int | None:
        """Return the offset up to which a group was sent a queue's messages; 0 if it was sent none.

        None if unknown: the group has read the queue, but before this process began.
        """
        sent = self.pull_offsets.get(group, queue.topic, queue.queue_id)
        if sent is not None:
            return sent
        return 0 if self.query(group, queue.topic, queue.queue_id) is None else None

    def reset(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Set an offset that overrides all commits until a consumer reads from it.

        Raises BrokerError, and sets nothing, if earlier pops cannot be forgotten.
        """
        queue = (group, topic, queue_id)
        self.on_reset(queue)
        self._reset_readers.pop(queue, None)
        end = self._store.max_offset(topic, queue_id)
        self._add([self._ledger.offsets.reset(group, topic, queue_id, offset, end)])

    def note_reset_sent(self, group: str, topic: str, queue_id: int, reader: int) -> None:
        """Note that a connection is answered with a queue's reset offset."""
        if self.pending_reset(group, topic, queue_id) is not None:
            self._reset_readers[group, topic, queue_id] = reader

    def follows_reset(self, group: str, topic: str, queue_id: int, offset: int, reader: int) -> bool:
        """Return whether a connection that pulls from an offset follows the pending reset, which ends then.

        A connection that was not answered with the reset, though it pulls from its offset, may hold earlier
        messages whose commits would undo it.
        """
        follows = (
            self.pending_reset(group, topic, queue_id) == offset
            and self._reset_readers.get((group, topic, queue_id)) == reader
        )
        if follows:
            self.take_reset(group, topic, queue_id)
        return follows

    def take_reset(self, group: str, topic: str, queue_id: int) -> int | None:
        """Return the pending reset of a queue and end it: the group now reads from it."""
        taken = self._ledger.offsets.take_reset(group, topic, queue_id)
        if taken is None:
            return None
        self._reset_readers.pop((group, topic, queue_id), None)
        self._add([taken[1]])
        return taken[0]

    def remove_group(self, group: str) -> None:
        """Remove a group's offsets."""
        try:
            if self._store.max_offset(TIMER_TOPIC, 0):  # POP's journal is there.
                self._store.remove_group(group)
        except OSError as error:
            log.error(
                "the pops of a removed group may reappear after a kill",
                group=group,
                reason=str(error),
            )
        self._removed(self._ledger.offsets.remove_group(group))
        self.pull_offsets.remove_group(group)
        self._beginnings.remove_group(group)
        for observe in self._observers:
            observe(group)

    def observe_removal(self, observe: Callable[[str], None]) -> None:
        """Call a function with each group whose offsets are removed."""
        self._observers.append(observe)

    def remove_queues(self, group: str, topic: str, queue_ids: Set[int]) -> None:
        """Remove a group's offsets in some queues of a topic."""
        self._add(self._ledger.offsets.remove_queues(group, topic, queue_ids))
        self._beginnings.remove_queues(group, topic, queue_ids)

    def remove_topic(self, topic: str) -> None:
        """Remove the offsets in a deleted topic.

        Unlike other commits, they must not reappear after a power cut: if the topic was created again, groups
        would skip its new messages.
        """
        self.pull_offsets.remove_topic(topic)
        self._beginnings.remove_topic(topic)
        removed = self._ledger.offsets.remove_topic(topic)
        if removed:
            self._removed(removed)
            self._must_sync = True
            self._write_or_keep()

    def copy(self, key: str, offsets: Mapping[int, int], resets: Mapping[int, int]) -> None:
        """Replace the offsets of a topic and group by the master's; higher ones committed here remain."""
        own = self.at_slave.table.get(key, {})
        if own:
            ahead = {each: offset for each, offset in own.items() if offset > offsets.get(each, -1)}
            offsets = {**offsets, **ahead}
        self._change(self._ledger.offsets.copy(key, offsets, resets, self._store.max_offset))

    def remove_others(self, keys: Set[str]) -> None:
        """Remove offsets that a slave's master does not have: a topic was deleted, and perhaps recreated."""
        self._change(self._ledger.offsets.remove_others(keys | self.at_slave.table.keys()))

    def lower(self, first: Mapping[tuple[str, str, int], int]) -> None:
        """Lower offsets of group, topic and queue to these, on the disk; waits for it, and raises OSError."""
        for (group, topic, queue_id), offset in first.items():
            if (self.query(group, topic, queue_id) or 0) > offset:
                change = self._ledger.offsets.commit(group, topic, queue_id, offset, offset)
                if change is not None:
                    self._unwritten.append(change)
                    self._must_sync = True
        if self._must_sync:
            self.write()
            try:
                self._ledger.sync()
            except OSError:
                self._must_sync = True
                raise

    def cut(self) -> None:
        """Lower offsets beyond the ends of queues: the log was truncated, and new messages reuse them."""
        self._change(self._ledger.offsets.clamp(self._store.max_offset))
        self.at_slave.cut(self._store.max_offset)

    def _add(self, changes: Iterable[OffsetRecord]) -> None:
        self._unwritten += changes
        self._soon()

    def _removed(self, changes: list[OffsetRecord]) -> None:
        self._add(changes)
        for change in changes:
            self.at_slave.remove(change.key)
        self._reset_readers = {
            queue: reader
            for queue, reader in self._reset_readers.items()
            if self.pending_reset(*queue) is not None
        }

    def _change(self, changes: list[OffsetRecord]) -> None:
        """Sync changes to the disk before any later append to the log."""
        if changes:
            self._add(changes)
            self._must_sync = True

    def write(self) -> None:
        """Journal the offsets; afterwards they may be acknowledged.

        Raises OSError if the disk refuses; the next call then writes the offsets.
        """
        if len(self._unwritten) > UNWRITTEN_MAX:
            self._keep_the_last()
        if self._store.lost is not None:  # The journal's descriptor is still open, but its file is gone.
            raise OSError(errno.EROFS, f"{self._store.lost}; restart the broker")
        if self._unwritten:
            self._ledger.append(self._unwritten)
            self._unwritten = []
            if self._must_sync:
                self._journals.sync_with_log(self._ledger.journal_path)
                self._must_sync = False
        self._ledger.offsets.ahead.write()

    def write_resets(self) -> None:
        """Journal an operator's resets; under SYNC_FLUSH, the reply waits until they are on the disk.

        Commits need not wait: after a power cut, their messages come again. Raises BrokerError if the disk
        refuses.
        """
        self._must_sync = True
        with Journalling("offsets"):
            self.write()
            self._journals.wrote(self._ledger.journal_path)

    def _write_or_keep(self) -> None:
        """Write commits without a pending reply: a disk failure is logged once, and the write is repeated."""
        if not self._unwritten or self._store.lost is not None:
            return
        try:
            self.write()
        except OSError as error:
            if not self._is_refused:
                log.error("committed offsets cannot be journalled; retrying", reason=str(error))
            self._is_refused = True
            self._retry.at(self._clock.monotonic_ms() + RETRY_MS)
        else:
            self._is_refused = False

    def _note_cut(self, group: str, topic: str, queue_id: int, offset: int, end: int) -> None:
        """Log a commit beyond the end, once: clients repeat theirs every few seconds."""
        if self._cut.get((group, topic, queue_id)) != offset:
            if len(self._cut) >= CUT_MAX:
                self._cut.clear()
            self._cut[group, topic, queue_id] = offset
            log.warning(
                "a commit beyond the end of its queue was lowered to the end",
                group=group, topic=topic, queue_id=queue_id, offset=offset, end=end,
            )  # fmt: skip

    def _keep_the_last(self) -> None:
        last: dict[tuple[str, int, int], OffsetRecord] = {}
        for record in self._unwritten:
            key = (record.key, record.queue_id, record.kind)
            last.pop(key, None)
            last[key] = record
        self._unwritten = list(last.values())


class Committing:
    """Takes and journals commits.

    offsets: of this broker's queues. committed: called with the connection and group of each commit.
    """

    def __init__(
        self,
        *,
        offsets: OffsetCommits,
        fences: Fences,
        requirements: Requirements,
        committed: Callable[[Connection, str], None],
        is_slave: bool = False,
    ) -> None:
        self._is_slave = is_slave
        self.offsets = offsets
        self._fences = fences
        self._requirements = requirements
        self._committed = committed

    def commit(
        self,
        connection: Connection,
        group: str,
        topic: str,
        queue_id: int,
        offset: int,
        *,
        member: str | None = None,
        epoch: int | None = None,
        is_returned: bool = False,
        is_as_sent: bool = False,
        ends_reset: bool = False,
    ) -> None:
        """Take a commit; acknowledge it after `write`. Raises BrokerError if it is refused.

        member, epoch: for a coordinated group, the member that has the queue open, under that epoch. A member
        commits to a broker over one connection at a time: a commit over an older connection than that of its
        last commit is acknowledged without effect. is_returned: a slave returns it; it never moves an offset
        back. is_as_sent: from a Kafka client, whose commit may lie beyond the end. ends_reset: it cannot be
        older than an operator's reset, as no commit of Kafka's can; while a reset is pending, other commits
        have no effect.
        """
        if self._is_slave and member is not None:
            raise broker_error(ResponseCode.SYSTEM_BUSY, "this is a slave: only its master takes commits")
        self._requirements.group(group)
        self._requirements.queue_to_commit(topic, queue_id)
        self._fences.check(group, topic, queue_id, member, epoch)
        if member is not None and self._fences.is_superseded(group, topic, queue_id, connection.number):
            log.info(
                "commit ignored: a later one was applied already", group=group, topic=topic, queue_id=queue_id
            )
            return
        if ends_reset:
            self.offsets.take_reset(group, topic, queue_id)
        if is_as_sent:
            self.offsets.commit_as_sent(group, topic, queue_id, offset)
        elif is_returned:
            self.offsets.commit_forwards(group, topic, queue_id, offset)
        else:
            self.offsets.commit(group, topic, queue_id, offset)
        self._committed(connection, group)

    def record(self, group: str, topic: str, queue_id: int, offset: int, *, is_as_sent: bool = False) -> None:
        """Set an operator's offset regardless of the queue's reader, whose next commit replaces it."""
        self._requirements.group(group)
        self._requirements.queue_to_commit(topic, queue_id)
        commit = self.offsets.commit_as_sent if is_as_sent else self.offsets.commit
        commit(group, topic, queue_id, offset)

    def write(self) -> None:
        """Journal the commits by one write; raises BrokerError if the disk refuses."""
        with Journalling("offset"):
            self.offsets.write()
