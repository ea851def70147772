"""What a client tells brokers about itself.

Upstream: remoting/protocol/heartbeat/HeartbeatData.java, ConsumerData.java, SubscriptionData.java.
"""

from typing import Final

import msgspec

from libramq.formats.document import Document

CONSUME_ACTIVELY: Final = "CONSUME_ACTIVELY"
CONSUME_PASSIVELY: Final = "CONSUME_PASSIVELY"
BROADCASTING: Final = "BROADCASTING"
CLUSTERING: Final = "CLUSTERING"
CONSUME_FROM_LAST_OFFSET: Final = "CONSUME_FROM_LAST_OFFSET"
CONSUME_FROM_FIRST_OFFSET: Final = "CONSUME_FROM_FIRST_OFFSET"
CONSUME_FROM_TIMESTAMP: Final = "CONSUME_FROM_TIMESTAMP"


class SubscriptionData(Document, frozen=True, kw_only=True):
    """Which messages of a topic a group wants."""

    topic: str
    sub_string: str = "*"
    tags_set: list[str] = []
    code_set: list[int] = []
    sub_version: int = 0
    expression_type: str | None = "TAG"
    class_filter_mode: bool = False


class ProducerData(Document, frozen=True, kw_only=True):
    """One producer group of a client."""

    group_name: str


class ConsumerData(Document, frozen=True, kw_only=True):
    """One consumer group of a client."""

    group_name: str
    consume_type: str = CONSUME_PASSIVELY
    message_model: str = CLUSTERING
    consume_from_where: str = CONSUME_FROM_LAST_OFFSET
    subscription_data_set: list[SubscriptionData] = []
    unit_mode: bool = False


class HeartbeatData(Document, frozen=True, kw_only=True):
    """A heartbeat. fingerprint ≠ 0 and without_sub are version 2 of it."""

    client_id: str = msgspec.field(name="clientID", default="")
    producer_data_set: list[ProducerData] = []
    consumer_data_set: list[ConsumerData] = []
    heartbeat_fingerprint: int = 0
    without_sub: bool = False
