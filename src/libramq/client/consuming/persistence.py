"""The persistence: when changed offsets are committed, and when all are.

Under a coordinator nothing is committed that has not changed, so the timer rests while all is acknowledged: a
thousand consumers without messages would otherwise wake their process ten thousand times a second.
"""

from typing import Final

from libramq.client.consuming.effects import Effects
from libramq.client.consuming.membership.coordination import MemberCoordination
from libramq.client.consuming.ownership.ownership import Ownership
from libramq.clock import MonotonicMs
from libramq.kernel.deadlines import Deadline

#: ClientConfig.persistConsumerOffsetInterval: how often even unchanged offsets are committed, in case the
#: last owner's commit came after our first.
PERSIST_ALL_MS: Final = 5_000


class Persistence:
    """Commits offsets periodically."""

    def __init__(self, own: Ownership, coordination: MemberCoordination, timer: Deadline) -> None:
        """timer: of the next commits; the coordination may set it to an earlier time."""
        self._own = own
        self._coordination = coordination
        self._timer = timer
        self._persisted_ms = self._persist_all_due_ms = MonotonicMs(0)
        #: Whether no timer is set, as nothing is to be committed.
        self.rests = False

    def start(self, now_ms: MonotonicMs) -> None:
        """Set the first commits."""
        self._persisted_ms = now_ms
        self._timer.at(now_ms + self._coordination.persist_ms)
        self._persist_all_due_ms = now_ms + PERSIST_ALL_MS

    def due(self, now_ms: MonotonicMs) -> Effects:
        """Commit changed offsets; all of them if a former owner may have committed after us."""
        period_ms = self._coordination.persist_ms
        if now_ms - self._persisted_ms < period_ms:  # It has become longer.
            self._timer.at(self._persisted_ms + period_ms)
            return []
        self._persisted_ms = now_ms
        if self._may_rest():
            self.rests, self._own.offsets.is_changed = True, False
        else:
            self._timer.at(now_ms + period_ms)
        # If a coordinator allocates, no former owner commits after us.
        is_shared = self._coordination.allocates and not self._own.settings.assigns
        all_of_them = is_shared and self._own.settings.auto_commit and now_ms >= self._persist_all_due_ms
        if all_of_them:
            self._persist_all_due_ms = now_ms + PERSIST_ALL_MS
        return self._own.commits.commit(self._own.table.each(), all_of_them=all_of_them)

    def settle(self, now_ms: MonotonicMs) -> None:
        """Set a resting timer again if an offset has changed: to when it would have been due anyway."""
        if self._own.offsets.is_changed or self._coordination.allocates:
            self.rests = False
            period_ms = self._coordination.persist_ms
            periods = (now_ms - self._persisted_ms) // period_ms + 1
            self._timer.at(self._persisted_ms + periods * period_ms)

    def _may_rest(self) -> bool:
        """Return whether every offset is acknowledged, and will be until an event changes one."""
        if self._coordination.allocates or self._own.settings.fetches:
            return False  # Of a program that fetches, messages are finished without an event.
        return self._own.offsets.is_acknowledged
