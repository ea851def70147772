"""The local offset store: the offsets of a broadcasting consumer, in a file of this machine.

        <directory>/<client id>/<group>/offsets.json, a copy of it as offsets.json.bak
                                        offsets.json.lock, which its owner has locked

Path and format are Apache's, so either client continues where the other stopped; the lock is LibraMQ's own.
Two members with one file would each continue at the other's offsets, and skip messages that it handled.
Upstream: store/LocalFileOffsetStore.java, OffsetSerializeWrapper.java.
"""

import os
import weakref
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from libramq.errors import ConfigError, ProtocolError
from libramq.filesystem import FileSystem, make_directory, read_with_backup, safe_child
from libramq.formats import fastjson
from libramq.logs import get_logger
from libramq.message.queue import MessageQueue

log = get_logger(__name__)

#: LocalFileOffsetStore.LOCAL_OFFSET_STORE_DIR, below the home directory.
DIRECTORY: Final = ".rocketmq_offsets"
FILE: Final = "offsets.json"
LOCK_SUFFIX: Final = ".lock"
#: Ours: enough for a million queues.
FILE_CHARACTERS_MAX: Final = 64 * 1024 * 1024


class LocalOffsetStore:
    """The offsets of one client in one group."""

    def __init__(self, directory: Path, client_id: str, group: str, filesystem: FileSystem) -> None:
        self.path = safe_child(safe_child(directory, client_id), group) / FILE
        self._filesystem = filesystem
        self._offsets: dict[MessageQueue, int] = {}
        self._lock: int | None = None

    def lock(self) -> bool:
        """Become the file's owner until `release`; return False while another member of this machine is.

        Where locking is impossible (a full disk, a network file system) the member runs without a lock.
        """
        if self._lock is not None:
            return True
        try:
            if not self._filesystem.exists(self.path.parent):
                make_directory(self._filesystem, self.path.parent)
            self._lock = self._filesystem.lock(self.path.with_name(FILE + LOCK_SUFFIX))
        except OSError as error:
            log.warning(
                "local offsets cannot be locked; a second member with this file would go unnoticed",
                path=str(self.path),
                reason=str(error),
            )
            return True
        if self._lock is None:
            return False
        _owned.add(self)
        return True

    def release(self) -> None:
        """Give up ownership of the file."""
        lock, self._lock = self._lock, None
        if lock is not None:
            _owned.discard(self)
            self._filesystem.close(lock)

    def load(self) -> None:
        """Read the file or its backup; raises ConfigError if one exists but none can be read."""
        try:
            self._offsets = read_with_backup(self._filesystem, self.path, _offsets) or {}
        except (OSError, ProtocolError, ValueError) as error:
            raise ConfigError(
                f"the local offsets in {self.path} cannot be read ({error}); repair or remove the file"
            ) from error

    def read(self, queue: MessageQueue) -> int | None:
        """Return the offset of a queue; None if it is unknown."""
        return self._offsets.get(queue)

    def write(self, offsets: Iterable[tuple[MessageQueue, int]]) -> None:
        """Update offsets and write all of them; after a disk error, the next call writes them."""
        self._offsets.update(offsets)
        text = fastjson.dumps({"offsetTable": self._offsets}, indent=True).decode()
        try:
            self._filesystem.replace_text(self.path, text)
        except OSError as error:
            log.error("local offsets cannot be written", path=str(self.path), reason=str(error))


def _offsets(text: str) -> dict[MessageQueue, int]:
    if len(text) > FILE_CHARACTERS_MAX:
        raise ValueError(f"it has more than {FILE_CHARACTERS_MAX} characters")
    value: Any = fastjson.loads(text)
    table = value.get("offsetTable") if isinstance(value, dict) else None
    if not isinstance(table, dict):
        raise ValueError("it has no offsetTable")
    for queue, offset in table.items():
        if not isinstance(queue, MessageQueue) or not isinstance(offset, int) or offset < 0:
            raise ValueError(f"{queue!r}: {offset!r} is not the offset of a queue")
    return table


_owned: Final[weakref.WeakSet[LocalOffsetStore]] = weakref.WeakSet()


def _forked() -> None:
    """Close the child's descriptors: an open one would keep the lock after the parent's end."""
    for store in list(_owned):
        store.release()


if hasattr(os, "register_at_fork"):  # Not on platforms without fork.
    os.register_at_fork(after_in_child=_forked)
