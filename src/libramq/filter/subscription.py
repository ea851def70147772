"""The subscription: which messages of a topic a group receives, and how its members share them.

Upstream: remoting/protocol/heartbeat/SubscriptionData.java, MessageModel.java, ConsumeType.java,
common/consumer/ConsumeFromWhere.java.
"""

from typing import Final

from libramq.formats.document import Document

#: How messages are delivered: fetched by the client, or pushed to its handler.
CONSUME_ACTIVELY: Final = "CONSUME_ACTIVELY"
CONSUME_PASSIVELY: Final = "CONSUME_PASSIVELY"
#: Whether every member gets every message, or one member gets each message.
BROADCASTING: Final = "BROADCASTING"
CLUSTERING: Final = "CLUSTERING"
#: Where a group begins that has not committed anything.
CONSUME_FROM_LAST_OFFSET: Final = "CONSUME_FROM_LAST_OFFSET"
CONSUME_FROM_FIRST_OFFSET: Final = "CONSUME_FROM_FIRST_OFFSET"
CONSUME_FROM_TIMESTAMP: Final = "CONSUME_FROM_TIMESTAMP"


class SubscriptionData(Document, frozen=True, kw_only=True, gc=False):
    """Which messages of a topic a group receives.

    The garbage collector does not look at it: brokers have thousands, none in a cycle.
    """

    topic: str
    sub_string: str = "*"
    tags_set: tuple[str, ...] = ()
    code_set: tuple[int, ...] = ()
    sub_version: int = 0
    expression_type: str | None = "TAG"
    class_filter_mode: bool = False
