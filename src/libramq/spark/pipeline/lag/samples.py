"""Lag samples: the offsets of groups at one moment, one small file per sample.

DIRECTORY/samples/at=1777629600000.parquet      written elsewhere, then renamed: complete or absent
"""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from libramq.errors import BrokerError, ConfigError, RouteNotFound
from libramq.message.names import RETRY_PREFIX, groups_of
from libramq.message.queue import MessageQueue
from libramq.remoting.body.consumers import OffsetWrapper
from libramq.spark.pipeline.small_table import replace_table

if TYPE_CHECKING:
    import pyarrow as pa

Sample = dict[str, Any]


class GroupOffsets(Protocol):
    """The admin client that is queried: libramq.sync.Admin."""

    def topics(self) -> list[str]: ...
    def consume_stats(self, group: str, topic: str | None = None) -> dict[MessageQueue, OffsetWrapper]: ...


def groups_to_sample(admin: GroupOffsets, wanted: Sequence[str]) -> list[str]:
    """Return the existing groups, by name; ConfigError for a wanted one that does not exist."""
    there = groups_of(admin.topics())
    for group in wanted:
        if group not in there:
            raise ConfigError(f"no broker knows group {group}; there are: {', '.join(there) or 'none'}")
    return sorted(wanted) if wanted else there


def sample(admin: GroupOffsets, groups: Iterable[str], topics: Sequence[str], at_ms: int) -> list[Sample]:
    """Return the groups' current offsets, in all topics except retries, or in some."""
    at = datetime.fromtimestamp(at_ms / 1000, UTC)
    rows = []
    for group in groups:
        try:
            stats = admin.consume_stats(group)
        except (BrokerError, RouteNotFound):
            continue  # It never committed, or is being deleted.
        for queue, ends in sorted(stats.items()):
            if queue.topic in topics if topics else not queue.topic.startswith(RETRY_PREFIX):
                rows.append(
                    {
                        "group": group,
                        "topic": queue.topic,
                        "broker": queue.broker_name,
                        "queueId": queue.queue_id,
                        "at": at,
                        "broker_offset": ends.broker_offset,
                        "consumer_offset": ends.consumer_offset,
                    }
                )
    return rows


def write_sample(directory: Path, rows: Sequence[Sample], at_ms: int, schema: "pa.Schema") -> None:
    """Add one sample."""
    import pyarrow as pa

    directory.mkdir(parents=True, exist_ok=True)
    replace_table(directory / f"at={at_ms}.parquet", pa.Table.from_pylist(list(rows), schema))
