"""The send-back: how a message that a handler failed on is delivered again later.

Upstream: DefaultMQPushConsumerImpl.sendMessageBack, sendMessageBackAsNormalMessage.
"""

from typing import Final

from libramq.client.core.consumer_settings import ConsumerSettings
from libramq.client.core.send_request import Prepared, SendSettings
from libramq.message import properties as names
from libramq.message.message import MessageExt
from libramq.message.names import retry_topic
from libramq.message.properties import properties_to_text
from libramq.remoting.headers import SendBackHeader

#: MixAll.CLIENT_INNER_PRODUCER_GROUP.
INNER_PRODUCER: Final = SendSettings(group="CLIENT_INNER_PRODUCER")
#: The broker's first retry waits as long as delay level 3 says (AbstractSendMessageProcessor).
FIRST_RETRY_LEVEL: Final = 3
_PULL_ONLY: Final = (names.MIN_OFFSET, names.MAX_OFFSET, names.TRANSACTION_PREPARED)


def send_back_header(message: MessageExt, settings: ConsumerSettings) -> SendBackHeader:
    """The request that has the broker redeliver its stored message; level 0: the broker chooses."""
    return SendBackHeader(
        offset=message.physical_offset,
        group=settings.group,
        delay_level=0,
        origin_msg_id=message.message_id,
        origin_topic=message.topic,
        max_reconsume_times=settings.retries_max,
    )


def retry_copy(message: MessageExt, settings: ConsumerSettings) -> Prepared:
    """A copy for the group's retry topic, as the broker would make it."""
    properties = {name: value for name, value in message.properties.items() if name not in _PULL_ONLY}
    properties.setdefault(names.ORIGIN_MESSAGE_ID, message.message_id)
    properties[names.RETRY_TOPIC] = message.topic
    properties[names.DELAY] = str(FIRST_RETRY_LEVEL + message.reconsume_times)
    return Prepared(
        topic=retry_topic(settings.group),
        ids=(message.message_id,),
        properties=properties_to_text(properties),
        body=message.body,
        flag=message.flag,
        reconsume_times=message.reconsume_times + 1,
        max_reconsume_times=settings.retries_max,
    )
