"""The config table: configurations by name, the base of the topic and group tables. A change takes effect
once it is recorded.

On a full disk, changes made by requests are refused; creation on first use (a first pull) takes effect
unrecorded.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Generic, TypeVar

from libramq.clock import WallMs
from libramq.codes import ResponseCode
from libramq.errors import broker_error
from libramq.filesystem import NO_SPACE
from libramq.formats.tables import DataVersion
from libramq.logs import get_logger

log = get_logger(__name__)

C = TypeVar("C")


@contextmanager
def refused_without_room(name: str) -> Iterator[None]:
    """Refuse a request that changes a table on a full disk; raises BrokerError."""
    try:
        yield
    except OSError as error:
        if error.errno not in NO_SPACE:
            raise
        raise broker_error(
            ResponseCode.SERVICE_NOT_AVAILABLE,
            f"the disk has no room to record {name}, which stays as it was; free space: {error}",
        ) from error


class ConfigTable(Generic[C]):
    """Configurations by name.

    record: called with every change before it takes effect (None: the entry is removed); if it raises, the
    table stays as it is.
    """

    def __init__(
        self,
        entries: Mapping[str, C],
        data_version: DataVersion,
        record: Callable[[str, C | None, DataVersion], None],
    ) -> None:
        self._entries = dict(entries)
        self.data_version = data_version
        self._record = record
        #: Whether the last creation on use could not be recorded; this is logged once.
        self._is_unrecorded = False

    def __iter__(self) -> Iterator[C]:
        return iter(self._entries.values())

    def __len__(self) -> int:
        return len(self._entries)

    def names(self) -> list[str]:
        """Return all names."""
        return list(self._entries)

    def copy(self, name: str, config: C | None) -> None:
        """Copy an entry of the master at a slave; None: the master has no entry of that name."""
        self._record(name, config, self.data_version)
        self.apply(name, config, self.data_version)

    def delete(self, name: str, wall_ms: WallMs) -> bool:
        """Remove an entry; return whether it existed."""
        if name not in self._entries:
            return False
        self._change(name, None, wall_ms)
        return True

    def put_back(self, name: str, config: C, wall_ms: WallMs) -> None:
        """Add an entry again whose removal was recorded but failed elsewhere; the next fold includes it."""
        self._change_by_use(name, config, wall_ms)

    def apply(self, name: str, config: C | None, version: DataVersion) -> None:
        """Apply a recorded change."""
        if config is None:
            self._entries.pop(name, None)
        else:
            self._entries[name] = config
        self.data_version = version

    def _change(self, name: str, config: C | None, wall_ms: WallMs) -> None:
        version = self.data_version.next(wall_ms)
        with refused_without_room(name):
            self._record(name, config, version)
        self.apply(name, config, version)

    def _change_by_use(self, name: str, config: C, wall_ms: WallMs) -> None:
        """Add an entry, recorded or not: the next use adds it again, and the next fold includes it."""
        version = self.data_version.next(wall_ms)
        was_unrecorded, self._is_unrecorded = self._is_unrecorded, False
        try:
            self._record(name, config, version)
        except OSError as error:
            self._is_unrecorded = True
            if not was_unrecorded:
                what = "topics and groups created on first use cannot be recorded yet"
                log.error(what, name=name, reason=str(error))
        self.apply(name, config, version)
