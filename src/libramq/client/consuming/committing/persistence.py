"""The persistence: when changed offsets are committed, and when all are."""

from typing import Final

from libramq.client.consuming.committing.commits import Commits
from libramq.client.consuming.due import PersistDue
from libramq.client.consuming.membership.coordination import MemberCoordination
from libramq.client.consuming.ownership.ownership import Ownership
from libramq.client.consuming.signals import Steps
from libramq.clock import MonotonicMs

#: ClientConfig.persistConsumerOffsetInterval: how often even unchanged offsets are committed, in case the
#: last owner's commit came after our first.
PERSIST_ALL_MS: Final = 5_000


class Persistence:
    """Commits offsets periodically."""

    def __init__(self, own: Ownership, commits: Commits, coordination: MemberCoordination) -> None:
        self._own = own
        self._commits = commits
        self._coordination = coordination
        self._persisted_ms = self._persist_all_due_ms = MonotonicMs(0)

    def start(self, now_ms: MonotonicMs) -> None:
        """Set the first commits."""
        self._later(now_ms)
        self._persist_all_due_ms = now_ms + PERSIST_ALL_MS

    def due(self, now_ms: MonotonicMs) -> Steps:
        """Commit changed offsets; all of them if a former owner may have committed after us."""
        if now_ms - self._persisted_ms < self._coordination.persist_ms:
            return []  # The period has become shorter; another timer came up before.
        self._later(now_ms)  # If a coordinator allocates, no former owner commits after us.
        is_shared = self._coordination.allocates and not self._own.settings.assigns
        all_of_them = is_shared and self._own.settings.auto_commit and now_ms >= self._persist_all_due_ms
        if all_of_them:
            self._persist_all_due_ms = now_ms + PERSIST_ALL_MS
        return self._commits.commit(self._own.table.each(), all_of_them=all_of_them)

    def _later(self, now_ms: MonotonicMs) -> None:
        self._persisted_ms = now_ms
        self._own.timers.at(now_ms + self._coordination.persist_ms, PersistDue())
