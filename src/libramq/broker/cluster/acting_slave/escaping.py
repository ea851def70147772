"""Escaping: what an acting slave, which may store nothing itself, sends to other masters, and when;
delay levels, timers, pops and transactions have modules of their own.

    acts? (`ActingSlave`)   ─┬─► delay levels       `delay_levels.py`
                             ├─► open transactions  `transactions.py`
                             ├─► timer messages     `timers.py`
                             └─► popped messages    `pops.py`

Nothing is stored here: a slave has the log of its master and nothing else. Messages that no other master has
accepted wait, so none is lost; a send without an answer is repeated, and may then be stored twice. While the
name server knows no master, the slave with the lowest id sends, and the others copy its progress each second.

A returning master asks for the offsets of the levels before it delivers (`returning_master.py`), which stops
all sending here. Until then its own, older offsets are not copied (`table_copies.py`).

Upstream: EscapeBridge.java, ScheduleMessageService.java, BrokerController.changeScheduleServiceStatus.
"""

from collections.abc import Iterable
from typing import Final, Protocol

from libramq.broker.cluster.acting_slave.delay_levels import SOON_MS, EscapingLevels
from libramq.broker.cluster.acting_slave.other_masters import AGAIN_MS, OtherMasters
from libramq.broker.cluster.acting_slave.pops import EscapingPops
from libramq.broker.cluster.acting_slave.timers import EscapingTimers
from libramq.broker.cluster.acting_slave.transactions import EscapingTransactions
from libramq.broker.config import BrokerConfig
from libramq.broker.files.files import BrokerFiles
from libramq.broker.groups.offset_commits import OffsetCommits
from libramq.clock import MonotonicMs
from libramq.kernel.parts import Kernel
from libramq.pop.check_point import AckSet
from libramq.rpc.question import Ask
from libramq.store.rounds import Rounds

#: Ours: the pause in sending after a master has asked for the offsets, unless it registers earlier.
PAUSE_MS: Final = 60_000
#: Ours: the longest interval at which a waiting master repeats its query: ReturningMaster.AGAIN_MS, after an
#: answer or ANSWER_MS_MAX.
QUERY_INTERVAL_MS: Final = 5_000
#: Ours: how long the record of sent messages, and a slot sent in part, are kept for a master to ask about
#: (ReturningMaster.WAIT_MS_MAX).
KEPT_MS: Final = 30_000


class EscapingSlave(Protocol):
    """The slave that delivers for its master."""

    @property
    def answered_last(self) -> str:
        """Return the name server to query for other masters."""

    @property
    def acts(self) -> bool:
        """Return whether this slave, and no other, acts for the lost master."""

    @property
    def is_confirmed(self) -> bool:
        """Return whether a name server confirmed within the last seconds that this slave acts."""

    @property
    def is_copying(self) -> bool:
        """Return whether the master is available and its log is being copied."""


class Escaping:
    """Delivers on behalf of a slave's lost master."""

    def __init__(
        self,
        config: BrokerConfig,
        files: BrokerFiles,
        offsets: OffsetCommits,
        kernel: Kernel,
        ask: Ask,
        slave: EscapingSlave,
    ) -> None:
        self._schedule = files.schedule
        self._clock = kernel.clock
        self._passed_on = files.passed_on
        self._slave = slave
        self._rounds = Rounds(files.store, kernel, self._act, again_ms=AGAIN_MS)
        self._rounds.by(self._clock.monotonic_ms() + AGAIN_MS)
        self._paused_until_ms = self._clock.monotonic_ms()
        self._queried_until_ms = self._kept_until_ms = self._paused_until_ms
        self._was_acting = False
        self._masters = OtherMasters(
            kernel, ask, config=config, name_server=lambda: slave.answered_last, ready=self._soon
        )
        self._levels = EscapingLevels(
            files.schedule,
            self._masters,
            moved=files.save_progress_soon,
            ready=self._soon,
        )
        self._transactions = EscapingTransactions(config, files, offsets, self._masters, kernel.clock)
        self._timers = EscapingTimers(config, files, self._masters, kernel.clock, self._soon)
        self._pops = EscapingPops(config, files, self._masters, kernel.clock, self._soon)
        self._has_timers = config.timer_wheel_enable

    def pause(self) -> bool:
        """Stop sending for a while, as a master is back; return whether answers are still pending."""
        now_ms = self._clock.monotonic_ms()
        self._paused_until_ms, self._queried_until_ms = now_ms + PAUSE_MS, now_ms + QUERY_INTERVAL_MS
        return self.is_awaiting

    @property
    def is_awaiting(self) -> bool:
        """Return whether an answer is pending, or something was sent in part."""
        return self._transactions.is_awaiting or self._is_midway or self._levels.is_awaiting

    def acknowledge(self, done: Iterable[AckSet]) -> bool:
        """Exclude acknowledged messages; return whether this slave acts and knows what was popped."""
        return self._is_active and self._pops.acknowledge(done)

    @property
    def knows_popped(self) -> bool:
        """Return whether this slave acts and has read which messages were popped."""
        return self._is_active and self._pops.knows_popped

    @property
    def _is_active(self) -> bool:
        return self._was_acting and self._clock.monotonic_ms() >= self._paused_until_ms

    def forget(self) -> None:
        """Forget all sends before the log is truncated: its offsets may soon mean other messages."""
        self.begin_again()
        self._passed_on.is_ahead = False

    def begin_again(self) -> None:
        """Forget all sends; reread the log and the progress once the slave acts again."""
        self._levels.begin()
        self._transactions.begin()
        self._timers.end()
        self._pops.end()
        self._was_acting = False

    @property
    def _is_midway(self) -> bool:
        """Return whether a timer slot or a window of popped messages has been sent in part."""
        return self._timers.is_midway or self._pops.is_midway

    def _soon(self) -> None:
        self._rounds.by(self._clock.monotonic_ms())

    def _act(self, now_ms: MonotonicMs) -> None:
        self._rounds.by(now_ms + AGAIN_MS)
        if self._slave.is_copying:
            self._paused_until_ms = now_ms  # The asking master has registered.
        if not self._slave.acts or now_ms < self._paused_until_ms:
            if self._is_midway and self._is_being_ended(now_ms):
                self._was_acting = self._was_acting and not self._slave.is_copying
                return
            if self._was_acting:
                self._schedule.copies.end()
                self._timers.end()
                self._pops.end()
            self._was_acting = False
            self._levels.end()
            return
        self._kept_until_ms = now_ms + KEPT_MS
        if not self._was_acting:
            self._schedule.copies.begin()
            self._transactions.begin()
            self._timers.begin()
            self._pops.begin()
            self._levels.begin()
            self._was_acting = self._passed_on.is_ahead = True
        if not self._slave.is_confirmed:
            return
        next_ms = self._levels.act(now_ms)
        if next_ms is not None:
            self._rounds.by(next_ms)
        timers = (self._timers,) if self._has_timers else ()
        for part in (self._transactions, *timers, self._pops):
            if part.act():
                self._rounds.by(now_ms + SOON_MS)

    def _is_being_ended(self, now_ms: MonotonicMs) -> bool:
        """Send the rest of what was sent in part; return whether some is left.

        The log may be copied again by then: a returning master asks later and waits for the rest. A master
        that was never gone asks nothing and has delivered it.
        """
        if now_ms < self._queried_until_ms or not self._slave.is_copying:
            for part in (self._timers, self._pops):
                if part.act(is_ending=True):
                    self._rounds.by(now_ms + SOON_MS)
            return True
        return now_ms < self._kept_until_ms
