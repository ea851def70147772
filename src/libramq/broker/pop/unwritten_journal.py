"""The journal of an acting slave, which writes none: its check points are in memory alone."""

from collections.abc import Sequence

from libramq.broker.messages.message_log import MessageLog
from libramq.broker.pop.journal import Ack, PopJournal
from libramq.clock import WallMs
from libramq.pop import CheckPoint, InFlight
from libramq.pop.unwritten import Unwritten
from libramq.store.log.append import StoreMessage
from libramq.store.message_store import MessageStore


class UnwrittenJournal(PopJournal):
    """Applies entries, and tells `Unwritten` what is done."""

    def __init__(
        self,
        unwritten: Unwritten,
        store: MessageStore,
        log: MessageLog,
        in_flight: InFlight,
        *,
        revive_topic: str,
    ) -> None:
        super().__init__(store, log, in_flight, revive_topic=revive_topic)
        self._unwritten = unwritten

    @property
    def must_wait(self) -> bool:
        """Return False: nothing has to reach a disk."""
        return False

    def write(
        self,
        check_points: Sequence[CheckPoint] = (),
        acks: Sequence[Ack] = (),
        *,
        copies: Sequence[StoreMessage] = (),
        wall_ms: WallMs,
    ) -> int:
        """Apply new check points and acknowledgements; return 0, no end of a log.

        A check point with an acknowledgement takes over the message, which is not done with that.
        """
        assert not copies
        for check_point in check_points:
            self._in_flight.add(check_point)
        for check_point, bits in acks:
            if not check_points:
                queue = check_point.group, check_point.topic, check_point.queue_id
                self._unwritten.done(queue, check_point.offsets_of(bits))
            self._in_flight.acknowledge(check_point, bits)
        return 0

    def mark(self, topic: str, group: str, queue_id: int, offset: int, wall_ms: WallMs) -> None:
        """Do nothing: no start reads this."""

    def compact(self, wall_ms: WallMs) -> None:
        """Do nothing: nothing is written."""
