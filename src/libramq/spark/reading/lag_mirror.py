"""The lag mirror: a stream's positions as committed offsets of a separate group, for lag displays.

They are never read back: only Spark's checkpoint has a query's position. They are sent one-way when Spark
asks for the next batch, which it does when everything before is done; so a run's last batch is included,
while Spark's own `commit` comes one batch late and never for the last one.
"""

import logging
from collections.abc import Mapping
from typing import Protocol

from libramq.errors import ConfigError, RemoteError
from libramq.message.queue import MessageQueue
from libramq.spark.reading.positions import Positions

log = logging.getLogger(__name__)


class Group(Protocol):
    """The receiver of the offsets: libramq.client.lag_group."""

    def introduce(self, queues: list[MessageQueue]) -> None: ...
    def commit(self, positions: Mapping[MessageQueue, int]) -> None: ...


class LagMirror:
    """Commits changed positions."""

    def __init__(self, group: Group) -> None:
        self._group = group
        self._committed: dict[MessageQueue, int] = {}

    def show(self, positions: Positions) -> None:
        """Commit positions. Raises ConfigError for a group that has members; other failures are logged."""
        changed = {
            queue: offset for queue, offset in positions.items() if self._committed.get(queue) != offset
        }
        if not changed:
            return
        try:
            new = sorted(changed.keys() - self._committed.keys())
            if new:
                self._group.introduce(new)
            self._group.commit(changed)
        except ConfigError as error:
            raise ConfigError(f"commitGroupId: {error}") from None
        except RemoteError as error:
            log.warning("positions were not committed: %s", error)
        # No retry: the next batch brings the next positions.
        self._committed |= changed
