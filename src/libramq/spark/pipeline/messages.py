"""The messages that a pipeline will read, queried before Spark starts."""

from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from typing import Final

from libramq.errors import ConfigError
from libramq.spark.reading.planner import Planner
from libramq.spark.reading.positions import Positions, Range
from libramq.spark.reading.worker import new_queue_reader
from libramq.spark.source_options import SourceOptions

#: Ours: a user is waiting. Once started, a run waits for brokers as long as brokerTimeout.
RETRY_TIMEOUT_MS: Final = 3_000


def waiting(options: Mapping[str, str], positions: Positions | None) -> list[Range]:
    """Return each queue's range from `positions` or a new query's start; empty ranges too.

    Raises RemoteError if servers do not answer, and ConfigError or RouteNotFound for a missing topic.
    """
    parsed = SourceOptions.parse(options)
    parsed.check_stream()
    impatient = replace(parsed, connection=replace(parsed.connection, retry_timeout_ms=RETRY_TIMEOUT_MS))
    with closing(new_queue_reader(impatient.connection)) as reader:
        queues = impatient.subscription.queues(reader)
        if not queues:
            raise ConfigError(f"{impatient.subscription}: there is no such topic")
        starts = dict(positions) if positions is not None else dict(Planner(impatient, reader).initial())
        ends = reader.max_offsets(queues)
        new = [queue for queue in queues if queue not in starts]
        starts |= reader.min_offsets(new) if new else {}
    return [Range(queue, min(starts[queue], ends[queue]), ends[queue]) for queue in queues]
