"""The running info of a consumer, and its offsets, for operators.

Upstream: DefaultMQPushConsumerImpl.consumerRunningInfo, ProcessQueue.fillProcessQueueInfo.
"""

from collections.abc import Iterable, Mapping, Sequence

from libramq.client.consuming.consumer_settings import ConsumerSettings
from libramq.client.consuming.membership.subscription import Subscriptions, heartbeat_data
from libramq.client.consuming.ownership.owned_queue import OwnedQueue
from libramq.clock import Now, WallMs
from libramq.message.queue import MessageQueue
from libramq.remoting.body.consumers import ConsumerRunningInfo, ProcessQueueInfo

_MIB = 1024 * 1024


def running_info(
    settings: ConsumerSettings,
    subscriptions: Subscriptions,
    queues: Iterable[OwnedQueue],
    *,
    name_servers: Sequence[str],
    version: str,
    started_ms: WallMs,
    now: Now,
    threads: str | None = None,
) -> ConsumerRunningInfo:
    """Return a consumer's state; threads: their stacks, if requested."""
    (consumer,) = heartbeat_data(settings, subscriptions, int(started_ms)).consumer_data_set
    return ConsumerRunningInfo(
        properties={
            "PROP_NAMESERVER_ADDR": ";".join(name_servers),
            "PROP_CONSUME_TYPE": consumer.consume_type,
            "PROP_CLIENT_VERSION": version,
            "PROP_CONSUMEORDERLY": "true" if settings.orderly else "false",
            "PROP_THREADPOOL_CORE_SIZE": str(settings.threads),
            "PROP_CONSUMER_START_TIMESTAMP": str(int(started_ms)),
            "consumerGroup": settings.group,
            "messageModel": consumer.message_model,
            "consumeFromWhere": consumer.consume_from_where,
            "consumeMessageBatchMaxSize": str(settings.batch_size),
            "pullBatchSize": str(settings.pull_batch_size),
            "allocateMessageQueueStrategy": settings.group_strategy,
        },
        subscription_set=consumer.subscription_data_set,
        mq_table={owned.queue: _queue_info(owned, settings, now) for owned in queues},
        jstack=threads,
    )


def held_offsets(queues: Iterable[OwnedQueue], topic: str) -> Mapping[MessageQueue, int]:
    """Return where a consumer continues in each of its queues of a topic."""
    return {owned.queue: _continues_at(owned) for owned in queues if owned.queue.topic == topic}


def _continues_at(owned: OwnedQueue) -> int:
    offset = owned.held.commit_offset
    return owned.cursor.start_offset if offset is None else offset


def _queue_info(owned: OwnedQueue, settings: ConsumerSettings, now: Now) -> ProcessQueueInfo:
    first, last = owned.held.bounds
    return ProcessQueueInfo(
        commit_offset=_continues_at(owned),
        cached_msg_min_offset=first,
        cached_msg_max_offset=last,
        cached_msg_count=len(owned.held),
        cached_msg_size_in_mib=owned.held.size // _MIB,
        locked=settings.orderly and owned.lock.is_held,
        dropped=not owned.is_ours,
        last_pull_timestamp=int(now.wall_ms) - (now.monotonic_ms - owned.cursor.last_ms),
    )
