"""The commits: offsets that the brokers, or the local store, do not have yet.

A queue has at most one commit under way: a multi-threaded broker may process two requests in any order. The
first commits of a topic are sent one after the other.
Upstream: RemoteBrokerOffsetStore.persistAll, LocalFileOffsetStore.persistAll.
"""

from collections.abc import Iterable
from typing import Final

from libramq.client.consuming import effects as fx
from libramq.client.consuming.committing.offset_store import OffsetStore
from libramq.client.consuming.consumer_settings import ConsumerSettings
from libramq.client.consuming.effects import Effects
from libramq.client.consuming.known_brokers import KnownBrokers
from libramq.client.consuming.queues.owned_queue import OwnedQueue
from libramq.client.consuming.queues.queue_table import QueueTable
from libramq.message.queue import MessageQueue

#: Ours: how often the last commit of a queue is attempted.
LAST_COMMITS_MAX: Final = 2


class Commits:
    """The commits of a consumer: offsets to commit, and the results."""

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
        self._firsts = FirstCommits()

    def commit(self, queues: Iterable[OwnedQueue], *, all_of_them: bool = False) -> Effects:
        """Return the commits of changed offsets, or of all offsets."""
        by_queue = {owned.queue: owned for owned in queues}
        if self._settings.fetches:
            self._note_finished(by_queue.values())
        to_persist = self._offsets.to_persist(by_queue, all_of_them=all_of_them)
        if self._settings.broadcasting:
            for queue, offset in to_persist:
                self._offsets.persisted(queue, offset)
            return [fx.StoreOffsets(tuple(to_persist))] if to_persist else []
        if not to_persist or not self._lease.holds():
            return []
        found: Effects = []
        for queue, offset in to_persist:
            owned = by_queue[queue]
            address = self._routes.master(queue.broker_name)
            if address is None:
                found += self._known_brokers.look_soon(self._lease.monotonic_ms())
                continue
            if not owned.may_commit or self._must_wait(owned):
                continue
            self._firsts.sent(queue)
            owned.commit_awaited = True
            found.append(fx.CommitOffset(queue, owned.generation, offset, address, owned.claim.opened))
        return found

    def last(self, owned: OwnedQueue) -> Effects | None:
        """Return the last commit of a queue that ends, to follow the one under way; None if there is none."""
        if owned.commit_awaited or not self._lease.holds():
            return []
        if self._must_wait(owned) and self._offsets.to_persist([owned.queue], all_of_them=False):
            return []
        last = self.commit([owned]) if owned.last_commits < LAST_COMMITS_MAX else []
        owned.last_commits += owned.commit_awaited
        return last if owned.commit_awaited else None

    def known(self, queue: MessageQueue) -> None:
        """Note a committed offset that the broker reported."""
        self._firsts.known(queue)

    def answered(self, commit: fx.CommitOffset, *, ok: bool) -> tuple[OwnedQueue | None, bool]:
        """Handle the result of a commit.

        Return its queue, unless that was lost since, and whether other commits have waited for it.
        """
        others_may_go = self._firsts.answered(commit.queue, ok=ok)
        owned = self._table.same(commit.queue, commit.generation)
        if owned is None:
            return None, others_may_go
        owned.commit_awaited = False
        if ok:
            self._offsets.persisted(commit.queue, commit.offset)
        return owned, others_may_go

    def _note_finished(self, queues: Iterable[OwnedQueue]) -> None:
        """Note how far the program is, also amid the messages of one pull."""
        for owned in queues:
            finished = owned.work.finished_offset()
            if finished is not None:
                self._offsets.advance(owned.queue, finished)

    def _must_wait(self, owned: OwnedQueue) -> bool:
        # Our brokers, which open queues, have no such race.
        return owned.claim.opened is None and self._firsts.must_wait(owned.queue)


class FirstCommits:
    """The topics known to have an offset table for the group, and the first commits under way.

    Apache's broker creates a group's offset table of a topic with the first commit, without a lock
    (ConsumerOffsetManager.commitOffset): of two concurrent ones one is lost, although both are acknowledged.
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


def _key(queue: MessageQueue) -> tuple[str, str]:
    return queue.broker_name, queue.topic
