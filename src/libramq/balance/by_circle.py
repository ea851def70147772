"""By circle (AVG_BY_CIRCLE): queues are dealt out to members one by one, like cards.

Upstream: AllocateMessageQueueAveragelyByCircle.java (AVG_BY_CIRCLE).
"""

from collections.abc import Sequence
from typing import TypeVar

Q = TypeVar("Q")


def by_circle(client_id: str, queues: Sequence[Q], client_ids: Sequence[str]) -> Sequence[Q]:
    """Deal the queues out one by one, round and round."""
    if client_id not in client_ids:
        return ()
    return queues[client_ids.index(client_id) :: len(client_ids)]
