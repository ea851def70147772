"""The subscription: what a consumer says about itself in the metadata of its strategies.

    version (2) | topics | user data | …          later versions append fields

Upstream: ConsumerProtocolSubscription.json.
"""

from libramq.errors import RemoteProtocolError
from libramq.wire.kafka.primitives import Reader

#: The protocol type of consumers.
CONSUMER: str = "consumer"


def subscribed_topics(metadata: bytes) -> frozenset[str]:
    """Return the topics of a subscription; none if it is none."""
    reader = Reader(metadata)
    try:
        reader.int16()
        return frozenset([reader.text(reader.int16()) for _ in range(reader.count(reader.int32()))])
    except RemoteProtocolError:
        return frozenset()
