"""The consumer: what a client declares as a member of a group, whatever its protocol."""

from collections.abc import Sequence
from dataclasses import dataclass

from libramq.filter.subscription import (
    CLUSTERING,
    CONSUME_FROM_LAST_OFFSET,
    CONSUME_PASSIVELY,
    SubscriptionData,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Consumer:
    """One group of a client. Upstream: remoting/protocol/heartbeat/ConsumerData.java."""

    group: str
    subscriptions: Sequence[SubscriptionData] = ()
    consume_type: str = CONSUME_PASSIVELY
    message_model: str = CLUSTERING
    consume_from_where: str = CONSUME_FROM_LAST_OFFSET
