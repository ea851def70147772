"""The state of POP: what is in flight, its journal, and the file that says where the journal begins.

open     loaded from what either broker left; Apache's is taken over, once
run      `timercheck` follows the oldest check point in flight, every 5 s
close    what is in flight is written again, so that the next start reads that only
"""

from collections.abc import Callable
from typing import Final

from libramq.broker.files.progress import Progress, ProgressFile
from libramq.broker.messages.message_log import MessageLog
from libramq.broker.pop.journal import PopJournal
from libramq.broker.pop.loading import Loaded, load, uncommitted
from libramq.broker.pop.timer_checkpoint import write_timer_checkpoint
from libramq.clock import Clock, read_clock
from libramq.errors import BrokerError, StoreError
from libramq.filesystem import FileSystem
from libramq.logs import get_logger
from libramq.message import names
from libramq.offsets import OffsetLedger
from libramq.pop import InFlight
from libramq.pop.positions import Positions
from libramq.store.message_store import MessageStore

log = get_logger(__name__)

#: As the committed offsets, to which it belongs.
SAVE_MS: Final = 5_000
#: Ours: check points that are written again at once.
CHUNK: Final = 256
#: Ours: with more in flight, the next start reads the whole journal instead: 100,000 take some 3 s.
WRITTEN_AT_CLOSE_MAX: Final = 100_000


class PopState:
    """POP's state below the broker's directory. is_group: whether a consumer group exists."""

    def __init__(
        self,
        store: MessageStore,
        ledger: OffsetLedger,
        filesystem: FileSystem,
        *,
        log: MessageLog,
        revive_topic: str,
        clock: Clock,
        is_group: Callable[[str], bool],
    ) -> None:
        self._store = store
        self._ledger = ledger
        self._filesystem = filesystem
        self._revive_topic = revive_topic
        self._clock = clock
        self._root = store.config.root
        self._path = self._root / "config" / "timercheck"
        loaded = Loaded()  # A slave hands out no messages; as a master it reads the whole journal.
        if not store.config.is_copy:
            now = read_clock(clock)
            loaded = load(store, ledger, filesystem, self._path, revive_topic=revive_topic, now=now)
        self.in_flight: InFlight = loaded.in_flight
        self.positions = Positions()
        self.journal = PopJournal(store, log, self.in_flight, revive_topic=revive_topic)
        self._keeps_wheel = loaded.keeps_wheel
        #: Whether the file may say where our journal begins.
        self._is_taken_over = not store.config.is_copy
        self._saved = loaded.place
        self._commit(loaded, is_group)
        if loaded.from_apache:
            self._take_over()
        self.progress = ProgressFile("timercheck", SAVE_MS, self._take, store)

    @property
    def has_progress(self) -> bool:
        """Return whether the file is out of date."""
        return self._is_taken_over and (self._place != self._saved or self.progress.taken is not None)

    def close(self) -> None:
        """Write again what is in flight, for a short start of either broker."""
        oldest = self.in_flight.oldest_place
        if oldest is None or not self._is_taken_over or len(self.in_flight) > WRITTEN_AT_CLOSE_MAX:
            return
        if self.journal.end - oldest > len(self.in_flight):
            try:
                self._write_again()
            except BrokerError as error:
                log.warning("what is in flight is not written again at the stop", reason=error.remark)

    @property
    def _place(self) -> int:
        oldest = self.in_flight.oldest_place
        return self.journal.end if oldest is None else oldest

    def _write_again(self) -> None:
        check_points = list(self.in_flight)
        for first in range(0, len(check_points), CHUNK):
            self.journal.write_again(check_points[first : first + CHUNK], self._clock.wall_ms())

    def _commit(self, loaded: Loaded, is_group: Callable[[str], bool]) -> None:
        """Commit what a killed broker had popped, and not committed yet."""
        for (group, topic, queue_id), offset in uncommitted(loaded, self._ledger):
            end = self._store.max_offset(topic, queue_id)
            if is_group(group) and end:
                record = self._ledger.offsets.commit(group, topic, queue_id, offset, end)
                self._ledger.append([record] if record is not None else [])

    def _take_over(self) -> None:
        """Make what Apache's broker left our journal's, so that it is applied once."""
        store, revive_topic = self._store, self._revive_topic
        try:
            if not self.in_flight and not store.queue_ids(revive_topic) and not self._has_wheel():
                return
            self._write_again()
            store.flush()
            for queue_id in store.queue_ids(revive_topic):
                end = store.max_offset(revive_topic, queue_id)
                record = self._ledger.offsets.commit(
                    names.REVIVE_GROUP, revive_topic, queue_id, max(0, end - 1), end
                )
                self._ledger.append([record] if record is not None else [])
            self._write(self._place)
            if not self._keeps_wheel:
                self._filesystem.unlink(self._root / "timerwheel")
                self._filesystem.remove_tree(self._root / "timerlog")
            else:
                log.warning(
                    "timer messages wait in Apache's timer wheel; this broker does not deliver them: "
                    "start Apache's broker on this directory for that"
                )
            self._saved = self._place
        except (BrokerError, StoreError, OSError) as error:
            self._is_taken_over = False
            log.error(
                "Apache's POP state cannot be taken over, and is read again at the next start",
                reason=str(error),
            )

    def _has_wheel(self) -> bool:
        return self._filesystem.exists(self._root / "timerwheel")

    def _write(self, place: int) -> None:
        read_ms = int(self._clock.wall_ms())
        write_timer_checkpoint(
            self._filesystem, self._path, place=place, read_ms=read_ms, keeps_apache=self._keeps_wheel
        )

    def _take(self) -> Progress | None:
        place = self._place
        if not self._is_taken_over or place == self._saved:
            return None

        def written() -> None:
            self._saved = place

        return Progress(write=lambda: self._write(place), written=written, failed=lambda: None)
