"""The body of a heartbeat, in which a client describes its producer and consumer groups to brokers.

The garbage collector does not track these types: a client may have 1,000 groups, and 25,000 objects stop the
loop for 20 ms.

Upstream: remoting/protocol/heartbeat/HeartbeatData.java, ConsumerData.java.
"""

import msgspec

from libramq.filter.subscription import (
    CLUSTERING,
    CONSUME_FROM_LAST_OFFSET,
    CONSUME_PASSIVELY,
    SubscriptionData,
)
from libramq.formats.document import Document


class ProducerData(Document, frozen=True, kw_only=True, gc=False):
    """One producer group of a client."""

    group_name: str


class ConsumerData(Document, frozen=True, kw_only=True, gc=False):
    """One consumer group of a client."""

    group_name: str
    consume_type: str = CONSUME_PASSIVELY
    message_model: str = CLUSTERING
    consume_from_where: str = CONSUME_FROM_LAST_OFFSET
    subscription_data_set: list[SubscriptionData] = []
    unit_mode: bool = False


class HeartbeatData(Document, frozen=True, kw_only=True, gc=False):
    """A heartbeat. fingerprint ≠ 0 and without_sub belong to version 2."""

    client_id: str = msgspec.field(name="clientID", default="")
    producer_data_set: list[ProducerData] = []
    consumer_data_set: list[ConsumerData] = []
    heartbeat_fingerprint: int = 0
    without_sub: bool = False
