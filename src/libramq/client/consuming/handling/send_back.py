"""The send-back: how a message whose handler failed is redelivered later.

Upstream: DefaultMQPushConsumerImpl.sendMessageBack, sendMessageBackAsNormalMessage.
"""

from bisect import bisect_left
from typing import Final

from libramq.client.consuming.consumer_settings import ConsumerSettings
from libramq.client.producing.send_request import Prepared, SendSettings
from libramq.message import properties as names
from libramq.message.message import MessageExt
from libramq.message.names import retry_topic
from libramq.message.properties import properties_to_text
from libramq.remoting.headers import SendBackHeader

#: MixAll.CLIENT_INNER_PRODUCER_GROUP.
INNER_PRODUCER: Final = SendSettings(group="CLIENT_INNER_PRODUCER")
#: The broker's first redelivery has delay level 3 (AbstractSendMessageProcessor).
FIRST_RETRY_LEVEL: Final = 3
#: MessageStoreConfig.messageDelayLevel: level 1 is the first.
DELAY_LEVELS_MS: Final = tuple(
    1000 * seconds
    for seconds in (
        1, 5, 10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200
    )
)  # fmt: skip
#: CONSUMER_SEND_MSG_BACK: the broker chooses by the number of attempts, or makes it a dead letter.
CHOSEN_BY_BROKER: Final = 0
DEAD_LETTER: Final = -1
_PULL_ONLY: Final = (names.MIN_OFFSET, names.MAX_OFFSET, names.TRANSACTION_PREPARED)


def delay_level(after_ms: int | None) -> int:
    """Return the lowest delay level that is at least so long."""
    if after_ms is None:
        return CHOSEN_BY_BROKER
    return min(bisect_left(DELAY_LEVELS_MS, after_ms), len(DELAY_LEVELS_MS) - 1) + 1


def send_back_header(
    message: MessageExt,
    settings: ConsumerSettings,
    delay_level: int,
    *,
    is_counted: bool = True,
    pass_on_ms: int = 0,
) -> SendBackHeader:
    """Return the request by which the broker redelivers its stored message, or makes it a dead letter."""
    return SendBackHeader(
        offset=message.physical_offset,
        group=settings.group,
        delay_level=delay_level,
        origin_msg_id=message.message_id,
        origin_topic=message.topic,
        max_reconsume_times=settings.retries_max,
        lb_uncounted=None if is_counted else True,
        lb_pass_on_ms=pass_on_ms or None,
    )


def retry_copy(message: MessageExt, settings: ConsumerSettings, delay_level: int) -> Prepared:
    """Return a copy for the group's retry topic, as the broker would make it.

    After too many attempts it becomes a dead letter.
    """
    properties = {name: value for name, value in message.properties.items() if name not in _PULL_ONLY}
    properties.setdefault(names.ORIGIN_MESSAGE_ID, message.message_id)
    properties[names.RETRY_TOPIC] = message.topic
    properties[names.DELAY] = str(
        delay_level if delay_level > 0 else FIRST_RETRY_LEVEL + message.reconsume_times
    )
    return Prepared(
        topic=retry_topic(settings.group),
        ids=(message.message_id,),
        properties=properties_to_text(properties),
        body=message.body,
        flag=message.flag,
        reconsume_times=message.reconsume_times + 1,
        max_reconsume_times=0 if delay_level == DEAD_LETTER else settings.retries_max,
    )
