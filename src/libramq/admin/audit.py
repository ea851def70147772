"""The audit of a cluster (`libra admin audit`): the newest events recorded by its brokers or a name server,
merged by time.
"""

from collections.abc import Iterable, Iterator
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Final

import msgspec

from libramq.auth.audit import AuditEvent, decode_event, former_of, refusals_of
from libramq.client.queue_reader import QueueReader
from libramq.errors import ConfigError, RouteNotFound
from libramq.message.names import AUDIT_TOPIC
from libramq.message.queue import MessageQueue
from libramq.transport.access import environment_access
from libramq.transport.address import split_name_servers

#: Ours: the group that reads the topic; a user with policies needs Sub on both.
READER_GROUP: Final = AUDIT_TOPIC
#: Ours: events that are searched at each broker, newest first.
SEARCHED_MAX: Final = 100_000
#: Ours: events read at once, from the newest backwards.
STRETCH: Final = 1_000


def audit_events(
    namesrv: str, *, last: int, kind: str | None = None, user: str | None = None
) -> list[AuditEvent]:
    """Return the newest events of all brokers, oldest first; raises ConfigError if no broker has an audit."""
    servers, access = split_name_servers(namesrv), environment_access()
    with closing(QueueReader(servers, group=READER_GROUP, access=access)) as reader:
        try:
            queues = reader.queues(AUDIT_TOPIC)
        except RouteNotFound:
            raise ConfigError(
                f"no broker at name server {namesrv} has an audit: it needs authenticationEnabled=true, and "
                "auditEnabled, which is on by default"
            ) from None
        starts, ends = reader.min_offsets(queues), reader.max_offsets(queues)
        found: list[AuditEvent] = []
        for queue in queues:
            bodies = _backwards(reader, queue, starts[queue], ends[queue])
            found += islice(_wanted(bodies, kind, user), last)
    return sorted(found, key=lambda event: event.at_ms)[-last:]


def file_events(
    path: Path, *, last: int, kind: str | None = None, user: str | None = None
) -> list[AuditEvent]:
    """Return the newest events in a name server's files, oldest first; raises ConfigError."""
    try:
        files = [at for each in (path, refusals_of(path)) for at in (former_of(each), each)]
        lines = [line for each in files if each.exists() for line in each.read_bytes().splitlines()]
    except OSError as failed:
        raise ConfigError(f"{path} cannot be read: {failed.strerror}") from None
    if not any(each.exists() for each in files):
        raise ConfigError(f"there is no {path}; a name server writes its audit to auditPath")
    return sorted(_wanted(lines, kind, user), key=lambda event: event.at_ms)[-last:]


def _wanted(events: Iterable[bytes], kind: str | None, user: str | None) -> Iterator[AuditEvent]:
    for data in events:
        try:
            event = decode_event(data)
        except msgspec.DecodeError:
            continue  # A later version, or a truncated line.
        if kind in (None, event.kind) and user in (None, event.user):
            yield event


def _backwards(reader: QueueReader, queue: MessageQueue, start: int, end: int) -> Iterator[bytes]:
    """Yield a queue's events, newest first."""
    start = max(start, end - SEARCHED_MAX)
    while end > start:
        begin = max(start, end - STRETCH)
        yield from reversed([message.body for message in reader.messages(queue, begin, end)])
        end = begin
