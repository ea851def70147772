"""The order table: the last pop of each queue that is popped in order, as config/consumerOrderInfo.json has
it.
"""

from collections.abc import Callable, Mapping
from typing import Final

from libramq.clock import Now
from libramq.codes import ResponseCode
from libramq.errors import broker_error
from libramq.formats.document import Document
from libramq.pop.ordered import OrderedPop, OrderEntry, ordered_pop_of
from libramq.pop.positions import QueueOfGroup

#: Ours: queues that groups pop in order; each takes some 500 bytes, and 200 in the file.
ORDERED_MAX: Final = 200_000
_SEPARATOR: Final = "@"


class OrderFile(Document, frozen=True, kw_only=True):
    """The content of config/consumerOrderInfo.json: by "topic@group", then by queue."""

    table: dict[str, dict[int, OrderEntry]] = {}


class OrderTable:
    """The last pops, as they are in the file. record: journals a change before it takes effect."""

    def __init__(
        self,
        loaded: Mapping[str, Mapping[int, OrderEntry]],
        *,
        now: Callable[[], Now],
        record: Callable[[str, OrderEntry | None], None],
    ) -> None:
        self.pops: dict[QueueOfGroup, OrderedPop] = {}
        self._now = now
        self._record = record
        for key, queues in loaded.items():
            for queue_id, entry in queues.items():
                self.apply(f"{key}{_SEPARATOR}{queue_id}", entry)

    def put(self, queue: QueueOfGroup, pop: OrderedPop) -> None:
        """Record a queue's last pop; raises BrokerError if the disk refuses."""
        if len(self.pops) >= ORDERED_MAX and queue not in self.pops:
            raise broker_error(ResponseCode.SYSTEM_ERROR, f"{ORDERED_MAX} queues are popped in order already")
        self._write(queue, pop.entry(self._now()))
        self.pops[queue] = pop

    def remove(self, queue: QueueOfGroup) -> None:
        """Forget a queue's last pop."""
        if queue in self.pops:
            self._write(queue, None)
            del self.pops[queue]

    def _write(self, queue: QueueOfGroup, entry: OrderEntry | None) -> None:
        try:
            self._record(_name(queue), entry)
        except OSError as error:
            raise broker_error(ResponseCode.SYSTEM_ERROR, f"the pop cannot be journalled: {error}") from error

    def apply(self, name: str, entry: OrderEntry | None) -> None:
        """Apply a recorded change."""
        topic, group, queue_id = name.split(_SEPARATOR)
        pop = ordered_pop_of(entry, self._now()) if entry is not None else None
        if pop is None:
            self.pops.pop((group, topic, int(queue_id)), None)
        else:
            self.pops[group, topic, int(queue_id)] = pop

    def entries(self) -> dict[str, dict[int, OrderEntry]]:
        """Return the content of the file, by "topic@group" and queue."""
        table: dict[str, dict[int, OrderEntry]] = {}
        now = self._now()
        for (group, topic, queue_id), pop in self.pops.items():
            table.setdefault(f"{topic}{_SEPARATOR}{group}", {})[queue_id] = pop.entry(now)
        return table


def _name(queue: QueueOfGroup) -> str:
    group, topic, queue_id = queue
    return f"{topic}{_SEPARATOR}{group}{_SEPARATOR}{queue_id}"
