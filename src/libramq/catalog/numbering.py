"""The numbering of a topic's queues over all brokers: the mapping of Kafka's partitions to queues, which is
stable when brokers are added.

    (broker-a, 4) (broker-b, 4) (broker-a, 2)        partitions 0–3 are queues 0–3 of broker-a,
                                                     4–7 are 0–3 of broker-b, 8–9 are 4–5 of broker-a

Queues are only appended, so a partition keeps its queue when brokers and queues are added, and while a broker
is away.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from libramq.formats.document import Document


class Run(Document, frozen=True, order=True):
    """The next queues of one broker."""

    broker_name: str
    queues: int = msgspec.field(name="count")


class Place(NamedTuple):
    """A partition's queue."""

    broker_name: str
    queue_id: int


class Numbering(Document, frozen=True):
    """The queues in the order of their numbers. version: grows when a topic is created again."""

    runs: tuple[Run, ...] = ()
    version: int = 0

    @property
    def size(self) -> int:
        """Return the number of partitions."""
        return sum(run.queues for run in self.runs)

    def counts(self) -> dict[str, int]:
        """Return the number of numbered queues of each broker."""
        counts: dict[str, int] = {}
        for run in self.runs:
            counts[run.broker_name] = counts.get(run.broker_name, 0) + run.queues
        return counts

    def places(self) -> list[Place]:
        """Return the queue of each partition."""
        numbered: dict[str, int] = {}
        found = []
        for run in self.runs:
            name, count = run.broker_name, run.queues
            first = numbered.get(name, 0)
            found += [Place(name, first + each) for each in range(count)]
            numbered[name] = first + count
        return found

    def place(self, partition: int) -> Place | None:
        """Return the queue of a partition; None if there is no such partition."""
        if partition < 0:
            return None
        numbered: dict[str, int] = {}
        for run in self.runs:
            name, count = run.broker_name, run.queues
            first = numbered.get(name, 0)
            if partition < count:
                return Place(name, first + partition)
            partition -= count
            numbered[name] = first + count
        return None

    def partition(self, broker_name: str, queue_id: int) -> int | None:
        """Return the partition of a queue; None if it has no number."""
        before = 0
        for run in self.runs:
            if run.broker_name == broker_name:
                if queue_id < run.queues:
                    return before + queue_id
                queue_id -= run.queues
            before += run.queues
        return None

    def covers(self, counts: Mapping[str, int]) -> bool:
        """Return whether all these queues have numbers."""
        known = self.counts()
        return all(known.get(name, 0) >= count for name, count in counts.items())

    def extended(self, counts: Mapping[str, int]) -> "Numbering":
        """Return the numbering with these queues: new ones are appended, sorted by broker name."""
        known = self.counts()
        more = [
            Run(name, counts[name] - known.get(name, 0))
            for name in sorted(counts)
            if counts[name] > known.get(name, 0)
        ]
        return Numbering((*self.runs, *more), self.version) if more else self


def spread(count: int, present: Mapping[str, int]) -> dict[str, int]:
    """Return the number of queues that each broker should have, `count` in all, as even as possible.

    present: the current numbers, none of which decreases; ties go to the first broker.
    """
    wanted = dict(present)
    for _ in range(count - sum(present.values())):
        wanted[min(wanted, key=wanted.__getitem__)] += 1
    return wanted


def best(numberings: Sequence[Numbering]) -> Numbering | None:
    """Return the numbering to continue from: the longest of the latest version.

    If two diverged while their brokers could not reach each other, all brokers choose the same one.
    """
    return max(numberings, key=lambda each: (each.version, each.size, each.runs), default=None)
