"""The audit file of a name server, which has no store: changes, sign-ins and refusals.

    <auditPath>            changes and sign-ins, a line of JSON each        ─► <auditPath>.1 when full
    <auditPath>.refused    refusals, which anyone can cause                 ─► <auditPath>.refused.1

With two files, a flood of refusals cannot displace a change. Only the server's own user can read the files.
Without auditPath the events go to the log. Requests do not wait for the file.
"""

from collections import deque
from functools import partial
from pathlib import Path
from typing import Final

from libramq.auth.audit import Audit, AuditEvent, Kind, encode_event, former_of, refusals_of
from libramq.clock import Clock, MonotonicMs
from libramq.errors import ConfigError
from libramq.filesystem import FileSystem, LocalFileSystem, refuse_shared_directory
from libramq.kernel.effect import Thread
from libramq.kernel.parts import Kernel
from libramq.logs import get_logger

log = get_logger(__name__)

#: The recorder's name in events: a name server has none.
RECORDER: Final = "name server"
#: Ours: the size at which a new file begins; about 40,000 events.
FILE_BYTES_MAX: Final = 10 * 1024 * 1024
#: Ours: events waiting for a slow disk; further ones are lost, which is logged.
WAITING_MAX: Final = 10_000


class AuditFile:
    """Writes the events of a name server. path: None for the server's log."""

    def __init__(self, clock: Clock, path: Path | None = None, filesystem: FileSystem | None = None) -> None:
        self.audit = Audit(RECORDER, clock, self._by)
        self._now_ms = clock.monotonic_ms
        self._path = path
        self._filesystem = (filesystem or LocalFileSystem()).private()
        self._waiting: deque[AuditEvent] = deque()
        self._is_writing = False
        self._kernel: Kernel | None = None
        if path is not None:
            refuse_shared_directory(path.absolute().parent, "auditPath")
            self._check(path)

    def begin(self, kernel: Kernel) -> None:
        """Record events of a kernel's requests."""
        self._kernel = kernel
        self._deadline = kernel.deadlines.new(self._write_due, "AuditFile")

    def close(self) -> None:
        """Write the pending events."""
        self._waiting += self.audit.take(self._now_ms(), all_of_them=True)
        events = list(self._waiting)
        self._waiting.clear()
        if self._path is None:
            self._log(events)
        elif events:
            self._written(self._try(self._path, events))

    def _by(self, due_ms: MonotonicMs) -> None:
        self._deadline.by(due_ms)

    def _write_due(self, now_ms: MonotonicMs) -> None:
        events = self.audit.take(now_ms)
        if self._path is None:
            self._log(events)
            return
        room = WAITING_MAX - len(self._waiting)
        self._waiting += events[:room]
        if len(events) > room:
            log.warning("audit events lost: the disk is slow", count=len(events) - room)
        self._write(self._path)

    def _write(self, path: Path) -> None:
        if self._is_writing or not self._waiting or self._kernel is None:
            return
        events = list(self._waiting)
        self._waiting.clear()
        self._is_writing = True

        def written(result: object) -> None:
            self._is_writing = False
            self._written(result)
            self._write(path)

        self._kernel.effects.run(Thread.DISK, partial(self._try, path, events), written)

    def _try(self, path: Path, events: list[AuditEvent]) -> object:
        """Write events, on a thread; return the error, if any."""
        try:
            for each, has_refusals in ((path, False), (refusals_of(path), True)):
                wanted = [one for one in events if (one.kind is Kind.REFUSED) == has_refusals]
                if wanted:
                    self._append(each, b"".join(encode_event(one) + b"\n" for one in wanted))
        except OSError as failed:
            return failed
        return None

    def _append(self, path: Path, data: bytes) -> None:
        file = self._filesystem.open(path, write=True, create=True)
        try:
            end = self._filesystem.file_size(file)
            is_full = end > 0 and end + len(data) > FILE_BYTES_MAX
            if not is_full:
                self._filesystem.pwrite(file, data, end)
        finally:
            self._filesystem.close(file)
        if is_full:
            path.replace(former_of(path))
            self._append(path, data)

    def _check(self, path: Path) -> None:
        """Raise ConfigError for a file that cannot be written."""
        try:
            self._filesystem.makedirs(path.absolute().parent)
            self._append(path, b"")
        except OSError as failed:
            raise ConfigError(f"auditPath={path} cannot be written: {failed.strerror}") from None

    def _written(self, result: object) -> None:
        if isinstance(result, Exception):
            log.warning("audit events lost: the file cannot be written", reason=str(result))

    def _log(self, events: list[AuditEvent]) -> None:
        for event in events:
            log.info("audit", kind=event.kind, user=event.user, host=event.host, request=event.request,
                     resources=list(event.resources), reason=event.reason, count=event.count)  # fmt: skip
