"""The given tables: what members that ask for their queues were given last, by whichever broker.

Every broker has those of all groups, by the word of the brokers where groups live. Where a group comes to
live elsewhere, the broker there goes on from the newest table that any of them has.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from libramq.message.queue import MessageQueue
from libramq.remoting.body.coordination import GivenQueues, PeerGivenBody

#: One member's, by topic.
Lots = dict[str, tuple[MessageQueue, ...]]


@dataclass(slots=True)
class GivenTable:
    """One group's. broker_name: whose word it is; version: higher with each of its words."""

    broker_name: str
    version: int = 0
    members: dict[str, Lots] = field(default_factory=dict)

    def apply(self, body: PeerGivenBody) -> None:
        """What has changed."""
        self.version = body.version
        for client_id in body.gone:
            self.members.pop(client_id, None)
        for lot in body.given:
            self.members.setdefault(lot.client_id, {})[lot.topic] = tuple(sorted(lot.queues_of_topic()))

    def body(self, group: str) -> PeerGivenBody:
        """The whole table."""
        return PeerGivenBody(
            broker_name=self.broker_name,
            group=group,
            version=self.version,
            given=[
                GivenQueues.of(client_id, topic, lot)
                for client_id, lots in self.members.items()
                for topic, lot in lots.items()
            ],
            is_whole=True,
        )


class GivenTables:
    """Tables by group."""

    def __init__(self) -> None:
        self._tables: dict[str, GivenTable] = {}

    def __iter__(self) -> Iterator[str]:
        return iter(self._tables)

    def given(self, group: str) -> Mapping[str, Lots]:
        """What the members of a group were given."""
        table = self._tables.get(group)
        return table.members if table is not None else {}

    def has(self, group: str, client_id: str, topic: str, queues: Iterable[MessageQueue]) -> bool:
        """Whether this is what a member was given last."""
        return self.given(group).get(client_id, {}).get(topic, ()) == tuple(sorted(queues))

    def take(self, body: PeerGivenBody) -> None:
        """The word of the broker where a group lives. Another one's counts when it tells all."""
        if not body.version:
            return  # It tells of no queues.
        known = self._tables.get(body.group)
        is_same = known is not None and known.broker_name == body.broker_name
        if is_same and known is not None and body.version <= known.version:
            return
        if body.is_over:
            self._tables.pop(body.group, None)
        elif body.is_whole or known is None:
            self._replace(body)
        elif is_same:
            known.apply(body)

    def offer(self, body: PeerGivenBody) -> None:
        """What another broker remembers of a group that comes to live here: the newest counts."""
        known = self._tables.get(body.group)
        if known is None or body.version > known.version:
            self._replace(body)

    def bodies(self, is_wanted: Callable[[str], bool]) -> list[PeerGivenBody]:
        """The whole tables of some groups."""
        return [table.body(group) for group, table in self._tables.items() if is_wanted(group)]

    def version(self, group: str) -> int:
        """The version of a group's table; 0: there is none."""
        table = self._tables.get(group)
        return table.version if table is not None else 0

    def _replace(self, body: PeerGivenBody) -> None:
        table = self._tables[body.group] = GivenTable(body.broker_name)
        table.apply(body)
