"""The running info: what a consumer answers to GET_CONSUMER_RUNNING_INFO.

Upstream: body/ConsumerRunningInfo.java, ProcessQueueInfo.java. Members that mqadmin reads without a check are
always there; what is not measured (rates and times by topic) is left out.
"""

import msgspec

from libramq.filter.subscription import SubscriptionData
from libramq.formats.document import Document
from libramq.message.queue import MessageQueue


class ProcessQueueInfo(Document, frozen=True, kw_only=True):
    """One queue of a consumer, with the messages that it has not finished.

    last_consume_timestamp: None where it is not measured, as by our consumers.
    """

    commit_offset: int
    cached_msg_min_offset: int = 0
    cached_msg_max_offset: int = 0
    cached_msg_count: int = 0
    cached_msg_size_in_mib: int = msgspec.field(name="cachedMsgSizeInMiB", default=0)
    locked: bool = False
    last_lock_timestamp: int = 0
    dropped: bool = msgspec.field(name="droped", default=False)  # As Apache spells it.
    last_pull_timestamp: int = 0
    last_consume_timestamp: int | None = None


class ConsumerRunningInfo(Document, frozen=True, kw_only=True):
    """A consumer: its settings, subscriptions and queues; jstack: what its threads do, if requested."""

    properties: dict[str, str] = {}
    subscription_set: list[SubscriptionData] = []
    mq_table: dict[MessageQueue, ProcessQueueInfo] = {}
    user_consumer_info: dict[str, str] = {}
    jstack: str | None = None
