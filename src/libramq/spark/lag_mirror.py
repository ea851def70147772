"""The lag mirror: a stream's positions as committed offsets of a group of its own, for displays of lag.

Nobody reads them back: Spark's checkpoint alone says where a query is. They are sent one way when Spark asks
for the next batch, which it does when everything before is done; so the last batch of a run is in them too,
while Spark's own `commit` comes a batch late and never for the last one.
"""

import logging
from collections.abc import Mapping
from typing import Protocol

from libramq.errors import ConfigError, LibraError
from libramq.message.queue import MessageQueue
from libramq.spark.positions import Positions

log = logging.getLogger(__name__)


class Offsets(Protocol):
    """Where the offsets go: libramq.client.queue_reader."""

    def commit(self, group: str, positions: Mapping[MessageQueue, int]) -> None: ...
    def group_members(self, group: str, queues: list[MessageQueue]) -> int: ...


class LagMirror:
    """Commits what has changed."""

    def __init__(self, group: str, offsets: Offsets) -> None:
        self._group = group
        self._offsets = offsets
        self._committed: dict[MessageQueue, int] = {}
        self._is_checked = False

    def show(self, positions: Positions) -> None:
        """Commit positions. Raises ConfigError for a group that has members; other failures are logged."""
        changed = {
            queue: offset for queue, offset in positions.items() if self._committed.get(queue) != offset
        }
        if not changed:
            return
        try:
            if not self._is_checked:
                self._refuse_members(sorted(positions))
                self._is_checked = True
            self._offsets.commit(self._group, changed)
        except ConfigError:
            raise
        except LibraError as error:
            log.warning("positions were not committed for group %s: %s", self._group, error)
        # Not again and again: the next batch brings the next ones.
        self._committed |= changed

    def _refuse_members(self, queues: list[MessageQueue]) -> None:
        count = self._offsets.group_members(self._group, queues)
        if count:
            raise ConfigError(
                f"commitGroupId={self._group!r}: the group has {count} members, whose positions would be "
                "overwritten; give a group of the query's own"
            )
