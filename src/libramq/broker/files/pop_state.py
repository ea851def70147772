"""POP's state: the check points in flight, their journal, where the next start begins to read it, and what a
clean stop rewrites.

    open     the state left by either broker is loaded; Apache's is taken over, once
    close    check points in flight are rewritten, so that the next start reads only those
"""

from collections.abc import Callable, Iterator
from typing import Final

from libramq.broker.files.message_log import MessageLog
from libramq.broker.files.pop_journal import PopJournal, UnwrittenJournal
from libramq.broker.files.pop_loading import Loaded, load, uncommitted
from libramq.clock import Clock, read_clock
from libramq.errors import BrokerError, StoreError
from libramq.kernel.work import portions
from libramq.logs import get_logger
from libramq.message import names
from libramq.offsets.ledger import OffsetLedger
from libramq.pop import InFlight
from libramq.pop.passed_on import PassedOn
from libramq.pop.positions import Positions
from libramq.pop.unwritten import Unwritten
from libramq.store.message_store import MessageStore
from libramq.timers.timer_checkpoint import FoundCheckpoint

log = get_logger(__name__)

#: Ours: with more in flight, the next start reads the whole journal instead: 100,000 take some 3 s.
WRITTEN_AT_CLOSE_MAX: Final = 100_000


class PopState:
    """POP's state below the broker's directory. is_group: returns whether a consumer group exists.

    passed_on: the messages that this broker has passed on as a slave, if it was one.
    """

    def __init__(
        self,
        store: MessageStore,
        ledger: OffsetLedger,
        checkpoint: FoundCheckpoint | None,
        *,
        log: MessageLog,
        revive_topic: str,
        clock: Clock,
        is_group: Callable[[str], bool],
        passed_on: PassedOn | None = None,
    ) -> None:
        self._store = store
        self._ledger = ledger
        self._revive_topic = revive_topic
        self._clock = clock
        loaded = Loaded(store.deletions)
        # A slave hands out no messages; when it becomes a master, it reads the whole journal.
        if not store.config.is_copy:
            loaded = load(store, ledger, checkpoint, revive_topic=revive_topic, now=read_clock(clock))
        self.in_flight: InFlight = loaded.in_flight
        #: The deliveries of an acting slave; None at a master.
        self.unwritten = Unwritten() if store.config.is_copy else None
        self.positions = Positions() if self.unwritten is None else self.unwritten
        self.journal = (
            PopJournal(store, log, self.in_flight, revive_topic=revive_topic)
            if self.unwritten is None
            else UnwrittenJournal(self.unwritten, store, log, self.in_flight, revive_topic=revive_topic)
        )
        #: Whether the checkpoint file may name the beginning of our journal.
        self._is_taken_over = not store.config.is_copy
        self._commit(loaded, is_group)
        if loaded.from_apache:
            self._take_over()
        if passed_on is not None:
            self._leave_out(passed_on)

    # For the timers (`timers.PopEntries`).

    @property
    def place(self) -> int:
        """Return where the next start begins to read the journal; -1: Apache's state must be read again."""
        if not self._is_taken_over:
            return -1
        oldest = self.in_flight.oldest_place
        return self.journal.end if oldest is None else oldest

    @property
    def oldest_place(self) -> int | None:
        """Return the offset of the oldest check point in flight; None if there is none."""
        return self.in_flight.oldest_place if self._is_taken_over else None

    def skip(self, offset: int) -> int:
        """Return the offset behind the entries that this process wrote at an offset."""
        return self.journal.skip(offset)

    def owns(self, real_topic: str | None) -> bool:
        """Return whether timer messages for a topic are POP's entries; those not taken over are delivered."""
        return self._is_taken_over and real_topic == self._revive_topic

    def passed_on(self, what: PassedOn) -> Iterator[None]:
        """Acknowledge messages that a slave has passed on or knows as acknowledged; yields after each step.

        Raises BrokerError.
        """
        acknowledged = dict(what.acknowledged)
        done = 0
        for some in portions(list(self.in_flight)):
            acks = list(what.done_of([each for each in some if not each.is_settled], acknowledged))
            if acks:
                self.journal.write((), acks, wall_ms=self._clock.wall_ms())
            done += len(acks)
            yield
        if done:
            log.info("a slave has passed on pops, or got their acknowledgements", check_points=done)

    def close(self) -> None:
        """Rewrite check points in flight, for a short start of either broker."""
        oldest = self.in_flight.oldest_place
        if oldest is None or not self._is_taken_over or len(self.in_flight) > WRITTEN_AT_CLOSE_MAX:
            return
        if self.journal.end - oldest > len(self.in_flight):
            try:
                self._write_again()
            except BrokerError as error:
                log.warning("check points in flight are not rewritten at the stop", reason=error.remark)

    def _write_again(self) -> None:
        for some in portions(list(self.in_flight)):
            self.journal.write_again(some, self._clock.wall_ms())

    def _leave_out(self, passed_on: PassedOn) -> None:
        """Acknowledge messages that this broker has passed on as a slave."""
        try:
            for _ in self.passed_on(passed_on):
                pass
        except BrokerError as error:
            log.error("messages passed on as a slave are visible again", reason=error.remark)

    def _commit(self, loaded: Loaded, is_group: Callable[[str], bool]) -> None:
        """Commit offsets of pops that a killed broker had not committed yet."""
        for (group, topic, queue_id), offset in uncommitted(loaded, self._ledger):
            end = self._store.max_offset(topic, queue_id)
            if is_group(group) and end:
                record = self._ledger.offsets.commit(group, topic, queue_id, offset, end)
                self._ledger.append([record] if record is not None else [])

    def _take_over(self) -> None:
        """Transfer the state left by Apache's broker to our journal, so that it is applied once."""
        store, revive_topic = self._store, self._revive_topic
        try:
            if not self.in_flight and not store.queue_ids(revive_topic):
                return
            self._write_again()
            store.flush()
            for queue_id in store.queue_ids(revive_topic):
                end = store.max_offset(revive_topic, queue_id)
                record = self._ledger.offsets.commit(
                    names.REVIVE_GROUP, revive_topic, queue_id, max(0, end - 1), end
                )
                self._ledger.append([record] if record is not None else [])
        except (BrokerError, StoreError, OSError) as error:
            self._is_taken_over = False
            log.error(
                "Apache's POP state cannot be taken over, and is read again at the next start",
                reason=str(error),
            )
