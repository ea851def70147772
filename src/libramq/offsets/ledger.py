"""The offset ledger: makes commits durable, in a journal before they are acknowledged and in
consumerOffset.json every 5 s; reads both at a start, and lowers offsets beyond the ends of queues.

    consumerOffset.journal.N   every change since the last fold, written before it is acknowledged
    consumerOffset.json        Apache's file, written every 5 s, with a copy as .bak;
                               lmqConsumerOffset.json with enableLmq

Upstream: broker/offset/ConsumerOffsetManager.java, common/ConfigManager.java.
"""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

from libramq.clock import WallMs
from libramq.errors import ProtocolError, RemoteProtocolError, StoreCorrupt
from libramq.filesystem import BACKUP_SUFFIX, FileSystem, PendingWrite, read_with_backup, sync_file
from libramq.formats import fastjson
from libramq.logs import get_logger
from libramq.message.names import is_light
from libramq.offsets.commits_ahead import CommitsAhead
from libramq.offsets.consumer_offset import SEPARATOR, ConsumerOffset
from libramq.offsets.journal import OffsetJournal, OffsetRecord

log = get_logger(__name__)

FILE_NAME: Final = "consumerOffset.json"
#: With enableLmq: LmqConsumerOffsetManager.configFilePath.
LIGHT_FILE_NAME: Final = "lmqConsumerOffset.json"
#: Ours: lowered offsets are logged for at most this many pairs of group and topic.
REPORTED_MAX: Final = 20

#: The members of Apache's file. pullOffsetTable, the progress of pulls, is not read, because the next pull
#: outdates it.
MEMBERS: Final = frozenset({
    "dataVersion", "offsetTable", "resetOffsetTable", "pullOffsetTable", "lmqOffsetTable"
})  # fmt: skip


#: Offsets, pending resets, the version, and members written by another version.
_Tables = tuple[dict[str, dict[int, int]], dict[str, dict[int, int]], dict[str, int], dict[str, Any]]


def light_apart(offsets: Mapping[str, Mapping[int, int]]) -> dict[str, Any]:
    """Return committed offsets in two tables, as Apache's broker keeps them with enableLmq.

    Light groups have one offset per topic, that of queue 0.
    """
    light = {key for key in offsets if is_light(key.rpartition(SEPARATOR)[2])}
    return {
        "offsetTable": {key: queues for key, queues in offsets.items() if key not in light},
        "lmqOffsetTable": {key: offsets[key][0] for key in light if 0 in offsets[key]},
    }


