"""Averagely (AVG): each member gets one run of neighbouring queues, the first members the remainder.

Upstream: AllocateMessageQueueAveragely.java (AVG).
"""

from collections.abc import Sequence
from typing import TypeVar

Q = TypeVar("Q")


def averagely(client_id: str, queues: Sequence[Q], client_ids: Sequence[str]) -> Sequence[Q]:
    """Give each client one run of neighbouring queues; the first ones get the remainder."""
    if client_id not in client_ids:
        return ()
    position = client_ids.index(client_id)
    share, remainder = divmod(len(queues), len(client_ids))
    start = position * share + min(position, remainder)
    count = share + (position < remainder)
    return queues[start : start + count]
