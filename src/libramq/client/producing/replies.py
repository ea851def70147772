"""Replies to requests that came as messages: the side that answers.

A reply is a message to the cluster's reply topic, which the broker passes on to the client that waits for it.
Upstream: MessageUtil.createReplyMessage.
"""

from typing import Final

from libramq.errors import ConfigError
from libramq.message import properties as names
from libramq.message.message import MessageExt

#: MixAll.REPLY_TOPIC_POSTFIX and REPLY_MESSAGE_FLAG.
REPLY_TOPIC_SUFFIX: Final = "_REPLY_TOPIC"
REPLY: Final = "reply"


def reply_topic(request: MessageExt) -> str:
    """Return where replies to a request go; ConfigError for a message that is no request."""
    cluster = request.properties.get(names.CLUSTER)
    if not is_request(request) or not cluster:
        raise ConfigError(
            f"message {request.message_id} of {request.topic} is no request: nobody waits for a reply to it"
        )
    return cluster + REPLY_TOPIC_SUFFIX


def is_request(message: MessageExt) -> bool:
    """Return whether its sender waits for a reply."""
    return names.REPLY_TO_CLIENT in message.properties and names.CORRELATION_ID in message.properties


def reply_properties(request: MessageExt) -> dict[str, str]:
    """Return the properties by which a reply finds its request."""
    own = request.properties
    found = {
        names.MESSAGE_TYPE: REPLY,
        names.CORRELATION_ID: own[names.CORRELATION_ID],
        names.REPLY_TO_CLIENT: own[names.REPLY_TO_CLIENT],
    }
    return found | ({names.TTL: own[names.TTL]} if names.TTL in own else {})