class OffsetLedger:
    """Committed offsets that survive the process. has_light: enableLmq, for which Apache has another file.

    The newer of the two files is read, so that no group starts over after a change of the option.
    """

    def __init__(
        self,
        filesystem: FileSystem,
        config_directory: Path,
        ahead: CommitsAhead | None = None,
        *,
        has_light: bool = False,
    ) -> None:
        self.offsets = ConsumerOffset(ahead)
        self._filesystem = filesystem
        self._path = config_directory / (LIGHT_FILE_NAME if has_light else FILE_NAME)
        self._other_path = config_directory / (FILE_NAME if has_light else LIGHT_FILE_NAME)
        self._journal = OffsetJournal(filesystem, config_directory)
        self._version: dict[str, int] = {"counter": 0, "stateVersion": 0, "timestamp": 0}
        #: Members written by another version, which are preserved.
        self._unknown: dict[str, Any] = {}
        #: Whether a fold would write changes.
        self.has_changes = False
        #: Called when a fold becomes due.
        self.changed: Callable[[], None] = lambda: None

    def open(
        self,
        wall_ms: WallMs,
        durable_end: Callable[[str, int], int | None] = lambda topic, queue_id: None,
        begins_again: str = "",
    ) -> bool:
        """Read the table and its journals, and fold them; return whether any of them existed.

        Raises StoreCorrupt if the file is not a table.

        durable_end: returns the end of a queue; None if unknown. Afterwards no offset lies beyond its queue's
        end, which is durable before anything is appended: otherwise later messages would validate a lost
        message's offset. begins_again: a group that loses all of its offsets if one of them lay beyond its
        end.
        """
        found = self._read()
        self.has_changes = self.has_changes or found is None  # From now on a missing file was lost.
        if found is not None:
            offsets, resets, self._version, self._unknown = found
            self.offsets.load(offsets, resets)
        is_there = found is not None
        for record in self._journal.replay():
            self.offsets.apply(record)
            self.has_changes = is_there = True
        ahead = self.offsets.ahead
        ahead.drop_outdated(self.offsets.query)  # Before clamping, so by the committed offsets.
        changes = self.offsets.clamp(durable_end)
        if changes:
            self.has_changes = True
            for key in list(dict.fromkeys(change.key for change in changes))[:REPORTED_MAX]:
                queues = {change.queue_id: change.offset for change in changes if change.key == key}
                log.warning(
                    "committed offsets lay beyond the end of their queues and were lowered",
                    of=key,
                    now=queues,
                )
        for topic, queue_id in list(ahead.by_queue):
            end = durable_end(topic, queue_id)
            if end is not None and self.offsets.reached(topic, queue_id, end):
                self.has_changes = True
        if any(change.key.rpartition(SEPARATOR)[2] == begins_again for change in changes):
            self.offsets.remove_group(begins_again)
        try:
            self.persist(wall_ms)
        except OSError as error:  # On a full disk reads continue; the next fold retries.
            log.error("committed offsets not written; the journals are kept", reason=str(error))
        return is_there

    @property
    def journal_path(self) -> Path:
        """Return the path of the latest journal."""
        return self._journal.path

    def append(self, records: Iterable[OffsetRecord]) -> None:
        """Journal changes with one write; afterwards they may be acknowledged."""
        self._journal.append(records)
        if not self.has_changes:
            self.has_changes = True
            self.changed()

    def sync(self) -> None:
        """Flush the latest journal, waiting for the disk."""
        path = self._journal.path
        sync_file(self._filesystem, path)
        self._filesystem.sync_directory(path.parent)

    def take(self, wall_ms: WallMs) -> PendingWrite | None:
        """Return a pending write of the whole table, if one is due."""
        if not self.has_changes:
            return None
        counter = self._version["counter"] + 1
        self._version = {**self._version, "counter": counter, "timestamp": int(wall_ms)}
        self._journal.begin()
        self.has_changes = False
        document = {**self._unknown, **self.document()}

        def failed() -> None:
            self.has_changes = True
            self.changed()

        return self._journal.fold(partial(self._save, document), written=lambda: None, failed=failed)

    def _save(self, document: dict[str, Any]) -> None:
        """Encode and write the table, in a thread: 400,000 offsets take more than a second."""
        if self._path.name == LIGHT_FILE_NAME:
            document = document | light_apart(document["offsetTable"])
        self._filesystem.replace_text(self._path, fastjson.dumps(document, indent=True).decode())

    def document(self) -> dict[str, Any]:
        """Return the table in the format of consumerOffset.json and of slaves; it does not change later."""
        return {"dataVersion": self._version, **self.offsets.tables()}

    def persist(self, wall_ms: WallMs) -> None:
        """Fold now, waiting for the disk."""
        plan = self.take(wall_ms)
        if plan is not None:
            try:
                plan.write()
            except OSError:
                plan.failed()
                raise
            plan.written()

    def close(self, wall_ms: WallMs) -> None:
        """Fold and close."""
        try:
            self.persist(wall_ms)
        finally:
            self._journal.finish()

    def abandon(self, *, touches_files: bool = True) -> None:
        """Close without a fold, keeping all journals that are not empty."""
        if touches_files:
            self._journal.finish()
        else:
            self._journal.close()

    def _read(self) -> _Tables | None:
        own, other = self._read_file(self._path), self._read_file(self._other_path)
        if other is not None and own is None:
            self.has_changes = True  # Write it where Apache's broker looks for it.
        return max((own, other), key=lambda found: found[2]["timestamp"] if found is not None else -1)

    def _read_file(self, own_path: Path) -> _Tables | None:
        def decode(text: str) -> _Tables:
            document = fastjson.loads(text)
            light = document.get("lmqOffsetTable") or {} if isinstance(document, dict) else None
            if not isinstance(document, dict) or not isinstance(light, dict):
                raise RemoteProtocolError("it holds no table")
            return (
                offset_table(document.get("offsetTable"))
                | offset_table({key: {0: offset} for key, offset in light.items()}),
                offset_table(document.get("resetOffsetTable")),
                {**self._version, **_integers(document.get("dataVersion"))},
                {name: member for name, member in document.items() if name not in MEMBERS},
            )

        try:
            return read_with_backup(self._filesystem, own_path, decode)
        except ProtocolError as failed:
            # Starting without offsets would send every group back to the beginning.
            raise StoreCorrupt(
                f"{own_path} cannot be read ({failed}), and neither can its {BACKUP_SUFFIX}; repair one of"
                " the two, or remove both, and all groups begin anew"
            ) from failed


def offset_table(value: Any) -> dict[str, dict[int, int]]:
    """Return a table of offsets from its document; raises RemoteProtocolError if it is not one."""
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise RemoteProtocolError("an offset table is no object")
    table: dict[str, dict[int, int]] = {}
    for key, offsets in value.items():
        if not isinstance(key, str) or not isinstance(offsets, dict):
            raise RemoteProtocolError(f"the offsets of {key!r} are no object")
        table[key] = {}
        for queue_id, offset in offsets.items():
            # Standard JSON quotes them.
            if isinstance(queue_id, str) and queue_id.isascii() and queue_id.isdecimal():
                queue_id = int(queue_id)
            if not isinstance(queue_id, int) or not isinstance(offset, int):
                raise RemoteProtocolError(f"an offset of {key!r} is no number")
            if 0 <= queue_id < 1 << 31 and 0 <= offset < 1 << 63:
                table[key][queue_id] = offset
    return table


def _integers(value: Any) -> dict[str, int]:
    if not isinstance(value, dict):
        return {}
    return {name: number for name, number in value.items() if type(name) is str and type(number) is int}
