"""A group's committed offsets at all brokers: how offsets of queues at other brokers are committed and looked
up, which offset counts while such a broker is away, and who may commit from outside the group.

    the coordinator ─► commits ─► the queues' brokers journal them, before the member is answered
                             └─► every other broker keeps a copy in memory

A copy is used while the queue's broker is away: the queue cannot be read then, but its reader needs a
position. Undelivered commits are sent with the next commit or query after the broker is back.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from contextlib import suppress
from functools import partial
from typing import Final, NamedTuple, Protocol

from libramq.broker.files.tables import Tables
from libramq.broker.groups.coordination import Coordination
from libramq.broker.groups.offset_commits import Committing
from libramq.broker.groups.removal import Removal
from libramq.clock import Clock
from libramq.codes import ResponseCode
from libramq.errors import BrokerError, Journalling, LibraError, broker_error
from libramq.kernel.connection import Connection
from libramq.message.queue import MessageQueue

#: Ours: queues with copies, of all groups; some 25 MB. Offsets of others are unknown while their broker is
#: away.
COPIES_MAX: Final = 100_000


class Exchange(NamedTuple):
    """The data that a coordinator and a queue's broker exchange about a group; see `PeerOffsetsBody`."""

    group: str
    commits: Mapping[MessageQueue, int] = {}
    queues: Sequence[MessageQueue] = ()
    is_all: bool = False
    removed: Sequence[MessageQueue] = ()
    is_deleted: bool = False


class Exchanged(NamedTuple):
    """The answer to an exchange. codes: of commits in the broker's own queues; offsets: those that exist."""

    codes: Mapping[MessageQueue, int]
    offsets: Mapping[MessageQueue, int]


class Exchanges(Protocol):
    """The other brokers."""

    def names(self) -> Sequence[str]:
        """Return the names of the linked brokers."""

    def exchange(
        self, broker_name: str, what: Exchange, done: Callable[[Exchanged | LibraError], None]
    ) -> None:
        """Send an exchange to a broker."""


class Found(NamedTuple):
    """Committed offsets. unknown: queues whose broker is away and that have no copy."""

    offsets: Mapping[MessageQueue, int]
    unknown: frozenset[MessageQueue]


class _Copy(NamedTuple):
    offset: int
    is_delivered: bool


