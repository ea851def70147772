"""The consumer: what a client declares as a member of a group, whatever its protocol."""

from collections.abc import Sequence

import msgspec

from libramq.filter.subscription import (
    CLUSTERING,
    CONSUME_FROM_LAST_OFFSET,
    CONSUME_PASSIVELY,
    SubscriptionData,
)


class Consumer(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One group of a client; a Struct, as a client may have 1,000.

    Upstream: remoting/protocol/heartbeat/ConsumerData.java.
    """

    group: str
    subscriptions: Sequence[SubscriptionData] = ()
    consume_type: str = CONSUME_PASSIVELY
    message_model: str = CLUSTERING
    consume_from_where: str = CONSUME_FROM_LAST_OFFSET
