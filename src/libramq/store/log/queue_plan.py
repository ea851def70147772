"""The plan of a queue: what a batch will add to it once the batch is written."""

import msgspec

from libramq.store.queues.consume_queue import ConsumeQueue
from libramq.store.queues.consume_queue_table import ConsumeQueueTable


class QueuePlan(msgspec.Struct):
    """The units that a batch will add to one queue, in as many pieces as there were runs.

    is_batch: it is a queue of batches. is_light: its messages count under their own topic.
    """

    queue: ConsumeQueue
    max_offset: int
    physical_end: int
    units: list[bytes]
    is_batch: bool = False
    is_light: bool = False


#: By topic and queue id.
Plans = dict[tuple[str, int], QueuePlan]


def new_plan(plans: Plans, queues: ConsumeQueueTable, key: tuple[str, int]) -> QueuePlan:
    """Add the plan of a queue that the batch has not met yet; it is made if there is none."""
    queue = queues.get_or_create(*key)
    plan = plans[key] = QueuePlan(queue, queue.max_offset, queue.last_physical_end, [], queue.is_batch)
    return plan
