"""The unique ids of a query's messages: the same for the same row, however often it is written.

    query (12) | batch (8) | task (4) | row (8)        32 hexadecimal digits, like RocketMQ's own

A batch that is written again after a crash has the same ids, as long as it has the same rows in the same
order in the same tasks: a stateless query over our source does, with the same number of cores. After a
shuffle nothing says so, and the column uniqueId should be given, as of topic, broker, queue and offset.
"""

import hashlib
from collections.abc import Iterator
from itertools import count


def unique_ids(query: str, batch: int, task: int) -> Iterator[str]:
    """Yield the ids of one task's rows, in order."""
    prefix = f"{hashlib.sha256(query.encode()).hexdigest()[:12]}{batch & 0xFFFF_FFFF:08x}{task & 0xFFFF:04x}"
    prefix = prefix.upper()
    return (f"{prefix}{row & 0xFFFF_FFFF:08X}" for row in count())
