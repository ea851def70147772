"""Assignment tables: the last assignment of every member under server-side assignment (QUERY_ASSIGNMENT),
replicated on all brokers.

Each group's coordinator broker updates its table, and every broker keeps the tables of all groups. When a
group moves to another broker, that broker continues from the newest table that any broker has.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Self

import msgspec

from libramq.formats.document import Document
from libramq.message.queue import MessageQueue

#: One member's assignments, by topic.
Lots = dict[str, tuple[MessageQueue, ...]]


class TopicAssignment(Document, frozen=True, kw_only=True):
    """A member's queues of one topic under server-side assignment, by broker."""

    client_id: str
    topic: str
    queues: dict[str, list[int]] = {}

    @classmethod
    def of(cls, client_id: str, topic: str, queues: Iterable[MessageQueue]) -> Self:
        """Return a member's assignment."""
        by_broker: dict[str, list[int]] = {}
        for queue in queues:
            by_broker.setdefault(queue.broker_name, []).append(queue.queue_id)
        return cls(client_id=client_id, topic=topic, queues=by_broker)

    def lot(self) -> tuple[MessageQueue, ...]:
        """Return the queues, sorted."""
        return tuple(
            sorted(MessageQueue(self.topic, name, each) for name, ids in self.queues.items() for each in ids)
        )


class AssignmentUpdate(Document, frozen=True, kw_only=True):
    """A change of a group's assignment table, sent by the group's broker to all others (PEER_ASSIGNMENTS).

    version: grows with every update of one broker. is_whole: earlier updates are void. is_over: the group has
    no more members. gone: former members. ask_again: clients whose assignment will change, with the
    milliseconds after which they should query it.
    """

    broker_name: str
    group: str
    version: int = 0
    assignments: list[TopicAssignment] = msgspec.field(name="given", default_factory=list)
    gone: list[str] = []
    is_whole: bool = False
    is_over: bool = False
    ask_again: dict[str, int] = {}


@dataclass(slots=True)
class AssignmentTable:
    """One group's table. broker_name: the broker that updates it; version: grows with every update."""

    broker_name: str
    version: int = 0
    members: dict[str, Lots] = field(default_factory=dict)

    def apply(self, update: AssignmentUpdate) -> None:
        """Apply an update."""
        self.version = update.version
        for client_id in update.gone:
            self.members.pop(client_id, None)
        for each in update.assignments:
            self.members.setdefault(each.client_id, {})[each.topic] = each.lot()

    def update(self, group: str) -> AssignmentUpdate:
        """Return the whole table as an update."""
        return AssignmentUpdate(
            broker_name=self.broker_name,
            group=group,
            version=self.version,
            assignments=[
                TopicAssignment.of(client_id, topic, lot)
                for client_id, lots in self.members.items()
                for topic, lot in lots.items()
            ],
            is_whole=True,
        )


class AssignmentTables:
    """Tables by group."""

    def __init__(self) -> None:
        self._tables: dict[str, AssignmentTable] = {}

    def __iter__(self) -> Iterator[str]:
        return iter(self._tables)

    def assignments(self, group: str) -> Mapping[str, Lots]:
        """Return the assignments of a group's members."""
        table = self._tables.get(group)
        return table.members if table is not None else {}

    def has(self, group: str, client_id: str, topic: str, queues: Iterable[MessageQueue]) -> bool:
        """Return whether these queues are a member's last assignment."""
        return self.assignments(group).get(client_id, {}).get(topic, ()) == tuple(sorted(queues))

    def take(self, update: AssignmentUpdate) -> None:
        """Apply an update from a group's broker; after a change of broker, only a whole table counts."""
        if not update.version:
            return  # The sender has no assignments.
        known = self._tables.get(update.group)
        is_same = known is not None and known.broker_name == update.broker_name
        if is_same and known is not None and update.version <= known.version:
            return
        if update.is_over:
            self._tables.pop(update.group, None)
        elif update.is_whole or known is None:
            self._replace(update)
        elif is_same:
            known.apply(update)

    def offer(self, update: AssignmentUpdate) -> None:
        """Take another broker's table of a group that moves here: the newest table wins."""
        known = self._tables.get(update.group)
        if known is None or update.version > known.version:
            self._replace(update)

    def updates(self, is_wanted: Callable[[str], bool]) -> list[AssignmentUpdate]:
        """Return the whole tables of the wanted groups."""
        return [table.update(group) for group, table in self._tables.items() if is_wanted(group)]

    def version(self, group: str) -> int:
        """Return the version of a group's table; 0 if there is none."""
        table = self._tables.get(group)
        return table.version if table is not None else 0

    def _replace(self, update: AssignmentUpdate) -> None:
        table = self._tables[update.group] = AssignmentTable(update.broker_name)
        table.apply(update)
