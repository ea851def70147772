"""The commits: a consumer's offsets, which of them brokers have acknowledged, which are sent next to brokers
or the local store, and how answers are handled.

A queue has at most one commit in flight: a multi-threaded broker may process two requests in any order. The
first commits of a topic are sent one after the other.
Upstream: RemoteBrokerOffsetStore.java, ControllableOffset.java, LocalFileOffsetStore.persistAll.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from typing import Final, NamedTuple

from libramq.client.consuming import effects as fx
from libramq.client.consuming.consumer_settings import OFFSET_TIMEOUT_MS, ConsumerSettings
from libramq.client.consuming.known_brokers import KnownBrokers
from libramq.client.consuming.queues.owned_queue import OwnedQueue
from libramq.client.consuming.queues.queue_table import QueueTable
from libramq.clock import MonotonicMs
from libramq.errors import LibraError
from libramq.fencing import Claim
from libramq.logs import get_logger
from libramq.message.queue import MessageQueue
from libramq.rpc.broker_calls import update_consumer_offset
from libramq.transport.outages import log_failed_request

log = get_logger(__name__)

#: Ours: how often the last commit of a queue is attempted.
LAST_COMMITS_MAX: Final = 2


@dataclass(slots=True)
class _Entry:
    offset: int
    frozen: bool = False
    persisted: int | None = None


class OffsetStore:
    """Offsets in memory, together with those that brokers have acknowledged.

    is_manual: only the program's own requests to commit change them.
    """

    def __init__(self, *, is_manual: bool = False) -> None:
        self._is_manual = is_manual
        self._entries: dict[MessageQueue, _Entry] = {}
        #: Whether an offset has changed since this was set to False.
        self.is_changed = False

    @property
    def is_acknowledged(self) -> bool:
        """Return whether brokers have acknowledged all offsets."""
        return all(entry.persisted == entry.offset for entry in self._entries.values())

    def read(self, queue: MessageQueue) -> int | None:
        """Return the offset of a queue; None if nothing was consumed."""
        entry = self._entries.get(queue)
        return None if entry is None else entry.offset

    def loaded(self, queue: MessageQueue, offset: int) -> None:
        """Set the committed offset that the broker reported."""
        self._entries[queue] = _Entry(offset, persisted=offset)

    def advance(self, queue: MessageQueue, offset: int) -> None:
        """Advance the offset; never move it back."""
        if self._is_manual:
            return
        entry = self._entries.get(queue)
        if entry is None:
            self._entries[queue] = _Entry(offset)
            self.is_changed = True
        elif not entry.frozen and offset > entry.offset:
            entry.offset = offset
            self.is_changed = True

    def sought(self, queue: MessageQueue, offset: int) -> None:
        """Set the offset to the position that the program has sought, backwards if necessary."""
        if not self._is_manual:
            entry = self._entries.get(queue)
            self._entries[queue] = _Entry(offset, persisted=None if entry is None else entry.persisted)
            self.is_changed = True

    def request(self, queue: MessageQueue, offset: int) -> None:
        """Set the offset that the program wants committed."""
        self._entries[queue] = _Entry(offset)
        self.is_changed = True

    def freeze(self, queue: MessageQueue, offset: int) -> None:
        """Set the offset, backwards if necessary, and ignore later results of handlers."""
        self._entries[queue] = _Entry(offset, frozen=True)
        self.is_changed = True

    def to_persist(
        self, queues: Iterable[MessageQueue], *, all_of_them: bool
    ) -> list[tuple[MessageQueue, int]]:
        """Return the offsets to commit: those changed since the last acknowledgement, or all."""
        found = []
        for queue in queues:
            entry = self._entries.get(queue)
            if entry is not None and (all_of_them or entry.persisted != entry.offset):
                found.append((queue, entry.offset))
        return found

    def persisted(self, queue: MessageQueue, offset: int) -> None:
        """Note that the broker acknowledged an offset."""
        entry = self._entries.get(queue)
        if entry is not None:
            entry.persisted = offset

    def acknowledged(self, queue: MessageQueue) -> int | None:
        """Return the offset last fetched from or acknowledged by the broker; None when none is known."""
        entry = self._entries.get(queue)
        return None if entry is None else entry.persisted

    def forget(self, queue: MessageQueue) -> None:
        """Remove a queue that is no longer ours."""
        self._entries.pop(queue, None)


class SentCommit(NamedTuple):
    """A commit in flight. claim: the queue's open claim, in a coordinated group."""

    owned: OwnedQueue
    offset: int
    claim: Claim | None