class GroupOffsets:
    """Commits and looks up offsets of queues at any broker. own: those of this broker's queues.

    removal: deletes groups for clients of other brokers.
    """

    def __init__(
        self,
        tables: Tables,
        committing: Committing,
        removal: Removal,
        coordination: Coordination,
        clock: Clock,
        others: Exchanges,
    ) -> None:
        self.committing = committing
        self.own = committing.offsets
        self._name = tables.topics.broker_name
        self._groups, self._topics = tables.groups, tables.topics
        self._fences = tables.fences
        self._removal = removal
        self._coordination = coordination
        self._clock = clock
        self._others = others
        self._copies: dict[str, dict[MessageQueue, _Copy]] = {}
        self._copy_count = 0

    # At the coordinator.

    def commit(
        self,
        group: str,
        commits: Mapping[MessageQueue, int],
        done: Callable[[Mapping[MessageQueue, int]], None],
    ) -> None:
        """Commit offsets; `done` is called with the response codes of other brokers for their queues.

        Offsets of this broker's own queues are already committed; other brokers get copies. A commit whose
        broker is away is kept, and succeeds.
        """
        codes: dict[MessageQueue, int] = {}
        names = self._others.names()
        if commits:
            self._make_visible(group)
        for queue, offset in commits.items():
            if queue.broker_name != self._name:
                self._keep(group, queue, offset, is_delivered=False)
            codes[queue] = ResponseCode.SUCCESS
        # No answer is awaited from brokers that only get copies.
        awaited = {queue.broker_name for queue in commits} & set(names)
        waiting = set(awaited)

        def answered(name: str, outcome: Exchanged | LibraError) -> None:
            if not isinstance(outcome, LibraError):
                self._delivered(group, outcome.codes, sent[name].commits)
                codes.update((queue, code) for queue, code in outcome.codes.items() if queue in commits)
            if name in waiting:
                waiting.discard(name)
                if not waiting:
                    done(codes)

        sent = {
            name: Exchange(group, commits={**self._undelivered(group, name), **commits}) for name in names
        }
        for name, what in sent.items():
            self._others.exchange(name, what, partial(answered, name))
        if not awaited:
            done(codes)

    def find(self, group: str, queues: Iterable[MessageQueue] | None, done: Callable[[Found], None]) -> None:
        """Look up offsets of queues at other brokers; queues: None: all of the group's."""
        names = self._others.names()
        wanted = list(queues) if queues is not None else None
        queried = [
            name for name in names if wanted is None or any(queue.broker_name == name for queue in wanted)
        ]
        offsets: dict[MessageQueue, int] = {}
        silent = {queue.broker_name for queue in wanted or ()} - set(queried)

        def finish() -> None:
            copies = self._copies.get(group, {})
            for queue in wanted if wanted is not None else list(copies):
                is_away = queue.broker_name in silent or queue.broker_name not in {*names, self._name}
                if queue not in offsets and queue in copies and is_away:
                    offsets[queue] = copies[queue].offset
            unknown = (
                queue for queue in wanted or () if queue.broker_name in silent and queue not in offsets
            )
            done(Found(offsets, frozenset(unknown)))

        def answered(name: str, outcome: Exchanged | LibraError) -> None:
            if isinstance(outcome, LibraError):
                silent.add(name)
            else:
                self._delivered(group, outcome.codes, undelivered[name])
                for queue, offset in outcome.offsets.items():
                    offsets[queue] = offset
                    self._keep(group, queue, offset, is_delivered=True)

        undelivered = {name: self._undelivered(group, name) for name in queried}
        exchanges = {
            name: Exchange(
                group,
                commits=undelivered[name],
                queues=[queue for queue in wanted or () if queue.broker_name == name],
                is_all=wanted is None,
            )
            for name in queried
        }
        self._exchange_all(exchanges, answered, finish)

    def remove(self, group: str, queues: Sequence[MessageQueue], done: Callable[[Set[str]], None]) -> None:
        """Delete offsets at other brokers; `done` is called with the brokers that still have some of them."""

        def removed(failed: Set[str]) -> None:
            self._forget(group, [queue for queue in queues if queue.broker_name not in failed])
            done(failed)

        self._send_all(Exchange(group, removed=queues), {queue.broker_name for queue in queues}, removed)

    def delete(self, group: str, done: Callable[[bool], None]) -> None:
        """Delete a group at other brokers; `done` is called with whether none of them has offsets left.

        A broker that is away counts as having them if there are copies of its offsets here.
        """

        def deleted(failed: Set[str]) -> None:
            if not failed:
                self._forget(group, list(self._copies.get(group, ())))
            done(not failed)

        holders = {queue.broker_name for queue in self._copies.get(group, ())}
        self._send_all(Exchange(group, is_deleted=True), {*self._others.names(), *holders}, deleted)

    def _send_all(self, what: Exchange, holders: Set[str], done: Callable[[Set[str]], None]) -> None:
        """Send an exchange to all other brokers; `done` is called with the holders that did not apply it."""
        names = self._others.names()
        failed = set(holders) - {*names, self._name}

        def answered(name: str, outcome: Exchanged | LibraError) -> None:
            if isinstance(outcome, LibraError) and name in holders:
                failed.add(name)

        self._exchange_all(dict.fromkeys(names, what), answered, lambda: done(failed))

    def _exchange_all(
        self,
        exchanges: Mapping[str, Exchange],
        answered: Callable[[str, Exchanged | LibraError], None],
        finish: Callable[[], None],
    ) -> None:
        """Send each broker its exchange; `answered` gets each outcome, and `finish` follows the last one."""
        waiting = set(exchanges)

        def take(name: str, outcome: Exchanged | LibraError) -> None:
            answered(name, outcome)
            waiting.discard(name)
            if not waiting:
                finish()

        for name, what in exchanges.items():
            self._others.exchange(name, what, partial(take, name))
        if not exchanges:
            finish()

    # At a queue's broker.

    def take(self, what: Exchange, connection: Connection) -> Exchanged:
        """Apply the exchange of a group's coordinator here; raises BrokerError if nothing can be applied."""
        group = what.group
        codes: dict[MessageQueue, int] = {}
        if what.commits:
            self._make_visible(group)
        for queue, offset in what.commits.items():
            if queue.broker_name != self._name:
                self._keep(group, queue, offset, is_delivered=True)
                continue
            try:
                self.commit_own(connection, group, queue, offset)
                codes[queue] = ResponseCode.SUCCESS
            except BrokerError as refused:
                codes[queue] = refused.response_code
        if what.is_deleted:
            self._delete_own(group)
        for queue in what.removed:
            if queue.broker_name == self._name:
                self.own.remove_queues(group, queue.topic, {queue.queue_id})
        if what.removed:
            self._forget(group, what.removed)
        if codes or what.removed or what.is_deleted:
            self.committing.write()
        return Exchanged(codes, self._wanted(what))

    def commit_own(self, connection: Connection, group: str, queue: MessageQueue, offset: int) -> None:
        """Commit to one of this broker's queues for another protocol; acknowledge it after `write`.

        Raises BrokerError if it is refused: a group with members of RocketMQ's protocol commits through them.
        """
        topic, queue_id = queue.topic, queue.queue_id
        if self._coordination.has_clients(group):
            raise broker_error(ResponseCode.FENCED, f"group {group} has members of RocketMQ's protocol")
        if not self._fences.goes_by_epochs(group):
            self.committing.commit(connection, group, topic, queue_id, offset, is_as_sent=True)
            return
        # Its last members are gone; a paused one may not know that, and would overwrite this commit.
        with Journalling("fence"):
            was_open = self._fences.close(group, topic, queue_id)
        self.committing.record(group, topic, queue_id, offset, is_as_sent=True)
        if was_open:
            self._coordination.offsets_reset(group, topic)

    def _make_visible(self, group: str) -> None:
        """Make the group known here, including the retry topic by which tools find its brokers."""
        now = self._clock.wall_ms()
        config = self._groups.require(group, now)
        with suppress(BrokerError):  # If there are too many topics, the group works without it.
            self._topics.for_retries(config, now)

    def _delete_own(self, group: str) -> None:
        self._forget(group, list(self._copies.get(group, ())))
        self._removal.remove_group(group)

    def _wanted(self, what: Exchange) -> Mapping[MessageQueue, int]:
        offsets: dict[MessageQueue, int] = {}
        if what.is_all:
            for topic in self.own.topics_of_group(what.group):
                for queue_id in self.own.offsets(what.group, topic):
                    offset = self.own.committed(what.group, topic, queue_id)
                    if offset is not None:
                        offsets[MessageQueue(topic, self._name, queue_id)] = offset
        for queue in what.queues:
            found = self.own.committed(what.group, queue.topic, queue.queue_id)
            if found is not None and queue.broker_name == self._name:
                offsets[queue] = found
        return offsets

    # Copies.

    def forget_topic(self, topic: str) -> None:
        """Drop the copies of a deleted topic."""
        for group, copies in list(self._copies.items()):
            self._forget(group, [queue for queue in copies if queue.topic == topic])

    def _keep(self, group: str, queue: MessageQueue, offset: int, *, is_delivered: bool) -> None:
        copies = self._copies.setdefault(group, {})
        if queue not in copies:
            if self._copy_count >= COPIES_MAX:
                return
            self._copy_count += 1
        copies[queue] = _Copy(offset, is_delivered)

    def _forget(self, group: str, queues: Iterable[MessageQueue]) -> None:
        copies = self._copies.get(group, {})
        for queue in queues:
            if copies.pop(queue, None) is not None:
                self._copy_count -= 1
        if not copies:
            self._copies.pop(group, None)

    def _undelivered(self, group: str, broker_name: str) -> dict[MessageQueue, int]:
        return {
            queue: copy.offset
            for queue, copy in self._copies.get(group, {}).items()
            if queue.broker_name == broker_name and not copy.is_delivered
        }

    def _delivered(
        self, group: str, codes: Mapping[MessageQueue, int], sent: Mapping[MessageQueue, int]
    ) -> None:
        """Note commits as journalled or refused by a broker, unless there is a later commit by now."""
        copies = self._copies.get(group, {})
        for queue in codes:
            copy = copies.get(queue)
            if copy is not None and copy.offset == sent.get(queue):
                copies[queue] = copy._replace(is_delivered=True)