class Commits:
    """Sends the commits of a consumer, and handles their results."""

    def __init__(
        self,
        settings: ConsumerSettings,
        offsets: OffsetStore,
        table: QueueTable,
        known_brokers: KnownBrokers,
    ) -> None:
        self._settings = settings
        self._routes = known_brokers.routes
        self._offsets = offsets
        self._table = table
        self._lease = table.lease
        self._known_brokers = known_brokers
        self._kernel = known_brokers.kernel
        self.firsts = FirstCommits()
        #: Why the last commit of a queue failed.
        self._failures: dict[MessageQueue, str] = {}
        #: Handles results, for the queue and for the program's own commits.
        self.on_committed: Callable[[SentCommit, LibraError | None, MonotonicMs], None]

    def commit(self, queues: Iterable[OwnedQueue], *, all_of_them: bool = False) -> None:
        """Send the commits of changed offsets, or of all offsets."""
        by_queue = {owned.queue: owned for owned in queues}
        if self._settings.fetches:
            self._note_finished(by_queue.values())
        to_persist = self._offsets.to_persist(by_queue, all_of_them=all_of_them)
        if self._settings.broadcasting:
            for queue, offset in to_persist:
                self._offsets.persisted(queue, offset)
            if to_persist:
                self._kernel.effects.add(fx.StoreOffsets(tuple(to_persist)))
            return
        if not to_persist or not self._lease.holds():
            return
        for queue, offset in to_persist:
            owned = by_queue[queue]
            address = self._routes.master(queue.broker_name)
            if address is None:
                self._known_brokers.look_soon(self._lease.monotonic_ms())
                continue
            if not owned.may_commit or self._must_wait(owned):
                continue
            self.firsts.sent(queue)
            owned.commit_awaited = True
            self._ask(address, SentCommit(owned, offset, owned.claim.opened))

    def _ask(self, address: str, commit: SentCommit) -> None:
        claim = commit.claim
        call = update_consumer_offset(
            self._settings.group,
            commit.owned.queue,
            commit.offset,
            member=claim.member if claim else None,
            epoch=claim.epoch if claim else None,
        )
        self._kernel.ask(address, call, partial(self._answered, commit), OFFSET_TIMEOUT_MS)

    def _answered(self, commit: SentCommit, outcome: LibraError | None, now_ms: MonotonicMs) -> None:
        queue = commit.owned.queue
        if outcome is None:
            self._failures.pop(queue, None)
        elif self._failures.get(queue) != str(outcome):  # Otherwise it would be logged ten times a second.
            self._failures[queue] = str(outcome)
            log_failed_request(log, "commit failed", outcome, queue=str(queue))
        self.on_committed(commit, outcome, now_ms)

    def commit_last(self, owned: OwnedQueue) -> bool:
        """Send the last commit of a queue, once none is in flight; return whether to wait for a commit."""
        if owned.commit_awaited or not self._lease.holds():
            return True
        if self._must_wait(owned) and self._offsets.to_persist([owned.queue], all_of_them=False):
            return True
        if owned.last_commits < LAST_COMMITS_MAX:
            self.commit([owned])
        owned.last_commits += owned.commit_awaited
        return owned.commit_awaited

    def answered(self, commit: SentCommit, *, ok: bool) -> bool:
        """Handle the result of a commit; return whether other commits may have waited for it."""
        owned = commit.owned
        if self._table.is_current(owned):
            owned.commit_awaited = False
            if ok:
                self._offsets.persisted(owned.queue, commit.offset)
        return self.firsts.answered(owned.queue, ok=ok)

    def _note_finished(self, queues: Iterable[OwnedQueue]) -> None:
        """Note the progress of the program, even within the messages of one pull."""
        for owned in queues:
            finished = owned.work.finished_offset()
            if finished is not None:
                self._offsets.advance(owned.queue, finished)

    def _must_wait(self, owned: OwnedQueue) -> bool:
        # LibraMQ's brokers, which open queues, have no such race.
        return owned.claim.opened is None and self.firsts.must_wait(owned.queue)


#: The key of an offset table: broker and topic.
_key: Final[Callable[[MessageQueue], tuple[str, str]]] = attrgetter("broker_name", "topic")


class FirstCommits:
    """The topics known to have an offset table for the group, and the first commits in flight.

    Apache's broker creates a group's offset table of a topic with the first commit, without a lock
    (ConsumerOffsetManager.commitOffset): it loses one of two concurrent commits, but acknowledges both.
    """

    def __init__(self) -> None:
        self._known: set[tuple[str, str]] = set()
        self._awaited: dict[tuple[str, str], MessageQueue] = {}

    def known(self, queue: MessageQueue) -> None:
        """Note a committed offset from the broker: the table exists."""
        self._known.add(_key(queue))

    def must_wait(self, queue: MessageQueue) -> bool:
        """Return whether a commit has to wait for another queue's."""
        return self._awaited.get(_key(queue), queue) != queue

    def sent(self, queue: MessageQueue) -> None:
        """Note that a commit is sent."""
        if _key(queue) not in self._known:
            self._awaited[_key(queue)] = queue

    def answered(self, queue: MessageQueue, *, ok: bool) -> bool:
        """Handle the result of a commit; return whether commits that waited for it may be sent now."""
        key = _key(queue)
        if ok:
            self._known.add(key)
        if self._awaited.get(key) != queue:
            return False
        del self._awaited[key]
        return True
